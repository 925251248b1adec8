// A hold that is kept up, and one that is lost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createLocks, LockLost } from "redis-native-lock";
import { libraries, Server, until } from "./servers.mjs";

function aborted(signal: AbortSignal): Promise<unknown> {
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}

for (const [name, make] of Object.entries(libraries)) {
  test(`a hold is kept up, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start();
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client, { lease: 1500 });
    const hold = await locks.acquire("l");
    for (let renewals = 0; renewals < 4; ) {
      const before = hold.validFor();
      await sleep(20);
      if (hold.validFor() > before) renewals++;
      assert.ok(!hold.signal.aborted);
    }
    assert.equal((await server.lock("l")).fence, hold.token);
    await hold.renew(20_000);
    assert.ok(hold.validFor() > 19_000 && (await server.redis.pttl("l")) > 19_000);
    await Promise.all([hold.renew(5000), hold.renew(2000), hold.renew(10_000)]);
    assert.ok(hold.validFor() > 9000 && !hold.signal.aborted);
    await assert.rejects(hold.renew(NaN), RangeError);
    assert.ok(hold.validFor() > 8000 && (await hold.release()));
    await assert.rejects(hold.renew(), LockLost);
  });

  test(`a loss is told before the lease ends with the server stopped, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start();
    using made = await make(server.port);
    const { client } = made;
    const errors: Error[] = [];
    const locks = createLocks(client, { lease: 1000, onError: (error) => errors.push(error) });
    const work = locks.using("l", async (hold) => {
      server.stop();
      // Of two timers that are due the earlier one is first, however slow this machine is.
      const leaseIsOver = sleep(hold.validFor() + 20, "too late");
      assert.notEqual(await Promise.race([aborted(hold.signal), leaseIsOver]), "too late");
      assert.ok(hold.signal.reason instanceof LockLost && hold.validFor() === 0);
    });
    await assert.rejects(work, LockLost);
    assert.ok(errors.some((error) => error instanceof LockLost));
    server.goOn();
    await until(() => server.isFree("l"));
    await locks.close();
  });

  test(`a lock that is broken is lost, and the work's own error survives, with ${name}`, async () => {
    await using server = await Server.start();
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client, { lease: 1500, onError: () => {} });
    const broken = locks.using("l", async ({ signal }) => {
      await server.redis.call("LOCK.BREAK", "l");
      await aborted(signal);
      return "unprotected";
    });
    await assert.rejects(broken, /is lost: the server does not know this hold any more/);
    const failed = locks.using("l", async ({ signal }) => {
      await server.redis.del("l");
      await aborted(signal);
      throw new Error("mine");
    });
    await assert.rejects(failed, /^Error: mine$/);
    await using kept = await locks.acquire("l", { renew: false });
    await aborted(kept.signal);
  });
}

test("the signal that using was given reaches the work, which keeps the lock until it ends", async () => {
  await using server = await Server.start();
  using made = await libraries.ioredis!(server.port);
  const { client } = made;
  await using locks = createLocks(client);
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
