"""Worker threads that take jobs in order and give back episodes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Sequence

from intercode.episode import Episode
from intercode.errors import BudgetError, ModelAccessError
from intercode.evaluate.interrupts import Interrupts
from intercode.evaluate.permits import Stopped
from intercode.evaluate.progress import Progress
from intercode.evaluate.worker import Job, Orders, Worker

TICK = 0.1
"""Seconds between looks at the clock for those who watch."""
PATIENCE = 5.0
"""Seconds that workers get to let go of their sandboxes after a second interrupt."""
_SOON = 0.01
SAME_FOR_ALL = {BudgetError.__name__, ModelAccessError.__name__}
"""Errors of an episode that every other one would end in, too."""


class Pool:
    """Runs jobs on threads; each thread has an environment of its own."""

    def __init__(self, jobs: Sequence[Job], orders: Orders, workers: int) -> None:
        self._jobs = iter(jobs)
        self._orders = orders
        self._workers = [Worker(orders) for _ in range(min(workers, len(jobs)))]
        # Daemons, so that a worker that hangs cannot keep the process from ending.
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"worker-{n}", daemon=True)
            for n, worker in enumerate(self._workers)
        ]
        self._lock = threading.Lock()
        self._draining = False
        self.stopped: str | None = None
        """The error of an episode for which no other was begun."""
        self._messages: queue.SimpleQueue[Episode | BaseException | Worker | None]

    def run(self, interrupts: Interrupts, progress: Progress) -> Generator[Episode, None, None]:
        """The episodes, each as soon as it is recorded.

        Raises:
            KeyboardInterrupt: There was a second interrupt.
        """
        self._messages = interrupts.messages
        alive = len(self._threads)
        failure: BaseException | None = None
        try:
            for thread in self._threads:
                thread.start()
            while alive:
                try:
                    message = self._messages.get(timeout=TICK)
                except queue.Empty:
                    progress.tick()
                    continue
                if isinstance(message, Episode):
                    yield message
                elif isinstance(message, Worker):
                    alive -= 1
                elif message is not None:
                    failure = failure or message
                elif interrupts.count > 1:
                    raise KeyboardInterrupt
                else:
                    self._draining = True
                    progress.stopping(alive)
        except BaseException:
            self._stop()
            raise
        if failure is not None:
            raise failure

    def _stop(self) -> None:
        """Pull the sandboxes out from under the workers and wait a little for them.

        Not for those whose agent is at work: they hold nothing, and its model may take an hour.
        """
        self._draining = True
        self._orders.stop()
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + PATIENCE
        while self._orders.sandboxes.held and time.monotonic() < deadline:
            time.sleep(_SOON)

    def _work(self, worker: Worker) -> None:
        try:
            try:
                while (job := self._next()) is not None:
                    episode = worker.run(job)
                    if episode.metadata.get("error_type") in SAME_FOR_ALL:
                        self._draining = True
                        self.stopped = self.stopped or episode.error
                    self._messages.put(episode)
            finally:
                worker.close()
        except Stopped:
            pass  # by the main thread, which knows
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, raised there
            self._draining = True
            self._messages.put(error)
        finally:
            self._messages.put(worker)

    def _next(self) -> Job | None:
        with self._lock:
            return None if self._draining else next(self._jobs, None)
