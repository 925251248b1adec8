"""How a lock is taken, kept up and given back, in both worlds.

All of it is written as coroutines over a `World`. In asyncio they run as such; in the world of threads nothing that
they await ever suspends, so that a single step runs each to its end.
"""

import contextlib
import dataclasses
import logging
import random
import re
from collections.abc import Callable, Coroutine
from typing import Any, Generic, NamedTuple, TypeVar

from . import _wire
from ._errors import LockBusy, LockLost, NoModule, is_permission, is_refusal, library_of, may_pass, translated
from ._wire import Request, Told, milliseconds, now, valid_until

log = logging.getLogger("redis_native_lock")

LEAST_VERSION = (0, 2, 0)
PLACE_MAX = 300.0  # A place is asked for so long, again and again.
ASK_AGAIN = 10.0  # How often a place is asked for again while nothing is heard: a message may be lost.
SILENCE = 10.0  # After so long the server is asked whether the subscription still stands.
REPLY_WITHIN = 5.0
RELEASE_WITHIN = 0.5  # How long the end of a section waits for its release, which then goes on in the background.
CLAIM_AFTER = 0.02  # When a short first lease is claimed. Work that is done sooner spares that.
SLEEP_MAX = 1.0  # Timers stand still while a machine is suspended, leases do not.
SILENT = object()


class World:
    """Threads, or asyncio, with the application's client."""

    def __init__(self, client: Any):
        self.client, self.library = client, library_of(client)
        self.is_cluster = hasattr(client, "get_node_from_key")

    event: Callable[[], Any]
    mutex: Callable[[], Any]

    async def wait(self, event: Any, timeout: float | None) -> Any: ...  # Or for what `spawn` returned.
    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any: ...
    def later(self, delay: float, do: Callable[[], Any]) -> None: ...
    async def ask(self, args: tuple[Any, ...], timeout: float, asker: "Attempt | None" = None) -> Any: ...
    async def ask_soon(self, args: tuple[Any, ...], timeout: float) -> Any: ...  # Surely returns in time.
    async def node(self, key: bytes) -> Any: ...
    async def open(self, key: bytes) -> Any: ...  # A connection of its own: send, read (SILENT), shut, close.

    async def sleep(self, seconds: float) -> None:
        await self.wait(self.event(), seconds)

    async def insist(self, args: tuple[Any, ...], until: float) -> None:
        """Sends what gives a lock back until it is answered, or until then."""
        pauses = _pauses()
        while True:
            try:
                await self.ask(args, REPLY_WITHIN)
                return
            except Exception as error:
                if not may_pass(error) or now() >= until:
                    log.warning("%s is left to its lease, not given back: %s", _shown(args[1]), error)
                    return
            await self.sleep(next(pauses))


def _pauses() -> Any:
    """How long to wait before what failed is tried again: ever longer, never in step."""
    pause = 0.02
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, 1.0)


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


