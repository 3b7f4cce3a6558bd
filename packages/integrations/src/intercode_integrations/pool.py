"""A pool of sandboxes, or of environments, that a server leases to its clients.

The pool limits the number of sandboxes, starts some of them before clients need them, and ends
abandoned leases. A lease that its client does not close ends after an idle time or at a maximum
age. When the server reports that a client has left, all leases of the client end. Each lease has a
fresh sandbox or environment, which the pool closes with the lease.
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
from intercode_integrations.async_env import AsyncEnv
from intercode_sandbox import AsyncSandbox, get_provider
from intercode_sandbox.async_sandbox import closing_threads, threads
from intercode_sandbox.base import SandboxBackend

_COUNT_NAMES = ("opened", "refused", "failed", "idle", "aged", "abandoned")
_MAX_PAUSE = 3600.0
_log = logging.getLogger(__name__)


class SupportsClose(Protocol):
    """The interface of resources that a pool can lease."""

    def close(self) -> None:
        """Free the resource. Idempotent."""


Key = TypeVar("Key", bound=Hashable)
Resource = TypeVar("Resource", bound=SupportsClose)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Counters of a pool for a server's metrics: current numbers, and totals since its start."""

    capacity: int
    leased: int
    """Leases that are open or being opened now."""
    used: int
    """Leases whose resource a client is using now."""
    warm: int
    """Resources that the pool has started, or is starting, before any client needs them."""
    waiting: int
    """Clients that are waiting for a lease now."""
    opened: int
    """Leases opened since the pool's start. The fields below count from the same time."""
    refused: int
    """Clients that got no lease because the pool was full."""
    failed: int
    """Attempts to start a resource that raised an error."""
    idle: int
    """Leases that the pool ended because no client had used them for the idle time."""
    aged: int
    """Leases that the pool ended at their maximum age."""
    abandoned: int
    """Leases that `SandboxPool.leave` ended because their client had left."""


class Lease(Generic[Key, Resource]):
    """A lease of a sandbox or an environment of a pool.

    As a context manager, a lease is opened on entry, is in use inside the block, and is closed on
    exit. ``async with`` gives an `AsyncSandbox` or an `AsyncEnv`. A server whose clients send
    separate requests calls `open` or `open_async`, keeps the lease's `id`, and calls
    `SandboxPool.use` with the `id` for each request.
    """

    def __init__(
        self, pool: SandboxPool[Key, Resource], key: Key, owner: Hashable, wait: float | None
    ) -> None:
        self.id = secrets.token_urlsafe(24)
        """The name of the lease. The name is random, so clients cannot guess each other's."""
        self.key, self.owner = key, owner
        self._pool, self._wait = pool, wait
        self.resource: Resource | None = None
        """The leased sandbox or environment; None until the lease is open."""
        self.start_time = self.last_use = 0.0
        self.users = 0
        self.ended = False
        self._async_resource: AsyncSandbox | AsyncEnv | None = None

    def open(self) -> Self:
        """Wait for a free slot of the pool, and start the sandbox or environment.

        Raises:
            CapacityError: All slots are taken and none was freed in time, or the pool is closing.
            InterCodeError: The sandbox or environment cannot be started.
        """
        self._refuse_reopening()
        self._pool.admit(self._wait)
        self._pool.fill(self)
        return self

    async def open_async(self) -> Self:
        """Open the lease in an event loop, like `open`. A cancelled call leaves no open lease."""
        self._refuse_reopening()
        await self._pool.admit_async(self._wait)
        loop = asyncio.get_running_loop()
        fill_future = loop.run_in_executor(threads(os.getpid()), self._pool.fill, self)
        try:
            await asyncio.shield(fill_future)
        except asyncio.CancelledError:
            fill_future.add_done_callback(self._close_abandoned)
            raise
        return self

    def _refuse_reopening(self) -> None:
        if self.resource is not None:
            raise LeaseError("this lease was used before: acquire another one from the pool")

    def _close_abandoned(self, fill_future: asyncio.Future[None]) -> None:
        # After a failed start, the pool has already freed the slot, and no resource exists.
        if fill_future.exception() is None:
            closing_threads(os.getpid()).submit(self.close)

    @property
    def async_resource(self) -> AsyncSandbox | AsyncEnv:
        """The leased resource in a form whose methods are awaited.

        Raises:
            UsageError: The resource is neither a sandbox nor an environment.
        """
        if self._async_resource is None:
            resource: object = self.resource
            if isinstance(resource, gymnasium.Env):
                self._async_resource = AsyncEnv(resource)
            elif isinstance(resource, SandboxBackend):
                self._async_resource = AsyncSandbox.from_backend(resource)
            else:
                raise UsageError(f"calls of a {type(resource).__name__} cannot be awaited")
        return self._async_resource

    def end_use(self) -> None:
        """End a use of `async_resource`: now, or at the end of a cancelled call that still runs."""
        if isinstance(self._async_resource, AsyncEnv):
            self._async_resource.when_idle(lambda: self._pool.end_use(self))
        else:  # a cancelled call of an AsyncSandbox ends before its caller continues
            self._pool.end_use(self)

    def close(self) -> None:
        """End the lease and everything that runs in its resource. Idempotent and thread-safe."""
        self._pool.end(self)

    def __enter__(self) -> Resource:
        self.open()
        return self._pool.begin_use(self)

    def __exit__(self, *exception: object) -> None:
        self._pool.end_use(self)
        self.close()

    async def __aenter__(self) -> Any:
        await self.open_async()
        try:
            resource = self.async_resource
        except UsageError:
            self.close()
            raise
        self._pool.begin_use(self)
        return resource

    async def __aexit__(self, *exception: object) -> None:
        self.end_use()
        close_future = asyncio.get_running_loop().run_in_executor(
            closing_threads(os.getpid()), self.close
        )
        await asyncio.shield(close_future)


