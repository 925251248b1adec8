// How a lock is waited for: the subscription to a server, and one attempt to take a lock.
import { setTimeout as sleep } from "node:timers/promises";
import type { Connection } from "./clients.js";
import type { Core } from "./core.js";
import { codeOf, isRefusal, LockBusy, mayPass, NativeLockError, NotSafe, translated } from "./errors.js";
import { type Argument, netstrings, now, pauses, type Request, shown, validUntil, within } from "./wire.js";

const PLACE_MAX_MS = 300_000; // A place is asked for so long, again and again.
const ASK_AGAIN_MS = 10_000; // How often a place is asked for again while nothing is heard: a message may be lost.
const SILENCE_MS = 10_000; // How often the server is asked whether the subscription still stands.
const REPLY_WITHIN_MS = 5000; // How long who does not wait for the lock waits for the answer.
const REPLY_MIN_MS = 500; // And who waits for less than this.
export const RELEASE_WITHIN_MS = 500; // How long anybody waits for what is given back, which then goes on.

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
    for (const wait of this.core.waits.values()) if (wait.ear === this) wait.wake();
  }

  close(): void {
    this.connection?.then((connection) => connection.close(), () => {});
  }
}

/** A hold that the server told of: granted no earlier than `since`, and `leaseMs` is relied upon from then on. */
export type Grant = { readonly token: number; readonly since: number; readonly leaseMs: number };

/** One attempt to take a lock. */
export class Attempt {
  ear: Ear | undefined;
  wake = (): void => {};
  private told: { result: string; leaseMs: number } | undefined;
  private readonly firstSent = now();
  /** Whether the server may have a place or a hold for it. */
  private isInDoubt = false;
  /** The command that was asked last: nothing is given up before it has ended. */
  private underWay: Promise<unknown> = Promise.resolve();
  private blocked: Connection | undefined;
  /** Whether nobody waits for it any more. */
  private isOver = false;

  constructor(private readonly core: Core, private readonly request: Request) {
    core.waits.set(request.owner, this);
  }

