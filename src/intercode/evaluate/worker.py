"""One worker of a run: takes jobs, runs each to its end, and begins anew where a sandbox died."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from intercode.agents.base import AgentFactory
from intercode.episode import Episode
from intercode.errors import (
    EnvironmentStateError,
    RecordError,
    SandboxError,
    SandboxUnavailableError,
    UsageError,
)
from intercode.evaluate.loop import EpisodeEnv, episode_seed, failed, run_episode
from intercode.evaluate.permits import Permits, Stopped

if TYPE_CHECKING:
    from intercode.task import Task


log = logging.getLogger(__name__)

_SAME_FOR_ALL = (SandboxUnavailableError, RecordError, UsageError)
"""Errors that would meet every other episode, too. Any other exception is its own episode's."""


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at one task."""

    epoch: int
    task: Task

    @property
    def key(self) -> tuple[int, str]:
        """What tells it from all others of a run."""
        return self.epoch, self.task.task_id


@dataclass(frozen=True, slots=True)
class Orders:
    """What is the same for all workers of a run."""

    agent: AgentFactory
    env_factory: Callable[[], EpisodeEnv]
    seed: int
    max_retries: int
    agent_name: str
    env_name: str
    record: Callable[[Episode], None]
    """Returns when the episode is safe."""
    on_action: Callable[[Task, str], None]
    calls: Permits = field(default_factory=Permits)
    """For calls to the model; see `intercode.evaluate.loop.run_episode`."""
    sandboxes: Permits = field(default_factory=Permits)
    """For sandboxes to be busy."""

    def stop(self) -> None:
        """Let nobody wait for his turn any longer."""
        self.calls.close()
        self.sandboxes.close()


class Worker:
    """Has one environment at a time. `stop` may be called from another thread."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._env: EpisodeEnv | None = None
        self._stopped = False

    def run(self, job: Job) -> Episode:
        """Do a job to its end and record it; failures that are the sandbox's are retried.

        Raises:
            Stopped: `stop` was called.
            SandboxUnavailableError, UsageError: Trying again cannot help, nor can another task.
            RecordError: The episode could not be recorded.
        """
        attempts = 0
        earlier: list[Any] = []
        judged: list[Any] = []
        while True:
            attempts += 1
            try:
                episode = self._attempt(job)
                break
            except (Stopped, *_SAME_FOR_ALL):
                raise
            except Exception as error:
                if self._stopped:
                    raise Stopped from error
                if self._env is None and not isinstance(error, SandboxError):
                    raise  # no environment can be made: it is not the task's fault
                partial = self._partial()
                self._let_go()
                if isinstance(error, SandboxError) and attempts <= self._orders.max_retries:
                    earlier += _talk(partial, job, "model")
                    judged += chain(*_talk(partial, job, "judge"))
                    continue
                episode = failed(
                    job.task,
                    error,
                    env=self._orders.env_name,
                    name=self._orders.agent_name,
                    epoch=job.epoch,
                    partial=partial,
                )
                break
        if attempts > 1:
            episode.metadata["attempts"] = attempts
        if earlier:
            episode.metadata["earlier"] = earlier
        if judged:
            episode.metadata["judge"] = [*judged, *episode.metadata.get("judge", [])]
        self._orders.record(episode)
        return episode

    def _attempt(self, job: Job) -> Episode:
        if self._env is None:
            self._env = self._orders.env_factory()
        if self._stopped:  # asked here, as `stop` may have looked before there was one
            raise Stopped
        return run_episode(
            self._env,
            self._orders.agent,
            job.task,
            seed=episode_seed(self._orders.seed, job.epoch, job.task.task_id),
            epoch=job.epoch,
            name=self._orders.agent_name,
            on_action=self._orders.on_action,
            calls=self._orders.calls,
            sandboxes=self._orders.sandboxes,
        )

    def _partial(self) -> Episode | None:
        """The episode that the environment was in when it failed."""
        try:
            return None if self._env is None else self._env.episode
        except EnvironmentStateError:
            return None  # it failed in its first reset

    def stop(self) -> None:
        """Pull the sandbox out from under a running job."""
        self._stopped = True
        if (env := self._env) is not None:
            env.close()

    def _let_go(self) -> None:
        """Let go of an environment that has failed: that it fails to close, too, ends no run."""
        try:
            self.close()
        except Exception:
            log.exception("an environment that had failed could not be closed")

    def close(self) -> None:
        """Let go of the environment. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _talk(partial: Episode | None, job: Job, whose: str) -> list[Any]:
    """What an attempt that failed had said to a model and heard: it was paid for."""
    if partial is None or (partial.epoch, partial.task_id) != job.key:
        return []
    return [partial.metadata[whose]] if whose in partial.metadata else []
