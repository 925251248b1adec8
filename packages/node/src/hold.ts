// A lock that is held, kept up and given back.
import type { Core } from "./core.js";
import { LockLost, translated } from "./errors.js";
import { type Grant, RELEASE_WITHIN_MS } from "./waiting.js";
import { checkedLease, now, type Request, shown, validUntil, within } from "./wire.js";

const CLAIM_AFTER_MS = 20; // When a short first lease is claimed. Work that is done sooner spares that.
const PAUSE_MAX_MS = 1000; // Before a renewal that failed is tried again.

/** A lock that is held. */
export class Hold implements AsyncDisposable {
  readonly key: string | Buffer = this.request.key;
  readonly owner: string = this.request.owner;
  /** Rises with every new holder: hand it to what you write to. */
  readonly token: number = this.grant.token;
  /** Why it was lost, if it was. */
  loss: LockLost | undefined;
  private controller: AbortController | undefined;
  private readonly grantedAt = now();
  private leaseMs = this.request.leaseMs;
  private validUntil = validUntil(this.grant.since, this.grant.leaseMs);
  private renewAt = Infinity;
  private timer: NodeJS.Timeout | undefined;
  private isOver = false;
  private renewing: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(
    private readonly core: Core,
    private readonly request: Request,
    private readonly grant: Grant,
    private readonly outer?: AbortSignal,
  ) {
    const claimAt = this.grantedAt + Math.min(CLAIM_AFTER_MS, this.validFor() / 4);
    this.plan(grant.leaseMs < request.leaseMs ? claimAt : this.nextRenewal(grant.since));
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
    return this.request.isRenewed ? sent + this.leaseMs / 3 : Infinity;
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
    if (!this.isOver && now() >= this.validUntil) this.lose("its lease was not renewed in time");
    return this.isOver;
  }

  private end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
    this.outer?.removeEventListener("abort", this.abort);
    this.core.waits.delete(this.owner);
  }

  private lose(why: string): void {
    this.end();
    this.loss = new LockLost(`the lock ${shown(this.key)} is lost: ${why}`);
    this.abort();
    this.core.onError(this.loss);
    // A renewal that got no answer may come late.
    const release = this.request.release(this.token);
    this.core.inBackground(this.renewing.then(() => this.core.insist(this.key, release, this.leaseMs)));
  }

  /** Renews it now; a lease that is given here is kept up from now on. Rejects with `LockLost`. */
  renew(lease?: number): Promise<void> {
    const renewing = this.renewing.then(() => this.renewOnce(checkedLease(lease ?? this.leaseMs)));
    this.renewing = renewing.catch(() => {});
    return renewing;
  }

  private async renewOnce(leaseMs: number): Promise<void> {
    const sent = now();
    if (!this.look()) {
      // Until it is answered the shorter of the two leases is relied upon.
      this.validUntil = Math.min(this.validUntil, validUntil(sent, leaseMs));
      this.plan(this.renewAt);
      const asking = this.core.server.ask(this.key, this.request.renewal(this.token, leaseMs));
      const reply = await within(asking, this.validUntil - sent).catch((error) => {
        if (!this.look()) throw translated(error);
      });
      if (Number(reply) === 0 && !this.isOver) this.lose("the server does not know this hold any more");
    }
    if (this.look()) throw this.loss ?? new LockLost(`the lock ${shown(this.key)} was released`);
    this.leaseMs = leaseMs;
    this.validUntil = validUntil(sent, leaseMs);
    this.plan(this.nextRenewal(sent));
  }

  /** Ends it. Resolves, and never rejects, with false where it was over or that is not known soon: then it goes on. */
  async release(): Promise<boolean> {
    if (this.look()) return false;
    this.end();
    const restMs = this.request.atLeastMs - (now() - this.grantedAt);
    const args = restMs > 0 ? this.request.renewal(this.token, restMs) : this.request.release(this.token);
    const releasing = this.core.insist(this.key, args, this.leaseMs);
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

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}
