// What holds and waits share.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Server } from "./clients.js";
import { mayPass, NativeLockError, NoModule, translated } from "./errors.js";
import { type Attempt, Ear } from "./waiting.js";
import { type Argument, now, pauses, shown, slotOf, tagOf, within } from "./wire.js";

const LEAST_VERSION = "0.2.0";
const CLOSE_WITHIN_MS = 5000;

export class Core {
  /** By owner, as long as they wait or hold the lock: messages may come late. */
  readonly waits = new Map<string, Attempt>();
  private readonly ears = new Map<string, Ear>();
  private readonly channel = `redislock:${randomUUID()}`;
  private readonly background = new Set<Promise<unknown>>();
  private checking: Promise<void> | undefined;

  constructor(readonly server: Server, readonly onError: (error: Error) => void) {}

  async close(): Promise<void> {
    for (const ear of this.ears.values()) ear.close();
    await within(Promise.all(this.background), CLOSE_WITHIN_MS).catch(() => {});
  }

  /** Asks once for the module's version, where that is allowed and it has one. */
  checkVersion(key: Argument): Promise<void> {
    this.checking ??= this.askVersion(key);
    this.checking.catch(() => (this.checking = undefined));
    return this.checking;
  }

  private async askVersion(key: Argument): Promise<void> {
    if (this.server.isCluster) return;
    // Whatever goes wrong here, the acquire will say.
    const info = await within(this.server.ask(key, ["INFO", "lock"]), 1000).catch(() => "");
    const found = /lock_version\W+([\d.]+)/.exec(String(info))?.[1] ?? LEAST_VERSION;
    if (found.localeCompare(LEAST_VERSION, "en", { numeric: true }) >= 0) return;
    throw new NoModule(`the server's lock module is ${found}: load ${LEAST_VERSION} or later`);
  }

  earFor(key: Argument): { ear: Ear; channel: string } {
    const node = this.server.nodeOf(key);
    const ear = this.ears.get(node) ?? new Ear(this);
    this.ears.set(node, ear);
    return { ear, channel: this.channel + (this.server.isCluster ? `{${tagOf(slotOf(key))}}` : "") };
  }

  hear([, key, owner, result, leaseMs]: Buffer[]): void {
    if (!key || !owner || !result) return;
    const wait = this.waits.get(String(owner));
    wait?.hear(String(result), Number(leaseMs));
    // Nobody waits for it any more.
    const release = ["LOCK.RELEASE", key, owner, "FENCE", result];
    if (!wait && Number(result) > 0) this.inBackground(this.insist(key, release, Number(leaseMs)));
  }

  /** Sends what gives a lock back until it is answered, or for so long. Resolves with the reply, if there is one. */
  async insist(key: Argument, args: Argument[], forMs: number): Promise<unknown> {
    const until = now() + forMs;
    for (const pauseMs of pauses()) {
      try {
        return await this.server.ask(key, args);
      } catch (error) {
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
