// Locks that a Redis or Valkey server hands out itself, for ioredis, iovalkey and node-redis.
import { setMaxListeners } from "node:events";
import { type Client, serverOf } from "./clients.js";
import { Core } from "./core.js";
import { LockBusy } from "./errors.js";
import { Hold } from "./hold.js";
import { checkedLease } from "./wire.js";

export { Deadlock, LockBusy, LockLost, NativeLockError, NoModule, NotSafe, Superseded } from "./errors.js";
export type { Client, Hold };

export interface LocksOptions {
  /** Milliseconds that a lock stays taken if its process dies: 30000 if not given. */
  lease?: number;
  /** Stands before each key. */
  prefix?: string;
  /** Is told what fails in the background. If not given that becomes a warning of the process. */
  onError?: (error: Error) => void;
}

export interface LockOptions {
  /** Milliseconds to wait: 0 does not wait, and without it the wait has no end. */
  wait?: number;
  /** Ends the wait at once. */
  signal?: AbortSignal | undefined;
  /** Held together with others who share it. */
  shared?: boolean;
  /** Held by so many at most. */
  limit?: number;
  /** Milliseconds, in place of what `createLocks` was given. */
  lease?: number;
  /** Milliseconds after its grant that it stays taken at least. */
  atLeast?: number;
  /** False: it ends with its lease. */
  renew?: boolean;
}

export type Key = string | Uint8Array;
export type Work<T> = (hold: Hold) => T | PromiseLike<T>;

/** Locks on the server of this client. */
export function createLocks(client: Client, options: LocksOptions = {}): Locks {
  return new Locks(new Core(serverOf(client), options.onError), options);
}

export class Locks implements AsyncDisposable {
  /** @internal */
  constructor(private readonly core: Core, private readonly options: LocksOptions) {}

  /** Waits for the lock, does the work, and gives the lock back. Rejects with `LockBusy` where it is not free in time. */
  using<T>(key: Key, work: Work<T>): Promise<T>;
  using<T>(key: Key, options: LockOptions, work: Work<T>): Promise<T>;
  async using<T>(key: Key, ...rest: [Work<T>] | [LockOptions, Work<T>]): Promise<T> {
    const [options, work] = rest.length === 1 ? [{}, rest[0]] : rest;
    await using hold = await this.take(key, options, options.signal);
    const result = await work(hold);
    if (hold.validFor() === 0 && hold.loss !== undefined) throw hold.loss;
    return result;
  }

  /** Waits for the lock, to be given back by `await using` or `release`. Rejects with `LockBusy`. */
  acquire(key: Key, options: LockOptions = {}): Promise<Hold> {
    return this.take(key, options);
  }

  /** Takes the lock if that is possible at once, else resolves with null. */
  tryAcquire(key: Key, options: Omit<LockOptions, "wait"> = {}): Promise<Hold | null> {
    return this.take(key, { ...options, wait: 0 }).catch((error) => {
      if (error instanceof LockBusy) return null;
      throw error;
    });
  }

  /** Ends the subscription, and waits some seconds for what goes on in the background. */
  close(): Promise<void> {
    return this.core.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async take(key: Key, options: LockOptions, outer?: AbortSignal): Promise<Hold> {
    const { prefix = "", lease: usualLease = 30_000 } = this.options;
    const { wait = Infinity, lease = usualLease, atLeast = 0, renew = true, shared, limit, signal } = options;
    if (!(wait >= 0 && atLeast >= 0)) throw new RangeError("a time is at least 0 milliseconds");
    if (limit !== undefined && (shared || !Number.isSafeInteger(limit) || limit < 1)) {
      throw new RangeError("a lock is shared, or has a limit of 1 to 2^53 - 1");
    }
    signal?.throwIfAborted();
    // One may end any number of waits.
    if (signal !== undefined) setMaxListeners(0, signal);
    const whole = typeof key === "string" ? prefix + key : Buffer.concat([Buffer.from(prefix), key]);
    const mode = shared ? ["SHARED"] : limit === undefined ? [] : ["LIMIT", String(limit)];
    const request = { key: whole, lease: checkedLease(lease), wait, mode, atLeast, renew };
    return new Hold(this.core, request, outer).take(signal);
  }
}
