"""The world of threads. What waits does so in the thread that asks, so no coroutine ever suspends."""

import contextlib
import functools
import os
import select
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from ._core import ENDLESS, RELEASE_WITHIN, REPLY_WITHIN, BaseLocks, World

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


def _start(do: Callable[..., Any], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=do, args=args, name="redis-native-lock", daemon=True)
    thread.start()
    return thread


class Mutex:
    def __init__(self) -> None:
        self._lock = threading.Lock()

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
            # To connect may take the client longer than is waited for here.
            connecting = _start(self._make_ready, pool)
            connecting.join(within)
            if connecting.is_alive():
                raise ConnectionError("no connection in time")
        return await super().connected(pool, within)

    def _make_ready(self, pool: Any) -> None:
        with contextlib.suppress(Exception):
            pool.release(run(super().connected(pool, 0)))

    async def read(self, connection: Any, within: float = ENDLESS) -> Any:
        try:
            # The client's own time-out may be none.
            is_answered = within == ENDLESS or _is_readable(connection, within)
        except BaseException:
            # Interrupted. What gives it back must not overtake it. A command that blocks ends with its connection.
            if within <= REPLY_WITHIN:
                _is_readable(connection, RELEASE_WITHIN)
            raise
        if not is_answered:
            raise ConnectionError("no answer in time")
        return connection.read_response(disable_decoding=True)

    async def wait(self, event: Any, within: float) -> bool:
        return bool(event.wait(within))

    async def shielded(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await work

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        _start(run, work)


def _is_readable(connection: Any, within: float) -> bool:
    sock = getattr(connection, "_sock", None)
    if sock is None:
        return bool(connection.can_read(within))
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(within * 1000))


def _is_ready(pool: Any) -> bool:
    """Whether the pool surely has a connection that still stands. If it does not tell, it has none."""
    try:
        connection = pool._available_connections[-1]
        return connection._sock is not None and not _is_readable(connection, 0)
    except (AttributeError, IndexError, TypeError, ValueError, OSError):
        return False


def _begin_anew() -> None:
    """After a fork there are no threads but its own."""
    for locks in BaseLocks.alive:
        locks.reset()


os.register_at_fork(after_in_child=_begin_anew)
