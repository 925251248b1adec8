"""How a lock is taken, kept up and given back: what is sent next, what a reply or a message means, when a lease ends.

All of it is written as coroutines over a `World`, which does what they decide. In asyncio they run as such; in the
world of threads nothing that they await ever suspends, so that a single step runs each to its end.
"""

import contextlib
import dataclasses
import inspect
import logging
import random
import re
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from ._errors import NO_PERMISSION, UNKNOWN, LockBusy, LockLost, NoModule, Superseded, library_of, meaning, translated
from ._wire import milliseconds, netstrings, new_name, now, tags, valid_until

log = logging.getLogger("redis_native_lock")

LEAST_VERSION = (0, 2, 0)
PLACE_MAX = 300.0  # A place is asked for so long, again and again.
ASK_AGAIN = 10.0  # How often a place is asked for again while nothing is heard: a message may be lost.
REPLY_WITHIN, REPLY_MIN = 5.0, 0.5  # At least so long, where the wait itself is shorter.
RELEASE_WITHIN = 0.5  # How long the end of a section waits for its release, which then goes on in the background.
CLAIM_AFTER = 0.02  # When a short first lease is claimed. Work that is done sooner spares that.
PAUSE = 0.02  # Before what failed is tried again: ever longer, never in step.
PAUSE_MAX = 1.0  # Timers stand still while a machine is suspended, leases do not: they are looked at so often.
ENDLESS, LONGEST = float("inf"), 315_360_000.0


class World:
    """Threads, or asyncio, with the application's client."""

    event: Callable[[], Any]
    mutex: Callable[[], Any]
    limit: Callable[[float], Any] = contextlib.nullcontext  # What is awaited in it ends after so long, if it can.

    def __init__(self, client: Any):
        self.client, self.library = client, library_of(client)
        self.is_cluster = hasattr(client, "get_node_from_key")
        self._learns_at = -ENDLESS  # When a cluster's client may next be made to ask which server has which keys.

    def node(self, key: bytes) -> str:  # The server of a key, as far as the client knows.
        with contextlib.suppress(Exception):
            return str(self.client.get_node_from_key(key).name) if self.is_cluster else ""
        return ""

    def pool(self, key: bytes) -> Any: ...  # Where the client has connections to the server of a key.
    async def read(self, connection: Any, within: float = ENDLESS) -> Any: ...  # Or raises ConnectionError.
    async def wait(self, event: Any, within: float) -> Any: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any: ...  # Returns a future.

    async def shielded(self, work: Coroutine[Any, Any, Any]) -> Any:  # A cancel does not end it.
        return await work

    # A connection of its own, made as the client makes its own. But it may be silent for long, and is of RESP2.
    async def open(self, key: bytes) -> Any:
        pool = self.pool(key)
        options = {name: value for name, value in pool.connection_kwargs.items() if "maint_notifications" not in name}
        options |= {"protocol": 2, "decode_responses": False, "socket_timeout": None}
        options.pop("response_callbacks", None)
        connection = pool.connection_class(**options)
        await settled(connection.connect())
        # It would connect again by itself, and nobody would listen there.
        connection.connect = connection.connect_check_health = _refuse
        return connection

    async def close(self, connection: Any) -> None:
        await settled(connection.disconnect(True))

    async def connected(self, pool: Any, within: float) -> Any:
        try:
            return await settled(pool.get_connection())
        except TypeError:
            # Before redis-py 6 it wants a word.
            return await settled(pool.get_connection("_"))

    async def command(self, args: tuple[Any, ...], within: float, is_own: bool = False) -> Any:
        """Sends it by a connection of the client's pool, or by one of its own."""
        pool = self.pool(args[1])
        connection = await (self.open(args[1]) if is_own else self.connected(pool, within))
        try:
            # A look at its health would wait without end.
            await settled(connection.send_command(*args, check_health=False))
            return await self.read(connection, within)
        except BaseException as error:
            if isinstance(error, self.library.AskError) and self.is_cluster and not is_own:
                # Where a node is named the client sends it on to the right one, but never again by itself.
                node = self.client.get_node_from_key(args[1])
                return await settled(self.client.execute_command(*args, target_nodes=node))
            if not isinstance(error, self.library.ResponseError):
                await self.close(connection)
            raise
        finally:
            await (self.close(connection) if is_own else settled(pool.release(connection)))

    async def learn(self, failed: str) -> None:
        """Has a cluster's client ask which server has which keys; the one that has failed is asked last."""
        nodes = self.client.nodes_manager
        with contextlib.suppress(Exception):
            known = nodes.startup_nodes or nodes.nodes_cache  # valkey-py drops each that fails, until it has none.
            nodes.startup_nodes = dict(sorted(known.items(), key=lambda item: item[0] == failed))
            async with self.limit(REPLY_WITHIN):
                await settled(nodes.initialize())
        self._learns_at = now() + PAUSE_MAX

    async def ask(self, args: tuple[Any, ...], within: float, is_own: bool = False) -> Any:
        try:
            return await self.command(args, within, is_own)
        except Exception as error:
            if self.is_cluster and not isinstance(error, self.library.ResponseError) and now() >= self._learns_at:
                self._learns_at = now() + REPLY_WITHIN
                self.spawn(self.learn(self.node(args[1])))
            raise translated(error) from error.__cause__

    async def sleep(self, seconds: float) -> None:
        await self.wait(self.event(), seconds)


