"""The world of threads. What waits does so in the thread that asks, so no coroutine ever suspends."""

import functools
import os
import select
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, ParamSpec, TypeVar, cast

from ._core import ENDLESS, BaseLocks, World

P = ParamSpec("P")
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("it waits for what is not of this world")


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        return run(method(*args, **options))

    return call


class Mutex:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.locked = self._lock.locked

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class Threads(World):
    event, mutex = threading.Event, Mutex

    def pool(self, key: bytes) -> Any:
        client = self.client
        if self.is_cluster:
            client_of = getattr(client, "get_redis_connection", None) or client.get_valkey_connection
            client = client_of(client.get_node_from_key(key))
        return client.connection_pool

    async def connected(self, pool: Any, within: float) -> Any:
        if not _is_ready(pool):
            try:
                # To connect may take the client longer than is waited for here.
                made = self.spawn(self._make_ready(pool))
            except RuntimeError:
                return await super().connected(pool, within)  # No thread can be started, so this one connects.
            if not wait([made], within).done:
                raise ConnectionError("no connection in time")
            made.result()
        return await super().connected(pool, within)

    async def _make_ready(self, pool: Any) -> None:
        pool.release(await super().connected(pool, 0))

    async def read(self, connection: Any, within: float = ENDLESS) -> Any:
        # The client's own time-out may be none.
        if within != ENDLESS and not connection.can_read(within):
            raise ConnectionError("no answer in time")
        return connection.read_response(disable_decoding=True)

    async def wait(self, event: Any, within: float) -> bool:
        return bool(event.wait(within))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        future: Future[Any] = Future()

        def do() -> None:
            try:
                future.set_result(run(work))
            except BaseException as error:
                future.set_exception(error)

        try:
            threading.Thread(target=do, name="redis-native-lock", daemon=True).start()
        except RuntimeError:
            work.close()
            raise
        return future


def _is_ready(pool: Any) -> bool:
    """Whether the pool surely has a connection that still stands. If it does not tell, it has none."""
    try:
        poll = select.poll()
        # Another thread may take it just now: so nothing is read.
        poll.register(pool._available_connections[-1]._sock, select.POLLIN)
    except (AttributeError, IndexError, TypeError, ValueError, OSError):
        return False
    return not poll.poll(0)


# After a fork there are no threads but its own.
os.register_at_fork(after_in_child=lambda: list(map(BaseLocks.reset, BaseLocks.alive)))
