"""What holds for locks in threads and in asyncio alike."""

import asyncio
import time

import pytest
import redis
from conftest import Proxy, Server, soon

from redis_native_lock import LockBusy, LockLost, NoModule, NotSafe
from redis_native_lock._wire import now


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


async def test_first_come_first_served(server, world, locks):
    order, waiting = [], []

    async def wait(number):
        await world.section(locks.lock("l"), lambda hold: order.append(number))

    async with world.held(locks.lock("l")):
        for number in range(8):
            waiting.append(asyncio.create_task(wait(number)))
            await soon(lambda: server.places() == len(waiting))
    await asyncio.gather(*waiting)
    assert order == list(range(8))


async def test_how_long_it_waits(server, world, locks):
    async with world.held(locks.lock("l")) as hold:
        for wait in (0, 0.001, 0.3):
            begun = time.monotonic()
            with pytest.raises(LockBusy) as error:
                await world.call(locks.lock("l").acquire, wait=wait)
            assert wait <= time.monotonic() - begun < wait + 2 and isinstance(error.value, TimeoutError)
        await soon(lambda: not server.lock("l")["waiters"])
        waiting = asyncio.create_task(world.call(locks.lock("l").acquire))
        await soon(lambda: server.places() == 1)
        assert await world.call(hold.release) is True
        later = await waiting
    assert later.token > hold.token and later.owner != hold.owner
    assert await world.call(later.release) is True and await world.call(later.release) is False, "once is enough"


async def test_a_hold_is_kept_up(server, world, locks):
    async with world.held(locks.lock("l", lease=0.3)) as hold:
        for _ in range(4):
            before = hold._valid_until
            await soon(lambda before=before: hold._valid_until > before)
        assert server.lock("l")["fence"] == hold.token and not hold.lost.is_set()
        await world.call(hold.renew, 20)
        assert 19 < hold.valid_for() <= 20 and 19000 < server.redis.pttl("l") <= 20000
    with pytest.raises(LockLost):
        await world.section(locks.lock("l", lease=0.2, renew=False), 0.4)


async def test_a_loss_is_told_before_the_lease_ends(frail, world):
    locks = world.locks(frail.port, lease=1)
    hold = await world.call(locks.lock("l").acquire)
    frail.stop()
    await soon(hold.lost.is_set)
    assert now() < hold._valid_until + 0.4, "this machine may be slow"
    assert hold.valid_for() == 0
    with pytest.raises(LockLost):
        await world.call(hold.renew)
    frail.go_on()
    await soon(lambda: frail.is_free("l"))
    await world.close(locks)


async def test_a_lock_that_somebody_takes_away(server, world, locks):
    lock = locks.lock("l", lease=0.3)

    def fail(hold):
        raise ZeroDivisionError

    for take_away in (("LOCK.BREAK", "l"), ("DEL", "l")):
        with pytest.raises(LockLost):
            await world.section(lock, lambda hold, away=take_away: server.redis.execute_command(*away), world.lost)
    with pytest.raises(ZeroDivisionError):
        await world.section(lock, lambda hold: hold._lose(), fail)


async def test_a_release_that_fails_hides_nothing(frail, world, caplog):
    locks, ended = world.locks(frail.port), []
    for hurt in (frail.stop, frail.kill):
        with pytest.raises(KeyError, match="mine"):
            await world.section(locks.lock("l"), lambda hold, hurt=hurt: (hurt(), ended.append(now())), world.fail)
        assert now() - ended[-1] < 1.5 and "not given back yet" in caplog.text
        if hurt == frail.stop:
            frail.go_on()
            await soon(lambda: frail.is_free("l"))
    await world.close(locks)


async def test_readers_permits_keys_and_once(server, world, locks):
    readers, permits = locks.lock("r", shared=True, wait=0), locks.lock("s", limit=2, wait=0)
    for lock, other in ((readers, locks.lock("r", wait=0)), (permits, permits)):
        async with world.held(lock), world.held(lock):
            with pytest.raises(LockBusy):
                await world.call(other.acquire)
    prefixed = world.locks(server.port, prefix="app:")
    async with world.held(prefixed.lock(b"\xff\r\n")) as hold:
        assert hold.key == b"app:\xff\r\n" and server.redis.exists(hold.key)
    await world.close(prefixed)
    await world.section(locks.lock("cron", wait=0, at_least=5))
    assert 4000 < server.redis.pttl("cron") <= 5000
    with pytest.raises(LockBusy):
        await world.call(locks.lock("cron").acquire, wait=0)
    for wrong in ({"shared": True, "limit": 2}, {"limit": 0}, {"lease": 0}):
        with pytest.raises(ValueError):
            locks.lock("l", **wrong)


