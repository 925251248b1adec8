// What comes late, and what the server refuses for a while.
import assert from "node:assert/strict";
import { connect, createServer, type AddressInfo } from "node:net";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createLocks, LockLost } from "redis-native-lock";
import { libraries, sentinelLibraries, Server, until } from "./servers.mjs";

const server = await Server.start();
after(() => server[Symbol.asyncDispose]());

for (const [name, make] of Object.entries(libraries)) {
  test(`a grant that is told after its lease is not handed out, with ${name}`, { timeout: 30_000 }, async () => {
    const delays: number[] = []; // of the next replies that are numbers
    const proxy = createServer((near) => {
      const far = connect(server.port).on("error", () => {});
      near.pipe(far).on("data", (data) => setTimeout(() => near.write(data), data[0] === 58 ? (delays.shift() ?? 0) : 0));
      near.on("error", () => {}).on("close", () => far.destroy());
    }).listen(0);
    using made = await make((proxy.address() as AddressInfo).port);
    using direct = await make(server.port);
    await using locks = createLocks(made.client, { lease: 500 });
    await using others = createLocks(direct.client);
    assert.ok(await (await locks.acquire("l")).release());
    delays.push(1000);
    const first = locks.acquire("l");
    const other = await until(() => sleep(600).then(() => others.tryAcquire("l")));
    await sleep(600);
    assert.ok(await other.release(), "nobody else had it meanwhile");
    const hold = await first;
    assert.ok(hold.token > other.token && hold.validFor() > 0);
    assert.ok(await hold.release());
    delays.push(700, 700);
    const begun = performance.now();
    const late = await locks.acquire("l");
    assert.ok(late.validFor() > 0 && performance.now() - begun < 5000, "it asked again, and once more for its place");
    assert.ok(await late.release());
    delays.push(700);
    assert.equal(await locks.tryAcquire("l"), null);
    assert.ok(await until(() => server.isFree("l")));
    proxy.close();
  });
}

/** A client of which each command but INFO fails once, and is then answered so. */
function failing(text: string, reply: unknown) {
  const failed = new Set<string>(["INFO"]);
  return {
    isOpen: true,
    async sendCommand([name]: string[]) {
      if (failed.has(name!)) return name === "LOCK.ACQUIRE" ? 7 : reply;
      failed.add(name!);
      throw new Error(text);
    },
  };
}

test("what the server refuses for a while is asked for again, a release too", async () => {
  for (const code of ["BUSY", "MISCONF", "MASTERDOWN", "LOADING"]) {
    const locks = createLocks(failing(`${code} not now`, 1), { onError: assert.ifError });
    assert.ok(await (await locks.acquire("l", { wait: 5000 })).release(), code);
  }
});

test("a release that is not answered the first time does not tell of a loss", async () => {
  for (const [text, told] of [["the connection is closed", 0], ["NOREPLICAS too few", 0], ["BUSY not now", 1]] as const) {
    const errors: Error[] = [];
    const hold = await createLocks(failing(text, null), { onError: (error) => errors.push(error) }).acquire("l");
    assert.equal(await hold.release(), false, "over, or not known");
    assert.equal(errors.filter((error) => error instanceof LockLost).length, told, text);
  }
});

test("an onError that throws takes the place of nothing", async () => {
  const onError = (): never => {
    throw new Error("onError's own");
  };
  const locks = createLocks(failing("BUSY not now", null), { onError });
  await assert.rejects(locks.using("l", () => Promise.reject(new Error("the work's"))), /^Error: the work's$/);
  assert.equal(await (await locks.acquire("l")).release(), false);
});

test("a renewal that is not answered may come yet: the shorter lease is relied upon", async () => {
  const hold = await createLocks(failing("the connection is closed", 1), { onError() {} }).acquire("l", { wait: 5000 });
  await assert.rejects(hold.renew(5000));
  await hold.renew(60_000);
  assert.ok(hold.validFor() <= 5000, String(hold.validFor()));
});

test("a renewal that ioredis may have sent twice is relied upon for the shorter lease, also if it is refused", async () => {
  let next = async (): Promise<unknown> => 1;
  const again = (of: () => unknown) => () => sleep(55).then(of);
  const refuse = () => Promise.reject(new Error("MISCONF not now"));
  const client = { isOpen: true, sendCommand: ([name]: string[]) => (name === "LOCK.RENEW" ? next() : Promise.resolve(7)) };
  const hold = await createLocks(client, { onError() {} }).acquire("l");
  next = refuse;
  await assert.rejects(hold.renew(20_000), /MISCONF/);
  assert.ok(hold.validFor() > 25_000, "a refusal at once changes nothing");
  next = again(refuse);
  await assert.rejects(hold.renew(20_000), /MISCONF/);
  assert.ok(hold.validFor() <= 20_000, "the first may have been done");
  next = again(() => 1);
  await hold.renew(10_000);
  next = async () => 1;
  await hold.renew(60_000);
  assert.ok(hold.validFor() <= 10_000, "the first may come yet");
});

for (const [name, make] of Object.entries(sentinelLibraries)) {
  test(`a renewal that gets no answer is not sent again unseen, by Sentinel with ${name}`, { timeout: 30_000 }, async () => {
    let renewals = 0;
    const proxy = createServer((near) => {
      const far = connect(server.port).on("error", () => {});
      far.pipe(near);
      near.on("data", (data) => {
        // The first one is on its way when its connection breaks.
        if (data.includes("LOCK.RENEW") && ++renewals === 1) near.destroy();
        else far.write(data);
      });
      near.on("error", () => {}).on("close", () => far.destroy());
    }).listen(0);
    using made = await make((proxy.address() as AddressInfo).port);
    const hold = await createLocks(made.client, { onError() {} }).acquire("l");
    await assert.rejects(hold.renew(20_000));
    assert.equal(renewals, 1);
    await hold.renew(60_000);
    assert.ok(hold.validFor() <= 20_000, "the first may come yet");
    assert.ok(await hold.release());
    proxy.close();
  });
}

test("what got no answer may come after its release, and is released once more", async () => {
  const released: number[] = [];
  const client = {
    isOpen: true,
    async sendCommand([name]: string[]) {
      if (name === "LOCK.ACQUIRE") throw new Error("the connection is closed");
      if (name === "LOCK.RELEASE") released.push(performance.now());
      return null;
    },
  };
  await assert.rejects(createLocks(client).tryAcquire("l"), /is closed/);
  const [first, second] = await until(() => (released.length === 2 ? released : undefined));
  assert.ok(second! - first! >= 990, "a second later");
});

test("what a client library has sent late does not keep the lock for longer than atLeast", async () => {
  const renewed: number[] = [];
  const client = {
    isOpen: true,
    async sendCommand([name, , , , lease]: string[]) {
      if (name === "LOCK.RENEW" && renewed.push(Number(lease)) === 1) await sleep(300);
      return name === "LOCK.ACQUIRE" ? 7 : 1;
    },
  };
  assert.ok(await (await createLocks(client).acquire("l", { atLeast: 60_000 })).release());
  const [first, second] = await until(() => (renewed.length === 2 ? renewed : undefined));
  assert.ok(first! - second! >= 299, "the rest is counted anew");
});
