"""Locks for threads."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import valkey
from conftest import Server, until

import redis_native_lock._core as core
from redis_native_lock import Deadlock, LockBusy, LockLost, Locks, NoModule, NotSafe, Superseded
from redis_native_lock._wire import now, slot_of, tag_of, told, valid_until


@pytest.fixture
def locks(server):
    with Locks(redis.Redis(port=server.port)) as locks:
        yield locks
        assert not locks.waits


def places(server):
    return server.redis.info("lock")["lock_places"]


@pytest.mark.parametrize("library", [redis.Redis, valkey.Valkey])
@pytest.mark.parametrize("decode", [False, True])
def test_one_at_a_time(server, library, decode):
    inside, count = [], 0

    def add(locks):
        nonlocal count
        for _ in range(10):
            with locks.lock("counter"):
                inside.append(1)
                assert len(inside) == 1
                seen, _ = count, time.sleep(0)
                count = seen + 1
                inside.pop()

    # Two processes, as it were, and threads of each.
    both = [Locks(library(port=server.port, decode_responses=decode)) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, both * 4))
    assert count == 80 and server.is_free("counter")
    for locks in both:
        locks.close()


def test_first_come_first_served(server, locks):
    order = []

    def wait(number):
        with locks.lock("l"):
            order.append(number)

    with locks.lock("l"):
        threads = []
        for number in range(8):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            until(lambda: places(server) == len(threads))
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_how_long_it_waits(server, locks):
    with locks.lock("l") as hold:
        begun = time.monotonic()
        with pytest.raises(LockBusy):
            locks.lock("l", wait=0).acquire()
        with pytest.raises(TimeoutError), locks.lock("l", wait=0.001):
            pass
        assert time.monotonic() - begun < 2
        begun = time.monotonic()
        with pytest.raises(LockBusy):
            locks.lock("l").acquire(wait=0.3)
        assert 0.29 < time.monotonic() - begun < 3
        assert not server.lock("l")["waiters"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locks.lock("l").acquire)
            until(lambda: places(server) == 1)
            assert hold.release()
            later = waiting.result()
    assert later.token > hold.token and later.owner != hold.owner
    later.release()
    assert not later.release(), "once is enough"


def test_a_hold_is_kept_up(server, locks):
    with locks.lock("l", lease=0.3) as hold:
        first = server.lock("l")["fence"]
        for _ in range(4):
            until_then = hold._valid_until
            until(lambda before=until_then: hold._valid_until > before)
        assert server.lock("l")["fence"] == first == hold.token and not hold.lost.is_set()
        hold.renew(20)
        assert 19 < hold.valid_for() <= 20 and 19000 < server.redis.pttl("l") <= 20000
    with pytest.raises(LockLost):
        with locks.lock("l", lease=0.2, renew=False) as hold:
            assert hold.lost.wait(5)


def test_work_begins_before_the_claim(server, locks):
    with ThreadPoolExecutor(1) as pool:
        with locks.lock("l"):
            waiting = pool.submit(locks.lock("l", wait=10).acquire)
            until(lambda: places(server) == 1)
        hold = waiting.result()
        begun_with = hold.valid_for()
        assert begun_with < 2
        until(lambda: hold.valid_for() > 20)
        hold.release()


def test_who_waited_long_claims_first(server, locks):
    server.redis.config_set("lock.claim-timeout", 300)
    try:
        with ThreadPoolExecutor(1) as pool:
            with locks.lock("l"):
                waiting = pool.submit(locks.lock("l", wait=10).acquire)
                until(lambda: places(server) == 1)
                begun = now()
                until(lambda: now() - begun > 0.3)
            hold = waiting.result()
            assert hold.valid_for() > 20
            hold.release()
    finally:
        server.redis.config_set("lock.claim-timeout", 2000)


def test_a_loss_is_told_before_the_lease_ends(frail):
    locks = Locks(redis.Redis(port=frail.port), lease=1)
    hold = locks.lock("l").acquire()
    frail.stop()
    assert hold.lost.wait(2)
    assert now() < hold._valid_until + 0.4, "this machine may be slow"
    frail.go_on()
    assert hold.valid_for() == 0
    with pytest.raises(LockLost):
        hold.renew()
    until(lambda: frail.is_free("l"))


def test_a_lock_that_somebody_breaks(server, locks):
    with pytest.raises(LockLost), locks.lock("l", lease=0.3) as hold:
        server.redis.execute_command("LOCK.BREAK", "l")
        assert hold.lost.wait(5)
    with pytest.raises(ZeroDivisionError), locks.lock("l", lease=0.3) as hold:
        server.redis.delete("l")
        assert hold.lost.wait(5)
        raise ZeroDivisionError


def test_a_release_that_fails_hides_nothing(frail, caplog):
    locks = Locks(redis.Redis(port=frail.port))
    begun = 0.0

    def work():
        nonlocal begun
        with locks.lock("l"):
            frail.stop()
            begun = time.monotonic()
            return 42

    assert work() == 42 and time.monotonic() - begun < 1
    assert "not given back yet" in caplog.text
    frail.go_on()
    until(lambda: frail.is_free("l"))
    with pytest.raises(KeyError, match="mine"), locks.lock("l"):
        frail.kill()
        raise KeyError("mine")


def test_readers_permits_keys_and_once(server, locks):
    with locks.lock("r", shared=True), locks.lock("r", shared=True, wait=0):
        assert server.lock("r")["mode"] in (b"shared", "shared")
        with pytest.raises(LockBusy):
            locks.lock("r", wait=0).acquire()
    permits = locks.lock("s", limit=2, wait=0)
    with permits, permits, pytest.raises(LockBusy):
        permits.acquire()
    with Locks(redis.Redis(port=server.port), prefix="app:").lock(b"\xff\r\n") as hold:
        assert hold.key == b"app:\xff\r\n" and server.redis.exists(hold.key)
    with locks.lock("cron", wait=0, at_least=5):
        pass
    assert 4000 < server.redis.pttl("cron") <= 5000
    with pytest.raises(LockBusy):
        locks.lock("cron", wait=0).acquire()
    for wrong in ({"shared": True, "limit": 2}, {"limit": 0}, {"lease": 0}):
        with pytest.raises(ValueError):
            locks.lock("l", **wrong)


def test_the_holders_process_is_killed(server, locks):
    program = f"""
