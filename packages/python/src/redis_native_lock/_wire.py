"""What is told by the server, and the clock by which leases are counted."""

import binascii
import functools
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


@functools.cache
def tags() -> dict[int, bytes]:
    """For each slot of a cluster a word that hashes to it."""
    return {binascii.crc_hqx(b"%d" % number, 0) % 16384: b"%d" % number for number in range(110_000)}
