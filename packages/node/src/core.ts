// What holds share: the subscriptions, and what goes on in the background.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Connection, Server } from "./clients.js";
import { isRefusal, mayPass, NativeLockError, NoModule, translated } from "./errors.js";
import type { Hold } from "./hold.js";
import { type Argument, netstrings, now, pauses, shown, slotOf, tagOf, within } from "./wire.js";

const LEAST_VERSION = "0.2.0";
const CLOSE_WITHIN_MS = 5000;
const SILENCE_MS = 10_000; // How often the server is asked whether the subscription still stands.

/** The subscription to one server, which all waits there share. Where it breaks, who waits asks for it anew. */
export class Ear {
  private connection: Promise<Connection> | undefined;
  private readonly channels = new Map<string, Promise<unknown>>();
  private pinging: NodeJS.Timeout | undefined;

  constructor(private readonly core: Core) {}

  hears(channel: string): boolean {
    return this.channels.has(channel);
  }

  /** Resolves once the server publishes to us. */
  async subscribe(key: Argument, channel: string): Promise<void> {
    const connection = await (this.connection ??= this.open(key));
    if (!this.channels.has(channel)) {
      this.channels.set(channel, connection.subscribe(channel));
      // One that is refused is asked for again by the next.
      this.channels.get(channel)?.catch(() => this.channels.delete(channel));
    }
    await this.channels.get(channel);
  }

  private async open(key: Argument): Promise<Connection> {
    try {
      const hear = (message: Buffer): void => this.core.hear(netstrings(message));
      const connection = await this.core.server.open(key, () => this.end(), hear);
      const ping = (): unknown => within(connection.ask(["PING"]), SILENCE_MS).catch(() => connection.close());
      this.pinging = setInterval(ping, SILENCE_MS).unref();
      return connection;
    } catch (error) {
      this.end();
      throw error;
    }
  }

  private end(): void {
    clearInterval(this.pinging);
    this.connection = undefined;
    this.channels.clear();
    for (const hold of this.core.holds.values()) if (hold.ear === this) hold.wake();
  }

  close(): void {
    this.connection?.then((connection) => connection.close(), () => {});
  }
}

export class Core {
  /** By owner, as long as they wait or hold the lock. */
  readonly holds = new Map<string, Hold>();
  private readonly ears = new Map<string, Ear>();
  private readonly channel = `redislock:${randomUUID()}`;
  private readonly background = new Set<Promise<unknown>>();
  private isChecked = false;

  constructor(readonly server: Server, private readonly tell: (error: Error) => void) {}

  /** Never throws: what is told of here takes the place of nothing. */
  onError(error: Error): void {
    try {
      this.tell(error);
    } catch (thrown) {
      process.emitWarning(new NativeLockError(`onError has thrown: ${thrown}`, { cause: error }));
    }
  }

  async close(): Promise<void> {
    for (const ear of this.ears.values()) ear.close();
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

  earFor(key: Argument): { ear: Ear; channel: string } {
    const node = this.server.nodeOf(key);
    const ear = this.ears.get(node) ?? new Ear(this);
    this.ears.set(node, ear);
    return { ear, channel: this.channel + (this.server.isCluster ? `{${tagOf(slotOf(key))}}` : "") };
  }

  hear([, , owner, result, firstLeaseMs]: Buffer[]): void {
    this.holds.get(String(owner))?.hear(String(result), Number(firstLeaseMs));
  }

  /** Sends what gives a lock back until it is answered, or for so long. Resolves with the reply, if one tells what was. */
  async insist(key: Argument, args: () => Argument[], forMs: number): Promise<unknown> {
    const until = now() + forMs;
    let isInDoubt = false;
    for (const pauseMs of pauses()) {
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
      await sleep(pauseMs, undefined, { ref: false });
    }
  }

  inBackground(work: Promise<unknown>): void {
    const done = work.catch(() => {}).finally(() => this.background.delete(done));
    this.background.add(done);
  }

  report(cause: unknown, what: string): void {
    const error = translated(cause);
    const text = error instanceof Error ? error.message || error.name : String(error);
    this.onError(new NativeLockError(`${what}: ${text}`, { cause }));
  }
}
