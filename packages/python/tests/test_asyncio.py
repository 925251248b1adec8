"""Locks for asyncio."""

import asyncio
import logging
import random
import sys
import time

import anyio
import anyio.lowlevel
import pytest
import redis.asyncio
import valkey.asyncio
from conftest import Proxy, soon

import redis_native_lock._core as core
from redis_native_lock.asyncio import LockBusy, LockLost, Locks, NativeLock


def client(server, library=redis.asyncio.Redis, **options):
    return library(port=server.port, **options)


def places(server):
    return server.redis.info("lock")["lock_places"]


async def nothing_left(server, locks, *keys):
    for key in keys:
        await soon(lambda key=key: server.is_free(key))
    await soon(lambda: places(server) == 0)
    assert not locks.waits


@pytest.mark.parametrize("library", [redis.asyncio.Redis, valkey.asyncio.Valkey])
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
async def test_one_at_a_time(server, library, options):
    count = 0

    async def add(locks):
        nonlocal count
        for _ in range(10):
            async with locks.lock("counter", wait=30) as hold:
                assert hold.valid_for() > 0
                seen = count
                await asyncio.sleep(0)
                count = seen + 1

    async with Locks(client(server, library, **options)) as one, Locks(client(server, library, **options)) as two:
        await asyncio.gather(*(add(locks) for locks in [one, two] * 8))
        assert count == 160
        await nothing_left(server, one, "counter")
        # One subscription each, however many wait.
        assert len(server.redis.pubsub_channels("redislock:*")) == 2
    await soon(lambda: not server.redis.pubsub_channels("redislock:*"))


async def test_cancelled_in_each_phase(server, proxy):
    """On a slow network, where a cancel finds commands on their way."""
    proxy.delay = 0.01
    rng = random.Random(7)
    async with Locks(client(proxy, max_connections=40)) as locks:

        async def section():
            async with locks.lock("l"):
                await asyncio.sleep(0.005)

        for _ in range(15):
            tasks = [asyncio.create_task(section()) for _ in range(8)]
            for task in tasks:
                await asyncio.sleep(rng.random() * 0.03)
                task.cancel()
            # At once: none waits for what it gives back.
            begun = time.monotonic()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert time.monotonic() - begun < 1.5
        await nothing_left(server, locks, "l")
        async with locks.lock("l", wait=5):
            pass


async def test_scopes_of_anyio(server):
    async with Locks(client(server)) as locks:
        async with locks.lock("l"):
            with anyio.move_on_after(0.1) as scope:
                async with locks.lock("l"):
                    raise AssertionError("two hold it")
            assert scope.cancelled_caught
        with anyio.move_on_after(0.1) as scope:
            async with locks.lock("l"):
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        await nothing_left(server, locks, "l")
        with pytest.raises(LockLost):
            with anyio.fail_after(20):
                async with locks.lock("l", lease=0.3):
                    async with anyio.create_task_group() as group:
                        group.start_soon(anyio.sleep_forever)
                        server.redis.delete("l")
        await anyio.lowlevel.checkpoint()  # nothing of the cancellation is left


async def test_a_loss_is_raised_in_the_body(frail):
    ended_at = None
    async with Locks(client(frail), lease=1) as locks:
        begun = core.now()
        with pytest.raises(LockLost):
            async with locks.lock("l") as hold:
                frail.stop()
                try:
                    await asyncio.sleep(30)
                finally:
                    ended_at = core.now()
        assert ended_at - begun < 1.5 and hold.lost.is_set() and hold.valid_for() == 0
        assert ended_at < hold._valid_until + 0.5
        frail.go_on()
        await nothing_left(frail, locks, "l")
        # Its own error survives, and so does a cancellation from elsewhere.
        with pytest.raises(ZeroDivisionError):
            async with locks.lock("l", lease=0.3) as hold:
                frail.redis.delete("l")
                try:
                    await asyncio.sleep(30)
                finally:
                    raise ZeroDivisionError
        task = asyncio.create_task(asyncio.sleep(0))
        await task

        async def work():
            async with locks.lock("l", lease=0.3) as hold:
                hold._end("in the same moment")
                asyncio.current_task().cancel()
                await asyncio.sleep(30)

        # Before Python 3.11 the two can't be told apart.
        with pytest.raises(asyncio.CancelledError if sys.version_info >= (3, 11) else LockLost):
            await asyncio.create_task(work())
        with pytest.raises(LockLost):
            async with locks.lock("l", lease=0.3) as hold:
                hold._end("and nothing awaited")
        await asyncio.sleep(0)