def _refuse(**_: Any) -> None:
    raise ConnectionError("the connection has ended")


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Listener:
    """The subscription to one server, which all waits there share. Who waits when it ends asks for another."""

    def __init__(self, locks: "BaseLocks[Any, Any]", node: str):
        self._locks, self._world, self._mutex, self._node = locks, locks.world, locks.world.mutex(), node
        # Each with an event that is set once the server has said that it publishes to us.
        self._channels: dict[bytes, Any] = {}
        self._connection: Any = None
        self._error: Exception | None = None
        self.heard_at = now()

    def hears(self, channel: bytes) -> bool:
        return self._error is None and channel in self._channels and bool(self._channels[channel].is_set())

    async def subscribe(self, key: bytes, channel: bytes, within: float) -> None:
        """Returns when the server has said, from now on if it has said so before, that it publishes to us."""
        async with self._mutex:
            is_first, known = not self._channels, self._channels.setdefault(channel, self._world.event())
            if is_first:
                self._world.spawn(self._listen(key))
            elif self._connection is not None and self._error is None:
                known.clear()
                await self._send(channel)
        if self._error is None and not await self._world.wait(known, within):
            error = ConnectionError("the subscription is not answered in time")
            if now() - self.heard_at >= REPLY_WITHIN:
                await self.close(error)
            raise error
        if self._error is not None:
            raise self._error

    async def _send(self, channel: bytes) -> None:
        word = "SSUBSCRIBE" if self._world.is_cluster else "SUBSCRIBE"
        await settled(self._connection.send_command(word, channel, check_health=False))

    async def _listen(self, key: bytes) -> None:
        try:
            connection = await self._world.open(key)
            async with self._mutex:
                self._connection = connection
                for channel in self._channels:
                    await self._send(channel)
            while self._error is None:
                kind, channel, data = await self._world.read(connection)
                self.heard_at = now()
                if kind in (b"message", b"smessage"):
                    self._locks.hear(data)
                elif kind in (b"unsubscribe", b"sunsubscribe"):
                    raise ConnectionError("the server has ended the subscription")
                else:
                    self._channels[channel].set()
        except Exception as error:
            await self.close(error if meaning(error) is NO_PERMISSION else ConnectionError(f"not subscribed: {error}"))
        finally:
            await self.close()

    async def close(self, error: Exception | None = None) -> None:
        self._error = self._error or error or ConnectionError("the subscription is closed")
        if self._locks.listeners.get(self._node) is self:
            del self._locks.listeners[self._node]
        for known in list(self._channels.values()):
            known.set()
        for hold in list(self._locks.holds.values()):
            if hold.listener is self:
                hold.heard.set()
        if self._connection is not None:
            await self._world.close(self._connection)