class Ear:
    """The subscription to one server, which all waits there share. It ends with its connection; whoever waits then
    asks for it anew."""

    def __init__(self, locks: "Core[Any, Any]"):
        self._locks, self._world, self._mutex = locks, locks.world, locks.world.mutex()
        self._verb = "SSUBSCRIBE" if self._world.is_cluster else "SUBSCRIBE"
        # Each with an event that is set once it is known whether the server publishes to us.
        self._channels: dict[bytes, tuple[Any, list[Exception]]] = {}
        self.connection: Any = None
        self._is_listening = False

    def hears(self, channel: bytes) -> bool:
        return channel in self._channels and bool(self._channels[channel][0].is_set())

    async def subscribe(self, key: bytes, channel: bytes, timeout: float) -> None:
        async with self._mutex:
            if channel not in self._channels:
                self._channels[channel] = (self._world.event(), [])
                if not self._is_listening:
                    self._is_listening = True
                    self._world.spawn(self._listen(key))
                elif self.connection is not None:
                    await self.connection.send(self._verb, channel)
            known, errors = self._channels[channel]
        if not await self._world.wait(known, timeout):
            raise ConnectionError("the subscription is not answered in time")
        if errors:
            raise errors[0] if is_permission(errors[0]) else ConnectionError(f"not subscribed: {errors[0]}")

    async def _listen(self, key: bytes) -> None:
        error: Exception = ConnectionError("the subscription has ended")
        connection = None
        try:
            connection = await self._world.open(key)
            async with self._mutex:
                self.connection = connection
                for channel in self._channels:
                    await connection.send(self._verb, channel)
            is_asked = False
            while True:
                message = await connection.read(SILENCE)
                if message is not SILENT:
                    self._take(message)
                elif is_asked:
                    raise ConnectionError("the server is silent")
                else:
                    async with self._mutex:
                        await connection.send("PING")
                is_asked = message is SILENT
        except Exception as failure:
            error = failure
        finally:
            if connection is not None:
                connection.close()
            channels, self._channels = self._channels, {}
            self.connection, self._is_listening = None, False
            for known, errors in channels.values():
                errors.append(error)
                known.set()
            for wait in list(self._locks.waits.values()):
                if wait.ear is self:
                    wait.event.set()

    def _take(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3:
            return
        kind, channel, data = message
        if kind in (b"subscribe", b"ssubscribe") and channel in self._channels:
            self._channels[channel][0].set()
        elif kind in (b"unsubscribe", b"sunsubscribe"):
            raise ConnectionError("the server has ended the subscription")
        elif kind in (b"message", b"smessage"):
            told = _wire.told(data)
            if told is not None:
                self._locks.hear(told)


class Grant(NamedTuple):
    """A hold that the server told of: granted no earlier than `since`, and `lease` is relied upon from then on."""

    token: int
    since: float
    lease: float


class Attempt:
    """One attempt to take a lock."""

    def __init__(self, locks: "Core[Any, Any]", request: Request, wait: float | None):
        self._locks, self._world, self._request = locks, locks.world, request
        self._is_patient = wait is None or wait > 0
        self._first_sent = now()
        self._deadline = float("inf") if wait is None else self._first_sent + wait
        # Where its messages arrive: from the subscription to its server, each sets the event.
        self.told: Told | None = None
        self.ear: Ear | None = None
        self._heard_by: Any = None
        self.event = locks.world.event()
        locks.waits[request.owner] = self
        # Whether the server may have a place or a hold for it.
        self._is_in_doubt = False
        self._may_subscribe = True
        # Is set when a command ends that is under way, though nobody waits for its reply any more.
        self.under_way: Any = None

    async def take(self) -> Grant | None:
        grant = None
        try:
            grant = await self._take()
        finally:
            if grant is None:
                self._locks.waits.pop(self._request.owner, None)
                given_up = self._world.spawn(self._give_up()) if self._is_in_doubt else None
        if grant is None and given_up is not None:
            await self._world.wait(given_up, RELEASE_WITHIN)
        return grant

    def _left(self) -> float:
        return self._deadline - now()

    async def _take(self) -> Grant | None:
        pauses = _pauses()
        # Who does not wait needs no subscription.
        step = self._queue if self._is_patient and self._locks.hears(self._request.key) else self._try
        while True:
            error = None
            try:
                grant = await step()
                if grant is not None or not self._is_patient:
                    return grant
                step = self._queue if self._may_subscribe else self._block
            except Exception as raised:
                error = translated(raised)
                if not self._is_patient or not may_pass(error):
                    raise error from raised.__cause__
                log.warning("%s is asked for again: %s", _shown(self._request.key), error)
                if self._heard_by is not None:
                    # It may be at a server that is no primary any more.
                    self._heard_by.shut()
                # By a command the client learns where the key is now.
                step = self._try if self._may_subscribe else self._block
                await self._world.sleep(min(next(pauses), self._left()))
            if self._left() <= 0:
                if error is not None:
                    raise error
                return None

    def _within(self) -> float:
        return min(REPLY_WITHIN, max(self._left(), 0.05)) if self._is_patient else REPLY_WITHIN

    async def _ask(self, args: tuple[Any, ...]) -> Any:
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, True
        try:
            reply = await self._world.ask(args, self._within(), self)
        except Exception as error:
            self._is_in_doubt = was_in_doubt or not is_refusal(error)
            raise
        self._is_in_doubt = was_in_doubt or reply is not None
        return reply

    async def _try(self) -> Grant | None:
        sent = now()
        token = await self._ask(self._request.acquire())
        return None if token is None else Grant(token, sent, self._request.lease)

    async def _queue(self) -> Grant | None:
        """Waits by a place in the queue. Returns none if it is to be asked for again."""
        request = self._request
        ear, channel = await self._locks.ear(request.key)
        try:
            self.told, self.ear = None, ear
            self.event.clear()
            await ear.subscribe(request.key, channel, self._within())
            self._heard_by = ear.connection
            sent = now()
            token = await self._ask(request.acquire("QUEUE", milliseconds(min(PLACE_MAX, self._left())), channel))
        except Exception as error:
            if is_permission(error):
                self._may_subscribe = False
                return None
            raise
        if token:
            return Grant(token, sent, request.lease)
        await self._world.wait(self.event, min(ASK_AGAIN, self._left()))
        told = self.told
        if told is not None and told.error:
            error = self._world.library.ResponseError(told.error)
            # A refusal leaves nothing, and what there is then is another's of this name.
            self._is_in_doubt = not is_refusal(error)
            raise error
        if told is None or not told.token:
            # Its time is over, or the server has forgotten it, or nothing was heard.
            await self._world.sleep(0.01)
            return None
        return await self._claim(told.token, min(told.lease, request.lease))

    async def _claim(self, token: int, lease: float) -> Grant | None:
        request = self._request
        # In a cluster other nodes of a shard pass on what their primary may have taken back: there it claims first.
        is_sure = request.is_first and not self._world.is_cluster
        if is_sure and valid_until(self._first_sent, lease) - now() >= lease / 4:
            return Grant(token, self._first_sent, lease)
        sent = now()
        is_claimed = await self._ask(request.renewal(token, request.lease)) == 1
        return Grant(token, sent, request.lease) if is_claimed else None

    async def _block(self) -> Grant | None:
        """Waits by blocking a connection of its own, for users who may not subscribe."""
        left = self._left()
        connection = await self._world.open(self._request.key)
        try:
            self._is_in_doubt = True
            is_endless = left == float("inf")
            await connection.send(*self._request.acquire("BLOCK", 0 if is_endless else milliseconds(left)))
            token = await connection.read(None if is_endless else left + REPLY_WITHIN)
        except Exception as error:
            self._is_in_doubt = not is_refusal(error)
            raise
        finally:
            connection.close()
        if token is SILENT:
            raise ConnectionError("no answer in time")
        return None if token is None else await self._claim(token, self._request.lease)

    async def _give_up(self) -> None:
        if self.under_way is not None:
            await self._world.wait(self.under_way, REPLY_WITHIN)
        await self._world.insist(self._request.release(), now() + max(self._request.lease, PLACE_MAX))


class BaseHold:
    """A lock that is held."""

    def __init__(self, locks: "Core[Any, Any]", request: Request, grant: Grant):
        self.key: bytes = request.key
        self.owner: str = request.owner.decode("utf-8", "surrogateescape")
        self.token: int = grant.token
        # Is set when the hold can't be relied upon any more.
        self.lost: Any = locks.world.event()
        self._locks, self._world, self._request = locks, locks.world, request
        self._lease = request.lease
        self._granted_at = now()
        self._valid_until = valid_until(grant.since, grant.lease)
        self._is_over = self._is_renewing = False
        # Whether the release has ended it, once that is known.
        self._was_released: bool | None = None
        self._why = ""
        self._mutex, self._pauses, self._timer = locks.world.mutex(), _pauses(), 0
        self._on_loss: Callable[[], None] | None = None
        self._renew_at = self._next_renewal(grant.since)
        if grant.lease < request.lease:
            self._renew_at = self._granted_at + min(CLAIM_AFTER, self.valid_for() / 4)
        self._schedule()

    def valid_for(self) -> float:
        """How many seconds the hold can be relied upon, if no renewal succeeds."""
        return 0.0 if self._is_over else max(0.0, self._valid_until - now())

    def _next_renewal(self, since: float) -> float:
        return since + self._lease / 3 if self._request.renew else float("inf")

    def _schedule(self) -> None:
        self._timer += 1
        timer = self._timer
        at = self._valid_until if self._is_renewing else min(self._valid_until, self._renew_at)
        self._world.later(min(max(at - now(), 0.0), SLEEP_MAX), lambda: self._tick(timer))

    def _tick(self, timer: int) -> None:
        if timer != self._timer or self._look():
            return
        if now() >= self._renew_at and not self._is_renewing:
            self._is_renewing = True
            self._world.spawn(self._keep())
        self._schedule()

    def _look(self) -> bool:
        """Returns whether it is over, and tells so if that is new."""
        if not self._is_over and now() >= self._valid_until:
            self._end("its lease was not renewed in time")
        return self._is_over

    def _end(self, why: str) -> None:
        self._is_over, self._why = True, why
        self._locks.waits.pop(self._request.owner, None)
        self.lost.set()
        log.warning("%s", self._loss())
        if self._on_loss is not None:
            self._on_loss()
        # A renewal that got no answer may come late.
        self._world.spawn(self._locks.give_back(self._request, self.token))

    def _loss(self) -> LockLost:
        return LockLost(f"the lock {_shown(self.key)} is lost: {self._why or 'it was released'}")

    async def _keep(self) -> None:
        try:
            await self._renew(None)
        except Exception as error:
            if not self._is_over:
                log.warning("%s is not renewed: %s", _shown(self.key), error)
                self._renew_at = now() + min(next(self._pauses), self.valid_for() / 8)
        finally:
            self._is_renewing = False
            if not self._is_over:
                self._schedule()

    async def _renew(self, lease: float | None) -> None:
        async with self._mutex:
            if self._look():
                raise self._loss()
            self._lease = lease = self._lease if lease is None else _checked(lease)
            sent = now()
            # Until it is answered the shorter of the two leases is relied upon.
            self._valid_until = min(self._valid_until, valid_until(sent, lease))
            try:
                reply = await self._world.ask(self._request.renewal(self.token, lease), max(self.valid_for(), 0.05))
            except Exception as error:
                raise translated(error) from error
            if reply != 1 and not self._is_over:
                self._end("the server does not know this hold any more")
            if self._look():
                raise self._loss()
            self._valid_until, self._renew_at = valid_until(sent, lease), self._next_renewal(sent)
            self._pauses = _pauses()
            self._schedule()

    async def _release(self) -> bool:
        """Ends the hold. Returns whether this is known to have ended it; what fails is logged and goes on in the
        background."""
        if self._look():
            return False
        self._is_over = True
        self._locks.waits.pop(self._request.owner, None)
        rest = self._request.at_least - (now() - self._granted_at)
        args = self._request.renewal(self.token, rest) if rest > 0 else self._request.release("FENCE", self.token)
        is_answered = False
        try:
            reply = await self._world.ask_soon(args, RELEASE_WITHIN)
            is_answered = True
        except Exception as error:
            log.warning("%s is not given back yet: %s", _shown(self.key), error)
            is_answered = not may_pass(error)
            reply = None
        finally:
            if not is_answered:
                self._world.spawn(self._world.insist(args, now() + self._lease))
        self._was_released = reply == 1 if is_answered else None
        if is_answered and reply != 1:
            log.warning("%s was over before its work", _shown(self.key))
        return bool(reply == 1)


def _checked(lease: float) -> float:
    if not 0.001 <= lease <= 315_360_000:
        raise ValueError("a lease is a thousandth of a second to ten years")
    return lease


H = TypeVar("H", bound=BaseHold)
L = TypeVar("L", bound="BaseLock[Any]")


class BaseLock(Generic[H]):
    """A lock that can be acquired, again and again."""

    def __init__(self, locks: "Core[Any, H]", request: Request, wait: float | None):
        self._locks, self._request, self._wait = locks, request, wait
        # By thread or task: one lock may be shared by many.
        self._entered: list[tuple[Any, H]] = []

    async def _acquire(self, wait: float | None = None, owner: bytes | None = None) -> H:
        wait = self._wait if wait is None else wait
        return await self._locks._acquire(self._request, wait, owner)

    async def _enter(self, by: Any) -> H:
        hold = await self._acquire()
        self._entered.append((by, hold))
        return hold

    def _leave(self, by: Any) -> H:
        entry = ([entry for entry in self._entered if entry[0] == by] or self._entered)[-1]
        self._entered.remove(entry)
        return entry[1]


class Core(Generic[L, H]):
    """What `Locks` has in both worlds."""

    _lock: type[L]
    _hold: type[H]

    def __init__(self, world: World, lease: float, prefix: str | bytes):
        self.world, self._lease, self._is_checked = world, _checked(lease), False
        self._prefix = prefix.encode() if isinstance(prefix, str) else prefix
        self._reset()

    def _reset(self) -> None:
        self.waits: dict[bytes, Attempt] = {}
        self._ears: dict[str, Ear] = {}
        self._channel = b"redislock:" + _wire.new_owner()

    def lock(
        self,
        key: str | bytes,
        *,
        wait: float | None = None,
        shared: bool = False,
        limit: int | None = None,
        lease: float | None = None,
        at_least: float = 0.0,
        renew: bool = True,
    ) -> L:
        """A lock, held alone, or `shared`, or by `limit` holders at most. `wait` is in seconds: 0 does not wait, none
        waits without end. With `at_least` it stays taken for so long after its grant."""
        if (shared and limit is not None) or (limit is not None and not 1 <= limit < 1 << 53):
            raise ValueError("a lock is shared, or has a limit of 1 to 2^53 - 1")
        mode: tuple[Any, ...] = ("SHARED",) if shared else () if limit is None else ("LIMIT", limit)
        whole = self._prefix + (key.encode() if isinstance(key, str) else key)
        request = Request(whole, self._lease if lease is None else _checked(lease), mode, at_least, renew)
        return self._lock(self, request, wait)

    async def _acquire(self, request: Request, wait: float | None, owner: bytes | None) -> H:
        if not self._is_checked:
            await self._check_version()
        request = dataclasses.replace(request, owner=owner or _wire.new_owner(), is_first=owner is None)
        grant = await Attempt(self, request, wait).take()
        if grant is None:
            raise LockBusy(f"the lock {_shown(request.key)} is busy")
        return self._hold(self, request, grant)

    async def _check_version(self) -> None:
        """Asks for the module's version, where that is allowed and it has one."""
        self._is_checked, info = True, ""
        with contextlib.suppress(Exception):
            # Whatever it is, the acquire will say.
            info = "" if self.world.is_cluster else str(await self.world.ask(("INFO", "lock"), REPLY_WITHIN))
        found = re.search(r"lock_version\W+([\d.]+)", info)
        if found and tuple(map(int, found[1].split("."))) < LEAST_VERSION:
            self._is_checked = False
            raise NoModule(f"the server's lock module is {found[1]}: load {'.'.join(map(str, LEAST_VERSION))} or later")

    def _channel_for(self, key: bytes) -> bytes:
        tag = b"{" + _wire.tag_of(_wire.slot_of(key)) + b"}" if self.world.is_cluster else b""
        return self._channel + tag

    def hears(self, key: bytes) -> bool:
        channel = self._channel_for(key)
        return any(ear.hears(channel) for ear in list(self._ears.values()))

    async def ear(self, key: bytes) -> tuple[Ear, bytes]:
        node = await self.world.node(key)
        ear = self._ears.get(node) or self._ears.setdefault(node, Ear(self))
        return ear, self._channel_for(key)

    def hear(self, told: Told) -> None:
        wait = self.waits.get(told.owner)
        if wait is not None:
            # A late end of an earlier place does not hide a grant.
            if told.token or wait.told is None:
                wait.told = told
            wait.event.set()
        elif told.token:
            # Nobody waits for it any more.
            self.world.spawn(self.give_back(Request(told.key, told.lease, owner=told.owner), told.token))

    async def give_back(self, request: Request, token: int) -> None:
        await self.world.insist(request.release("FENCE", token), now() + request.lease)

    def _close_ears(self) -> None:
        for ear in list(self._ears.values()):
            if ear.connection is not None:
                ear.connection.shut()