import redis, redis_native_lock as native
native.Locks(redis.Redis(port={server.port}), lease=1).lock("l").acquire()
print("held", flush=True)
input()
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(LockBusy):
        locks.lock("l", wait=1.5).acquire()  # it is renewed
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    begun = time.monotonic()
    with locks.lock("l", wait=10):
        assert time.monotonic() - begun < 1.5


def test_a_fork(server, locks):
    with locks.lock("l"), pytest.raises(LockBusy):
        locks.lock("l", wait=0.05).acquire()  # so that there are threads and a subscription
    with locks.lock("l"):
        child = os.fork()
        if child == 0:
            try:
                with locks.lock("l", wait=10, lease=0.3) as hold:
                    before = hold._valid_until
                    until(lambda: hold._valid_until > before)
                os._exit(0)
            finally:
                os._exit(1)
        until(lambda: places(server) == 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_connection_that_is_cut_while_it_waits(server, proxy):
    locks = Locks(redis.Redis(port=proxy.port))
    with ThreadPoolExecutor(1) as pool:
        with Locks(redis.Redis(port=server.port)).lock("l"):
            waiting = pool.submit(locks.lock("l", wait=20).acquire)
            for _ in range(3):
                until(lambda: server.redis.pubsub_channels("redislock:*"))
                proxy.cut()
                until(lambda: not server.redis.pubsub_channels("redislock:*") or proxy.pairs)
        waiting.result().release()
    until(lambda: server.is_free("l"))


def test_many_under_way_while_connections_are_killed(server, locks):
    done = [0] * 24
    ends = threading.Event()

    def work(number):
        while not ends.is_set():
            with locks.lock(f"l{number % 4}", wait=8):
                done[number] += 1

    with ThreadPoolExecutor(len(done)) as pool:
        working = [pool.submit(work, number) for number in range(len(done))]
        try:
            for kind in ["pubsub", "normal"] * 4:
                before = done[:]
                until(lambda before=before: all(now > then for now, then in zip(done, before, strict=True)))
                server.redis.execute_command("CLIENT", "KILL", "TYPE", kind)
        finally:
            ends.set()
        for one in working:
            one.result()


def test_interrupted_while_it_waits(server):
    program = f"""
import redis, redis_native_lock as native
locks = native.Locks(redis.Redis(port={server.port}))
try:
    locks.lock("l").acquire()
except KeyboardInterrupt:
    locks.lock("other").acquire().release()
    import time
    while locks.world.client.info("lock")["lock_places"]: time.sleep(0.01)
    print("nothing left")
"""
    with Locks(redis.Redis(port=server.port)).lock("l"):
        waiter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        until(lambda: places(server) == 1)
        waiter.send_signal(signal.SIGINT)
        assert waiter.communicate(timeout=20)[0] == b"nothing left\n"


@pytest.mark.parametrize("rights", ["resetchannels", "resetchannels &redislock:* -subscribe"])
def test_who_may_not_subscribe(server, rights):
    server.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", *rights.split())
    locks = Locks(redis.Redis(port=server.port, username="deaf", password="pw"))
    with ThreadPoolExecutor(1) as pool:
        with Locks(redis.Redis(port=server.port)).lock("l"):
            with pytest.raises(LockBusy):
                locks.lock("l", wait=0.1).acquire()
            waiting = pool.submit(locks.lock("l").acquire)
            until(lambda: server.redis.info("clients")["blocked_clients"] == 1)
            assert places(server) == 0
        waiting.result().release()


def test_what_the_server_refuses(server, locks):
    server.redis.hset("data", "field", "value")
    with pytest.raises(redis.ResponseError, match="NOTALOCK"):
        locks.lock("data", wait=5).acquire()
    server.redis.config_set("lock.min-replicas", 1)
    with pytest.raises(NotSafe):
        locks.lock("l", wait=0).acquire()
    server.redis.config_set("lock.min-replicas", 0)
    until(lambda: server.is_free("l"))
    one, two = locks.lock("one"), locks.lock("two")
    with ThreadPoolExecutor(1) as pool:
        first, second = one._locks._acquire, two._locks._acquire
        a = core_run(first(one._request, 0, b"a"))
        b = core_run(second(two._request, 0, b"b"))
        waiting = pool.submit(lambda: core_run(second(two._request, 10, b"a")))
        until(lambda: places(server) == 1)
        with pytest.raises(Deadlock, match="two"):
            core_run(first(one._request, 10, b"b"))
        # As a module tells it that has it.
        server.redis.publish(locks._channel, b"1:0,3:two,1:a,13:-SUPERSEDED x,1:0,")
        with pytest.raises(Superseded):
            waiting.result()
        assert places(server) == 1, "it is another's now"
        server.redis.execute_command("LOCK.RELEASE", "two", "a")
    a.release()
    b.release()


def core_run(work):
    from redis_native_lock._threads import run

    return run(work)


def test_a_server_without_the_module():
    server = Server(module=False)
    try:
        with pytest.raises(NoModule, match="loadmodule"):
            Locks(redis.Redis(port=server.port)).lock("l").acquire()
    finally:
        server.end()


def test_an_older_module(server, locks, monkeypatch):
    async def ask(args, timeout, asker=None):
        return b"# lock\r\nlock_version:0.1.9\r\n"

    monkeypatch.setattr(locks.world, "ask", ask)
    with pytest.raises(NoModule, match=r"0\.1\.9"):
        locks.lock("l").acquire()


def test_words_of_the_wire():
    message = told(b"1:0,3:k:,,1:o,2:42,4:2000,")
    assert message == (b"k:,", b"o", 42, 2.0, "")
    assert told(b"1:0,1:k,1:o,12:-DEADLOCK no,1:0,").error == "DEADLOCK no"
    assert told(b"1:0,1:k,1:o,1:0,") is None and told(b"nonsense") is None
    assert valid_until(5, 30) == 34.69 and valid_until(5, 0.02) == 5.01
    assert slot_of(b"123456789") == 12739 and slot_of(b"{user}x") == slot_of(b"user") != slot_of(b"{}user")
    assert all(slot_of(tag_of(slot)) == slot for slot in range(0, 16384, 97))
    pauses = core._pauses()
    assert all(0 < next(pauses) <= 1 for _ in range(20))
