// What holds share: the subscriptions, and what goes on in the background.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Connection, Server } from "./clients.js";
import { isRefusal, mayPass, NativeLockError, NoModule, translated } from "./errors.js";
import type { Hold } from "./hold.js";
import { type Argument, netstrings, now, pauseAfter, shown, slotOf, tagOf, within } from "./wire.js";

const LEAST_VERSION = "0.2.0";
const CLOSE_WITHIN_MS = 5000;
const RELEASE_WITHIN_MS = 500; // How long anybody waits for what is given back, which then goes on.
const SILENCE_MS = 10_000; // How often the server is asked whether the subscription still stands.

/** The subscription to one server, which all waits there share until it breaks. */
export class Listener {
  readonly channels = new Set<string>();

  constructor(private readonly connection: Promise<Connection>) {}

  /** Resolves once the server publishes to us. */
  async subscribe(channel: string): Promise<void> {
    if (!this.channels.has(channel)) await (await this.connection).subscribe(channel);
    this.channels.add(channel);
  }

  /** Rejects when it breaks. */
  async untilBroken(): Promise<void> {
    const { ask, close, closed } = await this.connection;
    const ping = (): unknown => within(ask(["PING"]), SILENCE_MS).catch(close);
    const pinging = setInterval(ping, SILENCE_MS).unref();
    await closed.finally(() => clearInterval(pinging));
  }

  close(): void {
    this.connection.then((connection) => connection.close(), () => {});
  }
}

export class Core {
  readonly holds = new Map<string, Hold>(); // By owner, as long as they wait or hold the lock.
  private readonly listeners = new Map<string, Listener>();
  private readonly channel = `redislock:${randomUUID()}`;
  private readonly background = new Set<Promise<unknown>>();
  private isChecked = false;

  constructor(readonly server: Server, private readonly tell = (error: Error): void => process.emitWarning(error)) {}

  async close(): Promise<void> {
    for (const listener of this.listeners.values()) listener.close();
    await within(Promise.all(this.background), CLOSE_WITHIN_MS).catch(() => {});
  }

  /** Asks once for the module's version, where that is allowed and it has one. */
  async checkVersion(): Promise<void> {
    if (this.isChecked || this.server.isCluster) return;
    this.isChecked = true;
    // Whatever goes wrong here, the acquire will say.
    const info = await within(this.server.ask(["INFO", "lock"]), 1000).catch(() => "");
    const found = /lock_version\W+([\d.]+)/.exec(String(info))?.[1] ?? LEAST_VERSION;
    this.isChecked = found.localeCompare(LEAST_VERSION, "en", { numeric: true }) >= 0;
    if (!this.isChecked) throw new NoModule(`the server's lock module is ${found}: load ${LEAST_VERSION} or later`);
  }

  channelOf(key: Argument): string {
    return this.channel + (this.server.isCluster ? `{${tagOf(slotOf(key))}}` : "");
  }

  /** Whether we have subscribed already to what is told of this key. */
  hears(key: Argument): boolean {
    return this.listeners.get(this.server.nodeOf(key))?.channels.has(this.channelOf(key)) ?? false;
  }

  listenerFor(key: Argument): Listener {
    const node = this.server.nodeOf(key);
    let listener = this.listeners.get(node);
    if (listener === undefined) {
      const hear = (message: Buffer[]): void => this.holds.get(String(message[2]))?.wake(message);
      listener = new Listener(this.server.open(key, (message) => hear(netstrings(message))));
      this.listeners.set(node, listener);
      listener.untilBroken().catch(() => {
        this.listeners.delete(node);
        // Who waits asks again, and subscribes anew.
        for (const hold of this.holds.values()) if (hold.listener === listener) hold.wake();
      });
    }
    return listener;
  }

  /** Sends what gives a lock back until it is answered, or for so long. Resolves with the reply, if one tells what was. */
  async insist(key: Argument, args: () => Argument[], forMs: number): Promise<unknown> {
    const until = now() + forMs;
    let isInDoubt = false;
    for (let failures = 0; ; failures++) {
      try {
        const reply = await this.server.ask(args());
        // An earlier one may have ended what the last one did not find.
        return isInDoubt && reply === null ? undefined : reply;
      } catch (error) {
        isInDoubt ||= !isRefusal(error);
        if (!mayPass(error) || this.server.isEnded() || now() >= until) {
          return this.report(error, `${shown(key)} is left to its lease, not given back`);
        }
      }
      await sleep(pauseAfter(failures), undefined, { ref: false });
    }
  }

  /** Resolves with the reply to what gives a lock back, or with nothing where that is not soon: then it goes on. */
  inBackground(key: Argument, work: Promise<unknown>): Promise<unknown> {
    this.background.add(work);
    void work.finally(() => this.background.delete(work));
    return within(work, RELEASE_WITHIN_MS).catch((error) => this.report(error, `${shown(key)} is not given back yet`));
  }

  report(cause: unknown, what: string): void {
    this.onError(new NativeLockError(`${what}: ${translated(cause)}`, { cause }));
  }

  /** Never throws: what is told of here takes the place of nothing. */
  onError(error: Error): void {
    const telling = new Promise((resolve) => resolve(this.tell(error)));
    const warn = (thrown: unknown) => new NativeLockError(`onError has thrown: ${thrown}`, { cause: error });
    telling.catch((thrown) => process.emitWarning(warn(thrown)));
  }
}
