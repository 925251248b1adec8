// A lock from its first request to its release: how it is waited for, kept up and given back.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Connection } from "./clients.js";
import type { Core, Ear } from "./core.js";
import { codeOf, isRefusal, LockBusy, LockLost, mayPass, NativeLockError, translated } from "./errors.js";
import type { LockOptions } from "./index.js";
import { type Argument, checkedLease, now, pauses, shown, validUntil, wholeMs, within } from "./wire.js";

const PLACE_MAX_MS = 300_000; // A place is asked for so long, again and again.
const ASK_AGAIN_MS = 10_000; // How often a place is asked for again while nothing is heard: a message may be lost.
const REPLY_WITHIN_MS = 5000; // How long who does not wait for the lock waits for the answer.
const REPLY_MIN_MS = 500; // And who waits for less than this.
const RELEASE_WITHIN_MS = 500; // How long anybody waits for what is given back, which then goes on.
const CLAIM_AFTER_MS = 20; // When a short first lease is claimed. Work that is done sooner spares that.
const LATE_MS = 100; // An answer that took so long.
const PAUSE_MAX_MS = 1000; // Before a renewal that failed is tried again.

type Times = "lease" | "wait" | "atLeast" | "renew";
/** What is asked for. */
export type Request = Required<Pick<LockOptions, Times>> & { key: Argument; mode: string[] };

/** A lock that is held. */
export class Hold implements AsyncDisposable {
  readonly key: string | Buffer = this.request.key;
  /** A name that never asked before: so a grant comes after the request was sent. */
  readonly owner: string = randomUUID();
  /** Rises with every new holder: hand it to what you write to. */
  readonly token: number = 0;
  /** Why it was lost, if it was. */
  loss: LockLost | undefined;
  /** @internal */
  ear: Ear | undefined;
  /** @internal */
  wake = (): void => {};
  private told = "";
  private firstLeaseMs = 0;
  private readonly firstSent = now();
  private grantedAt = 0;
  /** Whether the server may have a place or a hold for it. */
  private isInDoubt = false;
  /** The command that was sent last: nothing is given up, and nothing renewed, before it has ended. */
  private underWay: Promise<unknown> = Promise.resolve();
  private leaseMs = this.request.lease;
  /** The shortest lease of a renewal that was not answered: it may come late. */
  private unansweredMs = Infinity;
  private validUntil = Infinity;
  private renewAt = Infinity;
  private timer: NodeJS.Timeout | undefined;
  private isOver = false;
  private controller: AbortController | undefined;

  /** @internal */
  constructor(
    private readonly core: Core,
    private readonly request: Request,
    private readonly outer?: AbortSignal,
  ) {
    core.holds.set(this.owner, this);
  }

  /** With HOLD 1 it does no harm that it is sent again. */
  private acquiring(how: string[]): Argument[] {
    const lease = ["LEASE", wholeMs(this.leaseMs), "HOLD", "1"];
    return ["LOCK.ACQUIRE", this.key, this.owner, ...lease, ...how, ...this.request.mode];
  }

  private renewing(leaseMs: number): Argument[] {
    return ["LOCK.RENEW", this.key, this.owner, "LEASE", wholeMs(leaseMs), "FENCE", String(this.token)];
  }

  /** Without a token it gives up a place, and a hold that was not told of. */
  private releasing(): Argument[] {
    return ["LOCK.RELEASE", this.key, this.owner, ...(this.token === 0 ? [] : ["FENCE", String(this.token)])];
  }

