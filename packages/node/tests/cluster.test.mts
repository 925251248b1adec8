// A cluster, and Sentinel.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Redis } from "ioredis";
import { createSentinel } from "redis";
import { createSentinel as createSentinel5 } from "redis-5";
import { createLocks, type Client } from "redis-native-lock";
import { clusterLibraries, Server, startCluster, startSentinel, until } from "./servers.mjs";

const nodes = await startCluster();
after(async () => {
  for (const node of nodes) await node[Symbol.asyncDispose]();
});
const keys = Array.from({ length: 12 }, (_, number) => `key:${number}`);

async function sum(what: "places" | "subscribers"): Promise<number> {
  return (await Promise.all(nodes.map((node) => node[what]()))).reduce((one, two) => one + two);
}

for (const [name, make] of Object.entries(clusterLibraries)) {
  test(`many keys, and connections that are killed, with ${name}`, { timeout: 60_000 }, async () => {
    using made = await make(nodes[0]!.port);
    const { client } = made;
    const locks = createLocks(client, { onError: () => {} });
    const done = Array<number>(300).fill(0);
    const inside = new Map<string, number>();
    let isOver = false;
    const working = done.map(async (_, task) => {
      const key = keys[task % keys.length]!;
      while (!isOver) {
        await locks.using(key, { wait: 30_000 }, () => {
          assert.ok(!inside.has(key), "two are inside");
          inside.set(key, task);
          return new Promise<void>((resolve) => setImmediate(resolve)).then(() => {
            inside.delete(key);
            done[task]!++;
          });
        });
      }
    });
    for (const kind of ["normal", "pubsub", "normal", ""]) {
      const before = [...done];
      await until(() => done.every((now, task) => now > before[task]!), 40_000);
      if (kind) await nodes[1]!.redis.call("CLIENT", "KILL", "TYPE", kind);
    }
    isOver = true;
    await Promise.all(working);
    assert.equal(await sum("places"), 0);
    assert.ok((await sum("subscribers")) >= 3);
    await locks.close();
    await until(async () => (await sum("subscribers")) === 0);
  });

  test(`a slot that moves while it is waited for, with ${name}`, { timeout: 60_000 }, async () => {
    using made = await make(nodes[0]!.port);
    const { client } = made;
    await using locks = createLocks(client);
    const key = `moving:${name}`;
    const slot = await nodes[0]!.redis.cluster("KEYSLOT", key);
    const ids = await Promise.all(nodes.map(({ redis }) => redis.cluster("MYID")));
    const hold = await locks.acquire(key, { lease: 60_000 });
    const from = (await Promise.all(nodes.map(({ redis }) => redis.exists(key).catch(() => 0)))).indexOf(1);
    const to = (from + 1) % 3;
    const [source, target] = [nodes[from]!, nodes[to]!];
    const waiting = locks.using(key, { wait: 50_000 }, () => "mine");
    await until(async () => (await source.places()) === 1);
    await target.redis.cluster("SETSLOT", slot, "IMPORTING", ids[from]!);
    await source.redis.cluster("SETSLOT", slot, "MIGRATING", ids[to]!);
    await source.redis.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000);
    for (const { redis } of [target, source, ...nodes]) await redis.cluster("SETSLOT", slot, "NODE", ids[to]!);
    await until(async () => (await target.places()) === 1);
    assert.ok(await hold.release());
    assert.equal(await waiting, "mine");
  });
}

type Watched = Client & { on(event: "error", listener: () => void): unknown; connect(): Promise<unknown> };
const sentinelLibraries: Record<string, (port: number) => Disposable & { client: Watched }> = {
  ioredis(port) {
    const client = new Redis({ sentinels: [{ host: "127.0.0.1", port }], name: "main", lazyConnect: true });
    return { client, [Symbol.dispose]: () => void client.disconnect() };
  },
  "node-redis"(port) {
    const client = createSentinel({ name: "main", sentinelRootNodes: [{ host: "127.0.0.1", port }] });
    return { client, [Symbol.dispose]: () => void client.destroy() };
  },
  "node-redis 5"(port) {
    const client = createSentinel5({ name: "main", sentinelRootNodes: [{ host: "127.0.0.1", port }] });
    return { client, [Symbol.dispose]: () => void client.destroy() };
  },
};

for (const [name, make] of Object.entries(sentinelLibraries)) {
  test(`a fail-over by Sentinel while it waits, with ${name}`, { timeout: 60_000 }, async () => {
    await using primary = await Server.start();
    await using replica = await Server.start("--replicaof", "127.0.0.1", String(primary.port));
    await using sentinel = await startSentinel(primary);
    await until(async () => (await replica.redis.info("replication")).includes("master_link_status:up"));
    await until(async () => ((await sentinel.redis.call("SENTINEL", "REPLICAS", "main")) as unknown[]).length === 1);
    using made = make(sentinel.port);
    const { client } = made;
    client.on("error", () => {});
    await client.connect();
    await using locks = createLocks(client, { onError: () => {} });
    await primary.redis.call("LOCK.ACQUIRE", "l", "somebody", "LEASE", 600_000);
    await primary.redis.wait(1, 5000);
    const waiting = [1, 2].map(() => locks.using("l", { wait: 50_000 }, () => "mine"));
    await until(async () => (await primary.places()) === 2);
    await primary.kill();
    await until(async () => (await replica.places()) === 2, 30_000);
    await replica.redis.call("LOCK.BREAK", "l");
    assert.deepEqual(await Promise.all(waiting), ["mine", "mine"]);
  });
}
