"""Pool of resources that are slow to create, such as worker processes and copies of databases.

A session that ends gives a pristine resource back to the pool, and the next session takes it. If
the session has changed the resource, the pool discards it, and creates a new one in the background.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from intercode.errors import DatabaseError, InterCodeError

_LOG = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
ResourceT = TypeVar("ResourceT")


class ResourcePool(Generic[KeyT, ResourceT]):
    """Idle resources by key. Thread-safe.

    Args:
        close_resource: Discards a resource. The pool calls this function on any thread.
        max_idle: The most idle resources of all keys together. If the number is exceeded, the
            oldest is discarded.
        is_usable: Returns whether an idle resource can still be used.
    """

    def __init__(
        self,
        close_resource: Callable[[ResourceT], None],
        max_idle: int,
        is_usable: Callable[[ResourceT], bool] = lambda thing: True,
    ) -> None:
        self._close_resource = close_resource
        self._limit = max_idle
        self._is_usable = is_usable
        self._idle_resources: OrderedDict[int, tuple[KeyT, ResourceT]] = OrderedDict()
        self._resource_numbers = count()
        self._jobs: deque[Callable[[], None]] = deque()
        self._refill_counts: Counter[KeyT] = Counter()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._owner = os.getpid()

    def take(self, key: KeyT, make_resource: Callable[[], ResourceT]) -> ResourceT:
        """Remove an idle resource of a key from the pool and return it, or create one.

        Raises:
            DatabaseError: The pool is closed.
        """
        while (candidate := self._take_idle(key)) is not None:
            if self._is_usable(candidate[0]):
                return candidate[0]
            self._close_resource(candidate[0])
        return make_resource()

    def _take_idle(self, key: KeyT) -> tuple[ResourceT] | None:
        with self._condition:
            if self._closed:
                raise DatabaseError("the engine is closed")
            if self._owner != os.getpid():  # after a fork, the idle resources belong to the parent
                self._owner, self._idle_resources = os.getpid(), OrderedDict()
            for resource_number in reversed(self._idle_resources):
                if self._idle_resources[resource_number][0] == key:
                    return (self._idle_resources.pop(resource_number)[1],)
            # The caller now creates a resource itself, so one refill that has not started is
            # cancelled.
            if self._refill_counts[key] > 0:
                self._refill_counts[key] -= 1
        return None

    def give_back(self, key: KeyT, resource: ResourceT) -> None:
        """Add a pristine resource to the pool, for the next session."""
        surplus: ResourceT | None = resource
        with self._condition:
            if not self._closed:
                self._idle_resources[next(self._resource_numbers)] = (key, resource)
                is_full = len(self._idle_resources) > self._limit
                surplus = self._idle_resources.popitem(last=False)[1][1] if is_full else None
        if surplus is not None:
            self._close_resource(surplus)

    def replace(
        self, key: KeyT, resource: ResourceT, make_resource: Callable[[], ResourceT]
    ) -> None:
        """Discard a used resource and create its replacement, both in the background.

        A closed pool discards the resource at once, and creates none.
        """
        with self._condition:
            queued = not self._closed
            if queued:
                self._refill_counts[key] += 1
                # The refill is first: the next session can use the new resource, but no session
                # needs the end of the old resource.
                self._jobs.append(partial(self._refill, key, make_resource))
                self._jobs.append(partial(self._close_resource, resource))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._work, name="intercode-pool", daemon=True
                    )
                    self._thread.start()
                self._condition.notify()
        if not queued:
            self._close_resource(resource)

    def clear(self) -> list[ResourceT]:
        """Remove all idle resources and pending jobs; return the resources without closing them."""
        with self._condition:
            resources = [resource for _, resource in self._idle_resources.values()]
            self._idle_resources.clear()
            self._refill_counts.clear()
            self._jobs.clear()
        return resources

    def close(self) -> None:
        """Discard all idle resources. Idempotent.

        A running refill and queued discards finish first; queued refills are cancelled.
        """
        with self._condition:
            self._closed = True
            self._refill_counts.clear()
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
        for resource in self.clear():
            self._close_resource(resource)

    def _refill(self, key: KeyT, make_resource: Callable[[], ResourceT]) -> None:
        with self._condition:
            if self._refill_counts[key] < 1:
                return
            self._refill_counts[key] -= 1
        self.give_back(key, make_resource())

    def _work(self) -> None:
        while job := self._next_job():
            _run_job(job)

    def _next_job(self) -> Callable[[], None] | None:
        with self._condition:
            while not self._jobs and not self._closed:
                self._condition.wait()
            return self._jobs.popleft() if self._jobs else None


def _run_job(job: Callable[[], None]) -> None:
    try:
        job()
    except InterCodeError as error:
        # The next session creates the resource itself. If that fails, too, the session reports it.
        _LOG.info("nothing was made ready: %s", error)
