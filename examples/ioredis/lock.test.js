// Tests of lock.js, against the server that REDIS_URL names.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, beforeEach, test } from "node:test";
import { Redis } from "ioredis";
import { withLock } from "./lock.js";

const url = process.env.REDIS_URL;
const redis = new Redis(url);
beforeEach(() => redis.flushall());
after(() => redis.disconnect());

test("one at a time", async () => {
  await redis.set("counter", 0);
  const addTen = async () => {
    for (let n = 0; n < 10; n++) {
      await withLock(url, "l", async () => {
        await redis.set("counter", Number(await redis.get("counter")) + 1);
      });
    }
  };
  await Promise.all(Array.from({ length: 8 }, addTen));
  assert.equal(Number(await redis.get("counter")), 80);
});

test("a release ends the wait", async () => {
  let held = true;
  let next;
  const token = await withLock(url, "l", async (token) => {
    next = withLock(url, "l", async (token) => {
      assert(!held);
      return token;
    });
    while ((await redis.info("clients")).includes("blocked_clients:0"));
    held = false;
    return token;
  });
  assert((await next) > token);
});

test("a wait that is over", async () => {
  await withLock(url, "l", async () => {
    const second = withLock(url, "l", () => assert.fail("two hold the lock"), { blockMs: 50 });
    await assert.rejects(second, /l is busy/);
  });
});

test("a lease that is over before the work", async (t) => {
  const said = t.mock.method(console, "error", () => {});
  await withLock(url, "l", () => redis.del("l"));
  await withLock(url, "l", () => {});
  assert.deepEqual(said.mock.calls.map((call) => call.arguments), [
    ["l: the lease ended before the work did"],
  ]);
});

test("the example runs", async () => {
  const output = execFileSync(process.execPath, ["lock.js"], { encoding: "utf8" });
  assert.match(output, /orders:42 is mine/);
  assert.equal(await redis.exists("orders:42"), 0);
});
