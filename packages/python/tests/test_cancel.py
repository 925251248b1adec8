"""Who is cancelled, interrupted, killed or forked leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest
import redis
import redis.asyncio
from conftest import soon, until

import redis_native_lock
from redis_native_lock import LockBusy, LockLost
from redis_native_lock.asyncio import Locks


def locks_of(server, **options):
    return aclosing(Locks(redis.asyncio.Redis(port=server.port, **options)))


async def nothing_left(server, locks):
    await soon(lambda: server.is_free("l") and server.places() == 0 and not locks.holds)


async def test_scopes_of_anyio(server):
    async with locks_of(server) as locks:
        async with locks.lock("l"):
            with anyio.move_on_after(0.1) as scope:
                async with locks.lock("l"):
                    raise AssertionError("two hold it")
            assert scope.cancelled_caught
        with anyio.move_on_after(0.1) as scope:
            async with locks.lock("l"):
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        await nothing_left(server, locks)
        with pytest.raises(LockLost):
            with anyio.fail_after(20):
                async with locks.lock("l", lease=0.3):
                    async with anyio.create_task_group() as group:
                        group.start_soon(anyio.sleep_forever)
                        server.redis.delete("l")
        await anyio.lowlevel.checkpoint()  # nothing of the cancellation is left


async def test_cancelled_in_the_moment_of_a_loss(server):
    async with locks_of(server) as locks:

        async def work():
            async with locks.lock("l") as hold:
                hold._lose()
                asyncio.current_task().cancel()
                await asyncio.sleep(30)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())
        with pytest.raises(LockLost):
            async with locks.lock("l") as hold:
                hold._lose()
        await asyncio.sleep(0)


# A shell has what it starts in the background ignore SIGINT, and so what that starts.
PROGRAM = """
import signal, time, redis, redis_native_lock as native
signal.signal(signal.SIGINT, signal.default_int_handler)
client = redis.Redis(port={port})
locks = native.Locks(client, lease=1)
try:
    locks.lock("l").acquire()
except KeyboardInterrupt:
    locks.lock("other").acquire().release()
    while client.info("lock")["lock_places"]: time.sleep(0.01)
    print("nothing left")
"""


def test_interrupted_while_it_waits(server):
    command = [sys.executable, "-c", PROGRAM.format(port=server.port)]
    with redis_native_lock.Locks(redis.Redis(port=server.port)).lock("l"):
        waiter = subprocess.Popen(command, stdout=subprocess.PIPE)
        until(lambda: server.places() == 1)
        waiter.send_signal(signal.SIGINT)
        assert waiter.communicate(timeout=20)[0] == b"nothing left\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_release_that_can_start_no_thread_does_not_hide_the_error_of_the_work(server, monkeypatch, is_there):
    client = redis.Redis(port=server.port)
    locks = redis_native_lock.Locks(client)

    def start(thread):
        raise RuntimeError("can't start new thread")

    with pytest.raises(KeyError, match="mine"):
        with locks.lock("l"):
            client.connection_pool.reset()
            client.connection_pool.connection_kwargs["port"] = server.port if is_there else 1
            monkeypatch.setattr(threading.Thread, "start", start)
            raise KeyError("mine")
    assert server.is_free("l") is is_there


def test_a_fork(server):
    locks = redis_native_lock.Locks(redis.Redis(port=server.port))
    with locks.lock("l"):
        with pytest.raises(LockBusy):
            locks.lock("l", wait=0.05).acquire()  # so that there are threads and a subscription
        child = os.fork()
        if child == 0:
            try:
                with locks.lock("l", wait=10, lease=3) as hold:
                    before = hold._valid_until
                    until(lambda: hold._valid_until > before)
                os._exit(0)
            finally:
                os._exit(1)
        until(lambda: server.places() == 1)
    assert os.waitpid(child, 0)[1] == 0
    locks.close()
