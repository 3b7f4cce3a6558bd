"""The worker threads of a run, from its jobs to its recorded episodes.

A `EpisodeWorkerPool` starts threads. Each thread has one `EpisodeWorker`, which takes jobs in order
and puts the recorded episodes into a queue. The main thread yields the episodes. `InterruptCounter`
stops the pool on SIGINT and SIGTERM.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from intercode.episode import Episode
from intercode.errors import (
    BudgetError,
    EnvironmentStateError,
    ModelAccessError,
    RecordError,
    SandboxError,
    SandboxUnavailableError,
    UsageError,
)
from intercode.evaluate.episode_loop import (
    EpisodeStop,
    PlayableEnv,
    SharedRunResources,
    failed_episode,
    unserialisable_episode,
)
from intercode.evaluate.progress import Progress
from intercode.models.interrupted_calls import RunInterruptState, run_drain
from intercode.records import Key
from intercode_sandbox.host_files import preserve_working_directory
from intercode_sandbox.interruption import is_handlers
from intercode_sandbox.user_code import describe_error

if TYPE_CHECKING:
    from intercode.task import Task

log = logging.getLogger(__name__)

TICK = 0.1
"""Seconds of waiting for a message, after which `Progress.tick` is called."""
SILENCE_SECONDS = 30.0
"""Seconds without an answer of the model before a run reports the delay."""
PATIENCE = 5.0
"""Maximum seconds of waiting for workers that close their sandboxes after a second interrupt."""
FATAL_ERROR_NAMES = {BudgetError.__name__, ModelAccessError.__name__}
"""The names of errors in an episode's record that stop the run, because every other episode would
end in the same error."""
_FATAL_ERRORS = (SandboxUnavailableError, RecordError, UsageError)
"""The exceptions that stop the run, because every other episode would raise the same exception. Any
other exception ends only its episode, unless the factory of environments raised the exception."""
_POLL_SECONDS = 0.01


class InterruptCounter:
    """A context that counts the signals SIGINT and SIGTERM, and wakes the main thread.

    For each signal, the handler puts a message into the queue `messages`, on which the main thread
    waits. A signal handler may call `SimpleQueue.put` at any moment, because the method is
    reentrant. In case the main thread does not react, the handler itself raises KeyboardInterrupt
    above a count of two. Outside the main thread the context catches no signal.
    """

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.count = 0
        self._previous_handlers: dict[int, Any] = {}

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        # SIGTERM counts as two interrupts, which stop the run at once: its sender usually sends
        # SIGKILL soon afterwards.
        self.count += 2 if signal_number == signal.SIGTERM else 1
        self.messages.put(None)
        if self.count > 2:
            raise KeyboardInterrupt

    def __enter__(self) -> InterruptCounter:
        if threading.current_thread() is threading.main_thread():
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                self._previous_handlers[signal_number] = signal.signal(
                    signal_number, self._handle_signal
                )
        return self

    def __exit__(self, *exception: object) -> None:
        for signal_number, handler in self._previous_handlers.items():
            signal.signal(signal_number, handler)


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """One attempt at one task."""

    epoch: int
    task: Task
    branch: tuple[int, ...] = ()
    """The branch of a recorded fork to score again."""

    @property
    def key(self) -> Key:
        """The episode's key within the run."""
        return self.epoch, self.task.task_id, self.branch


@dataclass(frozen=True, slots=True)
class WorkerInstructions:
    """The instructions that all workers of a run share."""

    attempt: Callable[[EpisodeJob, Callable[[], PlayableEnv]], Episode]
    """Runs one episode, in the environment that the callable returns on demand."""
    env_factory: Callable[[], PlayableEnv]
    max_retries: int
    agent_name: str
    env_name: str
    record: Callable[..., None]
    """Writes an episode, and returns once the episode is durable."""
    resources: SharedRunResources = field(default_factory=SharedRunResources)
    delay: Callable[[], tuple[float, str] | None] = lambda: None
    """Returns the seconds since the model's last answer, and a description of the delay; None: the
    agent waits for no answer."""


