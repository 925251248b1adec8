// Tests of queued-locks.js, against the server that REDIS_URL names.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, beforeEach, test } from "node:test";
import { createClient } from "redis";
import { QueuedLocks } from "./queued-locks.js";

const KEY = "a:b,ü"; // a message says how many bytes it has
const url = process.env.REDIS_URL;
const redis = await createClient({ url, RESP: 3 }).connect();
// Whoever is not told that the connection broke waits in vain.
const locks = await new QueuedLocks().connect(url, { askAgainMs: 3_600_000 });
locks.redis.removeAllListeners("error").on("error", () => {});
beforeEach(async () => {
  await redis.flushAll();
  await redis.sendCommand(["LOCK.ACQUIRE", KEY, "other"]);
});
after(() => {
  redis.destroy();
  locks.close();
});

const releaseTheLock = () => redis.sendCommand(["LOCK.RELEASE", KEY, "other"]);
const takeTurn = () => locks.withLock(KEY, async (token) => token);
const places = async (count) => {
  while ((await redis.sendCommand(["LOCK.INFO", KEY])).waiting !== count);
};

test("a broken connection", async () => {
  const turns = Array.from({ length: 20 }, takeTurn);
  await places(20);
  for (const { id, name } of await redis.clientList()) {
    if (name === locks.channel) await redis.sendCommand(["CLIENT", "KILL", "ID", `${id}`]);
  }
  await releaseTheLock();
  assert.equal(new Set(await Promise.all(turns)).size, 20);
});

test("a token that is not its own", async () => {
  let held = true;
  const turn = locks.withLock(KEY, () => assert(!held));
  await places(1);
  const [[owner, told]] = locks.waiting;
  const message = `1:0,${Buffer.byteLength(KEY)}:${KEY},${owner.length}:${owner},1:1,4:2000,`;
  await redis.publish(locks.channel, message);
  while (locks.waiting.get(owner) === told) await places(1);
  held = false;
  await releaseTheLock();
  await turn;
});

test("a wait that is over", async () => {
  const turn = locks.withLock(KEY, () => assert.fail("two hold the lock"), { waitMs: 50 });
  await assert.rejects(turn, /is busy/);
  await places(0);
  assert.equal(locks.waiting.size, 0);
});

test("a lease that is over before the work", async (t) => {
  await releaseTheLock();
  const said = t.mock.method(console, "error", () => {});
  await locks.withLock(KEY, () => redis.del(KEY));
  await takeTurn();
  assert.deepEqual(said.mock.calls.map((call) => call.arguments), [
    [`${KEY}: the lease ended before the work did`],
  ]);
});

test("the example runs", async () => {
  const output = execFileSync(process.execPath, ["queued-locks.js"], { encoding: "utf8" });
  assert.match(output, /100 tasks in 3 sections, never two in one, over 1 connection/);
});
