// Takes locks with redlock (on one server) as the lines of standard input say:
// what kind port clients locks sectionMicros warmUpMillis measureMillis leaseMillis settleMillis

import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import Redlock from 'redlock';

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const now = () => process.hrtime.bigint();
const millis = (n) => BigInt(Math.round(n * 1e6));

function connect(port, leaseMillis) {
  const redis = new Redis(port, { maxRetriesPerRequest: null });
  // As it comes, but that it never stops trying.
  const redlock = new Redlock([redis], { retryCount: -1 });
  return { take: (n) => redlock.lock(`lock:${n}`, leaseMillis), redis };
}

async function loop(what, clients, locks, warmUp, measure) {
  const begin = now() + millis(warmUp);
  const end = begin + millis(measure);
  const own = what === 'uncontended';
  const latencies = [];
  const shares = clients.map(() => 0);
  const all = clients.map(async ({ take }, n) => {
    while (now() < end) {
      const wanted = now();
      const lock = await take(own ? n % locks : Math.floor(Math.random() * locks));
      const held = now();
      await lock.unlock();
      if (held > begin && held <= end) {
        shares[n] += 1;
        if (own) latencies.push(Number(now() - wanted));
      }
    }
  });
  await sleep(warmUp);
  say('begin');
  await sleep(measure);
  say('end');
  await Promise.all(all);
  return { latencies, shares };
}

// Two clients pass one lock to each other.
async function handOff(clients, warmUp, measure, settle) {
  const begin = now() + millis(warmUp);
  const end = begin + millis(measure);
  const latencies = [];
  let releasedAt = 0n;
  let over = false;
  async function work(n) {
    const lock = await clients[n].take(0);
    const held = now();
    if (releasedAt > begin) latencies.push(Number(held - releasedAt));
    if (over) return lock.unlock();
    over = held > end && latencies.length > 0;
    // The other one waits by the time when this one gives it back.
    const other = work(1 - n);
    await sleep(settle * (1 + Math.random()));
    releasedAt = now();
    await lock.unlock();
    return other;
  }
  say('begin');
  await work(0);
  say('end');
  return { latencies, shares: [latencies.length] };
}

// Clients that want one lock and keep it.
function hold(clients) {
  say('begin');
  for (const { take } of clients) take(0).then(() => say('held'));
}

say({ ready: 'redlock' });
for await (const line of createInterface({ input: process.stdin })) {
  const [what, , ...numbers] = line.split(' ');
  const [port, count, locks, , warmUp, measure, lease, settle] = numbers.map(Number);
  const clients = Array.from({ length: count }, () => connect(port, lease));
  await Promise.all(clients.map(({ redis }) => redis.ping()));
  if (what === 'hold') {
    hold(clients);
    continue;
  }
  const { latencies, shares } =
    what === 'hand-off'
      ? await handOff(clients, warmUp, measure, settle)
      : await loop(what, clients, locks, warmUp, measure);
  say({ done: { seconds: measure / 1000, latenciesNs: latencies, shares } });
  for (const { redis } of clients) redis.disconnect();
}
