"""Servers with the lock module, started here, and a proxy that hurts connections."""

import asyncio
import contextlib
import inspect
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

MODULE = os.environ.get("REDISLOCK_MODULE", "target/release/libredislock.so")
BINARY = os.environ.get("REDISLOCK_SERVER") or shutil.which("redis-server") or "redis-server"


def pytest_pyfunc_call(pyfuncitem):
    """Runs tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 60))
    return True


def until(what, timeout=20.0):
    """Looks again and again until it is so."""
    end = time.monotonic() + timeout
    while not (result := what()):
        assert time.monotonic() < end, f"it never came to {inspect.getsource(what).strip()}"
        time.sleep(0.002)
    return result


async def soon(what, timeout=20.0):
    """The same in asyncio."""
    end = time.monotonic() + timeout
    while not (result := what()):
        assert time.monotonic() < end, f"it never came to {inspect.getsource(what).strip()}"
        await asyncio.sleep(0.002)
    return result


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
        self.redis = redis.Redis(port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))
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

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.redis.close()
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


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


@pytest.fixture
def frail():
    """A server that a test may stop and kill."""
    server = Server()
    yield server
    server.go_on()
    server.end()


class Proxy:
    """Stands between a client and its server: it cuts connections, delays, or swallows what has a word."""

    def __init__(self, port):
        self.target, self.delay, self.swallows, self.swallowed = port, 0.0, None, 0
        self.pairs = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.pairs.append((client, server))
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client, server):
        ahead = []  # what is on its way: when it arrives, where, what
        with contextlib.suppress(OSError, ValueError):
            while True:
                left = max(0, ahead[0][0] - time.monotonic()) if ahead else None
                for one in select.select([client, server], [], [], left)[0]:
                    data = one.recv(65536)
                    if self.swallows and one is server and self.swallows in data:
                        self.swallowed += 1
                        data = None
                    ahead.append((time.monotonic() + self.delay, server if one is client else client, data))
                while ahead and ahead[0][0] <= time.monotonic():
                    _, to, data = ahead.pop(0)
                    if data == b"":
                        raise OSError
                    if data:
                        to.sendall(data)
        client.close()
        server.close()

    def cut(self):
        pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def end(self):
        self.listener.close()
        self.cut()


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.port)
    yield proxy
    proxy.end()


@pytest.fixture(scope="session")
def cluster():
    """Three primaries."""
    ports = iter(range(random.randint(20000, 30000), 32000))
    nodes = [Server("--cluster-enabled", "yes", ports=ports) for _ in range(3)]
    addresses = [f"127.0.0.1:{node.port}" for node in nodes]
    create = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    for node in nodes:
        until(lambda node=node: node.redis.cluster("info")["cluster_state"] == "ok")
    yield nodes
    for node in nodes:
        node.end()
