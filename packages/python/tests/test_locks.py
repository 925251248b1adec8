"""What holds for locks in threads and in asyncio alike."""

import asyncio

import pytest
import redis
import redis.asyncio
from conftest import soon

import redis_native_lock.asyncio
from redis_native_lock import LockLost, NoModule


@pytest.mark.parametrize("library", ["redis", "valkey"])
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
async def test_one_at_a_time(server, world, library, options):
    count = 0

    def look(hold):
        nonlocal seen
        assert hold.valid_for() > 0
        seen = count

    def add(hold):
        nonlocal count
        count = seen + 1

    async def work(locks):
        for _ in range(10):
            await world.section(locks.lock("counter", wait=30), look, 0, add)

    seen, both = 0, [world.locks(server.port, library=library, **options) for _ in range(2)]
    await asyncio.gather(*(work(locks) for locks in both * 4))
    assert count == 80
    # One subscription each, however many wait; and nothing is left.
    assert len(server.redis.pubsub_channels("redislock:*")) == 2
    for locks in both:
        await world.close(locks)
        await soon(lambda locks=locks: not locks.holds)
    await soon(lambda: server.is_free("counter") and not server.redis.pubsub_channels("redislock:*"))


def test_many_at_once_in_one_event_loop_and_in_the_next(server, caplog):
    client = redis.asyncio.Redis(port=server.port, max_connections=100)
    locks = redis_native_lock.asyncio.Locks(client, lease=3)

    async def work():
        holds = await asyncio.gather(*(locks.lock(f"l:{number}").acquire() for number in range(200)))
        await soon(lambda: all(hold._valid_until > hold._granted_at + 3 for hold in holds))  # as each is renewed
        await asyncio.gather(*(hold.release() for hold in holds))
        await asyncio.gather(locks.aclose(), client.aclose())

    [asyncio.run(work()) for _ in range(2)]
    assert "Too many connections" not in caplog.text


async def test_keys_and_options(server, world, locks):
    prefixed = world.locks(server.port, prefix="app:")
    async with world.held(prefixed.lock(b"\xff\r\n")) as hold:
        assert hold.key == b"app:\xff\r\n" and server.redis.exists(hold.key)
    assert await world.call(hold.release) is False, "once is enough"
    await world.close(prefixed)
    for wrong in ({"shared": True, "limit": 2}, {"limit": 0}, {"lease": 0}):
        with pytest.raises(ValueError):
            locks.lock("l", **wrong)
    with pytest.raises(LockLost):
        await world.section(locks.lock("l", lease=0.2, renew=False), 0.4)
    server.redis.hset("data", "field", "value")
    with pytest.raises(redis.ResponseError, match="NOTALOCK"):
        await world.call(locks.lock("data", wait=5).acquire)


async def test_what_is_no_message(server, world, locks):
    async with world.held(locks.lock("l")):
        waiting = asyncio.create_task(world.section(locks.lock("l")))
        await soon(lambda: server.places() == 1)  # so that it has subscribed
        # It costs at most a subscription.
        server.redis.publish(locks._channel, b"what?")
    await waiting


async def test_a_server_with_an_older_module(server, world, locks, monkeypatch):
    async def command(*args):
        return b"# lock\r\nlock_version:0.1.9\r\n"

    monkeypatch.setattr(locks.world, "command", command)
    with pytest.raises(NoModule, match=r"0\.1\.9"):
        await world.call(locks.lock("l").acquire)
