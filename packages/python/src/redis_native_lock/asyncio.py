"""Locks for redis-py's and valkey-py's clients of asyncio: `Locks(client)`."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from ._core import REPLY_WITHIN, SILENT, Attempt, BaseHold, BaseLock, Core, World
from ._errors import Deadlock, LockBusy, LockLost, NativeLockError, NoModule, NotSafe, Superseded
from ._native import AsyncNativeLock
from ._wire import own_options


class TaskConnection:
    """A connection of its own, made as the client makes its own."""

    def __init__(self, connection: Any, spawn: Callable[[Coroutine[Any, Any, Any]], Any]):
        self._connection, self._spawn = connection, spawn
        self._reading: asyncio.Task[Any] | None = None
        self._is_closed = False

    async def send(self, *args: Any) -> None:
        await self._connection.send_command(*args, check_health=False)

    async def read(self, timeout: float | None) -> Any:
        if self._is_closed:
            raise ConnectionError("the connection is closed")
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._connection.read_response(disable_decoding=True))
        done, _ = await asyncio.wait({self._reading}, timeout=timeout)
        if not done:
            return SILENT
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise ConnectionError("the connection is closed")
        return reading.result()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
        self._spawn(self._connection.disconnect(nowait=True))

    shut = close


class Tasks(World):
    event, mutex = asyncio.Event, asyncio.Lock

    def __init__(self, client: Any):
        super().__init__(client)
        self._initializing, self._is_initialized = asyncio.Lock(), False
        # A task that nobody refers to would be collected.
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._drop)
        return task

    def _drop(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            # Else it would be said to have been missed.
            task.exception()

    async def wait(self, event: Any, timeout: float | None) -> bool:
        is_job = isinstance(event, asyncio.Task)
        waiting = event if is_job else asyncio.ensure_future(event.wait())
        try:
            done, _ = await asyncio.wait({waiting}, timeout=timeout)
            return bool(done)
        finally:
            if not is_job:
                waiting.cancel()

    def later(self, delay: float, do: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(delay, do)

    async def ask(self, args: tuple[Any, ...], timeout: float, asker: Attempt | None = None) -> Any:
        """Asks in a task of its own: a command that is cancelled on its way would take its connection
        along, and could be carried out after what gives up the lock."""
        if self.is_cluster and not self._is_initialized:
            # At once by many it is not safe in redis-py 8.
            async with self._initializing:
                await self.client.initialize()
                self._is_initialized = True
        asking = self.spawn(self.client.execute_command(*args))
        if asker is not None:
            asker.under_way = asking
        done: set[Any] = set()
        try:
            done, _ = await asyncio.wait({asking}, timeout=timeout)
        finally:
            if not done:
                # Its reply may still come. At last its connection is closed by that.
                self.later(30.0, asking.cancel)
        if not done:
            raise ConnectionError("no answer in time")
        try:
            return asking.result()
        except AttributeError as error:
            # So redis-py's cluster fails where others have just closed the connection.
            raise ConnectionError(f"the client has failed: {error}") from error

    async def ask_soon(self, args: tuple[Any, ...], timeout: float) -> Any:
        return await self.ask(args, timeout)

    async def node(self, key: bytes) -> str:
        return str(self.client.get_node_from_key(key).name) if self.is_cluster else ""

    async def open(self, key: bytes) -> TaskConnection:
        pool = self.client.get_node_from_key(key) if self.is_cluster else self.client.connection_pool
        connection = pool.connection_class(**own_options(pool.connection_kwargs))
        ours = TaskConnection(connection, self.spawn)
        try:
            await connection.connect()
        except BaseException:
            ours.close()
            raise
        return ours


class Hold(BaseHold):
    lost: asyncio.Event
    _task: "asyncio.Task[Any] | None" = None
    _is_cancelled = False
    _cancels = 0

    async def renew(self, lease: float | None = None) -> None:
        """Renews it now; a lease that is given here is kept up from now on. Raises `LockLost`."""
        await self._renew(lease)

    async def release(self) -> bool:
        """Ends it. Returns false if it was over before, or if that is not answered soon: then it goes on
        in the background."""
        return await self._release()

    def _watch(self) -> None:
        """From now on the present task is cancelled if the lock is lost."""
        self._task = asyncio.current_task()
        self._cancels = _called(self._task, "cancelling")
        self._on_loss = self._cancel
        if self.lost.is_set():
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._is_cancelled = True
            self._task.cancel()

    async def _finish(self, error: BaseException | None) -> None:
        self._on_loss = None
        if not self._look():
            await self._release()
        elif self.lost.is_set():
            is_ours = self._is_cancelled and _called(self._task, "uncancel") <= self._cancels
            if is_ours and not isinstance(error, asyncio.CancelledError):
                # The task has not been told of its cancellation yet.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            if error is None or is_ours and isinstance(error, asyncio.CancelledError):
                raise self._loss() from None


def _called(task: Any, name: str) -> int:
    """What is there from Python 3.11 on."""
    return int(getattr(task, name, int)())


class Lock(BaseLock[Hold]):
    async def acquire(self, wait: float | None = None) -> Hold:
        """Waits at most so many seconds, or as long as `lock` was told. Raises `LockBusy`."""
        return await self._acquire(wait)

    async def __aenter__(self) -> Hold:
        hold = await self._enter(asyncio.current_task())
        hold._watch()
        return hold

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(asyncio.current_task())._finish(error)


class Locks(Core[Lock, Hold]):
    """Locks on the server of this client. A lease is in seconds; a prefix is put before each key."""

    _lock, _hold = Lock, Hold
    world: Tasks

    def __init__(self, client: Any, lease: float = 30.0, prefix: str | bytes = ""):
        super().__init__(Tasks(client), lease, prefix)

    async def aclose(self) -> None:
        """Ends the subscription, and waits some seconds for what goes on in the background."""
        self._close_ears()
        tasks = [task for task in self.world.tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=REPLY_WITHIN)

    async def __aenter__(self) -> "Locks":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class NativeLock(AsyncNativeLock):
    """For the hook of redis-py and valkey-py: `client.lock(name, lock_class=NativeLock)`."""

    def __init__(self, redis: Any, name: str | bytes, *args: Any, **options: Any):
        super().__init__(Locks, redis, name, *args, **options)


__all__ = [
    "Deadlock", "Hold", "Lock", "LockBusy", "LockLost", "Locks", "NativeLock", "NativeLockError", "NoModule",
    "NotSafe", "Superseded",
]  # fmt: skip
