// What is sent to the server and told by it, and the clock by which leases are counted.
import { NativeLockError } from "./errors.js";

export type Argument = string | Buffer;

export const TIMER_MAX_MS = 0x7fffffff;

/** Milliseconds of a clock that nobody sets. */
export const now = (): number => performance.now();

/** Until when a lease is relied upon whose command was sent then: less for clocks that run apart and for timers. */
export function validUntil(sent: number, leaseMs: number): number {
  return sent + leaseMs - Math.min(leaseMs / 100 + 10, leaseMs / 2);
}

export function checkedLease(leaseMs: number): number {
  if (leaseMs >= 1 && leaseMs <= 315_360_000_000) return leaseMs;
  throw new RangeError("a lease is a millisecond to ten years");
}

/** The same promise, but it fails where it takes longer. */
export function within<T>(promise: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new NativeLockError("the server does not answer in time")), Math.min(ms, TIMER_MAX_MS));
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** How long to wait before what failed is tried again: ever longer, never in step. */
export const pauseAfter = (failures: number): number => Math.min(20 * 2 ** failures, 1000) * (0.5 + Math.random() / 2);

export const wholeMs = (ms: number): string => String(Math.max(1, Math.floor(ms)));

export const shown = (key: Argument): string => (typeof key === "string" ? key : key.toString("latin1"));

/** The parts of a message of netstrings: database, key, owner, result, first lease in ms. */
export function netstrings(message: Buffer): Buffer[] {
  const parts = [];
  for (let at = 0, end = 0; at < message.length; at = end + 1) {
    const colon = message.indexOf(":", at);
    end = colon + 1 + Number(message.toString("latin1", at, colon));
    if (colon <= at || !(end > colon)) return [];
    parts.push(message.subarray(colon + 1, end));
  }
  return parts;
}

/** The slot of a cluster that a key belongs to: CRC16 of the key, or of what stands in its first braces. */
export function slotOf(key: Argument): number {
  const bytes = Buffer.from(key as string);
  const start = bytes.indexOf("{") + 1;
  const end = bytes.indexOf("}", start);
  let crc = 0;
  for (const byte of start > 0 && end > start ? bytes.subarray(start, end) : bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  }
  return (crc & 0xffff) % 16384;
}

const tags: string[] = [];
let words = 0;

/** A word that hashes to this slot. */
export function tagOf(slot: number): string {
  for (; tags[slot] === undefined; words++) tags[slotOf(String(words))] ??= String(words);
  return tags[slot];
}
