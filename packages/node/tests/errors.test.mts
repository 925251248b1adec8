// What the server refuses, and servers that are not there.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createLocks, Deadlock, NoModule, NotSafe, Superseded } from "redis-native-lock";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { libraries, Server, until } from "./servers.mjs";

for (const [name, make] of Object.entries(libraries)) {
  test(`what the server refuses, with ${name}`, { timeout: 60_000 }, async () => {
    await using server = await Server.start();
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client);
    await server.redis.hset("data", "field", "value");
    await assert.rejects(locks.acquire("data", { wait: 5000 }), /^\w*Error: NOTALOCK/);
    await server.redis.config("SET", "lock.min-replicas", 1);
    await assert.rejects(locks.acquire("l", { wait: 0 }), NotSafe);
    await server.redis.config("SET", "lock.min-replicas", 0);
    await until(() => server.isFree("l"));
    const hold = await locks.acquire("l");
    for (const [code, expected] of [["SUPERSEDED", Superseded], ["DEADLOCK", Deadlock]] as const) {
      const waiting = assert.rejects(locks.acquire("l"), expected);
      await until(async () => (await server.places()) === 1);
      const [flat] = (await server.lock("l")).waiters as [string[]];
      const [owner, channel] = ["owner", "channel"].map((field) => flat[flat.indexOf(field) + 1]!);
      // As the server tells it.
      const end = `1:0,1:l,36:${owner},${code.length + 4}:-${code} no,1:0,`;
      await server.redis.publish(channel!, end);
      await waiting;
      assert.equal(await server.places(), 1, "a refusal leaves nothing, and this is another's then");
      await server.redis.call("LOCK.RELEASE", "l", owner!);
    }
    assert.ok(await hold.release());
  });

  test(`a server without the module, with ${name}`, async () => {
    await using server = await Server.bare();
    using made = await make(server.port);
    const { client } = made;
    await using locks = createLocks(client);
    await assert.rejects(locks.acquire("l"), (error) => error instanceof NoModule && /loadmodule/.test(error.message));
  });
}

test("a server that is down at the start", { timeout: 60_000 }, async () => {
  await using server = await Server.start();
  await server.kill();
  const ioredis = new Redis(server.port, { maxRetriesPerRequest: null, retryStrategy: () => 100 }).on("error", () => {});
  const nodeRedis = createClient({ socket: { port: server.port } }).on("error", () => {});
  const connecting = nodeRedis.connect();
  const waiting: Promise<void>[] = [];
  for (const client of [ioredis, nodeRedis]) {
    const locks = createLocks(client);
    const begun = performance.now();
    await assert.rejects(locks.acquire("l", { wait: 300 }), /does not answer in time|ECONNREFUSED/);
    assert.ok(performance.now() - begun < 2000);
    await assert.rejects(locks.tryAcquire("l"));
    assert.ok(performance.now() - begun < 8000);
    waiting.push(locks.using("l", () => locks.close()));
  }
  await server.startAgain();
  await Promise.all(waiting);
  await connecting;
  assert.ok(await server.isFree("l"));
  ioredis.disconnect();
  nodeRedis.destroy();
  // Nor does one wait for ever whose client has ended.
  for (const client of [ioredis, nodeRedis]) await assert.rejects(createLocks(client).acquire("l"), /closed/);
});

test("an older module, and a client of another kind", async () => {
  const client = {
    isOpen: true,
    sendCommand: async ([name]: string[]) => (name === "INFO" ? "# lock\r\nlock_version:0.1.9\r\n" : 1),
  };
  const locks = createLocks(client);
  await assert.rejects(locks.acquire("l"), /^NoModule: .*0\.1\.9: load 0\.2\.0 or later/);
  assert.throws(() => createLocks({} as typeof client), TypeError);
});