class BaseHold:
    """A lock from its first request to its release. Every one has an owner's name of its own."""

    token = 0
    lost: Any  # An event: it is set when the hold can't be relied upon any more.
    listener: Listener | None = None
    due_at = _renew_at = _valid_until = ENDLESS  # When it is to be looked at; and why.
    _told, _first_lease = b"0", 0.0  # How its place has ended, as the subscription has heard: b"" is not at all.
    _granted_at, _is_over = -ENDLESS, False
    _unanswered = ENDLESS  # The shortest lease of a renewal that got no answer soon: it may come yet, if only again.
    _is_in_doubt = False  # Whether the server may have a place or a hold for it.
    _is_cut_off = False  # Whether a request of it got no answer: it may come yet.
    _on_loss: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, lock: "BaseLock[Any]", wait: float | None):
        self._lock, self._locks, self._world = lock, lock.locks, lock.locks.world
        self.key, self.owner, self._lease, self._asked_at = lock.key, new_name(), lock.lease, now()
        self._wait_until = ENDLESS if wait is None else self._asked_at + wait
        # Something was heard, or nothing will be any more.
        self.lost, self.heard = self._world.event(), self._world.event()
        # One command after the other, even where nobody waits for a reply any more.
        self._mutex = self._world.mutex()

    def _acquiring(self, *how: Any) -> tuple[Any, ...]:
        # With HOLD 1 it does no harm to send it again.
        lease = ("LEASE", milliseconds(self._lock.lease), "HOLD", 1)
        return ("LOCK.ACQUIRE", self.key, self.owner, *lease, *how, *self._lock.mode)

    def _renewing(self, lease: float) -> tuple[Any, ...]:
        return ("LOCK.RENEW", self.key, self.owner, "LEASE", milliseconds(lease), "FENCE", self.token)

    def _releasing(self) -> tuple[Any, ...]:
        # Without FENCE it gives up a place, too, and a hold that was not told of.
        return ("LOCK.RELEASE", self.key, self.owner, *(("FENCE", self.token) if self.token else ()))

    async def take(self) -> None:
        self._locks.holds[self.owner] = self
        try:
            await self._take()
        except BaseException as error:
            self._end()
            # What a superseded one had is another's of this name now.
            if self._is_in_doubt and not isinstance(error, Superseded):
                self._world.spawn(self._give_up())
            raise

    async def _give_up(self) -> None:
        async with self._mutex:
            if await self._give_back() is not None and self._is_cut_off:
                # What was sent over a connection that is closed may come after what is sent over another.
                await self._give_back(2 * PAUSE_MAX)

    def _left(self) -> float:
        return self._wait_until - now()

    async def _take(self) -> None:
        pause = PAUSE
        while not self.token:
            try:
                await self._once()
            except BaseException as error:
                self._is_in_doubt |= not meaning(error).is_refusal
                if self._left() <= pause or not meaning(error).may_pass:
                    raise
                log.warning("%r is asked for again: %s", self.key, error)
                if self.listener is not None:
                    # It may be at a server that is no primary any more.
                    await self.listener.close()
                await self._world.sleep(pause * random.uniform(0.5, 1))
                pause = min(pause * 2, PAUSE_MAX)
            if not self.token and self._left() <= 0:
                raise LockBusy(f"the lock {self.key!r} is busy")

    async def _once(self) -> None:
        channel, known = self._locks.channel(self.key), self._locks.listeners.get(self._world.node(self.key))
        if self._left() <= 0 or known is None or not known.hears(channel):
            # Who does not have to wait needs no subscription. And by a command the client learns where the key is now.
            await self._ask()
            if self.token or self._left() <= 0:
                return
        try:
            await self._queue(channel)
        except Exception as error:
            if meaning(error) is not NO_PERMISSION:
                raise
            await self._block()

    def _within(self) -> float:
        return min(REPLY_WITHIN, max(self._left(), REPLY_MIN)) if self._left() > 0 else REPLY_WITHIN

    async def _ask(self, *how: Any) -> None:
        sent = now()
        if reply := await self._world.shielded(self._send(self._acquiring(*how), self._within())):
            if valid_until(sent, self._lease) <= now():
                raise self.loss()
            self._begin(reply, sent, self._lease)

    async def _send(self, args: tuple[Any, ...], within: float, is_own: bool = False) -> Any:
        async with self._mutex:
            was_cut_off, self._is_cut_off = self._is_cut_off, True
            reply = await self._world.ask(args, within, is_own)
            self._is_cut_off, self._is_in_doubt = was_cut_off, self._is_in_doubt or reply is not None
            return reply

    async def _queue(self, channel: bytes) -> None:
        """Waits by a place in the queue. If that ends without a grant it is to be asked for again."""
        was_silent, self.listener, self._told = not self._told, self._locks.listener(self.key), b""
        self.heard.clear()
        # After a silence, too: whether the server still answers there.
        if was_silent or now() - self.listener.heard_at >= ASK_AGAIN or not self.listener.hears(channel):
            await self.listener.subscribe(self.key, channel, self._within())
        await self._ask("QUEUE", milliseconds(min(PLACE_MAX, self._left())), channel)
        if self.token:
            return
        await self._world.wait(self.heard, min(ASK_AGAIN, self._left()))
        if self._told.startswith(b"-"):
            self._is_in_doubt = False
            raise translated(self._world.library.ResponseError(self._told[1:].decode("utf-8", "replace")))
        if int(self._told or 0):
            self._trust(int(self._told), min(self._first_lease, self._lease))
        else:
            # Its time is over, or the server has forgotten it, or nothing was heard.
            await self._world.sleep(min(PAUSE, self._left()))

    def hear(self, result: bytes, first_lease: float) -> None:
        # A late end of an earlier place does not hide a grant.
        if not self._told.strip(b"0"):
            self._told, self._first_lease = result, first_lease
        self.heard.set()

    async def _block(self) -> None:
        """Waits by blocking a connection of its own, for users who may not subscribe."""
        left = self._left()
        args = self._acquiring("BLOCK", 0 if left == ENDLESS else milliseconds(left))
        if token := await self._send(args, left + REPLY_WITHIN, is_own=True):
            self._trust(token, self._lease)

    def _trust(self, token: int, lease: float) -> None:
        """Begins before the claim, where the wait was short: the name is new, so the grant came after the request.
        Else the lock is asked for again, and a token that is replied has its full lease."""
        # In a cluster other nodes of a shard pass on what their primary may have taken back.
        if not self._world.is_cluster and valid_until(self._asked_at, lease) - now() >= lease / 4:
            self._begin(token, self._asked_at, lease)

    def _begin(self, token: int, since: float, lease: float) -> None:
        """It is held: granted no earlier than `since`, and this lease is relied upon from then on."""
        self.token, self._granted_at, self._valid_until = token, now(), valid_until(since, lease)
        claim_at = self._granted_at + min(CLAIM_AFTER, self.valid_for() / 4)
        self._plan(claim_at if lease < self._lease else self._third(since))

    def valid_for(self) -> float:
        """How many seconds the hold can be relied upon, if no renewal succeeds."""
        return 0.0 if self._is_over else max(0.0, self._valid_until - now())

    def _third(self, since: float) -> float:
        return since + min(self._lease, self._unanswered) / 3 if self._lock.renew else ENDLESS

    def _plan(self, renew_at: float) -> None:
        self._renew_at, self.due_at = renew_at, min(renew_at, self._valid_until)
        self._locks.watch(self)

    def look(self) -> bool:
        """Returns whether it is over, and tells so if that is new. Renews it if it is time for that."""
        if now() >= self._valid_until:
            self._lose()
        elif now() >= self._renew_at and not self._is_over:
            self._plan(ENDLESS)
            self._world.spawn(self._keep())
        return self._is_over

    async def _keep(self) -> None:
        try:
            await self._renew_now(None)
        except Exception as error:
            if not self._is_over:
                log.warning("%r is not renewed: %s", self.key, error)
                self._plan(now() + min(PAUSE_MAX, self.valid_for() / 8) * random.uniform(0.5, 1))

    async def _renew(self, lease: float | None = None) -> None:
        """Renews it now; a lease that is given here is kept up from now on. Raises `LockLost`."""
        await self._world.shielded(self._renew_now(lease))

    async def _renew_now(self, lease: float | None) -> None:
        async with self._mutex:
            if self.look():
                raise self.loss()
            lease = self._lease if lease is None else _checked(lease)
            sent, before, until = now(), self._unanswered, self._valid_until
            # Until it is answered the shorter of the two leases is relied upon.
            self._valid_until = min(self._valid_until, valid_until(sent, lease))
            self._plan(self._renew_at)
            within = max(0.05, min(REPLY_WITHIN, self.valid_for() / 2))
            self._unanswered = min(before, lease)
            try:
                if await self._world.ask(self._renewing(lease), within) != 1:
                    self._lose()
            except Exception as error:
                if meaning(error).is_refusal:
                    self._unanswered, self._valid_until = before, until
                self._plan(min(self._renew_at, self._third(sent)))
                raise
            self._unanswered = before
            if self.look():
                raise self.loss()
            self._lease, self._valid_until = lease, valid_until(sent, min(lease, before))
            self._plan(self._third(sent))

    def _end(self) -> None:
        self._is_over = True
        self._left_alone_at = now() + (self._lease if self.token else max(self._lease, PLACE_MAX))
        self._locks.holds.pop(self.owner, None)

    def _lose(self) -> None:
        if self._is_over:
            return
        self._end()
        self.lost.set()
        log.warning("%s", self.loss())
        self._on_loss()
        if self._lock.renew:
            # A renewal that got no answer may come late. What is not renewed ends by itself.
            self._world.spawn(self._give_back())

    def loss(self) -> LockLost:
        return LockLost(f"the lock {self.key!r} is lost: it was not renewed in time, or is not this holder's any more")

    async def _release(self) -> bool | None:
        """Ends it. Returns whether this has ended it: false if it was over before, none if that is not known yet."""
        return cast(bool | None, await self._world.shielded(self._release_now()))

    async def _release_now(self) -> bool | None:
        if self.look():
            return False
        self._end()
        # A renewal under way may come after it, and would keep the lock for a lease.
        is_under_way = self._mutex.locked() or self._unanswered < ENDLESS
        had = await self._give_back()
        if self._lock.at_least and is_under_way:
            self._world.spawn(self._give_up())
        if had is False:
            log.warning("%r was over before its work", self.key)
        return had

    async def _give_back(self, pause: float = 0.0) -> bool | None:
        """Returns whether there was something to give back: none if that is not answered soon, and goes on."""
        if pause:
            await self._world.sleep(pause * random.uniform(0.5, 1))
        rest = self._granted_at + self._lock.at_least - now()
        args = self._renewing(rest) if rest > 0 else self._releasing()
        try:
            return bool(await self._world.ask(args, RELEASE_WITHIN + 4 * pause) == 1)
        except Exception as error:
            its = meaning(error)
            is_to_go_on = (its.may_pass or its is UNKNOWN) and now() < self._left_alone_at
            log.warning("%r is not given back%s: %s", self.key, " yet" if is_to_go_on else "", error)
            if is_to_go_on:
                with contextlib.suppress(RuntimeError):  # No thread can be started: it is left to its lease.
                    self._world.spawn(self._give_back(min(pause * 2, PAUSE_MAX) or PAUSE))
            if its is UNKNOWN:
                raise
            return False if its.is_refusal and not its.may_pass else None