async def test_cut_and_restarted_while_it_waits(frail, world):
    proxy = Proxy(frail.port)
    locks = world.locks(proxy.port)
    for restarts in (False, True):
        frail.redis.execute_command("LOCK.ACQUIRE", "l", "somebody", "LEASE", 60000)
        waiting = asyncio.create_task(world.call(locks.lock("l", wait=30).acquire))
        for _ in range(0 if restarts else 3):
            await soon(lambda: frail.places() == 1 and frail.redis.pubsub_channels("redislock:*"))
            proxy.cut()
            await soon(lambda: proxy.pairs)
        await soon(lambda: frail.places() == 1 and frail.redis.pubsub_channels("redislock:*"))
        if restarts:
            frail.kill()
            assert frail.start()
        else:
            frail.redis.execute_command("LOCK.RELEASE", "l", "somebody")
        await world.call((await waiting).release)
    await soon(lambda: frail.is_free("l"))
    await world.close(locks)
    proxy.end()


async def test_a_grant_that_nobody_waits_for_is_given_back(server, world, locks):
    async with world.held(locks.lock("l")):
        with pytest.raises(LockBusy):
            await world.call(locks.lock("l").acquire, wait=0.05)  # so that it has subscribed
    token = server.redis.execute_command("LOCK.ACQUIRE", "l", "x", "LEASE", 60000)
    server.redis.publish(locks._channel, b"1:0,1:l,1:x,%d:%d,4:2000," % (len(str(token)), token))
    await soon(lambda: server.is_free("l"))
    # What is no message costs at most a subscription.
    server.redis.publish(locks._channel, b"what?")
    await world.section(locks.lock("l", wait=5))


async def test_many_under_way_while_connections_are_killed(server, world, locks):
    done, ends = [0] * 24, False

    async def work(number):
        while not ends:
            await world.section(locks.lock(f"l{number % 4}", wait=8))
            done[number] += 1

    working = [asyncio.create_task(work(number)) for number in range(len(done))]
    for kind in ["pubsub", "normal"] * 4:
        before = done[:]
        await soon(lambda before=before: all(now > then for now, then in zip(done, before, strict=True)))
        server.redis.execute_command("CLIENT", "KILL", "TYPE", kind)
    ends = True
    await asyncio.gather(*working)


@pytest.mark.parametrize("rights", ["resetchannels", "resetchannels &redislock:* -subscribe"])
async def test_who_may_not_subscribe(server, world, locks, rights):
    server.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", *rights.split())
    deaf = world.locks(server.port, username="deaf", password="pw")
    async with world.held(locks.lock("l")):
        with pytest.raises(LockBusy):
            await world.call(deaf.lock("l").acquire, wait=0.1)
        waiting = asyncio.create_task(world.call(deaf.lock("l").acquire))
        await soon(lambda: server.redis.info("clients")["blocked_clients"] == 1)
        if world.name == "asyncio":
            waiting.cancel()
            await soon(lambda: server.redis.info("clients")["blocked_clients"] == 0)
            waiting = asyncio.create_task(world.call(deaf.lock("l").acquire))
            await soon(lambda: server.redis.info("clients")["blocked_clients"] == 1)
        assert server.places() == 0
    await world.call((await waiting).release)
    await world.close(deaf)


async def test_what_the_server_refuses(server, world, locks):
    server.redis.hset("data", "field", "value")
    with pytest.raises(redis.ResponseError, match="NOTALOCK"):
        await world.call(locks.lock("data", wait=5).acquire)
    server.redis.config_set("lock.min-replicas", 1)
    with pytest.raises(NotSafe):
        await world.call(locks.lock("l", wait=0).acquire)
    server.redis.config_set("lock.min-replicas", 0)
    await soon(lambda: server.is_free("l"))


async def test_a_server_without_the_module_or_with_an_older_one(server, world, monkeypatch):
    bare = Server(module=False)
    locks = world.locks(bare.port)
    with pytest.raises(NoModule, match="loadmodule"):
        await world.call(locks.lock("l").acquire)
    bare.end()
    locks = world.locks(server.port)

    async def command(args, within):
        return b"# lock\r\nlock_version:0.1.9\r\n"

    monkeypatch.setattr(locks.world, "command", command)
    with pytest.raises(NoModule, match=r"0\.1\.9"):
        await world.call(locks.lock("l").acquire)
