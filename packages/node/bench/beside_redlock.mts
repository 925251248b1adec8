// Measures this package beside node-redlock on one server: node build/bench/beside_redlock.mjs
import { Redis } from "ioredis";
import { createLocks } from "redis-native-lock";
// @ts-expect-error: its package.json does not name its types.
import Redlock from "redlock";
import { libraries, Server } from "../tests/servers.mjs";

type Take = (key: string) => Promise<{ release(): Promise<unknown> }>;

const PAIRS = 5000;
const HAND_OFFS = 300;
const WAITERS = 64;
const SECONDS = 5;

const p50 = (times: number[]): number => times.sort((a, b) => a - b)[Math.floor(times.length / 2)]!;

async function pair(take: Take): Promise<number> {
  const times: number[] = [];
  for (let round = 0; round < PAIRS; round++) {
    const begun = performance.now();
    await (await take("pair")).release();
    times.push(performance.now() - begun);
  }
  return p50(times);
}

/** From the release by one to the lock in the hands of another, who has waited for some milliseconds. */
async function handOff(one: Take, another: Take): Promise<number> {
  const times: number[] = [];
  for (let round = 0; round < HAND_OFFS && times.length * p50([...times, 0]) < 20_000; round++) {
    const hold = await one("hand-off");
    const waiting = another("hand-off").then(async (next) => {
      const had = performance.now();
      await next.release();
      return had;
    });
    await new Promise((resolve) => setTimeout(resolve, 3));
    const released = performance.now();
    await hold.release();
    times.push((await waiting) - released);
  }
  return p50(times);
}

async function sections(take: Take): Promise<number> {
  let done = 0;
  const end = performance.now() + SECONDS * 1000;
  const work = async (): Promise<void> => {
    while (performance.now() < end) {
      const hold = await take("sections");
      done++;
      await hold.release();
    }
  };
  await Promise.all(Array.from({ length: WAITERS }, work));
  return done / SECONDS;
}

await using server = await Server.start();
const redlock = (retryDelay?: number) => (): Take => {
  const settings = { retryCount: -1, ...(retryDelay !== undefined && { retryDelay, retryJitter: retryDelay / 2 }) };
  const locks = new Redlock([new Redis(server.port)], settings);
  return (key) => locks.acquire([key], 30_000);
};
const kinds: Record<string, () => Take | Promise<Take>> = { redlock: redlock(), "redlock, retryDelay 2 ms": redlock(2) };
for (const [name, make] of Object.entries(libraries)) {
  kinds[`redis-native-lock, ${name}`] = async () => {
    const locks = createLocks((await make(server.port)).client);
    return (key) => locks.acquire(key);
  };
}
console.log(`${" ".repeat(32)}pair p50  hand-off p50  sections/s, ${WAITERS} waiters`);
for (const [name, make] of Object.entries(kinds)) {
  const [one, another] = [await make(), await make()];
  await pair(one);
  const [pairMs, handOffMs, count] = [await pair(one), await handOff(one, another), await sections(one)];
  console.log(`${name.padEnd(32)}${pairMs.toFixed(3)} ms  ${handOffMs.toFixed(2).padStart(9)} ms  ${count.toFixed(0).padStart(10)}`);
}
await server[Symbol.asyncDispose]();
process.exit();