async def test_a_release_that_fails_hides_nothing(frail, caplog):
    caplog.set_level(logging.WARNING)
    locks = Locks(client(frail))

    async def work():
        async with locks.lock("l"):
            frail.stop()
            return 42

    begun = time.monotonic()
    assert await work() == 42 and time.monotonic() - begun < 1.5
    assert "not given back yet" in caplog.text
    frail.go_on()
    await soon(lambda: frail.is_free("l"))
    with pytest.raises(KeyError, match="mine"):
        async with locks.lock("l"):
            frail.kill()
            begun = time.monotonic()
            raise KeyError("mine")
    assert time.monotonic() - begun < 1


async def test_cut_and_restarted_while_it_waits(frail):
    proxy = Proxy(frail.port)
    async with Locks(client(proxy)) as locks:
        # It outlives the restart as a place, and this hold does not.
        frail.redis.execute_command("LOCK.ACQUIRE", "l", "somebody", "LEASE", 60000)
        waiting = asyncio.create_task(locks.lock("l", wait=30).acquire())
        for _ in range(3):
            await soon(lambda: places(frail) == 1 and frail.redis.pubsub_channels("redislock:*"))
            proxy.cut()
            await soon(lambda: proxy.pairs)
        await soon(lambda: frail.redis.pubsub_channels("redislock:*"))
        frail.redis.execute_command("LOCK.RELEASE", "l", "somebody")
        assert await (await waiting).release()
        frail.redis.execute_command("LOCK.ACQUIRE", "l", "somebody", "LEASE", 60000)
        waiting = asyncio.create_task(locks.lock("l", wait=30).acquire())
        await soon(lambda: places(frail) == 1)
        frail.kill()
        assert frail.start()
        assert await (await waiting).release()
        await nothing_left(frail, locks, "l")
    proxy.end()


async def test_messages_that_are_lost_or_for_nobody(server, proxy, monkeypatch):
    monkeypatch.setattr(core, "ASK_AGAIN", 0.5)
    async with Locks(client(proxy)) as locks:
        async with Locks(client(server)) as others:
            async with others.lock("l"):
                waiting = asyncio.create_task(locks.lock("l", wait=30).acquire())
                await soon(lambda: places(server) == 1)
                proxy.swallows = b"smessage" if locks.world.is_cluster else b"message"
            hold = await waiting
            assert proxy.swallowed >= 1 and hold.valid_for() > 20
            await hold.release()
            proxy.swallows = None
        # A grant that nobody waits for is given back.
        token = server.redis.execute_command("LOCK.ACQUIRE", "l", "x", "LEASE", 60000)
        server.redis.publish(locks._channel, b"1:0,1:l,1:x,%d:%d,4:2000," % (len(str(token)), token))
        await nothing_left(server, locks, "l")
        # What is no message changes nothing.
        server.redis.publish(locks._channel, b"what?")
        async with locks.lock("l", wait=5):
            pass


async def test_who_may_not_subscribe(server):
    server.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels")
    async with Locks(client(server, username="deaf", password="pw")) as locks:
        lock = locks.lock("l")
        async with lock:
            with pytest.raises(LockBusy):
                await lock.acquire(wait=0.1)
            waiting = asyncio.create_task(lock.acquire())
            await soon(lambda: server.redis.info("clients")["blocked_clients"] == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await soon(lambda: server.redis.info("clients")["blocked_clients"] == 0)
            waiting = asyncio.create_task(lock.acquire())
            await soon(lambda: server.redis.info("clients")["blocked_clients"] == 1)
        assert await (await waiting).release()
        await nothing_left(server, locks, "l")


async def test_the_hook_of_the_client(server):
    connection = client(server)
    async with connection.lock("l", timeout=5, lock_class=NativeLock) as lock:
        assert await lock.owned() and await lock.locked()
        other = connection.lock("l", blocking_timeout=0.1, lock_class=NativeLock)
        assert not await other.acquire() and not await other.owned()
        assert await lock.extend(5) and 9000 < server.redis.pttl("l") <= 10000
        assert await lock.reacquire() and server.redis.pttl("l") <= 5000
    # Beside their own lock on the same key.
    theirs = connection.lock("l", timeout=20)
    await theirs.acquire()
    waiting = asyncio.create_task(connection.lock("l", sleep=0.01, lock_class=NativeLock).acquire(token="t"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await theirs.release()
    assert await waiting and server.redis.hexists("l", "t")
