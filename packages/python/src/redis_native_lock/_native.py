"""What `client.lock(name, lock_class=NativeLock)` of redis-py and valkey-py needs: a `Lock` of theirs, on ours."""

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from ._core import ENDLESS, REPLY_WITHIN, BaseHold, log, settled
from ._errors import LockBusy, NativeLockError, library_of, meaning
from ._wire import now


@functools.cache
def lock_class(module: str, wrap: Callable[[Any], Any]) -> Any:
    """The `Lock` of this module of theirs, with the methods below, each made one of its world by `wrap`."""
    theirs = importlib.import_module(module).Lock
    methods = {name: wrap(method) for name, method in vars(_Native).items() if not name.startswith("__")}
    methods["__exit__"] = methods["__aexit__"] = methods.pop("exit")
    return type("NativeLock", (theirs,), {**methods, "register_scripts": lambda self: None})


def native_lock(submodule: str, locks_type: Any, wrap: Any, client: Any, *args: Any, **options: Any) -> Any:
    library = library_of(client).__name__.partition(".")[0]
    lock = lock_class(f"{library}.{submodule}", wrap)(client, *args, **options)
    # One for each pool of connections, for its subscription.
    kept = vars(getattr(client, "connection_pool", client))
    locks = kept.get("_native_locks") or kept.setdefault("_native_locks", locks_type(client))
    lock.native = locks.lock(lock.name, lease=lock.timeout or None, renew=not lock.timeout)
    lock.errors = locks.world.library
    return lock


class _Native:
    async def acquire(
        self: Any, sleep: Any = None, blocking: Any = None, blocking_timeout: Any = None, token: Any = None
    ) -> bool:
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        is_blocking = self.blocking if blocking is None else blocking
        until = now() + (0 if not is_blocking else ENDLESS if wait is None else wait)
        while True:
            try:
                self.local.hold = hold = await self.native._acquire(max(0.0, until - now()))
                name = token or hold.owner
                self.local.token = name.encode() if isinstance(name, str) else name
                return True
            except LockBusy:
                return False
            except self.errors.ResponseError as error:
                # The key may still be a string of their own lock: then it is asked for again, as they do.
                if not str(error).startswith("WRONGTYPE"):
                    raise
            pause = self.sleep if sleep is None else sleep
            if now() + pause > until:
                return False
            await self.native.locks.world.sleep(pause)

    # In place of their scripts.
    async def lua_release(self: Any, **_: Any) -> bool:
        return await BaseHold._release(self.local.hold) is not False

    async def lua_extend(self: Any, args: list[Any], **_: Any) -> bool:
        try:
            left_ms = await self.native.locks.world.ask(("PTTL", self.name), REPLY_WITHIN) if args[2:] == ["0"] else 0
            await BaseHold._renew(self.local.hold, (args[1] + max(0, left_ms)) / 1000)
        except Exception as error:
            if isinstance(error, NativeLockError) or meaning(error).is_refusal:
                return False
            raise
        return True

    lua_reacquire = lua_extend

    async def locked(self: Any) -> bool:
        return bool(await self.native.locks.world.ask(("EXISTS", self.name), REPLY_WITHIN))

    async def owned(self: Any) -> bool:
        if getattr(self.local, "token", None) is not None:
            with contextlib.suppress(self.errors.ResponseError):
                how = ("HEXISTS", self.name, self.local.hold.owner)
                return bool(await self.native.locks.world.ask(how, REPLY_WITHIN))
        return False

    async def exit(self: Any, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await settled(self.release())
        except self.errors.LockError as failed:
            if error is None and getattr(self, "raise_on_release_error", True):
                raise
            log.warning("%s", failed)
