"""A lock around a piece of work, with redis-py."""

import os
import sys
import uuid
from contextlib import contextmanager

import redis

LEASE_MS = 60_000  # longer than the work takes
BLOCK_MS = 30_000  # how long to wait for the lock


def connect(url):
    # The read time-out must exceed BLOCK. The default of newer versions is 5 s.
    return redis.Redis.from_url(url, socket_timeout=BLOCK_MS / 1000 + 10)


@contextmanager
def lock(client, key, lease_ms=LEASE_MS, block_ms=BLOCK_MS):
    """Holds the lock `key` and yields its fencing token."""
    owner = str(uuid.uuid4())
    # With HOLD 1 it does no harm that redis-py sends a command again when its
    # connection breaks.
    token = client.execute_command(
        "LOCK.ACQUIRE", key, owner, "LEASE", lease_ms, "BLOCK", block_ms, "HOLD", 1
    )
    if token is None:
        raise TimeoutError(f"{key} is busy")
    try:
        yield token
    finally:
        if client.execute_command("LOCK.RELEASE", key, owner, "FENCE", token) is None:
            print(f"{key}: the lease ended before the work did", file=sys.stderr)


if __name__ == "__main__":
    client = connect(os.environ.get("REDIS_URL", "redis://localhost:6379"))
    with lock(client, "orders:42") as token:
        # Whatever is written under the lock carries the token, and late writes fail:
        # UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
        print(f"orders:42 is mine, with token {token}")
