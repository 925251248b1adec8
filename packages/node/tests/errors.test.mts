// Servers that are not there, and others than those that are wanted.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createLocks } from "redis-native-lock";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { Server } from "./servers.mjs";

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