def _checked(lease: float) -> float:
    if not 0.001 <= lease <= LONGEST:
        raise ValueError("a lease is a thousandth of a second to ten years")
    return lease


H = TypeVar("H", bound=BaseHold)
L = TypeVar("L", bound="BaseLock[Any]")


@dataclasses.dataclass(eq=False)
class BaseLock(Generic[H]):
    """A lock that can be acquired, again and again, by many threads or tasks."""

    locks: "BaseLocks[Any, H]"
    key: bytes
    lease: float
    mode: tuple[Any, ...]
    wait: float | None
    at_least: float
    renew: bool
    _entered: list[tuple[Any, H]] = dataclasses.field(default_factory=list, init=False)  # By thread or task.

    async def _acquire(self, wait: float | None = None) -> H:
        """Waits at most so many seconds, or as long as `lock` was told. Raises `LockBusy`."""
        await self.locks.begin()
        hold = self.locks.hold_type(self, self.wait if wait is None else wait)
        await hold.take()
        return hold

    async def _enter(self, by: Any) -> H:
        hold = await self._acquire()
        self._entered.append((by, hold))
        return hold

    def _leave(self, by: Any) -> H:
        entry = ([entry for entry in self._entered if entry[0] == by] or self._entered)[-1]
        self._entered.remove(entry)
        return entry[1]


