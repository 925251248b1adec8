// Servers with the lock module, started here, and clients of every library.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { Cluster, Redis } from "ioredis";
import { Redis as Redis5, Cluster as Cluster5 } from "ioredis-5";
import { Redis as Valkey } from "iovalkey";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import { createClient as createClient5, createCluster as createCluster5, createSentinel as createSentinel5 } from "redis-5";
import type { Client } from "redis-native-lock";

const BINARY = process.env.REDISLOCK_SERVER ?? "redis-server";
const MODULE = process.env.REDISLOCK_MODULE ?? "../../target/release/libredislock.so";

/** Looks again and again until it is so. */
export async function until<T>(what: () => T | Promise<T>, ms = 20_000): Promise<NonNullable<T>> {
  for (const end = performance.now() + ms; ; await sleep(2)) {
    const found = await what();
    if (found) return found;
    if (performance.now() > end) throw new Error(`it never came to ${what}`);
  }
}

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  const { port } = listener.address() as AddressInfo;
  await new Promise((resolve) => listener.close(resolve));
  // A node of a cluster listens 10000 above, too.
  return port < 55_000 ? port : freePort();
}

export class Server implements AsyncDisposable {
  readonly dir = mkdtempSync(`${tmpdir()}/lock-`);
  port = 0;
  redis!: Redis;
  log = "";
  private process!: ChildProcess;

  private constructor(private readonly options: string[]) {}

  static async start(...options: string[]): Promise<Server> {
    const server = new Server([...options, "--loadmodule", MODULE]);
    for (let attempt = 0; attempt < 10; attempt++) {
      server.port = await freePort();
      if (await server.startAgain()) return server;
    }
    throw new Error(`the server does not start: ${server.log}`);
  }

  async startAgain(): Promise<boolean> {
    const at = ["--port", String(this.port), "--bind", "127.0.0.1", "--dir", this.dir];
    const child = spawn(BINARY, [...at, "--save", "", ...this.options]);
    this.process = child;
    child.stdout.on("data", (data) => (this.log = String(data)));
    this.redis = new Redis({ port: this.port, retryStrategy: () => 20, connectTimeout: 1000 }).on("error", () => {});
    return until(async () => {
      if (child.exitCode !== null) return "ended";
      const info = await Promise.race([this.redis.info("server").catch(() => ""), sleep(100, "")]);
      return info.includes(`process_id:${child.pid}\r`) && "started";
    }).then((outcome) => outcome === "started" || (this.redis.disconnect(), false));
  }

  async lock(key: string | Buffer): Promise<Record<string, unknown>> {
    const flat = (await this.redis.call("LOCK.INFO", key)) as unknown[];
    return Object.fromEntries(flat.map((_, at) => [flat[at], flat[at + 1]]).filter((_, at) => at % 2 === 0));
  }

  async isFree(key: string | Buffer): Promise<boolean> {
    const { holding, waiting } = await this.lock(key);
    return holding === 0 && waiting === 0;
  }

  /** A number of INFO, such as the count of places. */
  async count(name: string): Promise<number> {
    return Number(new RegExp(`${name}:(\\d+)`).exec(await this.redis.info("everything"))?.[1]);
  }

  places(): Promise<number> {
    return this.count("lock_places");
  }

  async subscribers(): Promise<number> {
    const own = (await this.redis.call("PUBSUB", "CHANNELS", "redislock:*")) as unknown[];
    return own.length + ((await this.redis.call("PUBSUB", "SHARDCHANNELS", "redislock:*")) as unknown[]).length;
  }

