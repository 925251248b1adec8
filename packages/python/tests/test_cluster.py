"""A cluster, and Sentinel."""

import asyncio
import random
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from conftest import BINARY, Server, soon, until
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from redis_native_lock import LockBusy, Locks, NoModule
from redis_native_lock._wire import slot_of
from redis_native_lock.asyncio import Locks as AsyncLocks

KEYS = [f"key:{number}" for number in range(12)]


def places(cluster):
    return sum(node.redis.info("lock")["lock_places"] for node in cluster)


def test_threads_in_a_cluster(cluster):
    client = redis.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    locks = Locks(client)
    held = [locks.lock(key).acquire() for key in KEYS]
    with pytest.raises(LockBusy):
        locks.lock(KEYS[0], wait=0.05).acquire()
    with ThreadPoolExecutor(len(KEYS)) as pool:
        waiting = [pool.submit(locks.lock(key, wait=30).acquire) for key in KEYS]
        until(lambda: places(cluster) == len(KEYS))
        # A subscription for each node.
        assert len(locks._ears) == 3
        for hold in held:
            assert hold.release()
        for hold in waiting:
            hold.result().renew()
            assert hold.result().release()
    assert client.lock("hook", lock_class=None) is not None
    locks.close()


@pytest.mark.parametrize("library", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster])
async def test_asyncio_in_a_cluster(cluster, library):
    client = library(host="127.0.0.1", port=cluster[0].port)
    count = dict.fromkeys(KEYS, 0)

    async def add(key):
        for _ in range(5):
            async with locks.lock(key, wait=30):
                seen = count[key]
                await asyncio.sleep(0)
                count[key] = seen + 1

    async with AsyncLocks(client) as locks:
        await asyncio.gather(*(add(key) for key in KEYS for _ in range(5)))
        assert set(count.values()) == {25}
        await soon(lambda: places(cluster) == 0)
    await client.aclose()


async def test_a_slot_that_moves_while_it_is_waited_for(cluster):
    key = b"moving"
    slot = slot_of(key)
    ids = [node.redis.execute_command("CLUSTER", "MYID") for node in cluster]
    owners = [node for node in cluster if any(a <= slot <= b for a, b in mine(node))]
    source, target = owners[0], next(node for node in cluster if node is not owners[0])
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    async with AsyncLocks(client) as locks:
        hold = await locks.lock(key, lease=60).acquire()
        waiting = asyncio.create_task(locks.lock(key, wait=40).acquire())
        await soon(lambda: places(cluster) == 1)
        to, from_ = ids[cluster.index(target)], ids[cluster.index(source)]
        target.redis.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", from_)
        source.redis.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
        source.redis.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        for node in (target, source, *cluster):
            node.redis.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to)
        await soon(lambda: target.redis.info("lock")["lock_places"] == 1)
        assert await hold.release()
        assert await (await waiting).release()
    await client.aclose()


def mine(node):
    for first, last, *servers in node.redis.execute_command("CLUSTER", "SLOTS"):
        if servers[0][1] == node.port:
            yield first, last


def test_a_cluster_without_the_module():
    nodes = [Server("--cluster-enabled", "yes", module=False)]
    try:
        nodes[0].redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: nodes[0].redis.cluster("info")["cluster_state"] == "ok")
        with pytest.raises(NoModule):
            Locks(redis.RedisCluster(host="127.0.0.1", port=nodes[0].port)).lock("l").acquire()
    finally:
        nodes[0].end()


@pytest.fixture
def watched():
    """A primary, its replica, and a Sentinel that watches them."""
    primary = Server()
    replica = Server("--replicaof", "127.0.0.1", str(primary.port))
    folder = tempfile.mkdtemp()
    port = random.randint(20000, 32000)
    with open(f"{folder}/sentinel.conf", "w") as conf:
        conf.write(f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary.port} 1\n")
        conf.write("sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n")
    command = [BINARY, f"{folder}/sentinel.conf", "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)

    def is_ready():
        try:
            return client.sentinel_slaves("main")
        except redis.RedisError:
            return False

    until(lambda: replica.redis.info("replication")["master_link_status"] == "up")
    until(is_ready)
    yield port, primary, replica
    process.kill()
    process.wait()
    for server in (primary, replica):
        server.end()


def test_a_fail_over_while_it_waits(watched):
    port, primary, replica = watched
    locks = Locks(Sentinel([("127.0.0.1", port)]).master_for("main", socket_timeout=5))

    async def in_asyncio():
        client = AsyncSentinel([("127.0.0.1", port)]).master_for("main", socket_timeout=5)
        async with AsyncLocks(client) as others:
            async with others.lock("l", wait=60):
                return True

    with locks.lock("x"):
        pass
    primary.redis.execute_command("LOCK.ACQUIRE", "l", "somebody", "LEASE", 600000)
    primary.redis.wait(1, 5000)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(locks.lock("l", wait=60).acquire)
        second = pool.submit(lambda: asyncio.run(in_asyncio()))
        until(lambda: primary.redis.info("lock")["lock_places"] == 2)
        primary.kill()
        until(lambda: replica.redis.info("lock")["lock_places"] == 2, 30)
        replica.redis.execute_command("LOCK.BREAK", "l")
        done = threading.Event()
        first.add_done_callback(lambda _: done.set())
        second.add_done_callback(lambda _: done.set())
        assert done.wait(30)
        first.result().release()
        assert second.result()