class BaseLocks(Generic[L, H]):
    """Locks on the server of this client. A lease is in seconds; a prefix is put before each key."""

    world_type: type[World]
    lock_type: type[L]
    hold_type: type[H]
    alive: "weakref.WeakSet[BaseLocks[Any, Any]]" = weakref.WeakSet()

    def __init__(self, client: Any, lease: float = 30.0, prefix: str | bytes = ""):
        self.client, self._lease, self.is_checked = client, _checked(lease), False
        self._prefix = prefix.encode() if isinstance(prefix, str) else prefix
        self.holds: dict[str, BaseHold] = {}
        self.alive.add(self)
        self.reset()

    def reset(self) -> None:
        """After a fork, too: holds, waits and subscriptions are the parent's."""
        self.world = self.world_type(self.client)
        self._channel = b"redislock:" + new_name().encode()
        inherited, self.holds = list(self.holds.values()), {}
        self.listeners: dict[str, Listener] = {}  # By server.
        for hold in inherited:
            hold._is_over, hold.lost, hold._mutex = True, self.world.event(), self.world.mutex()
            hold.lost.set()
        # What looks at the holds, where there are any; when it does so next; and what wakes it.
        self.looking: Any = None
        self._looks_at, self._wake = 0.0, self.world.event()
        self._mutex = threading.Lock()

    def watch(self, hold: BaseHold) -> None:
        """Sees to it that the hold is looked at when it is due."""
        with self._mutex:
            if hold.due_at < self._looks_at:
                self._wake.set()
            # It may have been cancelled.
            if self.looking is None or self.looking.done():
                self.looking = self.world.spawn(self._look())

    async def _look(self) -> None:
        """Looks at the holds when one of them is due, as long as there are any."""
        while True:
            for hold in list(self.holds.values()):
                try:
                    if hold.due_at <= now():
                        hold.look()
                except Exception:
                    # No thread could be started, or `on_loss` has failed.
                    log.exception("%r could not be looked after, and will be again", hold.key)
                    hold._plan(now() + max(PAUSE, hold.valid_for() / 8))
            with self._mutex:
                self._wake.clear()
                self._looks_at = min([now() + PAUSE_MAX, *(hold.due_at for hold in list(self.holds.values()))])
                if not self.holds:
                    self.looking = None
                    return
            await self.world.wait(self._wake, max(0.0, self._looks_at - now()))

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
        if not 0 <= at_least <= LONGEST or wait is not None and wait != wait:
            raise ValueError("a time is a number of seconds, and at_least at most ten years")
        mode: tuple[Any, ...] = ("SHARED",) if shared else () if limit is None else ("LIMIT", limit)
        key = self._prefix + (key.encode() if isinstance(key, str) else key)
        lease = self._lease if lease is None else _checked(lease)
        return self.lock_type(self, key, lease, mode, wait, at_least, renew)

    async def begin(self) -> None:
        """Before the first acquire it asks for the module's version, where that is allowed and it has one."""
        if self.is_checked:
            return
        self.is_checked, info = True, ""
        with contextlib.suppress(Exception):
            # Whatever it is, the acquire will say.
            info = "" if self.world.is_cluster else str(await self.world.ask(("INFO", "lock"), REPLY_MIN))
        found = re.search(r"lock_version\W+([\d.]+)", info)
        if found and tuple(map(int, found[1].split("."))) < LEAST_VERSION:
            self.is_checked = False
            raise NoModule(f"the server's lock module is {found[1]}: load {'.'.join(map(str, LEAST_VERSION))} or later")

    def channel(self, key: bytes) -> bytes:
        """Where the ends of its places are told: in a cluster a channel in the slot of the key."""
        return self._channel + (b"{%b}" % tags()[self.client.keyslot(key)] if self.world.is_cluster else b"")

    def listener(self, key: bytes) -> Listener:
        node = self.world.node(key)
        return self.listeners.get(node) or self.listeners.setdefault(node, Listener(self, node))

    def hear(self, message: bytes) -> None:
        _, _, owner, result, lease = netstrings(message)
        if hold := self.holds.get(owner.decode("latin-1")):
            hold.hear(result, int(lease) / 1000)

    async def _close(self) -> None:
        self._wake.set()
        for listener in list(self.listeners.values()):
            await listener.close()
