"""The driver of the conformance suite, with threads or asyncio: conformance/README.md says what it is told.

Each call is a coroutine. In the world of threads nothing that it awaits suspends, so that one step runs it to its end.
"""

# ruff: noqa: ASYNC240, ASYNC251 - a file of a few bytes, and a pause of nothing

import asyncio
import inspect
import itertools
import json
import os
import pathlib
import sys
import threading
import time

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel

import redis_native_lock
import redis_native_lock.asyncio

OURS = ("Deadlock", "LockBusy", "LockLost", "NoModule", "NotSafe", "Superseded", "WorkFailed")
THEIRS = {"NoPermissionError": "NoPermission", "ConnectionError": "Unavailable", "TimeoutError": "Unavailable"}
# Planted: the runner has to notice.
FAULT = os.environ.get("CONFORMANCE_FAULT", "")


class WorkFailed(Exception):
    """What the work of `run` raises."""


class Unsupported(Exception):
    """The package does not offer it."""


async def done(value):
    """What a function of either world gives."""
    return await value if inspect.isawaitable(value) else value


class Threads:
    event, client = threading.Event, redis
    sentinel, cluster, locks = redis.sentinel.Sentinel, redis.cluster, redis_native_lock.Locks
    writing = threading.Lock()

    def serve(self, driver):
        for line in sys.stdin:
            self.start(driver.answer(json.loads(line)))

    def start(self, work):
        thread = threading.Thread(target=lambda: self.run(work), daemon=True)
        thread.start()
        return thread

    def run(self, work):
        try:
            work.send(None)
        except StopIteration:
            pass

    async def all(self, works):
        for thread in [self.start(work) for work in works]:
            thread.join()

    async def turn(self):
        time.sleep(0)

    async def either(self, finish, lost):
        """The work can't be ended from outside: it looks."""
        while not finish.wait(0.01) and not lost.is_set():
            pass

    async def enter(self, lock):
        return lock.__enter__()

    async def leave(self, lock, error):
        lock.__exit__(type(error) if error else None, error, None)

    def cancel(self, call):
        raise Unsupported("a thread can't be cancelled")

    async def close(self, locks):
        locks.close()
        locks.world.client.close()


class Tasks:
    event, client = asyncio.Event, redis.asyncio
    sentinel, cluster, locks = redis.asyncio.sentinel.Sentinel, redis.asyncio.cluster, redis_native_lock.asyncio.Locks
    writing = threading.Lock()

    def serve(self, driver):
        asyncio.run(self.read(driver))

    async def read(self, driver):
        loop, tasks, ended = asyncio.get_running_loop(), set(), asyncio.Event()

        def begin(line):
            call = json.loads(line)
            task = loop.create_task(driver.answer(call))
            driver.tasks[call["id"]] = task
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def lines():
            for line in sys.stdin:
                loop.call_soon_threadsafe(begin, line)
            loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=lines, daemon=True).start()
        await ended.wait()

    async def all(self, works):
        await asyncio.gather(*works)

    async def turn(self):
        await asyncio.sleep(0)

    async def either(self, finish, lost):
        await finish.wait()

    async def enter(self, lock):
        return await lock.__aenter__()

    async def leave(self, lock, error):
        await lock.__aexit__(type(error) if error else None, error, None)

    def cancel(self, task):
        task.cancel()

    async def close(self, locks):
        await locks.aclose()
        await locks.world.client.aclose()