  async kill(): Promise<void> {
    this.redis.disconnect();
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const ended = new Promise((resolve) => this.process.once("exit", resolve));
      this.process.kill("SIGKILL");
      await ended;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}

export interface Made extends Disposable {
  readonly client: Client;
}

const ignore = (): void => {};
type Make = (port: number) => Promise<Made>;

function ofIoredis(Kind: typeof Redis | typeof Redis5 | typeof Valkey, options: object = {}): Make {
  return async (port) => {
    const client = new (Kind as typeof Redis)({ port, ...options }).on("error", ignore);
    return { client, [Symbol.dispose]: () => void (client.disconnect()) };
  };
}

function ofNodeRedis(create: typeof createClient | typeof createClient5, options: object = {}): Make {
  return async (port) => {
    const client = (create as typeof createClient)({ socket: { port }, ...options }).on("error", ignore);
    await client.connect();
    return { client, [Symbol.dispose]: () => void (client.isOpen && client.destroy()) };
  };
}

export const libraries: Record<string, Make> = {
  ioredis: ofIoredis(Redis),
  "node-redis": ofNodeRedis(createClient),
};

export const allLibraries: Record<string, Make> = {
  ...libraries,
  "ioredis with RESP2 and numbers as strings": ofIoredis(Redis, { protocol: 2, stringNumbers: true, keyPrefix: "app:" }),
  "ioredis with automatic pipelines": ofIoredis(Redis, { enableAutoPipelining: true, commandTimeout: 5000 }),
  "ioredis 5": ofIoredis(Redis5),
  iovalkey: ofIoredis(Valkey),
  "node-redis with RESP2": ofNodeRedis(createClient, { RESP: 2, commandOptions: { typeMapping: { 58: String } } }),
  "node-redis 5": ofNodeRedis(createClient5),
  async "node-redis' pool"(port) {
    const client = createClientPool({ socket: { port } }).on("error", ignore);
    await client.connect();
    return { client, [Symbol.dispose]: () => client.destroy() };
  },
};

function clusterOfIoredis(Kind: typeof Cluster | typeof Cluster5): Make {
  return async (port) => {
    const client = new (Kind as typeof Cluster)([{ host: "127.0.0.1", port }]);
    return { client, [Symbol.dispose]: () => void (client.disconnect()) };
  };
}

function clusterOfNodeRedis(create: typeof createCluster | typeof createCluster5): Make {
  return async (port) => {
    const client = (create as typeof createCluster)({ rootNodes: [{ socket: { port } }] }).on("error", ignore);
    await client.connect();
    return { client, [Symbol.dispose]: () => void (client.destroy()) };
  };
}

export const clusterLibraries: Record<string, Make> = {
  ioredis: clusterOfIoredis(Cluster),
  "ioredis 5": clusterOfIoredis(Cluster5),
  "node-redis": clusterOfNodeRedis(createCluster),
  "node-redis 5": clusterOfNodeRedis(createCluster5),
};

/** A client that goes by a Sentinel, started here, to the primary at that port. */
function bySentinel(create: typeof createSentinel | typeof createSentinel5): Make {
  return async (primary) => {
    const dir = mkdtempSync(`${tmpdir()}/lock-`);
    const port = await freePort();
    writeFileSync(`${dir}/conf`, `port ${port}\nbind 127.0.0.1\nsentinel monitor name 127.0.0.1 ${primary} 1\n`);
    const child = spawn(BINARY, [`${dir}/conf`, "--sentinel"]);
    const asking = new Redis({ port, retryStrategy: () => 20 }).on("error", ignore);
    await asking.ping();
    asking.disconnect();
    const sentinelRootNodes = [{ host: "127.0.0.1", port }];
    const client = (create as typeof createSentinel)({ name: "name", sentinelRootNodes }).on("error", ignore);
    await client.connect();
    const end = (): void => {
      void client.destroy();
      child.kill("SIGKILL");
      rmSync(dir, { recursive: true, force: true });
    };
    return { client, [Symbol.dispose]: end };
  };
}

export const sentinelLibraries: Record<string, Make> = {
  "node-redis": bySentinel(createSentinel),
  "node-redis 5": bySentinel(createSentinel5),
};

/** Three primaries. */
export async function startCluster(): Promise<Server[]> {
  const nodes = await Promise.all([1, 2, 3].map(() => Server.start("--cluster-enabled", "yes")));
  const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`);
  execFileSync("redis-cli", ["--cluster", "create", ...addresses, "--cluster-yes"]);
  for (const node of nodes) await until(async () => (await node.redis.cluster("INFO")).includes("cluster_state:ok"));
  return nodes;
}
