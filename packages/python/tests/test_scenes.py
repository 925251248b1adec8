"""What is sent next, and what comes of it: scenes without a server, by a clock that stands still."""

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import NoPermissionError, ResponseError

import redis_native_lock._core as core
from redis_native_lock import Deadlock, LockBusy, LockLost, Locks, NotSafe, Superseded
from redis_native_lock._threads import Mutex, run
from redis_native_lock._wire import netstrings, tags, valid_until

TAKEN, GONE = ResponseError("SUPERSEDED x"), ResponseError("NOREPLICAS 0")
NO_ANSWER, NOPERM, STOP = ConnectionError("no answer"), NoPermissionError("no"), KeyboardInterrupt()


class Script(core.World):
    """Answers what is sent as its lines say: the word that is sent, the answer, how long that takes, and how long
    nothing is sent before, at least."""

    class event:
        is_set = set = clear = lambda self: False

    mutex = Mutex

    def __init__(self, lines):
        super().__init__(redis.Redis())
        self.lines, self.time, self.answered_at = list(lines), 1000.0, 1000.0

    def next(self, args):
        word, answer, takes, pause = (*self.lines.pop(0), 0, 0)[:4]
        assert word in args and self.time - self.answered_at >= pause, (word, args)
        self.time = self.answered_at = self.time + takes
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def command(self, args, within, is_own=False):
        assert is_own == ("BLOCK" in args)
        return self.next(args)

    async def wait(self, event, within):
        if event is self.hold.heard:
            message = self.next(["hear"])
            if message is not None:
                self.hold.hear(message, 2.0)
            return message is not None
        self.time += max(0, within)

    def spawn(self, work):
        run(work)

    async def close(self, connection):
        pass

    async def subscribe(self, *args):
        self.next(["subscribe"])


HAD, QUEUED, ASKED_AGAIN = ("LOCK.ACQUIRE", 7), ("QUEUE", 0), ("subscribe", None)
AGAIN = ("LOCK.RELEASE", 1, 0, 1)  # What was cut off may have come after its release.
SCENES = {
    "it is free": (0, [HAD], 7),
    "it is busy, and there is nothing to give back": (0, [("LOCK.ACQUIRE", None)], LockBusy),
    "no answer: it may be held": (0, [("LOCK.ACQUIRE", NO_ANSWER), ("LOCK.RELEASE", 1), AGAIN], ConnectionError),
    "a refusal leaves nothing": (9, [("QUEUE", ResponseError("NOTALOCK"))], ResponseError),
    "a place, and work before its claim": (9, [QUEUED, ("hear", b"7", 0.1)], 7),
    "it waited too long for that": (9, [QUEUED, ("hear", b"7", 1.9), ("QUEUE", 7)], 7),
    "it is claimed too late": (9, [QUEUED, ("hear", b"7", 2.5), ("QUEUE", 8)], 8),
    "the time is over": (9, [QUEUED, ("hear", None, 9), ("LOCK.RELEASE", 0)], LockBusy),
    "nothing is heard": (30, [QUEUED, ("hear", None, 10), ASKED_AGAIN, ("QUEUE", 7)], 7),
    "the place is gone": (9, [QUEUED, ("hear", b"0"), ("QUEUE", 7)], 7),
    "a cycle": (9, [QUEUED, ("hear", b"-DEADLOCK a waits for b")], Deadlock),
    "what is there is another's now": (9, [QUEUED, ("hear", b"-SUPERSEDED x")], Superseded),
    "too few replicas, at last": (0.01, [("QUEUE", GONE), ("LOCK.RELEASE", 0), AGAIN], NotSafe),
    "too few replicas, for a moment": (9, [QUEUED, ("hear", b"-NOREPLICAS x"), ("LOCK.ACQUIRE", 7)], 7),
    "it may not subscribe": (9, [("QUEUE", NOPERM), ("BLOCK", 7)], 7),
    "it may not do that either": (9, [("QUEUE", NOPERM), ("BLOCK", NOPERM)], redis.RedisError),
    "it is interrupted": (9, [("QUEUE", NOPERM), ("BLOCK", STOP), ("LOCK.RELEASE", None), AGAIN], KeyboardInterrupt),
    "it is answered when its lease is over": (60, [("QUEUE", 7, 30), ("LOCK.ACQUIRE", 8)], 8),
    "a script runs": (9, [("QUEUE", ResponseError("BUSY x")), ("LOCK.ACQUIRE", 7)], 7),
    "the application's own time limit": (9, [("QUEUE", TimeoutError()), ("LOCK.RELEASE", 1), AGAIN], TimeoutError),
    "a cut": (9, [("QUEUE", NO_ANSWER), ("LOCK.ACQUIRE", None), ASKED_AGAIN, ("QUEUE", 7)], 7),
    "it is another's when asked again": (30, [QUEUED, ("hear", None, 10), ASKED_AGAIN, ("QUEUE", TAKEN)], Superseded),
}  # fmt: skip


