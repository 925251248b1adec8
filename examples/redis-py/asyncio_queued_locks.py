"""Many waits for locks over two connections, with redis-py and asyncio."""

import asyncio
import os
import sys
import time
import uuid
from contextlib import asynccontextmanager

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

LEASE_MS = 60_000  # longer than the work takes
WAIT_MS = 30_000  # how long to wait for the lock
ASK_AGAIN_MS = 10_000  # a message may be lost


def netstrings(message):
    """The parts of a message: database, key, owner, result, first lease in ms."""
    while message:
        length, _, message = message.partition(b":")
        yield message[: int(length)]
        message = message[int(length) + 1 :]


class QueuedLocks:
    """One connection for the commands, none of which waits, and one for the messages."""

    def __init__(self, url):
        self.channel = f"locks:{uuid.uuid4()}"
        self.client = redis.Redis.from_url(
            url,
            single_connection_client=True,
            client_name=self.channel,
            # Each command here may be sent again when its connection breaks.
            retry=Retry(ExponentialBackoff(cap=1, base=0.01), retries=10),
        )
        self.messages = self.client.pubsub()
        self.waiting = {}  # owner: future of the result of its place

    async def __aenter__(self):
        # First of all, because nothing is granted to a place that nobody listens for.
        await self.messages.subscribe(self.channel)
        await self.messages.get_message(timeout=None)
        self.listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *error):
        self.listener.cancel()
        await self.messages.aclose()
        await self.client.aclose()

    async def _listen(self):
        while True:
            try:
                async for message in self.messages.listen():
                    if message["type"] == "message":
                        _, _, owner, result, _ = netstrings(message["data"])
                        self._tell(owner.decode(), result)
                    else:  # Subscribed anew: what was told meanwhile is lost.
                        for owner in self.waiting:
                            self._tell(owner, b"0")
            except (redis.ConnectionError, redis.TimeoutError):
                await asyncio.sleep(1)

    def _tell(self, owner, result):
        told = self.waiting.get(owner)
        if told and not told.done():
            told.set_result(result)

    @asynccontextmanager
    async def lock(self, key, lease_ms=LEASE_MS, wait_ms=WAIT_MS):
        """Holds the lock `key` and yields its fencing token."""
        owner = str(uuid.uuid4())
        fence = ()  # Without it RELEASE gives the place up, and a hold as well.
        try:
            token = await self._acquire(key, owner, lease_ms, wait_ms)
            fence = ("FENCE", token)
            yield token
        finally:
            self.waiting.pop(owner, None)
            released = await self.client.execute_command("LOCK.RELEASE", key, owner, *fence)
            if fence and released is None:
                print(f"{key}: the lease ended before the work did", file=sys.stderr)

    async def _acquire(self, key, owner, lease_ms, wait_ms):
        call = self.client.execute_command
        end = time.monotonic() + wait_ms / 1000
        while (left_ms := int((end - time.monotonic()) * 1000)) > 0:
            # Before the request, because the message may come before its reply.
            told = self.waiting[owner] = asyncio.get_running_loop().create_future()
            # The same request again keeps the place.
            request = (key, owner, "LEASE", lease_ms, "QUEUE", left_ms, self.channel)
            token = await call("LOCK.ACQUIRE", *request)
            if token > 0:
                return token
            try:
                result = await asyncio.wait_for(told, min(left_ms, ASK_AGAIN_MS) / 1000)
            except asyncio.TimeoutError:
                continue
            if result.startswith(b"-"):
                raise redis.ResponseError(result[1:].decode())
            # A token that is told has a short lease until it is claimed.
            claim = (key, owner, "LEASE", lease_ms, "FENCE", result)
            if result != b"0" and await call("LOCK.RENEW", *claim):
                return int(result)
        raise TimeoutError(f"{key} is busy")


async def main():
    inside = set()

    async def take_turn(locks, key):
        async with locks.lock(key) as token:
            # Whatever is written under the lock carries the token, and late writes fail:
            # UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
            if key in inside:
                raise RuntimeError("two are in a section")
            inside.add(key)
            await asyncio.sleep(0.001)
            inside.remove(key)

    async with QueuedLocks(os.environ.get("REDIS_URL", "redis://localhost:6379")) as locks:
        await asyncio.gather(*(take_turn(locks, f"orders:{n % 3}") for n in range(100)))
        clients = await locks.client.client_list()
        connections = sum(client["name"] == locks.channel for client in clients)
        print(f"100 tasks in 3 sections, never two in one, over {connections} connections")


if __name__ == "__main__":
    asyncio.run(main())
