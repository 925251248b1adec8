"""A cluster."""

import asyncio
import random
import subprocess

import pytest
from conftest import Server, soon, until

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
    subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"], check=True, capture_output=True)
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
    # The client does not know yet that another server has the key.
    dead = type(locks.client.get_node_from_key(KEYS[0]))("127.0.0.1", 1, "primary")
    locks.client.nodes_manager.slots_cache[locks.client.keyslot(KEYS[0])] = [dead]
    count = dict.fromkeys(KEYS, 0)

    async def add(key):
        for _ in range(3):
            await world.section(locks.lock(key, wait=30), lambda hold: count.update({key: count[key] + 1}))

    adding = [asyncio.create_task(add(key)) for key in KEYS * 4]
    await soon(lambda: places(cluster) == len(adding))
    assert len(locks.listeners) == 3, "a subscription for each node"
    for hold in held:
        assert await world.call(hold.release)
    await asyncio.gather(*adding)
    assert set(count.values()) == {12} and places(cluster) == 0
    await world.close(locks)


async def test_a_cluster_without_the_module(world):
    node = Server("--cluster-enabled", "yes", module=False)
    node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    await soon(lambda: node.redis.cluster("info")["cluster_state"] == "ok")
    with pytest.raises(NoModule):
        await world.call(world.locks(node.port, cluster=True).lock("l").acquire)
    node.end()
