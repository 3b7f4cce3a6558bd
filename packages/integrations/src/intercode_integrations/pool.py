"""A pool of sandboxes, or of environments, that a server leases to its clients.

It bounds how many there are, starts some ahead, and closes those whose clients have gone: after a
time without use, at a greatest age, or when the server says that their owner has left. Each lease
is of a fresh one, which is closed when the lease ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import gymnasium

from intercode.envs.base import InterCodeEnv
from intercode.errors import CapacityError, InterCodeError, LeaseError, UsageError
from intercode_integrations.asynchronous import AsyncEnv
from intercode_sandbox import AsyncSandbox, get_provider
from intercode_sandbox.async_sandbox import closing_threads, threads
from intercode_sandbox.base import SandboxBackend

_COUNTED = ("opened", "refused", "failed", "idle", "aged", "abandoned")
_LONGEST_PAUSE = 3600.0
_log = logging.getLogger(__name__)


class Closes(Protocol):
    """A thing that can be leased."""

    def close(self) -> None:
        """Free the thing. Idempotent."""


Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing", bound=Closes)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """The numbers of a pool, for a server's metrics: of this moment, and since its start."""

    capacity: int
    leased: int
    """Leases, open or being opened."""
    used: int
    """Leases that are in use at this moment."""
    warm: int
    """Started ahead, or being started."""
    waiting: int
    """Clients that wait for a lease."""
    opened: int
    """Leases that were opened since the start, and so below."""
    refused: int
    """Clients that were refused for want of capacity."""
    failed: int
    """Sandboxes that could not be started."""
    idle: int
    """Leases that ended because they were not used."""
    aged: int
    """Leases that ended because of their age."""
    abandoned: int
    """Leases that ended because their owner had left."""


class Lease(Generic[Key, Thing]):
    """The right to use a sandbox or an environment of a pool, until it ends.

    As a context manager it is opened at the beginning and closed at the end, and in use in
    between; `async with` gives an `AsyncSandbox` or an `AsyncEnv`. A server whose requests come one
    by one calls `open` or `open_async`, keeps the `id`, and uses `SandboxPool.use`.
    """

    def __init__(
        self, pool: SandboxPool[Key, Thing], key: Key, owner: Hashable, wait: float | None
    ) -> None:
        self.id = secrets.token_urlsafe(24)
        """A name that cannot be guessed."""
        self.key, self.owner = key, owner
        self._pool, self._wait = pool, wait
        self.thing: Thing | None = None
        """The sandbox or environment, once it is open."""
        self.begun = self.last = 0.0
        self.users = 0
        self.ended = False
        self._asynchronous: AsyncSandbox | AsyncEnv | None = None

    def open(self) -> Self:
        """Wait for the pool's capacity, and start the sandbox.

        Raises:
            CapacityError: All are leased, and none was returned in time; or the pool is closing.
            InterCodeError: The sandbox cannot be started.
        """
        self._refuse_twice()
        self._pool.admit(self._wait)
        self._pool.fill(self)
        return self

    async def open_async(self) -> Self:
        """Do the same as `open` in an event loop. If it is cancelled, nothing is leased."""
        self._refuse_twice()
        await self._pool.admit_async(self._wait)
        loop = asyncio.get_running_loop()
        filling = loop.run_in_executor(threads(os.getpid()), self._pool.fill, self)
        try:
            await asyncio.shield(filling)
        except asyncio.CancelledError:
            filling.add_done_callback(self._given_up)
            raise
        return self

    def _refuse_twice(self) -> None:
        if self.thing is not None:
            raise LeaseError("this lease was opened before: ask the pool for another one")

    def _given_up(self, filling: asyncio.Future[None]) -> None:
        if filling.exception() is None:  # else there is nothing to close
            closing_threads(os.getpid()).submit(self.close)

    @property
    def asynchronous(self) -> AsyncSandbox | AsyncEnv:
        """The thing with calls that are awaited.

        Raises:
            UsageError: It is neither a sandbox nor an environment.
        """
        if self._asynchronous is None:
            thing: object = self.thing
            if isinstance(thing, gymnasium.Env):
                self._asynchronous = AsyncEnv(thing)
            elif isinstance(thing, SandboxBackend):
                self._asynchronous = AsyncSandbox.from_backend(thing)
            else:
                raise UsageError(f"calls of a {type(thing).__name__} cannot be awaited")
        return self._asynchronous

    def end_use(self) -> None:
        """End a use of `asynchronous`, now or when a cancelled call has ended."""
        if isinstance(self._asynchronous, AsyncEnv):
            self._asynchronous.when_idle(lambda: self._pool.end_use(self))
        else:  # no call of an AsyncSandbox outlasts its wait
            self._pool.end_use(self)

    def close(self) -> None:
        """End the lease, with what runs there. Idempotent, safe from any thread."""
        self._pool.end(self)

    def __enter__(self) -> Thing:
        self.open()
        return self._pool.begin_use(self)

    def __exit__(self, *exception: object) -> None:
        self._pool.end_use(self)
        self.close()

    async def __aenter__(self) -> Any:
        await self.open_async()
        try:
            thing = self.asynchronous
        except UsageError:
            self.close()
            raise
        self._pool.begin_use(self)
        return thing

    async def __aexit__(self, *exception: object) -> None:
        self.end_use()
        closing = asyncio.get_running_loop().run_in_executor(
            closing_threads(os.getpid()), self.close
        )
        await asyncio.shield(closing)


