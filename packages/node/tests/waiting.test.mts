// Waits whose connection breaks, whose messages are lost, whose user may not subscribe.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createLocks, LockBusy } from "redis-native-lock";
import { libraries, Proxy, Server, until } from "./servers.mjs";

async function waiters(server: Server): Promise<string[]> {
  const { waiters } = (await server.lock("l")) as { waiters: string[][] };
  return waiters.map((flat) => flat[flat.indexOf("owner") + 1]!);
}

for (const [name, make] of Object.entries(libraries)) {
  test(`work begins before the claim, but not after a long wait, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start("--lock.claim-timeout", "2000");
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client);
    for (const [timeoutMs, isEarly] of [[60_000, true], [300, false]] as const) {
      await server.redis.config("SET", "lock.claim-timeout", timeoutMs);
      const first = await locks.acquire("l");
      const waiting = locks.acquire("l", { lease: 90_000 });
      await until(async () => (await server.places()) === 1);
      if (!isEarly) await sleep(timeoutMs);
      await first.release();
      const hold = await waiting;
      assert.equal(hold.validFor() < 70_000, isEarly);
      await until(() => hold.validFor() > 70_000);
      assert.ok(await hold.release());
    }
  });

  test(`a subscription that is cut keeps its places, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start();
    using proxy = await Proxy.before(server);
    using cut = await make(proxy.port);
    using whole = await make(server.port);
    await using locks = createLocks(cut.client);
    await using others = createLocks(whole.client);
    const first = await others.acquire("l");
    const order: string[] = [];
    const waits = [locks.using("l", { wait: 30_000 }, () => order.push("cut"))];
    await until(async () => (await server.places()) === 1);
    waits.push(others.using("l", { wait: 30_000 }, () => order.push("whole")));
    await until(async () => (await server.places()) === 2);
    const queue = await waiters(server);
    for (let round = 0; round < 3; round++) {
      await until(async () => (await server.subscribers()) === 2);
      proxy.cut();
      await until(async () => (await server.subscribers()) < 2 || proxy.pairs.size > 0);
    }
    await server.redis.call("CLIENT", "KILL", "TYPE", "pubsub");
    await until(async () => (await server.subscribers()) === 2);
    assert.deepEqual(await waiters(server), queue);
    await first.release();
    await Promise.all(waits);
    assert.deepEqual(order, ["cut", "whole"]);
  });

  test(`a server that is restarted while it waits, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start();
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client);
    await server.redis.call("LOCK.ACQUIRE", "l", "somebody", "LEASE", 60_000);
    const waiting = [1, 2, 3].map(() => locks.using("l", { wait: 50_000 }, () => {}));
    await until(async () => (await server.places()) === 3);
    await server.kill();
    await sleep(1000);
    await server.startAgain();
    await Promise.all(waiting);
    assert.ok(await server.isFree("l"));
  });

  test(`messages that are lost, or for nobody, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start();
    using proxy = await Proxy.before(server);
    using made = await make(proxy.port);
    const { client } = made;
    await using locks = createLocks(client);
    await server.redis.call("LOCK.ACQUIRE", "l", "somebody");
    const waiting = locks.acquire("l");
    await until(async () => (await server.places()) === 1);
    proxy.swallows = "message";
    await server.redis.call("LOCK.RELEASE", "l", "somebody");
    const hold = await waiting;
    assert.ok(proxy.swallowed >= 1 && hold.validFor() > 20_000);
    proxy.swallows = "";
    const [channel] = (await server.redis.call("PUBSUB", "CHANNELS")) as [string];
    const tell = (...parts: unknown[]): Promise<number> =>
      server.redis.publish(channel, parts.map((part) => `${String(part).length}:${part},`).join(""));
    // A late message to one who holds it changes nothing; a grant that nobody waits for is given back.
    await tell(0, "l", hold.owner, hold.token, 2000);
    const token = await server.redis.call("LOCK.ACQUIRE", "x", "gone", "LEASE", 60_000);
    await tell(0, "x", "gone", token, 2000);
    await server.redis.publish(channel, "what?");
    await until(() => server.isFree("x"));
    assert.equal((await server.lock("l")).holding, 1);
    assert.ok(await hold.release());
  });

  for (const rights of ["resetchannels", "resetchannels &redislock:* -subscribe"]) {
    test(`a user who may not subscribe (${rights}), with ${name}`, { timeout: 60_000 }, async () => {
      await using server = await Server.start();
      await server.redis.call("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", ...rights.split(" "));
      using made = await make(server.port, { username: "deaf", password: "pw" });
      const { client } = made;
      await using locks = createLocks(client);
      const blocked = async (count: number): Promise<unknown> =>
        until(async () => (await server.count("blocked_clients")) === count);
      const hold = await locks.acquire("l");
      await assert.rejects(locks.acquire("l", { wait: 100 }), LockBusy);
      const before = await server.count("connected_clients");
      const controller = new AbortController();
      const cancelled = locks.acquire("l", { signal: controller.signal });
      await blocked(1);
      controller.abort();
      await assert.rejects(cancelled, { name: "AbortError" });
      await blocked(0);
      await until(async () => (await server.count("connected_clients")) <= before);
      const waiting = locks.acquire("l");
      await blocked(1);
      assert.equal(await server.places(), 0);
      await hold.release();
      assert.ok(await (await waiting).release());
      assert.ok(await server.isFree("l"));
    });
  }
}

test("many under way while connections are killed", { timeout: 60_000 }, async () => {
  await using server = await Server.start();
  for (const make of Object.values(libraries)) {
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client, { onError: () => {} });
    const done = Array<number>(300).fill(0);
    let isOver = false;
    const working = done.map(async (_, task) => {
      while (!isOver) await locks.using(`l${task % 40}`, { wait: 30_000 }, () => void done[task]!++);
    });
    for (const kind of ["pubsub", "normal", "pubsub", "normal"]) {
      const before = [...done];
      await until(() => done.every((now, task) => now > before[task]!));
      await server.redis.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes").catch(() => {});
    }
    const before = [...done];
    await until(() => done.every((now, task) => now > before[task]!));
    isOver = true;
    await Promise.all(working);
  }
});
