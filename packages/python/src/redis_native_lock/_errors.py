"""What can go wrong, and what the words of the server and of the client library mean."""

import importlib
from typing import Any, NamedTuple

NO_MODULE = (
    "the server does not know LOCK.ACQUIRE: load the lock module there "
    "(a line `loadmodule /path/to/libredislock.so` in redis.conf, then a restart)"
)


class NativeLockError(Exception):
    """The base of this package's errors. What else the server refuses is the client library's own error."""


class LockBusy(NativeLockError, TimeoutError):
    """The lock did not come free in time."""


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


class Meaning(NamedTuple):
    is_refusal: bool  # The server has answered, and changed nothing.
    may_pass: bool  # The same request may succeed later.
    error: type[NativeLockError] | None = None


NO_PERMISSION, UNKNOWN = Meaning(True, False), Meaning(False, False)
# By the first word of the text, which the server's code is, or that of an unknown command; or by the name of a class,
# which is the same in redis-py and in valkey-py. The first row that has one of them counts.
_TABLE: list[tuple[str, Meaning]] = [
    ("unknown LOCK.ACQUIRE LOCK.RENEW LOCK.RELEASE NoModule", Meaning(True, False, NoModule)),
    ("DEADLOCK Deadlock", Meaning(True, False, Deadlock)),
    ("SUPERSEDED Superseded", Meaning(True, False, Superseded)),
    ("NOREPLICAS NotSafe", Meaning(False, True, NotSafe)),
    ("NOPERM NoPermissionError", NO_PERMISSION),
    ("UNBLOCKED MOVED ASK READONLY LOADING CLUSTERDOWN TRYAGAIN BUSY MISCONF MASTERDOWN", Meaning(True, True)),
    ("ReadOnlyError AskError TryAgainError ClusterDownError BusyLoadingError MasterDownError", Meaning(True, True)),
    ("ResponseError AuthenticationError AuthorizationError", Meaning(True, False)),
    ("ConnectionError TimeoutError OSError ValueError AttributeError LockLost", Meaning(False, True)),
    ("ClusterError RedisClusterException ValkeyClusterException", Meaning(False, True)),
]


def meaning(error: BaseException) -> Meaning:
    if not isinstance(error, Exception) or isinstance(error, TimeoutError) and not isinstance(error, NativeLockError):
        # Python's own time-out is the application's: a client library raises one of its own.
        return UNKNOWN
    names = {str(error).partition(" ")[0], *(cls.__name__ for cls in type(error).__mro__)}
    return next((meaning for words, meaning in _TABLE if names.intersection(words.split())), UNKNOWN)


def translated(error: Exception) -> Exception:
    """This package's error for one of the client library's, if it has one."""
    ours = meaning(error).error
    if ours is None or isinstance(error, NativeLockError):
        return error
    return ours(NO_MODULE if ours is NoModule else str(error))


def library_of(client: Any) -> Any:
    """The errors of redis-py or of valkey-py: of that which the client is from."""
    for cls in type(client).__mro__:
        name = cls.__module__.partition(".")[0]
        if name in ("redis", "valkey"):
            return importlib.import_module(f"{name}.exceptions")
    raise TypeError("locks are for clients of redis-py and valkey-py")