  /** @internal Rejects with `LockBusy` where it was not to be had in time, and at once if the signal aborts. */
  take(signal?: AbortSignal): Promise<Hold> {
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        this.end();
        this.wake();
        this.core.inBackground(work);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort);
      const work = Promise.all([this.core.checkVersion(), this.untilHeld()])
        .finally(() => signal?.removeEventListener("abort", abort))
        // It may be granted in the moment in which it is cancelled, or be lost already.
        .then(() => (this.look() ? this.giveUp().then(() => reject(this.loss)) : resolve(this)))
        .catch(async (error) => {
          await within(this.giveUp(), RELEASE_WITHIN_MS).catch(() => {});
          reject(error);
        });
    });
  }

  private async giveUp(): Promise<void> {
    this.end();
    if (!this.isInDoubt) return;
    await this.underWay;
    await this.core.insist(this.key, () => this.releasing(), Math.max(this.leaseMs, PLACE_MAX_MS));
  }

  private async untilHeld(): Promise<void> {
    const pause = pauses();
    while (this.token === 0) {
      try {
        await this.once();
      } catch (cause) {
        const error = translated(cause);
        const pauseMs = pause.next().value;
        if (this.isOver || !mayPass(error) || this.leftMs() <= pauseMs || this.core.server.isEnded()) throw error;
        // It may be at a server that is no primary any more.
        this.ear?.close();
        await sleep(pauseMs);
      }
      if (this.token === 0 && this.leftMs() <= 0) throw new LockBusy(`the lock ${shown(this.key)} is busy`);
    }
  }

  private async once(): Promise<void> {
    const { ear, channel } = this.core.earFor(this.key);
    if (this.leftMs() <= 0 || !ear.hears(channel)) {
      // Who does not wait needs no subscription. And by a command the client learns where the key is now.
      await this.ask();
      if (this.token > 0 || this.leftMs() <= 0) return;
    }
    await this.queue().catch((error) => {
      if (codeOf(error) !== "NOPERM") throw error;
      return this.block();
    });
  }

  private leftMs(): number {
    return this.firstSent + this.request.wait - now();
  }

  private replyMs(): number {
    return this.request.wait === 0 ? REPLY_WITHIN_MS : Math.max(this.leftMs(), REPLY_MIN_MS);
  }

  /** Asks for the lock. A token that is replied has its full lease: from its request on, whenever the reply comes. */
  private async ask(...how: string[]): Promise<number> {
    const sent = now();
    const token = await this.send(this.core.server, this.acquiring(how), this.replyMs());
    if (token > 0) this.begin(token, sent, this.leaseMs);
    return token;
  }

  private async send({ ask }: Pick<Connection, "ask">, args: Argument[], withinMs: number): Promise<number> {
    if (this.isOver) throw new NativeLockError("nobody waits for it any more");
    const asking = ask(args);
    this.underWay = asking.catch(() => {});
    try {
      const reply = await within(asking, withinMs);
      this.isInDoubt ||= reply !== null;
      return Number(reply);
    } catch (error) {
      this.isInDoubt ||= !isRefusal(error);
      throw error;
    }
  }

  /** Waits by a place in the queue. It is to be asked for again where that ends without a grant. */
  private async queue(): Promise<void> {
    const { ear, channel } = this.core.earFor(this.key);
    const woken = new Promise<void>((resolve) => (this.wake = resolve));
    this.ear = ear;
    this.told = "";
    await within(ear.subscribe(this.key, channel), this.replyMs());
    if ((await this.ask("QUEUE", wholeMs(Math.min(PLACE_MAX_MS, this.leftMs())), channel)) > 0) return;
    await within(woken, Math.min(ASK_AGAIN_MS, this.leftMs())).catch(() => {});
    if (this.told.startsWith("-")) {
      const error = new NativeLockError(this.told.slice(1));
      // A refusal leaves nothing, and what there is then is another's of this name.
      this.isInDoubt = !isRefusal(error);
      throw error;
    }
    if (Number(this.told) > 0) this.trust(Number(this.told), Math.min(this.firstLeaseMs, this.leaseMs));
    // Its time is over, or the server has forgotten it, or nothing was heard.
    else await sleep(10);
  }

  /** @internal Takes a message. A late end of an earlier place does not hide a grant. */
  hear(result: string, firstLeaseMs: number): void {
    if (this.told === "" || this.told === "0") {
      this.told = result;
      this.firstLeaseMs = firstLeaseMs;
    }
    this.wake();
  }

  /** Waits by blocking a connection of its own, for users who may not subscribe. */
  private async block(): Promise<void> {
    const opening = this.core.server.open(this.key, () => {});
    try {
      const connection = await within(opening, this.replyMs());
      this.wake = connection.close;
      const args = this.acquiring(["BLOCK", this.request.wait === Infinity ? "0" : wholeMs(this.leftMs())]);
      const token = await this.send(connection, args, this.replyMs() + REPLY_WITHIN_MS);
      if (token > 0) this.trust(token, this.leaseMs);
    } finally {
      opening.then((connection) => connection.close(), () => {});
    }
  }

  /** Begins before the claim, where the wait was short. Else the lock is asked for again. */
  private trust(token: number, leaseMs: number): void {
    // In a cluster other nodes of a shard pass on what their primary may have taken back.
    const isLong = validUntil(this.firstSent, leaseMs) - now() >= leaseMs / 4;
    if (isLong && !this.core.server.isCluster) this.begin(token, this.firstSent, leaseMs);
  }

  /** It is held: granted no earlier than `since`, and this lease is relied upon from then on, unless it is over already. */
  private begin(token: number, since: number, leaseMs: number): void {
    if (validUntil(since, leaseMs) <= now()) return;
    (this as { token: number }).token = token;
    this.grantedAt = now();
    this.validUntil = validUntil(since, leaseMs);
    const claimAt = this.grantedAt + Math.min(CLAIM_AFTER_MS, (this.validUntil - this.grantedAt) / 4);
    this.plan(leaseMs < this.leaseMs ? claimAt : this.nextRenewal(since));
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

  private plan(renewAt: number): void {
    clearTimeout(this.timer);
    this.renewAt = renewAt;
    const ms = Math.min(Math.ceil(Math.min(this.validUntil, renewAt) - now()), 0x7fffffff);
    if (!this.isOver) this.timer = setTimeout(() => this.tick(), ms).unref();
  }

  private tick(): void {
    const isTime = !this.look() && now() >= this.renewAt;
    this.plan(isTime ? Infinity : this.renewAt);
    if (isTime) this.core.inBackground(this.renew().catch((error) => this.tryAgain(error)));
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
  }

  private lose(why: string): void {
    if (this.isOver) return;
    this.end();
    this.loss = new LockLost(`the lock ${shown(this.key)} is lost: ${why}`);
    this.abort();
    this.core.onError(this.loss);
    // A renewal that got no answer may come late. What is not renewed ends by itself.
    if (this.request.renew) this.core.inBackground(this.underWay.then(() => this.giveBack()));
  }

  /** Renews it now; a lease that is given here is kept up from now on. Rejects with `LockLost`. */
  renew(lease?: number): Promise<void> {
    const renewing = this.underWay.then(() => this.renewOnce(checkedLease(lease ?? this.leaseMs)));
    this.underWay = renewing.catch(() => {});
    return renewing;
  }

  private async renewOnce(leaseMs: number): Promise<void> {
    const sent = now();
    const beforeMs = this.unansweredMs;
    if (!this.look()) {
      this.unansweredMs = Math.min(beforeMs, leaseMs);
      // Until it is answered the shorter of the two leases is relied upon.
      this.validUntil = Math.min(this.validUntil, validUntil(sent, leaseMs));
      this.plan(this.renewAt);
      const asking = this.core.server.ask(this.renewing(leaseMs));
      const reply = await within(asking, this.validUntil - sent).catch((error) => {
        if (!this.look()) throw translated(error);
      });
      if (Number(reply) === 0) this.lose("the server does not know this hold any more");
    }
    if (this.look()) throw this.loss ?? new LockLost(`the lock ${shown(this.key)} was released`);
    this.unansweredMs = beforeMs;
    this.leaseMs = leaseMs;
    this.validUntil = validUntil(sent, Math.min(leaseMs, beforeMs));
    this.plan(this.nextRenewal(sent));
  }

  /** Ends it. Resolves, and never rejects, with false where it was over or that is not known soon: then it goes on. */
  async release(): Promise<boolean> {
    if (this.look()) return false;
    this.end();
    const releasing = this.giveBack();
    try {
      const reply = Number(await within(releasing, RELEASE_WITHIN_MS));
      if (reply === 0) this.core.onError(new LockLost(`the lock ${shown(this.key)} was over before its work`));
      return reply === 1;
    } catch (error) {
      this.core.inBackground(releasing);
      this.core.report(error, `${shown(this.key)} is not given back yet`);
      return false;
    }
  }

  private async giveBack(): Promise<unknown> {
    const sent = now();
    const keptUntil = this.grantedAt + this.request.atLeast;
    const args = (): Argument[] => (keptUntil > now() ? this.renewing(keptUntil - now()) : this.releasing());
    const reply = await this.core.insist(this.key, args, this.leaseMs);
    // A client library that was not connected has sent it late, so that it would keep the lock for longer.
    const isLate = keptUntil > sent && now() - sent > LATE_MS;
    if (isLate) this.core.inBackground(this.core.insist(this.key, args, this.leaseMs));
    return reply;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}