class SandboxPool(Generic[Key, Thing]):
    """Leases sandboxes, or environments.

    A thread of its own closes those whose time is over and starts some ahead. ``with`` closes it.

    Args:
        opens: Starts what is leased, from the argument of `lease`: `Provider.start` takes an
            image, ``env.stage.open`` a task; a function may make environments. Default: native
            sandboxes, by image.
        capacity: How many there are at once, those that were started ahead among them.
        idle: Seconds without use after which a lease ends.
        lifetime: Seconds after which a lease ends, used or not.
        warm: How many to start ahead for a key. They make room for leases of other keys.
        clock: Tells the time, in seconds.

    Raises:
        UsageError: A number is not positive, or more are to be started ahead than there may be.
    """

    def __init__(
        self,
        opens: Callable[[Key], Thing] | None = None,
        *,
        capacity: int = 64,
        idle: float = 900.0,
        lifetime: float = 3600.0,
        warm: Mapping[Key, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, number in {"capacity": capacity, "idle": idle, "lifetime": lifetime}.items():
            if not number > 0:
                raise UsageError(f"{name} must be more than 0, not {number}")
        self._wanted = dict(warm or {})
        if sum(self._wanted.values()) > capacity:
            raise UsageError(f"warm names more sandboxes than the capacity, {capacity}, allows")
        self._opens: Callable[[Key], Any] = opens or get_provider().start  # type: ignore[assignment]
        self._capacity, self._idle, self._lifetime = capacity, idle, lifetime
        self._clock = clock
        self._changed = threading.Condition()
        self._leases: dict[str, Lease[Key, Thing]] = {}
        self._warm: dict[Key, deque[Thing]] = {key: deque() for key in self._wanted}
        self._granted = 0
        """Slots of leases: open, being opened, or about to be."""
        self._heating: Counter[Key] = Counter()
        """How many are being started ahead, by key."""
        self._cold: set[Key] = set()
        """Keys of which the last could not be started: none is, until one was leased."""
        self._waiting: deque[Future[None]] = deque()
        self._counts: Counter[str] = Counter()
        self._closing = False
        self._keeper = threading.Thread(target=self._keep, name="intercode-pool", daemon=True)
        self._keeper.start()

    def lease(
        self, key: Key, *, owner: Hashable = None, wait: float | None = 0.0
    ) -> Lease[Key, Thing]:
        """Return a lease that is yet to be opened, by ``with``, ``async with`` or `Lease.open`.

        Args:
            key: An image, a task; see the pool's `opens`.
            owner: A client; `leave` ends all that it has leased.
            wait: Seconds to wait where all are leased; 0 refuses at once, None waits for ever.
        """
        return Lease(self, key, owner, wait)

    @contextmanager
    def use(self, id: str) -> Iterator[Thing]:
        """Use what was leased. Time without use is counted from the end.

        Raises:
            LeaseError: There is no such lease, or it has ended.
        """
        lease = self._find(id)
        thing = self.begin_use(lease)
        try:
            yield thing
        finally:
            self.end_use(lease)

    @asynccontextmanager
    async def use_async(self, id: str) -> AsyncIterator[Any]:
        """Use what was leased, in an event loop: an `AsyncSandbox` or an `AsyncEnv`.

        A call whose wait was cancelled counts as use until it has ended.

        Raises:
            LeaseError: There is no such lease, or it has ended.
        """
        lease = self._find(id)
        thing = lease.asynchronous
        self.begin_use(lease)
        try:
            yield thing
        finally:
            lease.end_use()

    def leave(self, owner: Hashable) -> int:
        """End all leases of a client that has left; return how many there were."""
        with self._changed:
            found = [lease for lease in self._leases.values() if lease.owner == owner]
        return sum(self.end(lease, "abandoned") for lease in found)

    def sweep(self) -> int:
        """End the leases whose time is over, as the pool's thread does by itself.

        Returns:
            How many there were.
        """
        with self._changed:
            over = [(lease, why) for lease in self._leases.values() if (why := self._over(lease))]
        return sum(self.end(lease, why) for lease, why in over)

    def counts(self) -> PoolCounts:
        """Return the numbers of this moment, and since the start."""
        with self._changed:
            return PoolCounts(
                self._capacity,
                leased=self._granted,
                used=sum(lease.users > 0 for lease in self._leases.values()),
                warm=self._heated(),
                waiting=sum(not future.done() for future in self._waiting),
                **{name: self._counts[name] for name in _COUNTED},
            )

    def drain(self, timeout: float | None = None) -> bool:
        """Lease no more, and wait until all leases have ended.

        Args:
            timeout: Seconds; None waits for ever.

        Returns:
            Whether all have ended.
        """
        with self._changed:
            self._closing = True
            for future in self._waiting:
                if future.set_running_or_notify_cancel():
                    future.set_exception(CapacityError("the pool is closing"))
            self._waiting.clear()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._granted, timeout)

    def close(self) -> None:
        """End all leases, with what runs there, and the pool. Idempotent."""
        self.drain(timeout=0)
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        with self._changed:
            left = [thing for things in self._warm.values() for thing in things]
            self._warm.clear()
            leases = list(self._leases.values())
        for lease in leases:
            self.end(lease)
        for thing in left:
            _close(thing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What leases use.

    def admit(self, wait: float | None) -> None:
        """Take a slot for a lease, or wait for one.

        Raises:
            CapacityError: There is none in time, or the pool is closing.
        """
        future = self._asked(wait)
        try:
            future.result(wait)
        except TimeoutError:
            if future.cancel():
                raise self._full(wait) from None

    async def admit_async(self, wait: float | None) -> None:
        """Take a slot as `admit` does, in an event loop. If it is cancelled, none is taken."""
        future = self._asked(wait)
        try:
            await asyncio.wait_for(asyncio.wrap_future(future), wait)
        except TimeoutError:
            if future.cancel():
                raise self._full(wait) from None
        except asyncio.CancelledError:
            if not future.cancel():
                self._give_back()
            raise

    def fill(self, lease: Lease[Key, Thing]) -> None:
        """Open a lease that has a slot: with one that was started ahead, or with a new one."""
        with self._changed:
            warm = self._warm.get(lease.key)
            thing = warm.popleft() if warm else None
            # A slot is granted only where there is one, or one that was started ahead gives way.
            excess = None if thing is not None else self._give_way()
        if excess is not None:
            _close(excess)
        try:
            thing = self._opens(lease.key) if thing is None else thing
        except BaseException:
            with self._changed:
                self._counts["failed"] += 1
            self._give_back()
            raise
        with self._changed:
            lease.thing = thing
            lease.begun = lease.last = self._clock()
            self._leases[lease.id] = lease
            self._counts["opened"] += 1
            self._cold.discard(lease.key)
            closing = self._closing
            self._changed.notify_all()
        if closing:
            self.end(lease)
            raise CapacityError("the pool is closing")

    def begin_use(self, lease: Lease[Key, Thing]) -> Thing:
        """Count a user of a lease."""
        with self._changed:
            if lease.ended or lease.thing is None:
                raise self._none()
            lease.users += 1
            return lease.thing

    def end_use(self, lease: Lease[Key, Thing]) -> None:
        """Count a user less; the last one of a lease that has ended frees what is left."""
        with self._changed:
            lease.users -= 1
            lease.last = self._clock()
            last = lease.ended and not lease.users
        if last and lease.thing is not None:
            closing_threads(os.getpid()).submit(_close, lease.thing)

    def end(self, lease: Lease[Key, Thing], why: str = "") -> bool:
        """End a lease, with what runs there; return whether this call has done so.

        Something that is in use is only stopped: its user's thread may be inside of it.
        """
        with self._changed:
            if self._leases.pop(lease.id, None) is None:
                return False
            lease.ended = True
            used = lease.users > 0
            if why:
                self._counts[why] += 1
        assert lease.thing is not None  # it was open
        (_stop if used else _close)(lease.thing)
        self._give_back()
        return True

    def _find(self, id: str) -> Lease[Key, Thing]:
        with self._changed:
            if id not in self._leases:
                raise self._none()
            return self._leases[id]

    def _none(self) -> LeaseError:
        return LeaseError(
            "there is no such lease, or it has ended: by its client, after "
            f"{self._idle:g} seconds without use, or after {self._lifetime:g} seconds in all"
        )

    def _full(self, wait: float | None) -> CapacityError:
        with self._changed:
            self._counts["refused"] += 1
        waited = f" for {wait:g} seconds" if wait else ""
        return CapacityError(
            f"all {self._capacity} of the pool are leased{waited}: try again later, wait longer "
            "(wait=SECONDS), or give the pool a larger capacity"
        )

    def _asked(self, wait: float | None) -> Future[None]:
        with self._changed:
            if self._closing:
                raise CapacityError("the pool is closing")
            future: Future[None] = Future()
            self._waiting.append(future)
            self._grant()
        if not future.done() and wait is not None and wait <= 0 and future.cancel():
            raise self._full(wait)
        return future

    def _grant(self) -> None:
        while self._waiting and self._granted < self._capacity:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                self._granted += 1
                future.set_result(None)

    def _give_back(self) -> None:
        with self._changed:
            self._granted -= 1
            self._grant()
            self._changed.notify_all()

    def _heated(self) -> int:
        return self._heating.total() + sum(len(things) for things in self._warm.values())

    def _give_way(self) -> Thing | None:
        """Take one of those that were started ahead, if there are more than there may be."""
        if self._granted + self._heated() > self._capacity:
            for things in self._warm.values():
                if things:
                    return things.pop()
        return None

    def _over(self, lease: Lease[Key, Thing]) -> str:
        """Say why the time of a lease is over; empty: it is not."""
        now = self._clock()
        if now >= lease.begun + self._lifetime:
            return "aged"
        return "idle" if not lease.users and now >= lease.last + self._idle else ""

    # The pool's thread.

    def _keep(self) -> None:
        while True:
            self.sweep()
            with self._changed:
                if self._closing:
                    return
                key = next((key for key in self._wanted if self._lacks(key)), None)
                if key is None:
                    self._changed.wait(self._pause())
                    continue
                self._heating[key] += 1
            self._heat(key)

    def _lacks(self, key: Key) -> bool:
        room = self._granted + self._heated() < self._capacity
        return room and key not in self._cold and len(self._warm[key]) < self._wanted[key]

    def _pause(self) -> float:
        """Return the seconds until the next lease may be over."""
        now, ends = self._clock(), [self._idle, _LONGEST_PAUSE]
        for lease in self._leases.values():
            ends.append(lease.begun + self._lifetime - now)
            ends += [] if lease.users else [lease.last + self._idle - now]
        return max(0.0, min(ends))

    def _heat(self, key: Key) -> None:
        """Start one ahead. A failure is told to the next client, who meets it, too."""
        try:
            thing = self._opens(key)
        except (InterCodeError, OSError):
            with self._changed:
                self._heating[key] -= 1
                self._cold.add(key)
                self._counts["failed"] += 1
            return
        with self._changed:
            kept = not self._closing and self._granted + self._heated() <= self._capacity
            self._heating[key] -= 1
            if kept:
                self._warm[key].append(thing)
        if not kept:
            _close(thing)


def _close(thing: Closes) -> None:
    """Free a thing that is not in use; a sandbox that was lost is free already."""
    try:
        thing.close()
    except (InterCodeError, OSError) as error:
        _log.warning("closing what was leased failed: %s", error)


def _stop(thing: Closes) -> None:
    """End what runs in a thing whose user's thread may be inside of it; `close` follows."""
    if isinstance(inner := getattr(thing, "unwrapped", thing), InterCodeEnv):
        inner.stop()
    else:
        _close(thing)
