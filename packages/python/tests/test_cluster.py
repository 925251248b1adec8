"""A cluster, and Sentinel."""

import asyncio
import random
import subprocess
import tempfile

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from conftest import BINARY, Server, soon, until
from redis.crc import key_slot

from redis_native_lock import LockBusy, NoModule

KEYS = [f"key:{number}" for number in range(12)]


def places(nodes):
    return sum(node.places() for node in nodes)


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


@pytest.mark.parametrize("library", ["redis", "valkey"])
async def test_many_keys_in_a_cluster(cluster, world, library):
    locks = world.locks(cluster[0].port, library=library, cluster=True)
    held = [await world.call(locks.lock(key).acquire) for key in KEYS]
    with pytest.raises(LockBusy):
        await world.call(locks.lock(KEYS[0]).acquire, wait=0.05)
    count = dict.fromkeys(KEYS, 0)

    async def add(key):
        for _ in range(3):
            await world.section(locks.lock(key, wait=30), lambda hold: count.update({key: count[key] + 1}))

    adding = [asyncio.create_task(add(key)) for key in KEYS * 4]
    await soon(lambda: places(cluster) == len(adding))
    # A subscription for each node.
    assert len(locks.ears) == 3
    for hold in held:
        assert await world.call(hold.release)
    await asyncio.gather(*adding)
    assert set(count.values()) == {12} and places(cluster) == 0
    await world.close(locks)


async def test_a_slot_that_moves_while_it_is_waited_for(cluster, world):
    key = f"moving:{world.name}"
    slot = key_slot(key.encode())
    ids = [node.redis.execute_command("CLUSTER", "MYID") for node in cluster]
    source = next(node for node in cluster if any(first <= slot <= last for first, last in slots_of(node)))
    target = next(node for node in cluster if node is not source)
    locks = world.locks(cluster[0].port, cluster=True)
    hold = await world.call(locks.lock(key, lease=60).acquire)
    waiting = asyncio.create_task(world.call(locks.lock(key, wait=40).acquire))
    await soon(lambda: places(cluster) == 1)
    to, from_ = ids[cluster.index(target)], ids[cluster.index(source)]
    target.redis.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", from_)
    source.redis.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
    source.redis.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    for node in (target, source, *cluster):
        node.redis.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to)
    await soon(lambda: target.places() == 1)
    assert await world.call(hold.release)
    assert await world.call((await waiting).release)
    await world.close(locks)


def slots_of(node):
    for first, last, *servers in node.redis.execute_command("CLUSTER", "SLOTS"):
        if servers[0][1] == node.port:
            yield first, last


async def test_a_cluster_without_the_module(world):
    node = Server("--cluster-enabled", "yes", module=False)
    node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    await soon(lambda: node.redis.cluster("info")["cluster_state"] == "ok")
    with pytest.raises(NoModule):
        await world.call(world.locks(node.port, cluster=True).lock("l").acquire)
    node.end()


@pytest.fixture
def watched():
    """A primary, its replica, and a Sentinel that watches them."""
    primary = Server()
    replica = Server("--replicaof", "127.0.0.1", str(primary.port))
    folder, port = tempfile.mkdtemp(), random.randint(20000, 32000)
    with open(f"{folder}/sentinel.conf", "w") as conf:
        conf.write(f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary.port} 1\n")
        conf.write("sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n")
    process = subprocess.Popen([BINARY, f"{folder}/sentinel.conf", "--sentinel"], stdout=subprocess.DEVNULL)
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


async def test_a_fail_over_while_it_waits(watched, world):
    port, primary, replica = watched
    of = redis.asyncio.sentinel if world.is_asyncio else redis.sentinel
    locks = world.locks(client=of.Sentinel([("127.0.0.1", port)]).master_for("main", socket_timeout=5))
    await world.section(locks.lock("x"))
    primary.redis.execute_command("LOCK.ACQUIRE", "l", "somebody", "LEASE", 600000)
    primary.redis.wait(1, 5000)
    waiting = [asyncio.create_task(world.section(locks.lock("l", wait=50))) for _ in range(2)]
    await soon(lambda: primary.places() == 2)
    primary.kill()
    await soon(lambda: replica.places() == 2, 30)
    replica.redis.execute_command("LOCK.BREAK", "l")
    await asyncio.gather(*waiting)
    await world.close(locks)
