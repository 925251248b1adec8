// What README.md and docs/packages.md (of the whole project) show.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { after, test } from "node:test";
import { Redis } from "ioredis";
import * as native from "redis-native-lock";
import { Server, until } from "./servers.mjs";

const server = await Server.start();
after(() => server[Symbol.asyncDispose]());
const Asynchronous = (async () => {}).constructor as new (...names: string[]) => (...values: unknown[]) => Promise<unknown>;

for (const path of ["README.md", "../../docs/packages.md"].filter((path) => existsSync(path))) {
  const blocks = [...readFileSync(path, "utf8").matchAll(/^```js\n(.*?)^```/gms)];
  for (const [number, [, block]] of blocks.entries()) {
    test(`block ${number + 1} of ${path}`, { timeout: 20_000 }, async () => {
      const done: unknown[][] = [];
      class Enough extends Error {}
      const names: Record<string, unknown> = { ...native, Redis };
      for (const name of ["report", "compute", "read", "write"]) names[name] = async (...args: unknown[]) => done.push(args);
      names.charge = async (customer: string, token: number) => String(done.push([customer, token]));
      names.lead = async () => {
        done.push([]);
        throw new Enough();
      };
      const redis = new Redis(server.port);
      await using locks = native.createLocks(redis);
      if (!block!.includes("const locks")) names.locks = locks;
      const program = block!.replace(/^import .*$/gm, "").replace("new Redis()", `new Redis(${server.port})`);
      const end = program.includes("function pay") ? "; return [await pay('42'), locks];" : "";
      const result = await new Asynchronous(...Object.keys(names), program + end)(...Object.values(names)).catch((error) => {
        assert.ok(error instanceof Enough, error);
      });
      assert.ok(done.length > 0 || Array.isArray(result));
      await until(async () => (await server.redis.keys("*")).every((key) => key.startsWith("nightly")));
      redis.disconnect();
    });
  }
}