class SandboxPool(Generic[Key, Resource]):
    """A pool that leases sandboxes or environments.

    A background thread of the pool ends expired leases, and starts resources before clients need
    them. The end of a ``with`` block closes the pool.

    Args:
        opens: A function that starts a resource from the key of a lease. `Provider.start` takes an
            image as the key, and ``env.stage.open`` takes a task. A function that makes
            environments is also permitted. Default: the native provider's `Provider.start`.
        capacity: The maximum number of resources at once, including those not leased yet.
        idle: Seconds without use after which a lease ends.
        lifetime: Seconds after which a lease ends, used or not.
        warm: Key → the number of resources to start before clients need them. If the pool is full,
            it closes such a resource to make room for a lease of another key.
        clock: A function that returns the time, in seconds.

    Raises:
        UsageError: A number is not positive, or the numbers in `warm` exceed the capacity.
    """

    def __init__(
        self,
        opens: Callable[[Key], Resource] | None = None,
        *,
        capacity: int = 64,
        idle: float = 900.0,
        lifetime: float = 3600.0,
        warm: Mapping[Key, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for parameter_name, limit in {
            "capacity": capacity,
            "idle": idle,
            "lifetime": lifetime,
        }.items():
            if not limit > 0:
                raise UsageError(f"{parameter_name} must be more than 0, not {limit}")
        self._warm_targets = dict(warm or {})
        if sum(self._warm_targets.values()) > capacity:
            raise UsageError(f"warm has more sandboxes than the capacity, {capacity}, allows")
        self._opens: Callable[[Key], Any] = opens or get_provider().start  # type: ignore[assignment]
        self._capacity, self._idle_limit, self._lifetime = capacity, idle, lifetime
        self._clock = clock
        self._condition = threading.Condition()
        self._leases: dict[str, Lease[Key, Resource]] = {}
        self._warm: dict[Key, deque[Resource]] = {key: deque() for key in self._warm_targets}
        self._slot_count = 0
        """The number of leases that are open, being opened, or about to be opened."""
        self._starting_counts: Counter[Key] = Counter()
        """Key → the number of unleased resources that the pool's thread is starting now."""
        self._failed_keys: set[Key] = set()
        """Keys whose last start failed. The pool starts no resources for them in advance until a
        lease of the key succeeds."""
        self._waiting_futures: deque[Future[None]] = deque()
        self._counts: Counter[str] = Counter()
        self._closing = False
        self._maintenance_thread = threading.Thread(
            target=self._maintain, name="intercode-pool", daemon=True
        )
        self._maintenance_thread.start()

    def lease(
        self, key: Key, *, owner: Hashable = None, wait: float | None = 0.0
    ) -> Lease[Key, Resource]:
        """Return a lease that is not open yet: open it by ``with``, ``async with`` or `Lease.open`.

        Args:
            key: An image or a task: the argument for the pool's function `opens`.
            owner: An identifier of the client, with which `leave` ends all leases of the client.
            wait: Seconds to wait if the pool is full; 0 refuses at once, None waits without limit.
        """
        return Lease(self, key, owner, wait)

    @contextmanager
    def use(self, id: str) -> Iterator[Resource]:
        """Use a leased resource in a block. The lease's idle time restarts when the block ends.

        Raises:
            LeaseError: The lease does not exist, or has ended.
        """
        lease = self._find(id)
        resource = self.begin_use(lease)
        try:
            yield resource
        finally:
            self.end_use(lease)

    @asynccontextmanager
    async def use_async(self, id: str) -> AsyncIterator[Any]:
        """Use a leased resource in a block, in an event loop: an `AsyncSandbox` or an `AsyncEnv`.

        A call that continues after its caller was cancelled counts as use until the call ends.

        Raises:
            LeaseError: The lease does not exist, or has ended.
        """
        lease = self._find(id)
        resource = lease.async_resource
        self.begin_use(lease)
        try:
            yield resource
        finally:
            lease.end_use()

    def leave(self, owner: Hashable) -> int:
        """End all leases of a client that has left; return their number."""
        with self._condition:
            leases = [lease for lease in self._leases.values() if lease.owner == owner]
        return sum(self.end(lease, "abandoned") for lease in leases)

    def sweep(self) -> int:
        """End the expired leases. The pool's thread calls this method regularly.

        Returns:
            The number of ended leases.
        """
        with self._condition:
            expired_leases = [
                (lease, reason)
                for lease in self._leases.values()
                if (reason := self._expiry_reason(lease))
            ]
        return sum(self.end(lease, reason) for lease, reason in expired_leases)

    def counts(self) -> PoolCounts:
        """Return the current numbers of leases and resources, and the totals since the start."""
        with self._condition:
            return PoolCounts(
                self._capacity,
                leased=self._slot_count,
                used=sum(lease.users > 0 for lease in self._leases.values()),
                warm=self._count_warm(),
                waiting=sum(not future.done() for future in self._waiting_futures),
                **{name: self._counts[name] for name in _COUNT_NAMES},
            )

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new leases, and wait until all existing leases have ended.

        Args:
            timeout: Seconds; None waits without limit.

        Returns:
            Whether all leases have ended.
        """
        with self._condition:
            self._closing = True
            for future in self._waiting_futures:
                if future.set_running_or_notify_cancel():
                    future.set_exception(CapacityError("the pool is closing"))
            self._waiting_futures.clear()
            self._condition.notify_all()
            return self._condition.wait_for(lambda: not self._slot_count, timeout)

    def close(self) -> None:
        """End all leases and everything that runs in their resources, then the pool. Idempotent."""
        self.drain(timeout=0)
        if threading.current_thread() is not self._maintenance_thread:
            self._maintenance_thread.join()
        with self._condition:
            warm_resources = [
                resource for resources in self._warm.values() for resource in resources
            ]
            self._warm.clear()
            leases = list(self._leases.values())
        for lease in leases:
            self.end(lease)
        for resource in warm_resources:
            _close(resource)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Methods that leases call.

    def admit(self, wait: float | None) -> None:
        """Reserve a slot for a lease: at once, or after a wait of up to `wait` seconds.

        Raises:
            CapacityError: No slot was free in time, or the pool is closing.
        """
        future = self._request_slot(wait)
        try:
            future.result(wait)
        except TimeoutError:
            if future.cancel():
                raise self._capacity_error(wait) from None

    async def admit_async(self, wait: float | None) -> None:
        """Reserve a slot in an event loop, like `admit`. A cancelled call reserves no slot."""
        future = self._request_slot(wait)
        try:
            await asyncio.wait_for(asyncio.wrap_future(future), wait)
        except TimeoutError:
            if future.cancel():
                raise self._capacity_error(wait) from None
        except asyncio.CancelledError:
            if not future.cancel():
                self._release_slot()
            raise

    def fill(self, lease: Lease[Key, Resource]) -> None:
        """Open a lease that has a slot, with an already started resource or a new one.

        Raises:
            CapacityError: The pool is closing.
            InterCodeError: A new resource cannot be started.
        """
        with self._condition:
            warm_resources = self._warm.get(lease.key)
            resource = warm_resources.popleft() if warm_resources else None
            # Started but unleased resources also count against the capacity. If a new resource
            # would exceed the capacity, the pool closes one of them first.
            evicted_resource = None if resource is not None else self._evict_warm()
        if evicted_resource is not None:
            _close(evicted_resource)
        try:
            resource = self._opens(lease.key) if resource is None else resource
        except BaseException:
            with self._condition:
                self._counts["failed"] += 1
            self._release_slot()
            raise
        with self._condition:
            lease.resource = resource
            lease.start_time = lease.last_use = self._clock()
            self._leases[lease.id] = lease
            self._counts["opened"] += 1
            self._failed_keys.discard(lease.key)
            is_closing = self._closing
            self._condition.notify_all()
        if is_closing:
            self.end(lease)
            raise CapacityError("the pool is closing")

    def begin_use(self, lease: Lease[Key, Resource]) -> Resource:
        """Return a lease's resource, and increment the count of its users.

        Raises:
            LeaseError: The lease has ended, or was never opened.
        """
        with self._condition:
            if lease.ended or lease.resource is None:
                raise self._missing_lease_error()
            lease.users += 1
            return lease.resource

    def end_use(self, lease: Lease[Key, Resource]) -> None:
        """Count one user of a lease less; the last user of an ended lease closes its resource."""
        with self._condition:
            lease.users -= 1
            lease.last_use = self._clock()
            is_last_use = lease.ended and not lease.users
        if is_last_use and lease.resource is not None:
            closing_threads(os.getpid()).submit(_close, lease.resource)

    def end(self, lease: Lease[Key, Resource], reason: str = "") -> bool:
        """End a lease and everything that runs in its resource.

        If an environment is in use, this method only stops the environment, because a thread may be
        inside one of its methods. `end_use` then closes the environment.

        Args:
            lease: The lease.
            reason: The counter to increment, one of `_COUNT_NAMES`; empty for none.

        Returns:
            Whether this call ended the lease; False if it had ended before.
        """
        with self._condition:
            if self._leases.pop(lease.id, None) is None:
                return False
            lease.ended = True
            is_in_use = lease.users > 0
            if reason:
                self._counts[reason] += 1
        assert lease.resource is not None  # `fill` sets it before it registers the lease
        (_stop if is_in_use else _close)(lease.resource)
        self._release_slot()
        return True

    def _find(self, id: str) -> Lease[Key, Resource]:
        with self._condition:
            if id not in self._leases:
                raise self._missing_lease_error()
            return self._leases[id]

    def _missing_lease_error(self) -> LeaseError:
        return LeaseError(
            "there is no such lease, or it has ended: released by its client, after "
            f"{self._idle_limit:g} seconds without use, or after {self._lifetime:g} seconds in all"
        )

    def _capacity_error(self, wait: float | None) -> CapacityError:
        with self._condition:
            self._counts["refused"] += 1
        wait_text = f" for {wait:g} seconds" if wait else ""
        return CapacityError(
            f"all {self._capacity} of the pool are leased{wait_text}: try again later, wait longer "
            "(wait=SECONDS), or give the pool a larger capacity"
        )

    def _request_slot(self, wait: float | None) -> Future[None]:
        with self._condition:
            if self._closing:
                raise CapacityError("the pool is closing")
            future: Future[None] = Future()
            self._waiting_futures.append(future)
            self._grant()
        if not future.done() and wait is not None and wait <= 0 and future.cancel():
            raise self._capacity_error(wait)
        return future

    def _grant(self) -> None:
        while self._waiting_futures and self._slot_count < self._capacity:
            future = self._waiting_futures.popleft()
            if future.set_running_or_notify_cancel():
                self._slot_count += 1
                future.set_result(None)

    def _release_slot(self) -> None:
        with self._condition:
            self._slot_count -= 1
            self._grant()
            self._condition.notify_all()

    def _count_warm(self) -> int:
        return self._starting_counts.total() + sum(
            len(resources) for resources in self._warm.values()
        )

    def _evict_warm(self) -> Resource | None:
        """Remove and return an unleased resource if the pool exceeds its capacity, else None."""
        if self._slot_count + self._count_warm() > self._capacity:
            for resources in self._warm.values():
                if resources:
                    return resources.pop()
        return None

    def _expiry_reason(self, lease: Lease[Key, Resource]) -> str:
        """Return the reason why a lease has expired, ``aged`` or ``idle``; empty if it has not."""
        now = self._clock()
        if now >= lease.start_time + self._lifetime:
            return "aged"
        return "idle" if not lease.users and now >= lease.last_use + self._idle_limit else ""

    # Methods of the background thread, `_maintenance_thread`.

    def _maintain(self) -> None:
        while True:
            self.sweep()
            with self._condition:
                if self._closing:
                    return
                key = next((key for key in self._warm_targets if self._needs_warm(key)), None)
                if key is None:
                    self._condition.wait(self._pause())
                    continue
                self._starting_counts[key] += 1
            self._start_warm(key)

    def _needs_warm(self, key: Key) -> bool:
        has_capacity = self._slot_count + self._count_warm() < self._capacity
        return (
            has_capacity
            and key not in self._failed_keys
            and len(self._warm[key]) < self._warm_targets[key]
        )

    def _pause(self) -> float:
        """Return the seconds for which the background thread may wait: until a lease may expire."""
        now, delays = self._clock(), [self._idle_limit, _MAX_PAUSE]
        for lease in self._leases.values():
            delays.append(lease.start_time + self._lifetime - now)
            delays += [] if lease.users else [lease.last_use + self._idle_limit - now]
        return max(0.0, min(delays))

    def _start_warm(self, key: Key) -> None:
        """Start one resource before a client needs it.

        After a failure, the pool makes no further attempt for this key until a lease of the key
        succeeds. The next client that leases the key receives the error from its own attempt.
        """
        try:
            resource = self._opens(key)
        except (InterCodeError, OSError):
            with self._condition:
                self._starting_counts[key] -= 1
                self._failed_keys.add(key)
                self._counts["failed"] += 1
            return
        with self._condition:
            has_capacity = (
                not self._closing and self._slot_count + self._count_warm() <= self._capacity
            )
            self._starting_counts[key] -= 1
            if has_capacity:
                self._warm[key].append(resource)
        if not has_capacity:
            _close(resource)


def _close(resource: SupportsClose) -> None:
    """Close a resource. A failure is only logged."""
    try:
        resource.close()
    except (InterCodeError, OSError) as error:
        _log.warning("closing what was leased failed: %s", error)


def _stop(resource: SupportsClose) -> None:
    """End everything that runs in a resource in use.

    An environment is only stopped, and is closed after its last use. Any other resource is closed.
    """
    if isinstance(base_env := getattr(resource, "unwrapped", resource), InterCodeEnv):
        base_env.stop()
    else:
        _close(resource)
