"""Containers that wait: started ahead, each for one sandbox."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable

from intercode.errors import InterCodeError
from intercode.sandbox.docker.container import Container, Key

log = logging.getLogger(__name__)

MOST_AHEAD = 4
MOST_IDLE = 16
_COMING_SECONDS = 20.0
_THREADS = 2


class Pool:
    """Hands out containers. Thread-safe.

    Args:
        start: Makes a container.
    """

    def __init__(self, start: Callable[[Key], Container]) -> None:
        self._start = start
        self._changed = threading.Condition()
        self._ready: OrderedDict[Key, list[Container]] = OrderedDict()
        self._coming: Counter[Key] = Counter()
        self._waiting: Counter[Key] = Counter()
        self._live: Counter[Key] = Counter()
        self._asked: Counter[Key] = Counter()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = 0
        self.closed = False

    def take(self, key: Key) -> Container:
        """A container that nobody else has.

        Raises:
            ImageError, SandboxError: As `start`.
        """
        with self._changed:
            self._asked[key] += 1
            self._live[key] += 1
            # Waiting for one that is on its way is never slower than beginning another.
            while (container := self._pop(key)) is None and self._coming[key] > self._waiting[key]:
                self._waiting[key] += 1
                self._changed.wait()
                self._waiting[key] -= 1
        try:
            return container or self._start(key)
        except BaseException:
            with self._changed:
                self._live[key] -= 1
            raise
        finally:
            self._refill(key)

    def _pop(self, key: Key) -> Container | None:
        """One that waits; those whose engine has died do not count."""
        ready = self._ready.get(key, [])
        while ready:
            container = ready.pop()
            if container.alive:
                return container
            container.close()
        return None

    def ended(self, key: Key) -> None:
        """One that was handed out has ended."""
        with self._changed:
            self._live[key] -= 1

    def close(self) -> None:
        """End all that wait. What is on its way ends when it comes."""
        with self._changed:
            self.closed = True
            idle = [container for ready in self._ready.values() for container in ready]
            self._ready.clear()
            for _ in range(self._threads):
                self._jobs.put(_stop)
            self._threads = 0
        for container in idle:
            container.close()

    def settle(self) -> None:
        """Wait for what is on its way: a process that ended would leave what it had begun."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._coming.values()), _COMING_SECONDS)

    def _refill(self, key: Key) -> None:
        """Begin some ahead: only of a kind that was asked for twice, and as many as are in use."""
        with self._changed:
            if self.closed or self._asked[key] < 2:
                return
            wanted = min(MOST_AHEAD, max(self._live[key], 1))
            missing = wanted - self._coming[key] - len(self._ready.get(key, ()))
            if missing <= 0:
                return
            self._coming[key] += missing
        for _ in range(missing):
            self._later(lambda: self._arrive(key))

    def _arrive(self, key: Key) -> None:
        container = None
        try:
            container = None if self.closed else self._start(key)
        except InterCodeError as error:
            # Whoever asks for one will meet it, and be told.
            log.info("a container did not start ahead: %s", error)
        finally:
            self._arrived(key, container)

    def _arrived(self, key: Key, container: Container | None) -> None:
        surplus: list[Container] = []
        with self._changed:
            self._coming[key] -= 1
            if container is not None and self.closed:
                surplus.append(container)
            elif container is not None:
                self._ready.setdefault(key, []).append(container)
                self._ready.move_to_end(key)
                surplus += self._too_many()
            self._changed.notify_all()
        for one in surplus:
            one.close()

    def _too_many(self) -> list[Container]:
        """Those that wait in vain: the ones not asked for longest."""
        idle = sum(map(len, self._ready.values()))
        found: list[Container] = []
        while idle - len(found) > MOST_IDLE:
            key, ready = next(iter(self._ready.items()))
            if ready:
                found.append(ready.pop(0))
            if not ready:
                del self._ready[key]
        return found

    def _later(self, job: Callable[[], None]) -> None:
        with self._changed:
            if not self.closed:
                if self._threads < _THREADS:
                    self._threads += 1
                    work = threading.Thread(target=self._work, name="intercode-docker", daemon=True)
                    work.start()
                self._jobs.put(job)
                return
        job()  # no thread is left for it; it only ends what it is about

    def _work(self) -> None:
        while (job := self._jobs.get()) is not _stop:
            job()


def _stop() -> None:
    """Ends a thread."""
