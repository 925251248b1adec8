// A lock from its first request to its release: how it is waited for, kept up and given back.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Connection } from "./clients.js";
import type { Core, Listener } from "./core.js";
import { codeOf, isRefusal, LockBusy, LockLost, mayPass, NativeLockError, translated } from "./errors.js";
import type { LockOptions } from "./index.js";
import { type Argument, checkedLease, now, pauseAfter, shown, TIMER_MAX_MS, validUntil, wholeMs, within } from "./wire.js";

const PLACE_MAX_MS = 300_000; // A place is asked for so long, again and again.
const ASK_AGAIN_MS = 10_000; // How often a place is asked for again while nothing is heard: a message may be lost.
const REPLY_WITHIN_MS = 5000; // How long who does not wait for the lock waits for the answer.
const REPLY_MIN_MS = 500; // And who waits for less than this.
const LATE_MS = 40; // What took longer to be answered may have been sent late, or again: ioredis does that after 50 ms.
const CLAIM_AFTER_MS = 20; // When a short first lease is claimed. Work that is done sooner spares that.
const PAUSE_MAX_MS = 1000; // Before a renewal that failed is tried again.

/** What is asked for. */
export type Request = Required<Omit<LockOptions, "shared" | "limit" | "signal">> & { key: Argument; mode: string[] };

/** A lock that is held. */
export class Hold implements AsyncDisposable {
  readonly key: string | Buffer = this.request.key;
  /** A name that never asked before: so a grant comes after the request was sent. */
  readonly owner: string = randomUUID();
  /** Rises with every new holder: hand it to what you write to. */
  readonly token: number = 0;
  /** Why it was lost, if it was. */
  loss: LockLost | undefined;
  /** @internal Ends what the wait waits for just now: by a message, or so that the lock is asked for again. */
  wake: (message?: Buffer[]) => void = () => {};
  /** @internal The subscription by which it hears. */
  listener: Listener | undefined;
  private readonly firstSent = now();
  private isThere = Promise.resolve(false); // Whether the server has a place or a hold for it, once what was sent last has ended.
  private isCutOff = false; // Whether a request of it got no answer: it may come yet.
  private renewed: Promise<unknown> = this.isThere; // Settled when no renewal is under way.
  private leaseMs = this.request.lease;
  private unansweredMs = Infinity; // The shortest lease of a renewal that was not answered soon: it may come yet, if only again.
  private validUntil = Infinity;
  private renewAt = Infinity;
  private keptUntil = 0;
  private timer: NodeJS.Timeout | undefined;
  private isOver = false;
  private controller: AbortController | undefined;

  /** @internal */
  constructor(private readonly core: Core, private readonly request: Request, private readonly outer?: AbortSignal) {
    core.holds.set(this.owner, this);
  }