class EpisodeWorker:
    """A worker, which runs jobs one after the other, in at most one environment at a time.

    Any thread may call `stop`.
    """

    def __init__(self, orders: WorkerInstructions) -> None:
        self._orders = orders
        self._env: PlayableEnv | None = None
        self._is_making_env = False
        self._stopped = False

    def run(self, job: EpisodeJob) -> Episode:
        """Run a job until its episode ends, and record the episode.

        After a failure of the sandbox, the job starts again, up to the permitted number of retries.

        Raises:
            EpisodeStop: `stop` was called.
            SandboxUnavailableError, UsageError: Neither a retry nor another task can help.
            RecordError: The episode could not be recorded.
            Exception: The factory of environments failed.
        """
        lost_attempts: list[Episode] = []
        while True:
            try:
                episode = self._orders.attempt(job, self._open)
                break
            except (EpisodeStop, *_FATAL_ERRORS):
                raise
            except BaseException as error:  # a callback, or an environment, may call sys.exit()
                if is_handlers(error):
                    raise
                if self._stopped:
                    raise EpisodeStop from error
                should_retry = isinstance(error, SandboxError)
                # The factory of environments failed, which is not the fault of the task.
                if self._is_making_env and not should_retry:
                    if isinstance(error, Exception):
                        raise
                    raise UsageError(
                        f"the environment cannot be created: {describe_error(error)}"
                    ) from error
                partial_episode = self._partial_episode(job)
                self.close()
                if not should_retry or len(lost_attempts) >= self._orders.max_retries:
                    episode = failed_episode(error, partial_episode)
                    break
                lost_attempts.append(partial_episode)
        if lost_attempts:
            _add_lost_attempts(episode, lost_attempts)
        try:
            self._orders.record(episode)
        except RecordError:
            raise
        # An agent or an interpreter has put data into the episode that JSON cannot represent.
        except (TypeError, ValueError, RecursionError):
            episode = unserialisable_episode(episode)
            self._orders.record(episode)
        return episode

    def _open(self) -> PlayableEnv:
        if self._env is None:
            self._is_making_env = True
            self._env = self._orders.env_factory()
            self._is_making_env = False
        # `stop` may have run while the environment was being made, and could not close it.
        if self._stopped:
            raise EpisodeStop
        return self._env

    def _partial_episode(self, job: EpisodeJob) -> Episode:
        """Return the environment's episode at the time of its failure, or an empty episode."""
        task, partial_episode = job.task, None
        with suppress(EnvironmentStateError):  # after a failed first reset, no episode exists
            partial_episode = None if self._env is None else self._env.episode
        if partial_episode is None or (partial_episode.epoch, partial_episode.task_id) != (
            job.epoch,
            job.task.task_id,
        ):
            partial_episode = Episode(
                task.task_id, task.query, self._orders.env_name, epoch=job.epoch
            )
        partial_episode.agent = self._orders.agent_name
        return partial_episode

    def stop(self) -> None:
        """Close the environment of a running job, which ends the job.

        An error of the closing is only logged, because it must not end the run.
        """
        self._stopped = True
        _close(self._env)

    def close(self) -> None:
        """Close the environment. Idempotent.

        An error of the closing is only logged, because it must not end the run.
        """
        env, self._env, self._is_making_env = self._env, None, False
        _close(env)


def _close(env: PlayableEnv | None) -> None:
    try:
        if env is not None:
            env.close()
    except Exception:
        log.exception("an environment could not be closed")


def _add_lost_attempts(episode: Episode, lost_attempts: Sequence[Episode]) -> None:
    """Add the paid model calls of lost attempts to an episode's record."""
    episode.metadata["attempts"] = len(lost_attempts) + 1
    if model_records := [
        attempt.metadata["model"] for attempt in lost_attempts if "model" in attempt.metadata
    ]:
        episode.metadata["earlier"] = model_records
    if judge_records := [
        *chain.from_iterable(attempt.metadata.get("judge", ()) for attempt in lost_attempts)
    ]:
        episode.metadata["judge"] = [*judge_records, *episode.metadata.get("judge", [])]


