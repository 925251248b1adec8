// Many waits for locks over one connection, with node-redis and RESP3.

import { randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import { createClient, ErrorReply } from "redis";

const LEASE_MS = 60_000; // longer than the work takes
const WAIT_MS = 30_000; // how long to wait for the lock
const ASK_AGAIN_MS = 10_000; // a message may be lost

/** The parts of a message: database, key, owner, result, first lease in ms. */
function netstrings(message) {
  const parts = [];
  for (let part = 0; part < 5; part++) {
    const start = message.indexOf(":") + 1;
    const end = start + parseInt(message, 10);
    parts.push(message.toString("utf8", start, end));
    message = message.subarray(end + 1);
  }
  return parts;
}

export class QueuedLocks {
  channel = `locks:${randomUUID()}`;
  waiting = new Map(); // the owner of each place, and what resolves its result

  async connect(url, { askAgainMs = ASK_AGAIN_MS } = {}) {
    this.askAgainMs = askAgainMs;
    this.redis = createClient({ url, RESP: 3, name: this.channel });
    this.redis.on("error", (error) => console.error(error));
    // Ready once more, and subscribed anew: what was told meanwhile is lost.
    this.redis.on("ready", () => this.waiting.forEach((tell) => tell("0")));
    await this.redis.connect();
    // First of all, because nothing is granted to a place that nobody listens for.
    await this.redis.subscribe(this.channel, (message) => {
      const [, , owner, result] = netstrings(message);
      this.waiting.get(owner)?.(result);
    }, true);
    return this;
  }

  close() {
    this.redis.destroy();
  }

  /** Holds the lock `key` while `work`, which is given the fencing token, is under way. */
  async withLock(key, work, { leaseMs = LEASE_MS, waitMs = WAIT_MS } = {}) {
    const owner = randomUUID();
    let fence = []; // Without it RELEASE gives the place up, and a hold as well.
    try {
      const token = await this.#acquire(key, owner, leaseMs, waitMs);
      fence = ["FENCE", token];
      return await work(token);
    } finally {
      this.waiting.delete(owner);
      const released = await this.#call("LOCK.RELEASE", key, owner, ...fence);
      if (fence.length && released === null) {
        console.error(`${key}: the lease ended before the work did`);
      }
    }
  }

  async #acquire(key, owner, leaseMs, waitMs) {
    const end = performance.now() + waitMs;
    for (let leftMs = waitMs; leftMs > 0; leftMs = Math.floor(end - performance.now())) {
      // Before the request, because the message may come before its reply.
      const told = new Promise((resolve) => this.waiting.set(owner, resolve));
      // The same request again keeps the place.
      const token = await this.#call(
        "LOCK.ACQUIRE", key, owner, "LEASE", leaseMs, "QUEUE", leftMs, this.channel,
      );
      if (token > 0) return token;
      const timer = setTimeout(this.waiting.get(owner), Math.min(leftMs, this.askAgainMs), "0");
      const result = await told;
      clearTimeout(timer);
      if (result.startsWith("-")) throw new Error(result.slice(1));
      // A token that is told has a short lease until it is claimed.
      const claim = [key, owner, "LEASE", leaseMs, "FENCE", result];
      if (result !== "0" && (await this.#call("LOCK.RENEW", ...claim))) return Number(result);
    }
    throw new Error(`${key} is busy`);
  }

  /** node-redis doesn't send a command again when its connection breaks. These may be. */
  async #call(...words) {
    for (;;) {
      try {
        return await this.redis.sendCommand(words.map(String));
      } catch (error) {
        const starts = error instanceof ErrorReply && error.message.startsWith("LOADING");
        if (!starts && (error instanceof ErrorReply || !this.redis.isOpen)) throw error;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const locks = await new QueuedLocks().connect(process.env.REDIS_URL ?? "redis://localhost:6379");
  const inside = new Set();
  const takeTurn = (_, task) => locks.withLock(`orders:${task % 3}`, async (token) => {
    // Whatever is written under the lock carries the token, and late writes fail:
    // UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
    if (inside.has(task % 3)) throw new Error("two are in a section");
    inside.add(task % 3);
    await new Promise((resolve) => setTimeout(resolve, 1));
    inside.delete(task % 3);
  });
  await Promise.all(Array.from({ length: 100 }, takeTurn));
  const clients = await locks.redis.clientList();
  const connections = clients.filter(({ name }) => name === locks.channel).length;
  console.log(`100 tasks in 3 sections, never two in one, over ${connections} connection`);
  locks.close();
}
