// The cases of node-redlock's tests of one server (src/single.test.ts of its repository), written anew after what they
// check, on one server and on a cluster. Left out are its two of several keys at once, and how often it polls.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createLocks, LockBusy, LockLost } from "redis-native-lock";
import { clusterLibraries, libraries, Server, startCluster } from "./servers.mjs";

const server = await Server.start();
const nodes = await startCluster();
after(async () => {
  for (const one of [server, ...nodes]) await one[Symbol.asyncDispose]();
});

for (const [name, made] of [
  ["instance", await libraries.ioredis!(server.port)],
  ["cluster", await clusterLibraries.ioredis!(nodes[0]!.port)],
] as const) {
  const redis = made.client as Redis;
  const durationMs = 300_000_000_000;
  after(() => made[Symbol.dispose]());

  test(`${name}: acquires, extends and releases a lock`, async () => {
    await using locks = createLocks(redis);
    const lock = await locks.acquire("{redlock}a", { lease: durationMs / 3 });
    assert.equal(await redis.hget("{redlock}a", lock.owner), "1");
    assert.equal(Math.round((await redis.pttl("{redlock}a")) / 2000), Math.round(durationMs / 3 / 2000));
    await lock.renew(durationMs);
    assert.equal(await redis.hget("{redlock}a", lock.owner), "1");
    assert.equal(Math.round((await redis.pttl("{redlock}a")) / 2000), Math.round(durationMs / 2000));
    assert.ok(await lock.release());
    assert.equal(await redis.exists("{redlock}a"), 0);
  });

  test(`${name}: locks expire, where they are not renewed`, async () => {
    await using locks = createLocks(redis, { onError: () => {} });
    const lock = await locks.acquire("{redlock}d", { lease: 200, renew: false });
    await sleep(300);
    const later = await locks.acquire("{redlock}d", { wait: 0 });
    assert.ok(lock.signal.reason instanceof LockLost && later.token > lock.token);
    assert.equal(await redis.hexists("{redlock}d", later.owner), 1);
    assert.ok(await later.release());
    assert.equal(await redis.exists("{redlock}d"), 0);
  });

  test(`${name}: locks are exclusive`, async () => {
    await using locks = createLocks(redis, { lease: durationMs });
    const lock = await locks.acquire("{redlock}c");
    await assert.rejects(locks.acquire("{redlock}c", { wait: 300 }), LockBusy);
    assert.equal(await redis.hget("{redlock}c", lock.owner), "1");
    assert.ok(await lock.release());
    assert.equal(await redis.exists("{redlock}c"), 0);
  });

  test(`${name}: using acquires, extends and releases, and is exclusive`, { timeout: 60_000 }, async () => {
    await using locks = createLocks(redis, { lease: 1500 });
    let isTaken = false;
    const turn = (): Promise<string> =>
      locks.using("{redlock}x", async ({ owner, signal }) => {
        assert.equal(isTaken, false);
        isTaken = true;
        await sleep(1600);
        assert.equal(signal.aborted, false);
        assert.equal(await redis.hget("{redlock}x", owner), "1");
        isTaken = false;
        return owner;
      });
    const [one, two] = await Promise.all([turn(), turn()]);
    assert.notEqual(one, two);
    assert.equal(await redis.exists("{redlock}x"), 0);
  });
}

test("locks fail when redis is unreachable", async () => {
  const redis = new Redis(1, {
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    retryStrategy: () => null,
  }).on("error", () => {});
  await assert.rejects(createLocks(redis).acquire("{redlock}b"), /Connection is closed/);
});
