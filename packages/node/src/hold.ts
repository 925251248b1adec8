// A lock that is held, kept up and given back.
import type { Core } from "./core.js";
import { LockLost, translated } from "./errors.js";
import { type Grant, RELEASE_WITHIN_MS } from "./waiting.js";
import { checkedLease, now, pauses, type Request, shown, validUntil, within } from "./wire.js";

const CLAIM_AFTER_MS = 20; // When a short first lease is claimed. Work that is done sooner spares that.

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
  private renewAt = this.nextRenewal(this.grant.since);
  private timer: NodeJS.Timeout | undefined;
  private isOver = false;
  private isKeeping = false;
  private renewing: Promise<unknown> = Promise.resolve();
  private pauses = pauses();

  /** @internal */
  constructor(
    private readonly core: Core,
    private readonly request: Request,
    private readonly grant: Grant,
    private readonly outer?: AbortSignal,
  ) {
    const claimAt = this.grantedAt + Math.min(CLAIM_AFTER_MS, this.validFor() / 4);
    if (grant.leaseMs < request.leaseMs) this.renewAt = claimAt;
    this.schedule();
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

  private schedule(): void {
    clearTimeout(this.timer);
    const at = this.isKeeping ? this.validUntil : Math.min(this.validUntil, this.renewAt);
    const ms = Math.min(Math.ceil(at - now()), 0x7fffffff);
    if (!this.isOver) this.timer = setTimeout(() => this.tick(), ms).unref();
  }

  private tick(): void {
    if (!this.look() && !this.isKeeping && now() >= this.renewAt) {
      this.isKeeping = true;
      const kept = this.renew().catch((error) => this.tryAgain(error));
      this.core.inBackground(kept.finally(() => (this.isKeeping = false)).then(() => this.schedule()));
    }
    this.schedule();
  }

  private tryAgain(error: unknown): void {
    if (this.isOver) return;
    this.core.report(error, `${shown(this.key)} is not renewed yet`);
    const pauseMs = Math.min(this.pauses.next().value, this.validFor() / 8);
    this.renewAt = this.core.server.isEnded() ? Infinity : now() + pauseMs;
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
    this.core.report(this.loss);
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
      this.schedule();
      const asking = this.core.server.ask(this.key, this.request.renewal(this.token, leaseMs));
      const reply = await within(asking, this.validUntil - sent).catch((error) => {
        if (!this.look()) throw translated(error);
      });
      if (Number(reply) === 0 && !this.isOver) this.lose("the server does not know this hold any more");
    }
    if (this.look()) throw this.loss ?? new LockLost(`the lock ${shown(this.key)} was released`);
    this.leaseMs = leaseMs;
    this.validUntil = validUntil(sent, leaseMs);
    this.renewAt = this.nextRenewal(sent);
    this.pauses = pauses();
    this.schedule();
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
      if (reply === 0) this.core.report(new LockLost(`the lock ${shown(this.key)} was over before its work`));
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