class Driver:
    def __init__(self, world):
        self.world, self.clients, self.holds, self.tasks, self.finishes = world, {}, {}, {}, {}

    def write(self, line):
        line["at"] = time.monotonic() * 1000
        with self.world.writing:
            print(json.dumps(line), flush=True)

    async def answer(self, call):
        try:
            result = {"ok": await getattr(self, call["call"])(call)}
        except (Exception, asyncio.CancelledError) as error:
            result = {"error": name_of(error), "text": f"{type(error).__name__}: {error}"}
        self.write({"id": call["id"], **result})

    async def connect(self, call):
        options = {"username": call.get("user"), "password": call.get("password")}
        if call["urls"][0].startswith("rediss:"):
            options |= {"ssl": True, "ssl_ca_certs": call.get("ca_file")}
        nodes = [url.rpartition("/")[2].rsplit(":", 1) for url in call["urls"]]
        nodes = [(host, int(port)) for host, port in nodes]
        if call["kind"] == "sentinel":
            client = self.world.sentinel(nodes).master_for(call["service"], **options)
        elif call["kind"] == "cluster":
            nodes = [self.world.cluster.ClusterNode(*node) for node in nodes]
            client = self.world.cluster.RedisCluster(startup_nodes=nodes, **options)
        else:
            client = self.world.client.Redis(host=nodes[0][0], port=nodes[0][1], **options)
        settings = {"lease": call["lease_ms"] / 1000} if "lease_ms" in call else {}
        self.clients[call["client"]] = self.world.locks(client, prefix=call.get("prefix", ""), **settings)
        return {}

    def lock(self, call):
        key = bytes.fromhex(call["key_hex"]) if "key_hex" in call else call["key"]
        options = {name: call[name] for name in ("shared", "limit", "renew") if name in call}
        for name in ("wait", "lease", "at_least"):
            if name + "_ms" in call:
                options[name] = call[name + "_ms"] / 1000
        if FAULT == "forgets-at-least":
            options.pop("at_least", None)
        if FAULT == "never-renews":
            options["renew"] = False
        if FAULT == "gives-up":
            options.setdefault("wait", 0.2)
        return self.clients[call["client"]].lock(key, **options)

    async def acquire(self, call):
        hold = self.holds[call["id"]] = await done(self.lock(call).acquire())
        return {"token": hold.token}

    async def release(self, call):
        return {"released": await done(self.holds[call["of"]].release())}

    async def renew(self, call):
        is_new = "lease_ms" in call and FAULT != "keeps-its-lease"
        lease = call["lease_ms"] / 1000 if is_new else None
        await done(self.holds[call["of"]].renew(lease))
        return {}

    async def valid_for(self, call):
        return {"ms": self.holds[call["of"]].valid_for() * 1000}

    async def lost(self, call):
        await done(self.holds[call["of"]].lost.wait())
        return {}

    async def cancel(self, call):
        self.world.cancel(self.tasks.get(call["of"]))
        return {}

    async def run(self, call):
        finish = self.finishes[call["id"]] = self.world.event()
        lock, error = self.lock(call), None
        hold = self.holds[call["id"]] = await self.world.enter(lock)
        try:
            self.write({"id": call["id"], "event": "began", "token": hold.token})
            await self.world.either(finish, hold.lost)
            if getattr(finish, "way", "value") == "error":
                raise WorkFailed("as it was told to")
        except BaseException as raised:
            error = raised
        await self.world.leave(lock, error)
        if error is not None:
            raise error
        return {"value": 42}

    async def finish(self, call):
        self.finishes[call["of"]].way = call["with"]
        self.finishes[call["of"]].set()
        return {}

    async def count(self, call):
        seen = []

        async def one():
            for _ in range(call["times"]):
                hold = await done(self.lock(call).acquire())
                count, token = map(int, pathlib.Path(call["file"]).read_text().split())
                await self.world.turn()
                pathlib.Path(call["file"]).write_text(f"{count + 1} {hold.token}")
                seen.append(token >= hold.token)
                await done(hold.release())

        await self.world.all([one() for _ in range(call["tasks"])])
        return {"done": len(seen), "backwards": sum(seen)}

    async def clock(self, call):
        return {"wall_ms": time.time() * 1000}

    async def close(self, call):
        await self.world.close(self.clients.pop(call["client"]))
        return {}


def name_of(error):
    names = [cls.__name__ for cls in type(error).__mro__]
    if "CancelledError" in names:
        return "Cancelled"
    known = itertools.chain(OURS, ["Unsupported"])
    return next((name for name in known if name in names), next((THEIRS[n] for n in names if n in THEIRS), "Other"))


world = Threads() if sys.argv[1:] == ["threads"] else Tasks()
world.serve(Driver(world))
