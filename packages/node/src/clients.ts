// What this package needs of ioredis (or iovalkey, which is as it) and of node-redis, said in one way.
import { codeOf, NativeLockError } from "./errors.js";
import { type Argument, slotOf, within } from "./wire.js";

type Anything = any;

/** `Redis`, also of Sentinel, or `Cluster` of ioredis 5 or later, or of iovalkey. */
export type IoredisClient = { readonly status: string; call(...args: Anything[]): Anything };
/** What `createClient`, `createClientPool`, `createCluster` or `createSentinel` of node-redis 5 or later returns. */
export type NodeRedisClient = { readonly isOpen: boolean; sendCommand(...args: Anything[]): Anything };
export type Client = IoredisClient | NodeRedisClient;

/** The application's client. */
export interface Server {
  readonly isCluster: boolean;
  isEnded(): boolean; // Whether the application has closed its client.
  ask(args: Argument[]): Promise<unknown>; // Sends a command whose first argument is the key.
  /** The name of the server that this key is at; nothing where there is one alone or where it isn't known. */
  nodeOf(key: Argument): string;
  /** Opens a connection of its own to that server. Once it is closed it is not opened again. */
  open(key: Argument, hear?: (message: Buffer) => void): Promise<Connection>;
}

export interface Connection {
  ask(args: Argument[]): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  close(): void;
  readonly closed: Promise<never>; // Rejects when it is closed.
}

const CONNECT_WITHIN_MS = 5000;
const unknownServer = (): Error => new NativeLockError("the server of this key is not known yet");

export function serverOf(client: Client): Server {
  if ("sendCommand" in client && "isOpen" in client) return nodeRedis(client);
  if ("call" in client) return ioredis(client);
  throw new TypeError("locks are for clients of ioredis, iovalkey and node-redis");
}

/** A connection that is a client of the library, of which an error or such an event is the end. */
async function connected(own: Anything, ask: Connection["ask"], subscribe: Connection["subscribe"]): Promise<Connection> {
  let close = (): void => {};
  const closed = new Promise<void>((resolve) => (close = resolve)).then(() => {
    if (own.status !== undefined) own.disconnect();
    else if (own.isOpen) own.destroy();
    throw new NativeLockError("the connection is closed");
  });
  // An error is one of the connection; the others come where a slot has moved away.
  for (const event of ["error", "end", "moved", "sharded-channel-moved"]) own.on(event, close);
  await within(Promise.race([own.connect(), closed]), CONNECT_WITHIN_MS).catch((error) => {
    close();
    throw error;
  });
  // In ioredis 5 a subscription that is refused because the slot has moved does not end by itself.
  return { ask, subscribe: (channel: string) => Promise.race([subscribe(channel), closed]), close, closed };
}

function ioredis(client: Anything): Server {
  const isCluster: boolean = client.isCluster === true;
  const nodeOf = (key: Argument): string => (isCluster ? (client.slots[slotOf(key)]?.[0] ?? "") : "");
  const primaryOf = (key: Argument): Anything => {
    const name = nodeOf(key);
    return client.nodes("master").find(({ options }: Anything) => `${options.host}:${options.port}` === name);
  };
  return {
    isCluster,
    nodeOf,
    isEnded: () => client.status === "end",
    ask(args) {
      // The cluster does not know where the key stands in such a command, and would ask any node first.
      const node = isCluster ? primaryOf(args[1]!) : undefined;
      if (node === undefined) return client.call(...args);
      return node.call(...args).catch((error: unknown) => {
        if (!["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"].includes(codeOf(error))) throw error;
        return client.call(...args);
      });
    },
    async open(key, hear) {
      const node = isCluster ? primaryOf(key) : client;
      if (node === undefined) throw unknownServer();
      const own = node.duplicate({
        ...{ lazyConnect: true, retryStrategy: null, sentinelRetryStrategy: null, autoResubscribe: false },
        ...{ enableReadyCheck: false, readOnly: false, keyPrefix: "" },
        // It may be silent for long.
        ...{ commandTimeout: undefined, socketTimeout: undefined, blockingTimeout: undefined },
      });
      if (hear !== undefined) {
        for (const event of ["messageBuffer", "smessageBuffer"]) own.on(event, (_: Buffer, it: Buffer) => hear(it));
        own.once("connect", () => own.stream.unref());
      }
      return connected(own, (args) => own.call(...args), (channel) => own[isCluster ? "ssubscribe" : "subscribe"](channel));
    },
  };
}

function nodeRedis(client: Anything): Server {
  const isCluster = typeof client.nodeClient === "function";
  const isSentinel = typeof client.getSentinelNode === "function";
  const primaryOf = (key: Argument): Anything => client.slots[slotOf(key)]?.master;
  // So that replies are as they come, whatever the application makes of its own.
  const plain = { typeMapping: {} };
  return {
    isCluster,
    nodeOf: (key) => (isCluster ? (primaryOf(key)?.address ?? "") : ""),
    isEnded: () => !client.isOpen,
    ask(args) {
      if (isCluster) return client.sendCommand(args[1], false, args, plain);
      if (!isSentinel) return client.sendCommand(args, plain);
      // By itself this client sends again what was not answered, and a first renewal could come after the second.
      let sends = 0;
      return client._execute(false, async (primary: Anything) => {
        if (sends++ > 0 && args[0] === "LOCK.RENEW") throw new NativeLockError("a renewal that failed is not sent again");
        return primary.sendCommand(args, { ...client.commandOptions, ...plain });
      });
    },
    async open(key, hear) {
      if (isCluster && primaryOf(key) === undefined) throw unknownServer();
      let node = isCluster ? await client.nodeClient(primaryOf(key)) : client;
      // Sentinel's client says in no other way which is the one of the present primary.
      if (isSentinel) node = await client._execute(false, async (primary: Anything) => primary);
      else if (typeof client.totalClients === "number") node = await client.execute(async (one: Anything) => one); // a pool
      const own = node.duplicate({
        socket: { ...node.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
        ...{ pingInterval: undefined, disableOfflineQueue: false, readonly: false, commandOptions: {} },
        ...{ clientSideCache: undefined, maintNotifications: "disabled" },
      });
      if (hear !== undefined) own.unref();
      const subscribe = (channel: string) => own[isCluster ? "sSubscribe" : "subscribe"](channel, hear, true);
      return connected(own, (args) => own.sendCommand(args), subscribe);
    },
  };
}
