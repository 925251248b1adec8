"""What `client.lock(name, lock_class=NativeLock)` of redis-py and valkey-py needs: what their `Lock` takes and does."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

from ._errors import LockBusy, NativeLockError, code, is_refusal
from ._wire import now

log = logging.getLogger("redis_native_lock")


class AsyncNativeLock:
    """Without a `timeout` it is renewed until it is released; `sleep` matters only where the key is still a string
    of their own lock."""

    def __init__(
        self,
        locks: Any,
        redis: Any,
        name: str | bytes,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ):
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self.blocking, self.blocking_timeout, self.thread_local = blocking, blocking_timeout, thread_local
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if thread_local else SimpleNamespace()
        self.local.token = self.local.hold = None
        # One for each client, for its subscription.
        shared = redis.__dict__.get("_native_locks") or redis.__dict__.setdefault("_native_locks", locks(redis))
        self._world = shared.world
        self._lock = shared.lock(name, lease=timeout or None, renew=not timeout)

    def _error(self, text: str, is_lost: bool = False) -> Exception:
        library = self._world.library
        error: Any = (library.LockNotOwnedError if is_lost else library.LockError)(text)
        error.lock_name = self.name
        return error  # type: ignore[no-any-return]

    async def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        owner = token.encode() if isinstance(token, str) else token
        pause = self.sleep if sleep is None else sleep
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            wait = 0
        end = float("inf") if wait is None else now() + wait
        while True:
            try:
                hold = await self._lock._acquire(None if wait is None else max(0.0, end - now()), owner)
            except LockBusy:
                return False
            except self._world.library.ResponseError as error:
                if code(error) != "WRONGTYPE":
                    raise
                if end - now() <= pause:
                    return False
                await self._world.sleep(pause)
            else:
                self.local.hold, self.local.token = hold, hold.owner.encode("utf-8", "surrogateescape")
                return True

    def _held(self, what: str, needs_timeout: bool = False) -> Any:
        hold = getattr(self.local, "hold", None)
        if hold is None:
            raise self._error(f"Cannot {what} an unlocked lock")
        if needs_timeout and self.timeout is None:
            raise self._error(f"Cannot {what} a lock with no timeout")
        return hold

    async def release(self) -> None:
        hold = self._held("release")
        self.local.hold = self.local.token = None
        await hold._release()
        if hold._was_released is False or hold.lost.is_set():
            raise self._error("Cannot release a lock that's no longer owned", is_lost=True)

    async def _renew(self, what: str, time: float, is_more: bool) -> bool:
        hold = self._held(what, needs_timeout=True)
        try:
            rest = await self._world.ask(("PTTL", hold.key), 5) if is_more else 0
            await hold._renew(time + max(0, rest) / 1000)
        except Exception as error:
            if isinstance(error, NativeLockError) or is_refusal(error):
                raise self._error(f"Cannot {what} a lock that's no longer owned", is_lost=True) from error
            raise
        return True

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        return await self._renew("extend", additional_time, not replace_ttl)

    async def reacquire(self) -> bool:
        return await self._renew("reacquire", self.timeout or 0, False)

    async def locked(self) -> bool:
        return bool(await self._world.ask(("EXISTS", self.name), 5))

    async def owned(self) -> bool:
        hold = getattr(self.local, "hold", None)
        try:
            return hold is not None and bool(await self._world.ask(("HEXISTS", self.name, self.local.token), 5))
        except self._world.library.ResponseError:
            return False

    async def __aenter__(self) -> "AsyncNativeLock":
        if not await self.acquire():
            raise self._error("Unable to acquire lock within the time specified")
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.release()
        except self._world.library.LockError as failed:
            if error is None and self.raise_on_release_error:
                raise
            log.warning("%s", failed)
