"""Tests of lock.py, against the server that REDIS_URL names."""

import io
import os
import subprocess
import sys
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr

import redis
from lock import connect, lock


class LockTest(unittest.TestCase):
    def setUp(self):
        self.client = connect(os.environ["REDIS_URL"])
        self.client.flushall()
        self.addCleanup(self.client.close)

    def test_one_at_a_time(self):
        self.client.set("counter", 0)

        def add_ten():
            for _ in range(10):
                with lock(self.client, "l"):
                    self.client.set("counter", int(self.client.get("counter")) + 1)

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(add_ten) for _ in range(8)]:
                done.result()
        self.assertEqual(int(self.client.get("counter")), 80)

    def test_a_release_ends_the_wait(self):
        tokens = []

        def wait():
            with lock(self.client, "l") as token:
                tokens.append(token)

        waiter = threading.Thread(target=wait)
        with lock(self.client, "l") as token:
            waiter.start()
            while self.client.info("clients")["blocked_clients"] == 0:
                time.sleep(0.001)
            self.assertEqual(tokens, [])
        waiter.join()
        self.assertGreater(tokens[0], token)

    def test_a_wait_that_is_over(self):
        with lock(self.client, "l"):
            with self.assertRaises(TimeoutError):
                with lock(self.client, "l", block_ms=50):
                    self.fail("two hold the lock")

    def test_a_broken_connection(self):
        with lock(self.client, "l"):
            self.client.client_kill_filter(_type="normal", skipme=False)
        self.assertFalse(self.client.exists("l"))

    def test_more_waiters_than_connections(self):
        def wait():
            try:
                with lock(self.client, "l"):
                    return 1
            except redis.ConnectionError:  # There is no connection for it.
                return 0

        with ThreadPoolExecutor(120) as threads:
            with lock(self.client, "l"):
                waiters = [threads.submit(wait) for _ in range(120)]
                while sum(waiter.done() for waiter in waiters) < 21:
                    time.sleep(0.001)
            self.assertEqual(sum(waiter.result() for waiter in waiters), 99)

    def test_a_lease_that_is_over_before_the_work(self):
        with redirect_stderr(io.StringIO()) as said:
            with lock(self.client, "l"):
                self.client.delete("l")
            with lock(self.client, "l"):
                pass
        self.assertEqual(said.getvalue(), "l: the lease ended before the work did\n")

    def test_the_example_runs(self):
        output = subprocess.check_output([sys.executable, "lock.py"], text=True)
        self.assertIn("orders:42 is mine", output)
        self.assertFalse(self.client.exists("orders:42"))


if __name__ == "__main__":
    unittest.main()
