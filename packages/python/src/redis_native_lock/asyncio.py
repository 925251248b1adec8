"""Locks for redis-py's and valkey-py's clients of asyncio: `Locks(client)`."""

import asyncio
import collections
import contextlib
import functools
from collections.abc import Coroutine
from typing import Any

from ._core import ENDLESS, REPLY_WITHIN, BaseHold, BaseLock, BaseLocks, World
from ._errors import Deadlock, LockBusy, LockLost, NativeLockError, NoModule, NotSafe, Superseded
from ._native import native_lock
from ._wire import now

AT_ONCE = 50  # So many commands to a server, as each takes a connection: pools have an end, and more would fail.


class Tasks(World):
    event, mutex, limit = asyncio.Event, asyncio.Lock, staticmethod(asyncio.timeout)

    def __init__(self, client: Any):
        super().__init__(client)
        self._initializing = asyncio.Lock()
        self._turns: dict[str, asyncio.Semaphore] = collections.defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self.tasks: set[asyncio.Task[Any]] = set()

    def pool(self, key: bytes) -> Any:
        return self.client.get_node_from_key(key) if self.is_cluster else self.client.connection_pool

    async def read(self, connection: Any, within: float = ENDLESS) -> Any:
        return await connection.read_response(disable_decoding=True)

    async def command(self, args: tuple[Any, ...], within: float, is_own: bool = False) -> Any:
        try:
            async with asyncio.timeout(within):
                if self.is_cluster and not is_own:
                    # At once by many it is not safe in redis-py 8.
                    async with self._initializing:
                        await self.client.initialize()
                    async with self._turns[self.node(args[1])]:
                        # Without a node it is sent again if it is not answered. A renewal that comes late does harm.
                        to = {"target_nodes": self.client.get_node_from_key(args[1])} if args[0] == "LOCK.RENEW" else {}
                        return await self.client.execute_command(*args, **to)
                async with contextlib.nullcontext() if is_own else self._turns[""]:
                    return await super().command(args, within, is_own)
        except TimeoutError:
            raise ConnectionError("no answer in time") from None
        except AttributeError as error:
            # So redis-py fails in a cluster where others have just closed the connection.
            raise ConnectionError(f"the client has failed: {error}") from error

    async def wait(self, event: Any, within: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                return bool(await event.wait())
        return bool(event.is_set())

    async def shielded(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.shield(self.spawn(work))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.Task(work)
        # A task that nobody refers to would be collected.
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


class Hold(BaseHold):
    lost: asyncio.Event
    renew, release = BaseHold._renew, BaseHold._release
    scope: asyncio.Timeout


class Lock(BaseLock[Hold]):
    acquire = BaseLock[Hold]._acquire

    async def __aenter__(self) -> Hold:
        hold = await self._enter(asyncio.current_task())
        # From now on the present task is cancelled if the lock is lost.
        hold.scope = await asyncio.timeout(None).__aenter__()
        hold._on_loss = lambda: hold.scope.reschedule(0)
        if hold.lost.is_set():
            hold._on_loss()
        return hold

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        hold = self._leave(asyncio.current_task())
        del hold._on_loss
        try:
            await hold.scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise hold.loss() from None
        await hold.release()
        if error is None and hold.lost.is_set():
            raise hold.loss()


class Locks(BaseLocks[Lock, Hold]):
    __doc__ = BaseLocks.__doc__
    world_type, lock_type, hold_type = Tasks, Lock, Hold
    world: Tasks
    _loop: asyncio.AbstractEventLoop | None = None

    async def begin(self) -> None:
        # In another event loop all begins anew, as after a fork.
        before, self._loop = self._loop, asyncio.get_running_loop()
        if before not in (None, self._loop):
            self.reset()
        await super().begin()

    async def aclose(self) -> None:
        """Ends the subscription, and waits some seconds for what goes on in the background."""
        await self._close()
        until = now() + REPLY_WITHIN
        while (background := self.world.tasks - {self.looking}) and now() < until:
            await asyncio.wait(background, timeout=until - now())


NativeLock = functools.partial(native_lock, "asyncio.lock", Locks, lambda method: method)

__all__ = [
    "Deadlock", "Hold", "Lock", "LockBusy", "LockLost", "Locks", "NativeLock", "NativeLockError", "NoModule",
    "NotSafe", "Superseded",
]  # fmt: skip
