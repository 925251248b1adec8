"""The world of threads. What waits does so in the thread that asks, so no coroutine ever suspends."""

import contextlib
import heapq
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import wait as futures_of
from typing import Any, TypeVar

from ._core import SILENT, Attempt, World
from ._wire import own_options

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("it waits for what is not of this world")


class Background:
    """Threads of this process for what is done in the background, and one that watches the clock."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Coroutine[Any, Any, Any], Future[Any]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._due: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers, self._changed = itertools.count(), threading.Condition()
        self._has_clock = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        job: Future[Any] = Future()
        self._jobs.put((work, job))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="redis-native-lock", daemon=True).start()
        return job

    def _work(self) -> None:
        while True:
            try:
                work, job = self._jobs.get(timeout=10)
            except queue.Empty:
                if self._idle.acquire(blocking=False):
                    return
                continue
            try:
                job.set_result(run(work))
            except Exception as error:
                job.set_exception(error)
            self._idle.release()

    def later(self, delay: float, do: Callable[[], Any]) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + delay, next(self._numbers), do))
            if self._due[0][2] is do:
                self._changed.notify()
            if not self._has_clock:
                self._has_clock = True
                threading.Thread(target=self._watch, name="redis-native-lock", daemon=True).start()

    def _watch(self) -> None:
        while True:
            with self._changed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                do = heapq.heappop(self._due)[2]
            do()


background = Background()
# A fork has no threads but its own.
os.register_at_fork(after_in_child=background.__init__)  # type: ignore[misc]


class Mutex:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class ThreadConnection:
    """A connection of its own, made as the client makes its own."""

    def __init__(self, make: Callable[..., Any], options: dict[str, Any]):
        self._connection = make(**options)
        self._connection.connect()
        self._is_closed = False

    async def send(self, *args: Any) -> None:
        if self._is_closed:
            raise ConnectionError("the connection is closed")
        self._connection.send_command(*args, check_health=False)

    async def read(self, timeout: float | None) -> Any:
        if self._is_closed:
            raise ConnectionError("the connection is closed")
        if not self._connection.can_read(timeout):
            return SILENT
        return self._connection.read_response(disable_decoding=True)

    def shut(self) -> None:
        """Ends what another thread reads, which closes it: closed in the middle of that it would connect again."""
        self._is_closed = True
        sock = getattr(self._connection, "_sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closed = True
        self._connection.disconnect()


class Threads(World):
    event, mutex = threading.Event, Mutex
    spawn, later = background.spawn, background.later

    async def wait(self, event: Any, timeout: float | None) -> bool:
        if isinstance(event, Future):
            return bool(futures_of([event], timeout).done)
        return bool(event.wait(timeout))

    def _pool(self, key: bytes) -> Any:
        client = self.client
        if self.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(key))
        return client.connection_pool

    async def ask(self, args: tuple[Any, ...], timeout: float, asker: Attempt | None = None) -> Any:
        pool = self._pool(args[1])
        try:
            connection = pool.get_connection()
        except TypeError:
            # Before redis-py 6 it wants a word.
            connection = pool.get_connection("_")
        try:
            connection.send_command(*args)
            # The client's own time-out may be none.
            if not connection.can_read(timeout):
                raise ConnectionError("no answer in time")
            return connection.read_response()
        except self.library.ResponseError as error:
            if self.is_cluster and isinstance(error, self.library.AskError):
                return self.client.execute_command(*args)
            raise
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    async def ask_soon(self, args: tuple[Any, ...], timeout: float) -> Any:
        # In another thread: the client may take long to connect.
        asking = self.spawn(self.ask(args, timeout))
        if not await self.wait(asking, timeout):
            raise ConnectionError("no answer in time")
        return asking.result()

    async def node(self, key: bytes) -> str:
        return str(self.client.get_node_from_key(key).name) if self.is_cluster else ""

    async def open(self, key: bytes) -> ThreadConnection:
        pool = self._pool(key)
        return ThreadConnection(pool.connection_class, own_options(pool.connection_kwargs))
