// Who holds a lock, with each client library, and what may be asked for.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { createLocks, LockBusy, LockLost } from "redis-native-lock";
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

test("options, and what they may be", async () => {
  using made = await libraries["node-redis"]!(server.port);
  await using locks = createLocks(made.client, { prefix: "app:" });
  const binary = await locks.acquire(Buffer.from([0xff, 0x0d, 0x0a, 0x00]));
  assert.equal((await server.lock(binary.key as Buffer)).holding, 1);
  assert.deepEqual(binary.key, Buffer.concat([Buffer.from("app:"), Buffer.from([0xff, 0x0d, 0x0a, 0x00])]));
  assert.equal(await locks.tryAcquire(Buffer.from([0xff, 0x0d, 0x0a, 0x00])), null);
  assert.ok(await binary.release());
  assert.equal(await binary.release(), false, "once is enough");
  for (const wrong of [{ shared: true, limit: 2 }, { limit: 0 }, { lease: 0 }, { wait: -1 }, { wait: NaN }]) {
    await assert.rejects(locks.acquire("l", wrong), RangeError);
  }
  await server.redis.hset("app:data", "field", "value");
  await assert.rejects(locks.acquire("data", { wait: 5000 }), /^\w*Error: NOTALOCK/);
});

test("renewals at once are carried out one after the other", async () => {
  using made = await libraries.ioredis!(server.port);
  await using locks = createLocks(made.client, { onError: () => {} });
  const hold = await locks.acquire("l");
  await Promise.all([hold.renew(5000), hold.renew(2000), hold.renew(20_000)]);
  assert.ok(hold.validFor() > 10_000 && !hold.signal.aborted);
  await assert.rejects(hold.renew(NaN), RangeError);
  assert.ok(await hold.release());
  await assert.rejects(hold.renew(), LockLost);
  const begun = performance.now();
  await using kept = await locks.acquire("l", { lease: 2000, renew: false });
  await until(() => kept.signal.aborted);
  await until(async () => (await server.lock("l")).holding === 0);
  assert.ok(performance.now() - begun > 1990, "what is not renewed ends by itself");
});

test("the signal that using was given reaches the work, which keeps the lock until it ends", async () => {
  using made = await libraries.ioredis!(server.port);
  await using locks = createLocks(made.client);
  const controller = new AbortController();
  const result = await locks.using("l", { signal: controller.signal }, async (hold) => {
    controller.abort(new Error("the customer has gone"));
    assert.equal(hold.signal.reason.message, "the customer has gone");
    assert.equal((await server.lock("l")).holding, 1);
    return hold.loss ?? "done";
  });
  assert.equal(result, "done");
  assert.ok(await server.isFree("l"));
});

test("messages for nobody", async () => {
  using made = await libraries.ioredis!(server.port);
  await using locks = createLocks(made.client);
  const hold = await locks.acquire("l");
  await assert.rejects(locks.acquire("l", { wait: 50 }), LockBusy); // so that it has subscribed
  const [channel] = (await server.redis.call("PUBSUB", "CHANNELS", "redislock:*")) as [string];
  const tell = (...parts: unknown[]): Promise<number> =>
    server.redis.publish(channel, parts.map((part) => `${String(part).length}:${part},`).join(""));
  // A late message to one who holds it changes nothing, as what is for nobody, or is no message.
  await tell(0, "l", hold.owner, hold.token, 2000);
  await tell(0, "x", "gone", 7, 2000);
  await server.redis.publish(channel, "what?");
  assert.equal((await server.lock("l")).holding, 1);
  assert.ok(await hold.release());
});