class JobExecution(Protocol):
    """Running jobs, on threads or on other machines."""

    stopped: str | None
    """The error that stopped the run, after which no episode started; None: no such error."""

    def run(
        self, interrupts: InterruptCounter, progress: Progress
    ) -> Generator[Episode, None, None]:
        """Yield each episode as soon as the episode is recorded.

        After an interrupt, the running episodes end, and no other episode starts.

        Raises:
            KeyboardInterrupt: A second interrupt came.
        """


class EpisodeWorkerPool:
    """A pool of threads that runs jobs; each thread has its own environment."""

    def __init__(
        self, jobs: Sequence[EpisodeJob], orders: WorkerInstructions, workers: int
    ) -> None:
        self._jobs = iter(jobs)
        self._resources = orders.resources
        self._workers = [EpisodeWorker(orders) for _ in range(min(workers, len(jobs)))]
        # The threads are daemons, so a hanging worker cannot prevent the exit of the process.
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"worker-{n}", daemon=True)
            for n, worker in enumerate(self._workers)
        ]
        self._lock = threading.Lock()
        self._draining = False
        self.stopped: str | None = None
        """The error that stopped the run: no episode started after it."""
        self._delay, self._shown_delay = orders.delay, SILENCE_SECONDS
        self._messages: queue.SimpleQueue[Episode | BaseException | EpisodeWorker | None]

    def run(
        self, interrupts: InterruptCounter, progress: Progress
    ) -> Generator[Episode, None, None]:
        """Yield each episode as soon as it is recorded.

        Raises:
            KeyboardInterrupt: A second interrupt came.
            Exception: A worker stopped the run: one of `_FATAL_ERRORS`, or the error of the factory
                of environments.
        """
        with run_drain() as drain, preserve_working_directory():
            yield from self._run(interrupts, progress, drain)

    def _run(
        self, interrupts: InterruptCounter, progress: Progress, drain: RunInterruptState
    ) -> Generator[Episode, None, None]:
        self._messages = interrupts.messages
        alive_count = len(self._threads)
        failure: BaseException | None = None
        try:
            for thread in self._threads:
                thread.start()
            while alive_count:
                try:
                    message = self._messages.get(timeout=TICK)
                except queue.Empty:
                    progress.tick()
                    self._report_delay(progress)
                    continue
                if isinstance(message, Episode):
                    yield message
                elif isinstance(message, EpisodeWorker):
                    alive_count -= 1
                elif message is not None:
                    failure = failure or message
                elif interrupts.count > 1:
                    raise KeyboardInterrupt
                else:
                    self._draining = True
                    drain.interrupt()
                    progress.report_interrupt(alive_count)
        except BaseException:
            drain.interrupt()
            self._stop()
            raise
        if failure is not None:
            raise failure

    def _report_delay(self, progress: Progress) -> None:
        """Report that the model does not answer, again each time the delay has doubled."""
        delay = self._delay()
        if delay is not None and delay[0] >= self._shown_delay:
            self._shown_delay = 2 * delay[0]
            progress.report_wait(delay[1])

    def _stop(self) -> None:
        """Close the sandboxes of all workers concurrently, and wait at most `PATIENCE` seconds.

        The pool does not wait for workers whose agent is deciding. Such a worker uses no sandbox,
        and a model's answer may take an hour.
        """
        self._draining = True
        self._resources.stop()
        deadline = time.monotonic() + PATIENCE
        stop_threads = [
            threading.Thread(target=worker.stop, daemon=True) for worker in self._workers
        ]
        for thread in stop_threads:
            thread.start()
        for thread in stop_threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        while self._resources.sandboxes.held and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _work(self, worker: EpisodeWorker) -> None:
        try:
            try:
                while (job := self._next_job()) is not None:
                    episode = worker.run(job)
                    if episode.metadata.get("error_type") in FATAL_ERROR_NAMES:
                        self._draining = True
                        self.stopped = self.stopped or episode.error
                    self._messages.put(episode)
            finally:
                worker.close()
        except EpisodeStop:
            pass  # the main thread stopped this worker
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, raised there
            self._draining = True
            self._messages.put(error)
        finally:
            self._messages.put(worker)

    def _next_job(self) -> EpisodeJob | None:
        with self._lock:
            return None if self._draining else next(self._jobs, None)
