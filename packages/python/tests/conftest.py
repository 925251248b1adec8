"""Servers with the lock module, started here, and a proxy that delays."""

import asyncio
import contextlib
import importlib
import inspect
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

import redis_native_lock
import redis_native_lock.asyncio

MODULE = os.environ.get("REDISLOCK_MODULE", "target/release/libredislock.so")
BINARY = os.environ.get("REDISLOCK_SERVER") or shutil.which("redis-server") or "redis-server"


def pytest_pyfunc_call(pyfuncitem):
    """Runs tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run():
        # Enough threads for all that block.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
        await asyncio.wait_for(pyfuncitem.obj(**arguments), 60)
        if "locks" in arguments:
            await arguments["world"].close(arguments["locks"])
            await soon(lambda: not arguments["locks"].holds)

    asyncio.run(run())
    return True


async def soon(what, within=20.0):
    """Looks again and again until it is so."""
    end = time.monotonic() + within
    while not (result := what()):
        assert time.monotonic() < end, f"it never came to {inspect.getsource(what).strip()}"
        await asyncio.sleep(0.002)
    return result


def until(what):
    """The same where there is no event loop."""
    return asyncio.run(soon(what))


class Server:
    def __init__(self, *options, module=True, binary=BINARY, ports=None):
        self.dir = tempfile.mkdtemp()
        for _ in range(10):
            self.port = random.randint(20000, 32000) if ports is None else next(ports)
            self.options = [*options, *(["--loadmodule", MODULE] if module else [])]
            if self.start(binary):
                return
        raise RuntimeError(f"the server does not start: {open(f'{self.dir}/log').read()[-500:]}")

    def start(self, binary=BINARY):
        log = open(f"{self.dir}/log", "a")
        base = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.dir]
        self.process = subprocess.Popen([*base, *self.options], stdout=log, stderr=log)
        self.redis = redis.Redis(port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 1))
        for _ in range(400):
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(redis.RedisError):
                return self.redis.info("server")["process_id"] == self.process.pid
            time.sleep(0.02)
        return False

    def lock(self, key):
        """What LOCK.INFO says."""
        flat = self.redis.execute_command("LOCK.INFO", key)
        pairs = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        return {str(k, "ascii") if isinstance(k, bytes) else k: v for k, v in pairs.items()}

    def is_free(self, key):
        info = self.lock(key)
        return not info["holders"] and not info["waiters"]

    def places(self):
        return self.redis.info("lock")["lock_places"]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.redis.close()
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


class World:
    """Locks in threads, or in asyncio, called alike by tests that are coroutines."""

    def __init__(self, name):
        self.name, self.is_asyncio = name, name == "asyncio"
        self.module = redis_native_lock.asyncio if self.is_asyncio else redis_native_lock
        self.native_lock = self.module.NativeLock

    def client(self, port, library="redis", cluster=False, **options):
        name = {"redis": "Redis", "valkey": "Valkey"}[library] + ("Cluster" if cluster else "")
        library = importlib.import_module(f"{library}.asyncio" if self.is_asyncio else library)
        return getattr(library, name)(host="127.0.0.1", port=port, **options)

    def locks(self, port=None, lease=30.0, prefix="", client=None, **options):
        return self.module.Locks(client or self.client(port, **options), lease, prefix)

    async def call(self, method, *args, **options):
        if self.is_asyncio:
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def close(self, locks):
        await self.call(locks.aclose if self.is_asyncio else locks.close)

    @contextlib.asynccontextmanager
    async def held(self, lock):
        hold = await self.call(lock.acquire)
        yield hold
        await self.call(hold.release)

    async def section(self, lock, *steps):
        """Does what is to be done with the hold in a `with`; a number is slept."""
        if self.is_asyncio:
            async with lock as hold:
                for step in steps:
                    result = asyncio.sleep(step) if isinstance(step, float | int) else step(hold)
                    await result if inspect.isawaitable(result) else None
            return

        def work():
            with lock as hold:
                for step in steps:
                    time.sleep(step) if isinstance(step, float | int) else step(hold)

        await asyncio.to_thread(work)

    def fail(self, hold):
        raise KeyError("mine")


@pytest.fixture(params=["threads", "asyncio"])
def world(request):
    return World(request.param)


@pytest.fixture
def locks(server, world):
    return world.locks(server.port)


@pytest.fixture(scope="session")
def shared_server():
    server = Server()
    yield server
    server.end()


@pytest.fixture
def server(shared_server):
    """A server that no test hurts."""
    shared_server.redis.flushall()
    return shared_server


class Proxy:
    """Stands between a client and its server, and delays."""

    def __init__(self, port):
        self.target, self.delay = port, 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                ends = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.target))
                for one, other in (ends, ends[::-1]):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                time.sleep(self.delay)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def end(self):
        self.listener.close()


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.port)
    yield proxy
    proxy.end()
