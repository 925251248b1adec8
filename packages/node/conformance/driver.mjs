// Does what the runner of the conformance suite says, by the package's public API.
import { readFileSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setImmediate as turn } from "node:timers/promises";
import { createLocks, LockLost, NativeLockError } from "redis-native-lock";

class WorkFailed extends Error {}

const variant = process.argv[2];
const { Cluster, Redis, createClient, createCluster, createSentinel } = await import(variant.replace("node-", ""));
const clients = new Map();
const asked = new Map();

const monotonic = () => Number(process.hrtime.bigint()) / 1e6;
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

function nameOf(error, asked) {
  if (asked?.isCancelled && error?.name === "AbortError") return "Cancelled";
  if (error instanceof WorkFailed) return "WorkFailed";
  if (error instanceof NativeLockError && error.name !== "NativeLockError") return error.name;
  const text = String(error?.message);
  if (text.startsWith("NOPERM")) return "NoPermission";
  const isRefused = /^[A-Z]+ /.test(text) && error.syscall === undefined && !/^(READONLY|LOADING|CLUSTERDOWN)/.test(text);
  return isRefused || error instanceof TypeError || error instanceof RangeError ? "Other" : "Unavailable";
}

async function connected({ kind, urls, service, user, password, ca_file: caFile }) {
  const nodes = urls.map((url) => ({ host: new URL(url).hostname, port: Number(new URL(url).port) }));
  const ca = caFile && readFileSync(caFile);
  const login = { ...(user && { username: user }), ...(password && { password }) };
  const noise = (error) => process.stderr.write(`${error}\n`);
  if (variant.startsWith("ioredis")) {
    const tls = urls[0].startsWith("rediss:") ? { tls: { ca } } : {};
    // As README.md says to set it.
    const options = { ...login, ...tls, socketTimeout: 5000 };
    let client;
    if (kind === "cluster") client = new Cluster(nodes, { redisOptions: options });
    else if (kind === "sentinel") client = new Redis({ sentinels: nodes, name: service, ...options });
    else client = new Redis({ ...nodes[0], ...options });
    client.on("error", noise);
    return [client, () => client.disconnect()];
  }
  const tls = { ...(urls[0].startsWith("rediss:") && { tls: true, ca }), socketTimeout: 5000, reconnectStrategy: 500 };
  const options = { ...login, pingInterval: 2000 };
  let client;
  if (kind === "cluster") {
    const rootNodes = nodes.map((node) => ({ socket: { ...node, ...tls } }));
    client = createCluster({ rootNodes, defaults: { ...options, socket: tls } });
  } else if (kind === "sentinel") {
    client = createSentinel({ name: service, sentinelRootNodes: nodes, nodeClientOptions: { ...options, socket: tls } });
  } else client = createClient({ ...options, socket: { ...nodes[0], ...tls } });
  client.on("error", noise);
  // A server that is down is waited for by the package.
  const connecting = client.connect();
  connecting.catch(noise);
  if (kind !== "one") await connecting;
  return [client, () => client.isOpen && client.destroy()];
}

function optionsOf(call, ours) {
  const { wait_ms: wait, lease_ms: lease, at_least_ms: atLeast, shared, limit, renew } = call;
  const given = Object.entries({ wait, lease, atLeast, shared, limit, renew }).filter(([, value]) => value !== undefined);
  return { ...Object.fromEntries(given), signal: ours.controller.signal };
}

const keyOf = ({ key, key_hex: hex }) => (hex === undefined ? key : Buffer.from(hex, "hex"));

const calls = {
  async connect(call) {
    const [client, end] = await connected(call);
    const options = { onError: (error) => process.stderr.write(`${error}\n`) };
    if (call.lease_ms !== undefined) options.lease = call.lease_ms;
    if (call.prefix !== undefined) options.prefix = call.prefix;
    clients.set(call.client, { locks: createLocks(client, options), end });
    return {};
  },
  async acquire(call, ours) {
    ours.hold = await clients.get(call.client).locks.acquire(keyOf(call), optionsOf(call, ours));
    return { token: ours.hold.token };
  },
  async run(call, ours) {
    const value = await clients.get(call.client).locks.using(keyOf(call), optionsOf(call, ours), async (hold) => {
      ours.hold = hold;
      say({ id: call.id, at: monotonic(), event: "began", token: hold.token });
      const lost = new Promise((_, reject) => {
        hold.signal.addEventListener("abort", () => reject(hold.signal.reason));
        if (hold.signal.aborted) reject(hold.signal.reason);
      });
      if ((await Promise.race([ours.finished, lost])) === "error") throw new WorkFailed("the work has failed");
      return 42;
    });
    return { value };
  },
  async cancel({ of }) {
    asked.get(of).isCancelled = true;
    asked.get(of).controller.abort();
    return {};
  },
  async release({ of }) {
    return { released: await asked.get(of).hold.release() };
  },
  async renew({ of, lease_ms: lease }) {
    await asked.get(of).hold.renew(lease);
    return {};
  },
  async valid_for({ of }) {
    return { ms: asked.get(of).hold.validFor() };
  },
  async lost({ of }) {
    const { signal } = asked.get(of).hold;
    await new Promise((resolve) => {
      const look = () => signal.reason instanceof LockLost && resolve();
      signal.addEventListener("abort", look);
      look();
    });
    return {};
  },
  async finish({ of, with: how }) {
    asked.get(of).finish(how);
    return {};
  },
  async count({ client, key, file, tasks, times }) {
    let done = 0;
    let backwards = 0;
    const task = async () => {
      for (let time = 0; time < times; time++) {
        await clients.get(client).locks.using(key, async ({ token }) => {
          const [count, last] = (await readFile(file, "utf8")).split(" ").map(Number);
          if (last >= token) backwards++;
          await turn();
          await writeFile(file, `${count + 1} ${token}`);
          done++;
        });
      }
    };
    await Promise.all(Array.from({ length: tasks }, task));
    return { done, backwards };
  },
  async clock() {
    return { wall_ms: Date.now() };
  },
  async close({ client }) {
    const { locks, end } = clients.get(client);
    clients.delete(client);
    await locks.close();
    end();
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  const ours = { controller: new AbortController() };
  ours.finished = new Promise((resolve) => (ours.finish = resolve));
  asked.set(call.id, ours);
  const work = calls[call.call];
  if (work === undefined) say({ id: call.id, at: monotonic(), error: "Unsupported", text: call.call });
  else {
    work(call, ours).then(
      (ok) => say({ id: call.id, at: monotonic(), ok }),
      (error) => say({ id: call.id, at: monotonic(), error: nameOf(error, ours), text: `${error?.name}: ${error?.message}` }),
    );
  }
}
process.exit();
