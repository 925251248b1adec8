"""What is told by the server, and the clock by which leases are counted."""

import binascii
import os
import time

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


def new_name() -> str:
    """As unique as a UUID."""
    return os.urandom(16).hex()


def netstrings(message: bytes) -> list[bytes]:
    """The parts of a message: database, key, owner, result, first lease in ms."""
    parts = []
    while message:
        length, _, rest = message.partition(b":")
        parts.append(rest[: int(length)])
        message = rest[int(length) + 1 :]
    return parts


_tags: dict[int, bytes] = {}


def tag_of(slot: int) -> bytes:
    """A word that hashes to this slot of a cluster."""
    word = len(_tags)
    while slot not in _tags:
        _tags.setdefault(binascii.crc_hqx(b"%d" % word, 0) % 16384, b"%d" % word)
        word += 1
    return _tags[slot]