  /** @internal Rejects with `LockBusy` where it did not come free in time, and at once if the signal aborts. */
  async take(signal?: AbortSignal): Promise<Hold> {
    let abort = (): void => {};
    const aborted = new Promise<never>((_, reject) => (abort = () => reject(signal?.reason)));
    signal?.addEventListener("abort", abort);
    try {
      await Promise.race([Promise.all([this.core.checkVersion(), this.untilHeld()]), aborted]);
      this.keptUntil = now() + this.request.atLeast;
      return this;
    } catch (error) {
      this.end();
      const givingUp = this.isThere.then((isThere) => isThere && this.giveBack());
      const givenUp = this.core.inBackground(this.key, givingUp);
      if (!signal?.aborted) await givenUp;
      throw translated(error);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  private async untilHeld(): Promise<void> {
    for (let failures = 0; this.token === 0; ) {
      try {
        // Who does not wait needs no subscription. And by a command the client learns where the key is now.
        if (this.leftMs() <= 0 || !this.core.hears(this.key)) await this.ask();
        if (this.token === 0 && this.leftMs() > 0) await this.queue();
      } catch (error) {
        const pauseMs = pauseAfter(failures++);
        if (this.isOver || !mayPass(error) || this.leftMs() <= pauseMs || this.core.server.isEnded()) throw error;
        // It may be at a server that is no primary any more.
        this.listener?.close();
        await sleep(pauseMs);
      }
      if (this.token === 0 && this.leftMs() <= 0) throw new LockBusy(`the lock ${shown(this.key)} is busy`);
    }
  }

  private leftMs(): number {
    return this.firstSent + this.request.wait - now();
  }

  private replyMs(): number {
    return this.request.wait === 0 ? REPLY_WITHIN_MS : Math.max(this.leftMs(), REPLY_MIN_MS);
  }

  /** Asks for the lock. A token that is replied has its full lease: from its request on, whenever the reply comes. */
  private async ask(how: string[] = [], by: Pick<Connection, "ask"> = this.core.server, replyMs = this.replyMs()) {
    if (this.isOver) throw new NativeLockError("nobody waits for it any more");
    const sent = now();
    // With HOLD 1 it does no harm that it is sent again.
    const lease = ["LEASE", wholeMs(this.leaseMs), "HOLD", "1"];
    const asking = by.ask(["LOCK.ACQUIRE", this.key, this.owner, ...lease, ...how, ...this.request.mode]);
    const before = this.isThere;
    const isNow = asking.then((reply) => reply !== null, (error) => (this.isCutOff ||= !isRefusal(error)));
    this.isThere = isNow.then((isThere) => isThere || before);
    const token = Number(await within(asking, replyMs));
    if (token > 0) this.begin(token, sent, this.leaseMs);
    return token;
  }

  /** Waits by a place in the queue. It is to be asked for again where that ends without a grant. */
  private async queue(): Promise<void> {
    const woken = new Promise<Buffer[]>((resolve) => (this.wake = (message = []) => resolve(message)));
    const channel = this.core.channelOf(this.key);
    this.listener = this.core.listenerFor(this.key);
    try {
      await within(this.listener.subscribe(channel), this.replyMs());
      if ((await this.ask(["QUEUE", wholeMs(Math.min(PLACE_MAX_MS, this.leftMs())), channel])) > 0) return;
      const message = await within(woken, Math.min(ASK_AGAIN_MS, this.leftMs())).catch((): Buffer[] => []);
      const result = String(message[3] ?? "0");
      const leaseMs = Math.min(this.leaseMs, Number(message[4]));
      if (result.startsWith("-")) {
        const error = new NativeLockError(result.slice(1));
        // A refusal leaves nothing, and what there is then is another's of this name.
        this.isThere = Promise.resolve(!isRefusal(error));
        throw error;
      }
      const isLong = validUntil(this.firstSent, leaseMs) - now() >= leaseMs / 4;
      // Its time is over, or the server has forgotten it, or nothing was heard.
      if (Number(result) === 0) await sleep(10);
      // Work begins before the claim where the wait was short; else the lock is asked for again. That is also so in a
      // cluster, where other nodes of a shard pass on what their primary may have taken back.
      else if (isLong && !this.core.server.isCluster) this.begin(Number(result), this.firstSent, leaseMs);
    } catch (error) {
      if (codeOf(error) !== "NOPERM") throw error;
      await this.block();
    }
  }

  /** Waits by blocking a connection of its own, for users who may not subscribe. */
  private async block(): Promise<void> {
    const opening = this.core.server.open(this.key);
    try {
      const connection = await within(opening, this.replyMs());
      this.wake = connection.close;
      const how = ["BLOCK", this.request.wait === Infinity ? "0" : wholeMs(this.leftMs())];
      await this.ask(how, connection, this.replyMs() + REPLY_WITHIN_MS);
    } finally {
      opening.then((connection) => connection.close(), () => {});
    }
  }

  /** It is held, and this lease relied upon, from `since` on, unless it is over already. */
  private begin(token: number, since: number, leaseMs: number): void {
    if (validUntil(since, leaseMs) <= now()) return;
    (this as { token: number }).token = token;
    this.validUntil = validUntil(since, leaseMs);
    this.plan(leaseMs < this.leaseMs ? now() + Math.min(CLAIM_AFTER_MS, leaseMs / 16) : this.nextRenewal(since));
  }

  /** How many milliseconds the hold can be relied upon, if no renewal succeeds. */
  validFor(): number {
    return this.look() ? 0 : this.validUntil - now();
  }

  /** Aborts with `LockLost` when the lock is lost; the one that `using` hands on, also with the signal it was given. */
  get signal(): AbortSignal {
    // Made where it is asked for: it costs more than all else here.
    if (this.controller === undefined) {
      this.controller = new AbortController();
      if (!this.isOver) this.outer?.addEventListener("abort", this.abort);
      if (this.loss !== undefined || this.outer?.aborted) this.abort();
    }
    return this.controller.signal;
  }

  private readonly abort = (): void => this.controller?.abort(this.loss ?? this.outer?.reason);

  private nextRenewal(sent: number): number {
    return this.request.renew ? sent + Math.min(this.leaseMs, this.unansweredMs) / 3 : Infinity;
  }

  /** Renews it then, and looks when its lease is over. */
  private plan(renewAt: number): void {
    clearTimeout(this.timer);
    this.renewAt = renewAt;
    const ms = Math.ceil(Math.min(this.validUntil, renewAt) - now());
    if (!this.isOver) this.timer = setTimeout(() => this.tick(), Math.min(ms, TIMER_MAX_MS)).unref();
  }

  private tick(): void {
    const isTime = !this.look() && now() >= this.renewAt;
    this.plan(isTime ? Infinity : this.renewAt);
    if (isTime) this.renew().catch((error) => this.tryAgain(error));
  }

  private tryAgain(error: unknown): void {
    if (this.isOver) return;
    this.core.report(error, `${shown(this.key)} is not renewed yet`);
    const pauseMs = Math.min(PAUSE_MAX_MS, this.validFor() / 8) * (0.5 + Math.random() / 2);
    this.plan(this.core.server.isEnded() ? Infinity : now() + pauseMs);
  }

  /** Returns whether it is over, and tells so if that is new. */
  private look(): boolean {
    if (now() >= this.validUntil) this.lose("its lease was not renewed in time");
    return this.isOver;
  }

  private end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
    this.outer?.removeEventListener("abort", this.abort);
    this.core.holds.delete(this.owner);
    this.wake();
  }

  private lose(why: string): void {
    if (this.isOver) return;
    this.end();
    this.loss = new LockLost(`the lock ${shown(this.key)} is lost: ${why}`);
    this.abort();
    this.core.onError(this.loss);
    // A renewal that got no answer may come late. What is not renewed ends by itself.
    if (this.request.renew) void this.core.inBackground(this.key, this.renewed.then(() => this.giveBack()));
  }

  /** Renews it now; a lease that is given here is kept up from now on. Rejects with `LockLost`. */
  renew(lease?: number): Promise<void> {
    const renewing = this.renewed.then(() => this.renewOnce(checkedLease(lease ?? this.leaseMs)));
    this.renewed = renewing.catch(() => {});
    return renewing;
  }

  private async renewOnce(leaseMs: number): Promise<void> {
    const sent = now();
    const { unansweredMs: beforeMs, validUntil: until } = this;
    if (!this.look()) {
      this.unansweredMs = Math.min(beforeMs, leaseMs);
      // Until it is answered the shorter of the two leases is relied upon.
      this.validUntil = Math.min(this.validUntil, validUntil(sent, leaseMs));
      this.plan(this.renewAt);
      const reply = await within(this.core.server.ask(this.renewing(leaseMs)), this.validUntil - sent).catch((error) => {
        if (isRefusal(error) && now() - sent < LATE_MS) {
          this.unansweredMs = beforeMs;
          this.validUntil = until;
        }
        this.plan(Math.min(this.renewAt, this.nextRenewal(sent)));
        if (!this.look()) throw translated(error);
      });
      if (Number(reply) === 0) this.lose("the server does not know this hold any more");
    }
    if (this.look()) throw this.loss ?? new LockLost(`the lock ${shown(this.key)} was released`);
    // The client library may have sent it again by itself, and the first one may come yet.
    if (now() - sent < LATE_MS) this.unansweredMs = beforeMs;
    this.leaseMs = leaseMs;
    this.validUntil = validUntil(sent, Math.min(leaseMs, beforeMs));
    this.plan(this.nextRenewal(sent));
  }

  /** Ends it. Resolves, and never rejects, with false where it was over or that is not known soon: then it goes on. */
  async release(): Promise<boolean> {
    if (this.look()) return false;
    this.end();
    // A renewal that comes after it would keep the lock for a lease.
    const ready = this.request.atLeast > 0 ? this.renewed : Promise.resolve();
    const reply = Number(await this.core.inBackground(this.key, ready.then(() => this.giveBack())));
    if (reply === 0) this.core.onError(new LockLost(`the lock ${shown(this.key)} was over before its work`));
    return reply === 1;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** Gives it back at once, or after so long. Without a token that gives up a place, and a hold that was not told of. */
  private async giveBack(): Promise<unknown> {
    const sent = now();
    const fence = this.token === 0 ? [] : ["FENCE", String(this.token)];
    const args = (): Argument[] =>
      this.keptUntil > now() ? this.renewing(this.keptUntil - now()) : ["LOCK.RELEASE", this.key, this.owner, ...fence];
    const insist = () => this.core.insist(this.key, args, this.token === 0 ? Math.max(this.leaseMs, PLACE_MAX_MS) : this.leaseMs);
    const reply = await insist();
    // A client library that was not connected has sent it late, so that it would keep the lock for longer.
    if (this.keptUntil > sent && now() - sent > LATE_MS) void this.core.inBackground(this.key, insist());
    // What was sent over a connection that is closed may come after what is sent over another.
    if (this.isCutOff) void sleep(PAUSE_MAX_MS, undefined, { ref: false }).then(() => this.core.server.isEnded() || insist());
    return reply;
  }

  private renewing(leaseMs: number): Argument[] {
    return ["LOCK.RENEW", this.key, this.owner, "LEASE", wholeMs(leaseMs), "FENCE", String(this.token)];
  }
}
