// Who holds a lock, in which order, for how long.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { createLocks, LockBusy } from "redis-native-lock";
import { allLibraries, libraries, Server, until } from "./servers.mjs";

const server = await Server.start();
after(() => server[Symbol.asyncDispose]());

for (const [name, make] of Object.entries(allLibraries)) {
  test(`one at a time, with ${name}`, { timeout: 60_000 }, async () => {
    // Two processes, as it were, and many tasks of each.
    using one = await make(server.port);
    using another = await make(server.port);
    const both = [createLocks(one.client), createLocks(another.client)];
    let count = 0;
    const add = async (task: number): Promise<void> => {
      for (let round = 0; round < 10; round++) {
        await both[task % 2]!.using("counter", { wait: 30_000 }, async ({ token, signal, validFor }) => {
          assert.ok(token > 0 && !signal.aborted && typeof validFor === "function");
          const seen = count;
          await turn();
          count = seen + 1;
        });
      }
    };
    await Promise.all(Array.from({ length: 16 }, (_, task) => add(task)));
    assert.equal(count, 160);
    assert.ok(await server.isFree("counter"));
    assert.equal(await server.places(), 0);
    assert.equal(await server.subscribers(), 2, "one subscription each, however many wait");
    for (const locks of both) await locks.close();
    await until(async () => (await server.subscribers()) === 0);
  });
}

for (const [name, make] of Object.entries(libraries)) {
  test(`first come, first served, and how long it waits, with ${name}`, { timeout: 60_000 }, async () => {
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client);
    const hold = await locks.acquire("l");
    const order: number[] = [];
    const waits: Promise<unknown>[] = [];
    for (let number = 0; number < 8; number++) {
      waits.push(locks.using("l", { wait: 30_000 }, () => order.push(number)));
      await until(async () => (await server.places()) === number + 1);
    }
    const begun = performance.now();
    assert.equal(await locks.tryAcquire("l"), null);
    await assert.rejects(locks.acquire("l", { wait: 0 }), LockBusy);
    await assert.rejects(locks.acquire("l", { wait: 1 }), LockBusy);
    assert.ok(performance.now() - begun < 2000);
    await assert.rejects(locks.using("l", { wait: 300 }, () => assert.fail()), LockBusy);
    assert.ok(performance.now() - begun >= 300);
    assert.equal(await server.places(), 8, "who gave up has left");
    assert.ok(await hold.release());
    await Promise.all(waits);
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert.equal(await hold.release(), false, "once is enough");
  });

  test(`readers, permits, binary keys, prefixes, and once for a while, with ${name}`, async () => {
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client, { prefix: "app:" });
    {
      await using reader = await locks.acquire("r", { shared: true });
      await using another = await locks.acquire("r", { shared: true, wait: 0 });
      assert.ok(another.token > reader.token && another.owner !== reader.owner);
      assert.equal(await locks.tryAcquire("r"), null);
      await using one = await locks.acquire("s", { limit: 2, wait: 0 });
      await using two = await locks.acquire("s", { limit: 2, wait: 0 });
      assert.notEqual(one.owner, two.owner);
      assert.equal(await locks.tryAcquire("s", { limit: 2 }), null);
      await using binary = await locks.acquire(Buffer.from([0xff, 0x0d, 0x0a, 0x00]));
      assert.equal((await server.lock(binary.key as Buffer)).holding, 1);
      assert.deepEqual(binary.key, Buffer.concat([Buffer.from("app:"), Buffer.from([0xff, 0x0d, 0x0a, 0x00])]));
    }
    await locks.using("cron", { wait: 0, atLeast: 5000 }, () => {});
    const restMs = await server.redis.pttl("app:cron");
    assert.ok(restMs > 4000 && restMs <= 5000);
    assert.equal(await locks.tryAcquire("cron"), null);
    for (const wrong of [{ shared: true, limit: 2 }, { limit: 0 }, { lease: 0 }, { wait: -1 }, { wait: NaN }]) {
      await assert.rejects(locks.acquire("l", wrong), RangeError);
    }
    assert.deepEqual(await server.redis.keys("app:*"), ["app:cron"]);
    await server.redis.del("app:cron");
  });
}

test("it is renewed while its process lives, and free soon after it was killed", { timeout: 60_000 }, async () => {
  const program = `
    const { createLocks } = require("redis-native-lock"), { Redis } = require("ioredis");
    createLocks(new Redis(${server.port})).acquire("l", { lease: 1000 }).then(() => console.log("held"));`;
  const holder = spawn(process.execPath, ["-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  await new Promise((resolve) => holder.stdout.once("data", resolve));
  using made = await libraries.ioredis!(server.port);
  const { client } = made;
  await using locks = createLocks(client);
  await assert.rejects(locks.acquire("l", { wait: 1500 }), LockBusy);
  holder.kill("SIGKILL");
  const begun = performance.now();
  await locks.using("l", { wait: 20_000 }, () => assert.ok(performance.now() - begun < 2000));
});
