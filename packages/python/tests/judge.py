"""A plugin for redis-py's own tests of its lock: they run with `NativeLock` in its place."""

import pytest
import redis.asyncio.lock
import redis.lock

from redis_native_lock import NativeLock
from redis_native_lock.asyncio import NativeLock as AsyncNativeLock

# Theirs is looked up when the first of ours is made.
NativeLock(redis.Redis(), "name")
AsyncNativeLock(redis.asyncio.Redis(), "name")
redis.lock.Lock = NativeLock
redis.asyncio.lock.Lock = AsyncNativeLock

# They read the key with GET, or count the polls of a clock that they stop.
OTHERWISE = """
test_lock test_lock_token test_lock_token_thread_local_false test_context_manager
test_blocking_timeout test_context_manager_blocking_timeout test_high_sleep_small_blocking_timeout
""".split()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.originalname in OTHERWISE:
            item.add_marker(pytest.mark.skip(reason="looks at what only their lock has"))
