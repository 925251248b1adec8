"""Tests of asyncio_queued_locks.py, against the server that REDIS_URL names."""

import asyncio
import io
import os
import sys
import unittest
from contextlib import redirect_stderr
from unittest.mock import patch

import redis.asyncio as redis
from asyncio_queued_locks import QueuedLocks

KEY = "a:b,ü"  # a message says how many bytes it has


class QueuedLocksTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.redis = redis.Redis.from_url(os.environ["REDIS_URL"])
        await self.redis.flushall()
        self.addAsyncCleanup(self.redis.aclose)
        self.locks = await QueuedLocks(os.environ["REDIS_URL"]).__aenter__()
        self.addAsyncCleanup(self.locks.__aexit__)
        self.tokens = []

    async def hold_the_lock(self):
        await self.redis.execute_command("LOCK.ACQUIRE", KEY, "other")

    async def release_the_lock(self):
        await self.redis.execute_command("LOCK.RELEASE", KEY, "other")

    async def take_turn(self):
        async with self.locks.lock(KEY) as token:
            self.tokens.append(token)

    async def places(self, count):
        """Waits until the queue has `count` places, and returns their owners."""
        while True:
            info = await self.redis.execute_command("LOCK.INFO", KEY)
            fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2]))
            if fields[b"waiting"] == count:
                return list(self.locks.waiting)
            await asyncio.sleep(0.001)

    # Whoever is not told that the connections broke waits in vain.
    @patch("asyncio_queued_locks.ASK_AGAIN_MS", 3_600_000)
    async def test_broken_connections(self):
        await self.hold_the_lock()
        turns = [asyncio.create_task(self.take_turn()) for _ in range(20)]
        await self.places(20)
        for client in await self.redis.client_list():
            if client["name"] == self.locks.channel:
                await self.redis.client_kill_filter(_id=client["id"])
        await self.release_the_lock()
        await asyncio.gather(*turns)
        self.assertEqual(self.tokens, sorted(set(self.tokens)))
        self.assertEqual(len(self.tokens), 20)

    async def test_a_token_that_is_not_its_own(self):
        await self.hold_the_lock()
        turn = asyncio.create_task(self.take_turn())
        (owner,) = await self.places(1)
        told = self.locks.waiting[owner]
        message = f"1:0,{len(KEY.encode())}:{KEY},{len(owner)}:{owner},1:1,4:2000,"
        await self.redis.publish(self.locks.channel, message)
        while self.locks.waiting[owner] is told:
            await asyncio.sleep(0.001)
        self.assertEqual(self.tokens, [])
        await self.release_the_lock()
        await turn
        self.assertEqual(len(self.tokens), 1)

    async def test_a_wait_that_is_over(self):
        await self.hold_the_lock()
        with self.assertRaises(TimeoutError):
            async with self.locks.lock(KEY, wait_ms=50):
                self.fail("two hold the lock")
        await self.places(0)
        self.assertEqual(self.locks.waiting, {})

    async def test_a_lease_that_is_over_before_the_work(self):
        with redirect_stderr(io.StringIO()) as said:
            async with self.locks.lock(KEY):
                await self.redis.delete(KEY)
            await self.take_turn()
        self.assertEqual(said.getvalue(), f"{KEY}: the lease ended before the work did\n")

    async def test_the_example_runs(self):
        example = await asyncio.create_subprocess_exec(
            sys.executable, "asyncio_queued_locks.py", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await example.communicate()
        self.assertIn(b"100 tasks in 3 sections, never two in one, over 2 connections", output)


if __name__ == "__main__":
    unittest.main()
