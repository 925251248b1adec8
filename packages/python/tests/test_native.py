"""`NativeLock` in the hook of redis-py, and redis-py's own tests of its lock with it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
import valkey
from conftest import until

from redis_native_lock import NativeLock


@pytest.mark.parametrize("library", [redis, valkey])
def test_the_hook_of_the_client(server, library):
    client = (redis.Redis if library is redis else valkey.Valkey)(port=server.port)

    def lock(**options):
        return client.lock("l", lock_class=NativeLock, **options)

    with lock(timeout=5) as first:
        assert first.locked() and first.owned() and server.redis.hexists("l", first.local.token)
        other = lock(blocking_timeout=0.1)
        assert not other.acquire() and not other.acquire(blocking=False) and not other.owned()
        assert first.extend(5) and 9000 < server.redis.pttl("l") <= 10000
        assert first.extend(7, replace_ttl=True) and server.redis.pttl("l") <= 7000
        assert first.reacquire() and server.redis.pttl("l") <= 5000
        with pytest.raises(library.exceptions.LockError), lock(blocking=False):
            pass
    assert not first.locked() and first.local.token is None
    for call in (first.release, first.reacquire, lambda: first.extend(1)):
        with pytest.raises(library.exceptions.LockError):
            call()
    # Another thread has no part in it, unless it is told to.
    mine, shared = lock(timeout=5), lock(timeout=5, thread_local=False)
    mine.acquire()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(mine.owned()))
    thread.start()
    thread.join()
    assert seen == [False] and mine.owned()
    mine.release()
    assert shared.acquire(token="t") and shared.local.token == b"t"
    server.redis.delete("l")
    with pytest.raises(library.exceptions.LockNotOwnedError):
        shared.release()
    with pytest.raises(ZeroDivisionError), lock(timeout=5):
        server.redis.delete("l")
        raise ZeroDivisionError


def test_without_a_timeout_it_is_renewed(server):
    client = redis.Redis(port=server.port)
    lock = client.lock("l", lock_class=NativeLock)
    lock.acquire()
    hold = lock.local.hold
    hold.renew(0.3)
    before = hold._valid_until
    until(lambda: hold._valid_until > before)
    with pytest.raises(redis.exceptions.LockError):
        lock.extend(1)
    lock.release()


def test_redis_pys_own_tests(server):
    theirs = os.environ.get("REDIS_PY")
    if not theirs:
        pytest.skip("REDIS_PY does not name an unpacked source of redis-py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "judge", "-p", "no:cacheprovider"]
    command += ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    url = f"redis://127.0.0.1:{server.port}/9"
    run = subprocess.run(
        [*command, f"--redis-url={url}"],
        cwd=theirs,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(run.stdout)
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout
