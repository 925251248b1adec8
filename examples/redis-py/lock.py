"""A lock around a piece of work, with redis-py."""

import os
import sys
import uuid
from contextlib import contextmanager

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

LEASE_MS = 60_000  # longer than the work takes
BLOCK_MS = 30_000  # how long to wait for the lock


def connect(url):
    # The read time-out must exceed BLOCK. The default of newer versions is 5 s.
    return redis.Redis.from_url(
        url,
        socket_timeout=BLOCK_MS / 1000 + 10,
        # Each command here may be sent again when its connection breaks.
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), retries=3),
    )


@contextmanager
def lock(client, key, lease_ms=LEASE_MS, block_ms=BLOCK_MS):
    """Holds the lock `key` and yields its fencing token."""
    owner = str(uuid.uuid4())
    token = None
    # One connection for both. Waiters may have all others of the pool when the
    # lock is given back.
    with client.client() as connection:
        try:
            # With HOLD 1 it does no harm to send the command again.
            token = connection.execute_command(
                "LOCK.ACQUIRE", key, owner, "LEASE", lease_ms, "BLOCK", block_ms, "HOLD", 1
            )
            if token is None:
                raise TimeoutError(f"{key} is busy")
            yield token
        finally:
            # Without FENCE it gives back a hold whose token did not arrive, too.
            released = connection.execute_command("LOCK.RELEASE", key, owner)
            if token is not None and released is None:
                print(f"{key}: the lease ended before the work did", file=sys.stderr)


if __name__ == "__main__":
    client = connect(os.environ.get("REDIS_URL", "redis://localhost:6379"))
    with lock(client, "orders:42") as token:
        # Whatever is written under the lock carries the token, and late writes fail:
        # UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
        print(f"orders:42 is mine, with token {token}")
