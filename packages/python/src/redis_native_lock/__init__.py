"""Locks of the lock module for Redis and Valkey, for redis-py and valkey-py in threads; `.asyncio` is for asyncio."""

import functools
import threading

from ._core import BaseHold, BaseLock, BaseLocks
from ._errors import Deadlock, LockBusy, LockLost, NativeLockError, NoModule, NotSafe, Superseded
from ._native import native_lock
from ._threads import Threads, blocking, run

__version__ = "0.1.0"


class Hold(BaseHold):
    lost: threading.Event
    renew, release = blocking(BaseHold._renew), blocking(BaseHold._release)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.release()
        if error is None and self.lost.is_set():
            raise self.loss()


class Lock(BaseLock[Hold]):
    acquire = blocking(BaseLock[Hold]._acquire)

    def __enter__(self) -> Hold:
        return run(self._enter(threading.get_ident()))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(threading.get_ident()).__exit__(kind, error, trace)


class Locks(BaseLocks[Lock, Hold]):
    __doc__ = BaseLocks.__doc__
    world_type, lock_type, hold_type = Threads, Lock, Hold

    def close(self) -> None:
        """Ends the subscription."""
        run(self._close())


NativeLock = functools.partial(native_lock, "lock", Locks, blocking)

__all__ = [
    "Deadlock", "Hold", "Lock", "LockBusy", "LockLost", "Locks", "NativeLock", "NativeLockError", "NoModule",
    "NotSafe", "Superseded",
]  # fmt: skip