def hold_of(lines, monkeypatch, wait, **options):
    world, locks = Script(lines), Locks(redis.Redis())
    locks.world, world.locks, locks.is_checked = world, locks, True
    monkeypatch.setattr(locks, "watch", lambda hold: None)
    monkeypatch.setattr(core, "now", lambda: world.time)
    # It is subscribed already.
    first = locks.listener(b"k")
    monkeypatch.setattr(core.Listener, "hears", lambda listener, channel: listener is first)
    monkeypatch.setattr(core.Listener, "subscribe", lambda listener, *args: world.subscribe(*args))
    world.hold = core.BaseHold(locks.lock("k", lease=30, **options), wait)
    return world, world.hold


@pytest.mark.parametrize("wait, lines, outcome", SCENES.values(), ids=SCENES)
def test_a_scene_of_acquiring(monkeypatch, wait, lines, outcome):
    world, hold = hold_of(lines, monkeypatch, wait)
    if isinstance(outcome, int):
        run(hold.take())
        assert hold.token == outcome and hold.valid_for() > 0
    else:
        with pytest.raises(outcome):
            run(hold.take())
        assert not world.locks.holds
    assert not world.lines


@pytest.mark.parametrize(
    "lines, is_lost",
    [
        ([("LOCK.RENEW", 1), ("LOCK.RENEW", NO_ANSWER, 5), ("LOCK.RENEW", 1)], False),
        ([("LOCK.RENEW", 0), ("LOCK.RELEASE", None)], True),
        ([("LOCK.RENEW", NO_ANSWER, 30), ("LOCK.RELEASE", 1)], True),
    ],
)
def test_a_scene_of_renewing(monkeypatch, lines, is_lost):
    world, hold = hold_of([HAD, *lines], monkeypatch, 0)
    told_at = []
    hold.lost.set = lambda: told_at.append(world.time)
    run(hold.take())
    while world.lines:
        world.time = max(world.time, hold.due_at)
        hold.look()
    assert bool(told_at) is hold._is_over is is_lost
    if is_lost:
        with pytest.raises(LockLost):
            run(hold._renew())
    else:
        assert hold.valid_for() > 29


def test_a_lease_that_is_shortened_is_looked_at_anew_and_counts_though_it_is_not_answered(monkeypatch):
    world, hold = hold_of([HAD, ("LOCK.RENEW", NO_ANSWER), ("LOCK.RENEW", 1)], monkeypatch, 0, renew=False)
    run(hold.take())
    with pytest.raises(ConnectionError):
        run(hold._renew(0.5))
    run(hold._renew(60))
    assert hold.due_at == hold._valid_until < world.time + 0.5, "the first one may come yet"
    world.time = hold.due_at
    assert hold.look(), "and nothing is sent then: what is not renewed ends by itself"


def test_words_of_the_wire():
    assert netstrings(b"1:0,3:k:,,1:o,2:42,4:2000,") == [b"0", b"k:,", b"o", b"42", b"2000"]
    assert valid_until(5, 30) == 34.69 and valid_until(5, 0.02) == 5.01
    assert all(key_slot(tags()[slot]) == slot for slot in range(16384))
