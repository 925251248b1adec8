"""Locks of the lock module for Redis and Valkey, for the clients redis-py and valkey-py.

`Locks` here is for clients of threads; `redis_native_lock.asyncio` has the one for asyncio.
"""

import inspect
import os
import threading
from typing import Any

from ._core import BaseHold, BaseLock, Core
from ._errors import Deadlock, LockBusy, LockLost, NativeLockError, NoModule, NotSafe, Superseded
from ._native import AsyncNativeLock
from ._threads import Threads, run

__version__ = "0.1.0"


class Hold(BaseHold):
    lost: threading.Event

    def renew(self, lease: float | None = None) -> None:
        """Renews it now; a lease that is given here is kept up from now on. Raises `LockLost`."""
        run(self._renew(lease))

    def release(self) -> bool:
        """Ends it. Returns false if it was over before, or if that is not answered soon: then it goes on
        in the background."""
        return run(self._release())


class Lock(BaseLock[Hold]):
    def acquire(self, wait: float | None = None) -> Hold:
        """Waits at most so many seconds, or as long as `lock` was told. Raises `LockBusy`."""
        return run(self._acquire(wait))

    def __enter__(self) -> Hold:
        return run(self._enter(threading.get_ident()))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        hold = self._leave(threading.get_ident())
        if not hold._look():
            hold.release()
        elif error is None and hold.lost.is_set():
            raise hold._loss()


class Locks(Core[Lock, Hold]):
    """Locks on the server of this client. A lease is in seconds; a prefix is put before each key."""

    _lock, _hold = Lock, Hold

    def __init__(self, client: Any, lease: float = 30.0, prefix: str | bytes = ""):
        super().__init__(Threads(client), lease, prefix)
        self._process = os.getpid()

    async def _acquire(self, *args: Any) -> Hold:
        if self._process != os.getpid():
            # After a fork: waits and subscriptions are the parent's.
            self._process = os.getpid()
            self._reset()
        return await super()._acquire(*args)

    def close(self) -> None:
        """Ends the subscription."""
        self._close_ears()

    def __enter__(self) -> "Locks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NativeLock:
    """For the hook of redis-py and valkey-py: `client.lock(name, lock_class=NativeLock)`."""

    def __init__(self, redis: Any, name: str | bytes, *args: Any, **options: Any):
        self._lock = AsyncNativeLock(Locks, redis, name, *args, **options)

    def __getattr__(self, name: str) -> Any:
        """`acquire`, `release`, `extend`, `reacquire`, `locked` and `owned`, and what they are set by."""
        value = getattr(self._lock, name)
        return (lambda *args, **options: run(value(*args, **options))) if inspect.iscoroutinefunction(value) else value

    def __enter__(self) -> "NativeLock":
        run(self._lock.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        run(self._lock.__aexit__(*error))


__all__ = [
    "Deadlock", "Hold", "Lock", "LockBusy", "LockLost", "Locks", "NativeLock", "NativeLockError", "NoModule",
    "NotSafe", "Superseded",
]  # fmt: skip
