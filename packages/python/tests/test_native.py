"""`NativeLock` in the hook of redis-py, and redis-py's own tests of its lock with it."""

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from conftest import soon


@pytest.mark.parametrize("library", ["redis", "valkey"])
async def test_the_hook_of_the_client(server, world, library):
    client, errors = world.client(server.port, library), importlib.import_module(f"{library}.exceptions")

    def lock(**options):
        return client.lock("l", **{"lock_class": world.native_lock, "thread_local": False, "timeout": 5, **options})

    async def is_so(method, *args, **options):
        return bool(await world.call(method, *args, **options))

    async def refused(error, method, *args):
        with pytest.raises(error):
            await world.call(method, *args)

    first, other = lock(), lock(timeout=None, blocking_timeout=0.1)
    assert vars(client.connection_pool)["_native_locks"] is first.native.locks, "clients of one pool share it"
    assert await is_so(first.acquire) and await is_so(first.locked) and await is_so(first.owned)
    assert server.redis.hexists("l", first.local.hold.owner)
    assert not await is_so(other.acquire) and not await is_so(other.acquire, blocking=False)
    assert not await is_so(other.owned)
    assert await is_so(first.extend, 5) and 9000 < server.redis.pttl("l") <= 10000
    assert await is_so(first.extend, 7, replace_ttl=True) and server.redis.pttl("l") <= 7000
    assert await is_so(first.reacquire) and server.redis.pttl("l") <= 5000
    with pytest.raises(errors.LockError):
        await world.section(other)
    await world.call(first.release)
    assert not await is_so(first.locked) and first.local.token is None
    for method, *args in ((first.release,), (first.reacquire,), (first.extend, 1)):
        await refused(errors.LockError, method, *args)
    assert await is_so(first.acquire, token="t") and first.local.token == b"t"
    server.redis.delete("l")
    await refused(errors.LockNotOwnedError, first.release)
    with pytest.raises(KeyError, match="mine"):
        await world.section(lock(), lambda _: server.redis.delete("l"), world.fail)
    # Without a time-out it is renewed until it is released.
    assert await is_so(other.acquire)
    await world.call(other.local.hold.renew, 3)
    before = other.local.hold._valid_until
    await soon(lambda: other.local.hold._valid_until > before)
    await refused(errors.LockError, other.extend, 1)
    await world.call(other.release)
    # Another thread has no part in it, unless it is told to.
    mine = lock(thread_local=True)
    if not world.is_asyncio:
        assert await is_so(mine.acquire) and not mine.owned()
        server.redis.delete("l")
    # It waits for those who still use theirs.
    theirs = client.lock("l", timeout=20, thread_local=False)
    await world.call(theirs.acquire)
    waiting = asyncio.create_task(world.call(lock(sleep=0.01).acquire))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await world.call(theirs.release)
    assert await waiting


def test_redis_pys_own_tests(server):
    theirs = os.environ.get("REDIS_PY")
    if not theirs:
        pytest.skip("REDIS_PY does not name an unpacked source of redis-py")
    assert redis.__version__ in theirs
    command = [sys.executable, "-m", "pytest", "-q", "-p", "judge", "-p", "no:cacheprovider"]
    command += ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [*command, f"--redis-url=redis://127.0.0.1:{server.port}/9"],
        cwd=theirs,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout
