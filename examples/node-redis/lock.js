// A lock around a piece of work, with node-redis.

import { randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import { createClient } from "redis";

const LEASE_MS = 60_000; // longer than the work takes
const BLOCK_MS = 30_000; // how long to wait for the lock

/** Holds the lock `key` while `work`, which is given the fencing token, is under way. */
export async function withLock(url, key, work, { leaseMs = LEASE_MS, blockMs = BLOCK_MS } = {}) {
  // A connection of its own, because nothing else gets through while it waits.
  // If there is a time-out, it must exceed BLOCK. This one counts the time of
  // the work too, during which the connection is idle.
  const socketTimeout = Math.max(leaseMs, blockMs) + 10_000;
  const redis = createClient({ url, socket: { socketTimeout } });
  redis.on("error", (error) => console.error(error));
  const owner = randomUUID();
  let token = null;
  await redis.connect();
  try {
    // With HOLD 1 it does no harm to send the command again when its
    // connection breaks.
    token = await redis.sendCommand([
      "LOCK.ACQUIRE", key, owner, "LEASE", `${leaseMs}`, "BLOCK", `${blockMs}`, "HOLD", "1",
    ]);
    if (token === null) throw new Error(`${key} is busy`);
    return await work(token);
  } finally {
    // Without FENCE it gives back a hold whose token did not arrive, too.
    const released = await redis.sendCommand(["LOCK.RELEASE", key, owner])
      .finally(() => redis.destroy());
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