  /** Rejects with `LockBusy` where it was not to be had in time, and at once if the signal aborts. */
  take(signal?: AbortSignal): Promise<Grant> {
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        this.isOver = true;
        this.wake();
        this.blocked?.close();
        this.core.inBackground(work);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort);
      // It may be granted in the moment in which it is cancelled.
      const work = this.work()
        .then((grant) => (this.isOver ? this.giveUp() : resolve(grant)), reject)
        .finally(() => signal?.removeEventListener("abort", abort));
    });
  }

  /** Takes a message. A late end of an earlier place does not hide a grant. */
  hear(result: string, leaseMs: number): void {
    if (Number(result) > 0 || this.told === undefined) this.told = { result, leaseMs };
    this.wake();
  }

  private async work(): Promise<Grant> {
    const checked = this.core.checkVersion(this.request.key);
    try {
      const grant = await this.untilTold();
      await checked;
      return grant;
    } catch (error) {
      await within(this.giveUp(), RELEASE_WITHIN_MS).catch(() => {});
      throw error;
    }
  }

  private async untilTold(): Promise<Grant> {
    const pause = pauses();
    for (;;) {
      try {
        const grant = await this.once();
        if (grant !== null) return grant;
        if (this.leftMs() <= 0) throw new LockBusy(`the lock ${shown(this.request.key)} is busy`);
      } catch (cause) {
        const error = translated(cause);
        if (this.isOver || !mayPass(error) || this.leftMs() <= 0 || this.core.server.isEnded()) throw error;
        // It may be at a server that is no primary any more.
        if (!(error instanceof NotSafe)) this.ear?.close();
        await sleep(Math.min(pause.next().value, this.leftMs()));
      }
    }
  }

  private async once(): Promise<Grant | null> {
    const { ear, channel } = this.core.earFor(this.request.key);
    if (this.leftMs() <= 0 || !ear.hears(channel)) {
      // Who does not wait needs no subscription. And by a command the client learns where the key is now.
      const grant = await this.try();
      if (grant !== null || this.leftMs() <= 0) return grant;
    }
    return this.queue().catch((error) => {
      if (codeOf(error) !== "NOPERM") throw error;
      return this.block();
    });
  }

  private leftMs(): number {
    return this.firstSent + this.request.waitMs - now();
  }

  private replyMs(): number {
    return this.request.waitMs === 0 ? REPLY_WITHIN_MS : Math.max(this.leftMs(), REPLY_MIN_MS);
  }

  private async ask(args: Argument[], connection?: Connection): Promise<unknown> {
    if (this.isOver) throw new NativeLockError("nobody waits for it any more");
    const asking = connection === undefined ? this.core.server.ask(this.request.key, args) : connection.ask(args);
    this.underWay = asking;
    try {
      const reply = await within(asking, this.replyMs() + (connection === undefined ? 0 : REPLY_WITHIN_MS));
      this.isInDoubt ||= reply !== null;
      return reply;
    } catch (error) {
      this.isInDoubt ||= !isRefusal(error);
      throw error;
    }
  }

  private async try(how = "", ms = 0, ...channel: string[]): Promise<Grant | null> {
    const since = now();
    const token = Number(await this.ask(this.request.acquire(how, ms, ...channel)));
    return token > 0 ? { token, since, leaseMs: this.request.leaseMs } : null;
  }

  /** Waits by a place in the queue. Resolves with null where it is to be asked for again. */
  private async queue(): Promise<Grant | null> {
    const { ear, channel } = this.core.earFor(this.request.key);
    const woken = new Promise<void>((resolve) => (this.wake = resolve));
    this.ear = ear;
    this.told = undefined;
    await within(ear.subscribe(this.request.key, channel), this.replyMs());
    const grant = await this.try("QUEUE", Math.min(PLACE_MAX_MS, this.leftMs()), channel);
    if (grant !== null) return grant;
    await within(woken, Math.min(ASK_AGAIN_MS, this.leftMs())).catch(() => {});
    const { result, leaseMs } = this.told ?? { result: "0", leaseMs: 0 };
    if (result.startsWith("-")) {
      const error = new NativeLockError(result.slice(1));
      // A refusal leaves nothing, and what there is then is another's of this name.
      this.isInDoubt = !isRefusal(error);
      throw error;
    }
    if (Number(result) > 0) return this.claim(Number(result), Math.min(leaseMs, this.request.leaseMs));
    // Its time is over, or the server has forgotten it, or nothing was heard.
    await sleep(10);
    return null;
  }

  private async claim(token: number, firstLeaseMs: number): Promise<Grant | null> {
    const { firstSent: since, request } = this;
    // In a cluster other nodes of a shard pass on what their primary may have taken back: there it claims first.
    const isLong = validUntil(since, firstLeaseMs) - now() >= firstLeaseMs / 4;
    if (isLong && !this.core.server.isCluster) return { token, since, leaseMs: firstLeaseMs };
    const sent = now();
    const isClaimed = Number(await this.ask(request.renewal(token, request.leaseMs))) === 1;
    return isClaimed ? { token, since: sent, leaseMs: request.leaseMs } : null;
  }

  /** Waits by blocking a connection of its own, for users who may not subscribe. */
  private async block(): Promise<Grant | null> {
    const opening = this.core.server.open(this.request.key, () => {});
    try {
      this.blocked = await within(opening, this.replyMs());
      const token = Number(await this.ask(this.request.acquire("BLOCK", this.leftMs()), this.blocked));
      return token > 0 ? await this.claim(token, this.request.leaseMs) : null;
    } finally {
      opening.then((connection) => connection.close(), () => {});
    }
  }

  private async giveUp(): Promise<void> {
    this.core.waits.delete(this.request.owner);
    if (!this.isInDoubt) return;
    this.isInDoubt = false;
    await this.underWay.catch(() => {});
    await this.core.insist(this.request.key, this.request.release(), Math.max(this.request.leaseMs, PLACE_MAX_MS));
  }
}
