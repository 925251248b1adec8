"""Tests of asyncio_lock.py, against the server that REDIS_URL names."""

import asyncio
import io
import os
import sys
import unittest
from contextlib import redirect_stderr

from asyncio_lock import connect, lock


class AsyncioLockTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = connect(os.environ["REDIS_URL"])
        await self.client.flushall()
        self.addAsyncCleanup(self.client.aclose)

    async def test_one_at_a_time(self):
        await self.client.set("counter", 0)

        async def add_ten():
            for _ in range(10):
                async with lock(self.client, "l"):
                    count = int(await self.client.get("counter"))
                    await self.client.set("counter", count + 1)

        await asyncio.gather(*(add_ten() for _ in range(8)))
        self.assertEqual(int(await self.client.get("counter")), 80)

    async def test_a_release_ends_the_wait(self):
        async def wait():
            async with lock(self.client, "l") as token:
                return token

        async with lock(self.client, "l") as token:
            waiter = asyncio.create_task(wait())
            while (await self.client.info("clients"))["blocked_clients"] == 0:
                await asyncio.sleep(0.001)
            self.assertFalse(waiter.done())
        self.assertGreater(await waiter, token)

    async def test_a_wait_that_is_over(self):
        async with lock(self.client, "l"):
            with self.assertRaises(TimeoutError):
                async with lock(self.client, "l", block_ms=50):
                    self.fail("two hold the lock")

    async def test_a_broken_connection(self):
        async with lock(self.client, "l"):
            await self.client.client_kill_filter(_type="normal", skipme=False)
        self.assertFalse(await self.client.exists("l"))

    async def test_more_waiters_than_connections(self):
        async def wait():
            async with lock(self.client, "l"):
                pass

        async with lock(self.client, "l"):
            waiters = [asyncio.create_task(wait()) for _ in range(120)]
            while sum(waiter.done() for waiter in waiters) < 21:
                await asyncio.sleep(0.001)
        results = await asyncio.gather(*waiters, return_exceptions=True)
        self.assertEqual(results.count(None), 99)

    async def test_a_lease_that_is_over_before_the_work(self):
        with redirect_stderr(io.StringIO()) as said:
            async with lock(self.client, "l"):
                await self.client.delete("l")
            async with lock(self.client, "l"):
                pass
        self.assertEqual(said.getvalue(), "l: the lease ended before the work did\n")

    async def test_the_example_runs(self):
        example = await asyncio.create_subprocess_exec(
            sys.executable, "asyncio_lock.py", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await example.communicate()
        self.assertIn(b"orders:42 is mine", output)
        self.assertFalse(await self.client.exists("orders:42"))


if __name__ == "__main__":
    unittest.main()
