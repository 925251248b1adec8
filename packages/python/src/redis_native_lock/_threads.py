"""The world of threads. What waits does so in the thread that asks, so no coroutine ever suspends."""

import contextlib
import functools
import os
import select
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from ._core import ENDLESS, RELEASE_WITHIN, BaseLocks, Renewer, World, connection_of

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


class Clock(Renewer):
    """The one of a process. Its thread starts with the first hold."""

    def __init__(self) -> None:
        super().__init__(self._wake_up)
        self._changed, self._is_running = threading.Event(), threading.Lock()

    def _wake_up(self) -> None:
        self._changed.set()
        if self._is_running.acquire(blocking=False):
            _start(self._work)

    def _work(self) -> None:
        while True:
            self._changed.clear()
            left = self.look()
            self._changed.wait(None if left == ENDLESS else left)


class Mutex:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class Threads(World):
    event, mutex, renewer = threading.Event, Mutex, Clock()

    def pool(self, key: bytes) -> Any:
        client = self.client
        if self.is_cluster:
            client_of = getattr(client, "get_redis_connection", None) or client.get_valkey_connection
            client = client_of(client.get_node_from_key(key))
        return client.connection_pool

    async def command(self, args: tuple[Any, ...], within: float) -> Any:
        pool = self.pool(args[1])
        if not _is_ready(pool):
            # To connect may take the client longer than is waited for here.
            connecting = _start(_make_ready, pool)
            connecting.join(within)
            if connecting.is_alive():
                raise ConnectionError("no connection in time")
        connection = await connection_of(pool)
        try:
            connection.send_command(*args)
            # The client's own time-out may be none.
            sock = getattr(connection, "_sock", None)
            if not (connection.can_read(within) if sock is None else _is_readable(sock, within)):
                raise ConnectionError("no answer in time")
            return connection.read_response()
        except self.library.ResponseError as error:
            if self.is_cluster and isinstance(error, self.library.AskError):
                return self.client.execute_command(*args)
            raise
        except BaseException as error:
            if not isinstance(error, Exception):
                # Interrupted. What gives it back must not overtake it.
                connection.can_read(RELEASE_WITHIN)
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    async def wait(self, event: Any, within: float) -> bool:
        return bool(event.wait(within))

    async def shielded(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await work

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        _start(run, work)

    async def read(self, connection: Any, within: float = ENDLESS) -> Any:
        if within != ENDLESS and not connection.can_read(within):
            raise ConnectionError("no answer in time")
        return connection.read_response(disable_decoding=True)

    def close(self, connection: Any) -> None:
        connection.disconnect()


def _is_readable(sock: Any, within: float) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], within)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(within * 1000))


def _is_ready(pool: Any) -> bool:
    """Whether the pool surely has a connection that still stands. If it does not tell, it has none."""
    try:
        return not _is_readable(pool._available_connections[-1]._sock, 0)
    except (AttributeError, IndexError, TypeError, ValueError, OSError):
        return False


def _make_ready(pool: Any) -> None:
    with contextlib.suppress(Exception):
        pool.release(run(connection_of(pool)))


def _begin_anew() -> None:
    """After a fork there are no threads but its own."""
    Threads.renewer.__init__()  # type: ignore[misc]
    for locks in BaseLocks.alive:
        locks.reset()


os.register_at_fork(after_in_child=_begin_anew)
