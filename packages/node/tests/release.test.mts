// A release that fails.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createLocks } from "redis-native-lock";
import { libraries, Server, until } from "./servers.mjs";

for (const [name, make] of Object.entries(libraries)) {
  for (const way of ["stop", "kill"] as const) {
    const what = `a server that is gone at the end (${way}) hides neither result nor error, with ${name}`;
    test(what, { timeout: 60_000 }, async () => {
      await using server = await Server.start();
      using made = await make(server.port);
      const { client } = made;
      const errors: string[] = [];
      const locks = createLocks(client, { onError: (error) => errors.push(error.message) });
      let ended = 0;
      const gone = async (): Promise<void> => {
        await server[way]();
        ended = performance.now();
      };
      const fine = locks.using("fine", async () => {
        await sleep(20);
        return 42;
      });
      const failing = locks.using("failing", async () => {
        await gone();
        throw new Error("mine");
      });
      const [result, failure] = await Promise.allSettled([fine, failing]);
      assert.ok(performance.now() - ended < 1000);
      assert.deepEqual(result, { status: "fulfilled", value: 42 });
      assert.equal((failure as PromiseRejectedResult).reason.message, "mine");
      assert.match(errors.join(), /is not given back yet/);
      await sleep(Math.max(0, 5000 - (performance.now() - ended)));
      if (way === "stop") server.goOn();
      else await server.startAgain();
      await until(async () => (await server.isFree("fine")) && (await server.isFree("failing")));
      await locks.using("fine", { wait: 10_000 }, () => {});
      await locks.close();
    });
  }
}
