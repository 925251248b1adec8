// What is cancelled ends at once, and leaves nothing.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createLocks } from "redis-native-lock";
import { libraries, Server, until } from "./servers.mjs";

const PATIENT_MS = 20_000;

for (const [name, make] of Object.entries(libraries)) {
  test(`500 requests that are hung up under a lock per customer, with ${name}`, { timeout: 120_000 }, async () => {
    await using server = await Server.start();
    const before = await server.count("connected_clients");
    using made = await make(server.port);
    const { client } = made;
    const locks = createLocks(client);
    let served = 0;
    const web = createServer((order, reply) => {
      const controller = new AbortController();
      reply.once("close", () => controller.abort());
      const work = async (): Promise<void> => {
        await sleep(10);
        served++;
        reply.end("done");
      };
      locks.using(`customer:${order.url}`, { wait: 20_000, signal: controller.signal }, work).catch(() => reply.destroy());
    });
    await new Promise<void>((resolve) => web.listen(0, resolve));
    const { port } = web.address() as AddressInfo;
    const ask = (customer: number, patienceMs = PATIENT_MS): Promise<string> =>
      new Promise((resolve) => {
        const asking = request({ port, path: `/${customer}`, agent: false }, (reply) => {
          reply.on("data", (data) => resolve(String(data))).on("error", () => resolve(""));
        });
        setTimeout(() => asking.destroy(), patienceMs).unref();
        asking.on("error", () => resolve("")).on("close", () => resolve("")).end();
      });
    for (let round = 0; round < 10; round++) {
      await Promise.all(Array.from({ length: 50 }, (_, at) => ask(at % 5, at % 10 > 0 ? (round + at) % 120 : PATIENT_MS)));
    }
    assert.ok(served > 0 && served < 500, `${served} were served, some hung up`);
    await assert.rejects(locks.acquire("l", { signal: AbortSignal.abort() }), { name: "AbortError" });
    for (let customer = 0; customer < 5; customer++) assert.equal(await ask(customer), "done");
    await until(async () => (await server.places()) === 0 && (await server.redis.dbsize()) === 0);
    assert.equal((await server.count("connected_clients")) - before, 2, "the client's connection, and the subscription");
    web.close();
    await locks.close();
  });
}
