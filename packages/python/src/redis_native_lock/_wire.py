"""What is sent to the server and told by it, and the clock by which leases are counted."""

import binascii
import time
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

# This clock goes on while the machine is suspended, as leases do.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    return time.clock_gettime(CLOCK)


def valid_until(since: float, lease: float) -> float:
    """Until when a lease is relied upon whose command was sent then: one percent less for clocks that run
    apart, and ten milliseconds for the time it takes to notice."""
    return since + lease - min(lease / 100 + 0.01, lease / 2)


def milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    key: bytes
    lease: float
    mode: tuple[Any, ...] = ()
    at_least: float = 0.0
    renew: bool = True
    owner: bytes = b""
    # Whether this owner's name never asked before: then a grant came after the request was sent.
    is_first: bool = True

    def acquire(self, *how: Any) -> tuple[Any, ...]:
        # With HOLD 1 it does no harm to send it again.
        lease = ("LEASE", milliseconds(self.lease), "HOLD", 1)
        return ("LOCK.ACQUIRE", self.key, self.owner, *lease, *how, *self.mode)

    def renewal(self, token: int, lease: float) -> tuple[Any, ...]:
        return ("LOCK.RENEW", self.key, self.owner, "LEASE", milliseconds(lease), "FENCE", token)

    def release(self, *fence: Any) -> tuple[Any, ...]:
        """Without FENCE and a token it gives up a place, and a hold that was not told of."""
        return ("LOCK.RELEASE", self.key, self.owner, *fence)


def new_owner() -> bytes:
    return str(uuid.uuid4()).encode()


class Told(NamedTuple):
    """The end of a place. A token of 0 without an error: it is gone without a grant."""

    key: bytes
    owner: bytes
    token: int
    lease: float
    error: str


def told(message: bytes) -> Told | None:
    """A message of five netstrings: database, key, owner, result, first lease in ms."""
    parts = []
    while message:
        length, _, rest = message.partition(b":")
        if not length.isdigit():
            return None
        parts.append(rest[: int(length)])
        message = rest[int(length) + 1 :]
    if len(parts) != 5:
        return None
    _, key, owner, result, lease = parts
    if result.startswith(b"-"):
        return Told(key, owner, 0, 0, result[1:].decode("utf-8", "replace"))
    return Told(key, owner, int(result), int(lease) / 1000, "")


def slot_of(key: bytes) -> int:
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return binascii.crc_hqx(tag, 0) % 16384


_tags: dict[int, bytes] = {}


def tag_of(slot: int) -> bytes:
    """A word that hashes to this slot."""
    word = len(_tags)
    while slot not in _tags:
        _tags.setdefault(slot_of(b"%d" % word), b"%d" % word)
        word += 1
    return _tags[slot]


def own_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the client's connections for one of ours: its replies are raw, and as RESP2 has them, and
    it may be silent for long."""
    ours = {name: value for name, value in options.items() if "maint_notifications" not in name}
    ours.pop("response_callbacks", None)
    return {**ours, "protocol": 2, "decode_responses": False, "socket_timeout": None}
