// A lock around a piece of work, with ioredis.

import { randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";

const LEASE_MS = 60_000; // longer than the work takes
const BLOCK_MS = 30_000; // how long to wait for the lock

/** Holds the lock `key` while `work`, which is given the fencing token, is under way. */
export async function withLock(url, key, work, { leaseMs = LEASE_MS, blockMs = BLOCK_MS } = {}) {
  // A connection of its own, because nothing else gets through while it waits.
  // If there is a time-out for commands, it must exceed BLOCK.
  const redis = new Redis(url, { commandTimeout: blockMs + 10_000 });
  const owner = randomUUID();
  let token = null;
  try {
    // With HOLD 1 it does no harm that ioredis sends a command again when its
    // connection breaks.
    token = await redis.call(
      "LOCK.ACQUIRE", key, owner, "LEASE", leaseMs, "BLOCK", blockMs, "HOLD", 1,
    );
    if (token === null) throw new Error(`${key} is busy`);
    return await work(token);
  } finally {
    // Without FENCE it gives back a hold whose token did not arrive, too.
    const released = await redis.call("LOCK.RELEASE", key, owner)
      .finally(() => redis.disconnect());
    if (token !== null && released === null) {
      console.error(`${key}: the lease ended before the work did`);
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const url = process.env.REDIS_URL ?? "redis://localhost:6379";
  await withLock(url, "orders:42", async (token) => {
    // Whatever is written under the lock carries the token, and late writes fail:
    // UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
    console.log(`orders:42 is mine, with token ${token}`);
  });
}
