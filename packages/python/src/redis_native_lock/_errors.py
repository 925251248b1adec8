"""What can go wrong, and what the words of the server and of the client library mean."""

import importlib
from typing import Any

NO_MODULE = (
    "the server does not know LOCK.ACQUIRE: load the lock module there "
    "(a line `loadmodule /path/to/libredislock.so` in redis.conf, then a restart)"
)


class NativeLockError(Exception):
    """The base of this package's errors. What else the server refuses is the client library's own error."""


class LockBusy(NativeLockError, TimeoutError):
    """The lock was not to be had in time."""


class LockLost(NativeLockError):
    """The hold is over before its work: not renewed in time, broken, or deleted."""


class Deadlock(NativeLockError):
    """Waiting would close a cycle of owners that wait for each other; the text names it."""


class NotSafe(NativeLockError):
    """Too few replicas have acknowledged it (NOREPLICAS): not known to be safe."""


class Superseded(NativeLockError):
    """Two waited for one lock under one owner's name: a mistake, never to be sent again."""


class NoModule(NativeLockError):
    """The server has no lock module, or one that is too old."""


_BY_CODE = {"DEADLOCK": Deadlock, "NOREPLICAS": NotSafe, "SUPERSEDED": Superseded}
# The names of classes are the same in redis-py and in valkey-py.
_PASSING = {"ConnectionError", "TimeoutError", "OSError", "ReadOnlyError", "AskError", "TryAgainError"}
_PASSING |= {"ClusterError", "RedisClusterException", "ValkeyClusterException", "NotSafe"}
_PASSING |= {"UNBLOCKED", "MOVED", "ASK", "READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"}
_LASTING = {"AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"}


def _words(error: BaseException) -> set[str]:
    """The names of its classes, and the server's code."""
    return {code(error), *(cls.__name__ for cls in type(error).__mro__)}


def code(error: BaseException) -> str:
    return str(error).partition(" ")[0]


def is_refusal(error: BaseException) -> bool:
    """Whether the server answered: then the command has changed nothing."""
    return "ResponseError" in _words(error) and code(error) != "NOREPLICAS"


def is_permission(error: BaseException) -> bool:
    return bool(_words(error) & {"NoPermissionError", "NOPERM"})


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    return bool(_words(error) & _PASSING) and not _words(error) & _LASTING


def translated(error: Exception) -> Exception:
    """This package's error for one of the client library's, if it has one."""
    if "unknown command" in str(error).lower() or "exist in Redis commands" in str(error):
        return NoModule(NO_MODULE)
    ours = _BY_CODE.get(code(error))
    return error if ours is None or isinstance(error, NativeLockError) else ours(str(error))


def library_of(client: Any) -> Any:
    """The errors of redis-py or of valkey-py: of that which the client is from."""
    for cls in type(client).__mro__:
        name = cls.__module__.partition(".")[0]
        if name in ("redis", "valkey"):
            return importlib.import_module(f"{name}.exceptions")
    raise TypeError("locks are for clients of redis-py and valkey-py")
