"""What `client.lock(name, lock_class=NativeLock)` of redis-py and valkey-py needs: a `Lock` of theirs, on ours."""

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

from ._core import ENDLESS, REPLY_WITHIN, BaseHold, settled
from ._errors import LockBusy, NativeLockError, code, library_of, meaning
from ._wire import now

log = logging.getLogger("redis_native_lock")


@functools.cache
def lock_class(module: str, wrap: Callable[[Any], Any]) -> Any:
    """The `Lock` of this module of theirs, with the methods below, each made one of its world by `wrap`."""
    theirs = importlib.import_module(module).Lock
    methods = {name: wrap(method) for name, method in vars(_Native).items() if not name.startswith("__")}
    methods["__exit__"] = methods["__aexit__"] = methods.pop("exit")

    signature = inspect.signature(theirs.acquire)

    def acquire(self: Any, *args: Any, **options: Any) -> Any:
        said = signature.bind(self, *args, **options).arguments
        said = {name: value for name, value in said.items() if value is not None}
        wait = said.get("blocking_timeout", self.blocking_timeout) if said.get("blocking", self.blocking) else 0
        self.local.until, self.local.is_new = ENDLESS if wait is None else now() + wait, "token" not in said
        return theirs.acquire(self, *args, **options)

    return type("NativeLock", (theirs,), {**methods, "acquire": acquire, "register_scripts": lambda self: None})


def native_lock(submodule: str, locks_type: Any, wrap: Any, client: Any, *args: Any, **options: Any) -> Any:
    library = library_of(client).__name__.partition(".")[0]
    lock = lock_class(f"{library}.{submodule}", wrap)(client, *args, **options)
    # One for each client, for its subscription.
    locks = client.__dict__.get("_native_locks") or client.__dict__.setdefault("_native_locks", locks_type(client))
    # Without a time-out it is renewed until it is released.
    lock.native = locks.lock(lock.name, lease=lock.timeout or None, renew=not lock.timeout)
    lock.ask, lock.errors = locks.world.ask, locks.world.library
    return lock


class _Native:
    async def do_acquire(self: Any, token: bytes) -> bool:
        try:
            self.local.hold = await self.native.acquire_as(token, max(0.0, self.local.until - now()), self.local.is_new)
        except LockBusy:
            return False
        except self.errors.ResponseError as error:
            # The key may still be a string of their own lock: then theirs sleeps, and asks again.
            if code(error) != "WRONGTYPE":
                raise
            return False
        return True

    # In place of their scripts.
    async def lua_release(self: Any, **_: Any) -> bool:
        return await BaseHold._release(self.local.hold) is not False

    async def lua_extend(self: Any, args: list[Any], **_: Any) -> bool:
        try:
            left_ms = await self.ask(("PTTL", self.name), REPLY_WITHIN) if args[2:] == ["0"] else 0
            await BaseHold._renew(self.local.hold, (args[1] + max(0, left_ms)) / 1000)
        except Exception as error:
            if isinstance(error, NativeLockError) or meaning(error).is_refusal:
                return False
            raise
        return True

    lua_reacquire = lua_extend

    async def locked(self: Any) -> bool:
        return bool(await self.ask(("EXISTS", self.name), REPLY_WITHIN))

    async def owned(self: Any) -> bool:
        token = getattr(self.local, "token", None)
        try:
            return token is not None and bool(await self.ask(("HEXISTS", self.name, token), REPLY_WITHIN))
        except self.errors.ResponseError:
            return False

    async def exit(self: Any, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await settled(self.release())
        except self.errors.LockError as failed:
            if error is None and getattr(self, "raise_on_release_error", True):
                raise
            log.warning("%s", failed)
