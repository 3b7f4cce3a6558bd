"""Executors of a run's episodes: threads of this process, or other machines.

A job is one attempt at one task. An `Executor` returns the jobs of a `PreparedRun` as a
`JobExecution` object, which runs them and yields the recorded episodes. `ThreadExecutor` is the
default executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from intercode.evaluate.episode_loop import (
    FifoSemaphore,
    SharedRunResources,
    default_sandboxes,
    episode_seed,
    run_episode,
)
from intercode.evaluate.worker import (
    EpisodeJob,
    EpisodeWorkerPool,
    JobExecution,
    WorkerInstructions,
)
from intercode.registry import EXECUTORS
from intercode_sandbox.user_code import split

if TYPE_CHECKING:
    from intercode.evaluate.agent_setup import PreparedAgent
    from intercode.evaluate.progress import Progress
    from intercode.evaluate.run_setup import RunEnvironment, RunPlan
    from intercode.models import Budget
    from intercode.spec import RunSpec


def _discard(*episodes: Any) -> None:
    """Discard episodes, for a run that is not recorded."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A prepared run: its plan, its agent and its environment."""

    plan: RunPlan
    agent: PreparedAgent
    setting: RunEnvironment
    progress: Progress
    budget: Budget | None = None
    """The cost and tokens that models may use; None: the agent has its own budget."""
    record: Callable[..., None] = _discard
    """Records episodes, by default nowhere. For a run with a folder, the function returns when the
    episodes are on the disk."""

    def orders(self, resources: SharedRunResources | None = None) -> WorkerInstructions:
        """Return the instructions for workers in this process.

        Args:
            resources: The limits on the workers' concurrency; None: the limits in the spec.
        """
        agent, run_options, seed = self.agent, self.plan.spec.run_options, self.plan.spec.seed
        resources = resources or SharedRunResources(
            calls=FifoSemaphore(run_options.max_connections),
            sandboxes=FifoSemaphore(run_options.max_sandboxes or default_sandboxes()),
            on_action=self.progress.action,
        )
        return WorkerInstructions(
            attempt=lambda job, env: run_episode(
                env(),
                agent.factory,
                job.task,
                seed=episode_seed(seed, job.epoch, job.task.task_id),
                epoch=job.epoch,
                name=agent.name,
                resources=resources,
            ),
            env_factory=self.setting.make,
            max_retries=run_options.retries,
            agent_name=agent.name,
            env_name=str(self.setting.facts.get("env", "")),
            record=self.record,
            resources=resources,
            delay=agent.delay,
        )


class Executor(Protocol):
    """The component that runs the episodes of a run."""

    def check(self, spec: RunSpec) -> None:
        """Refuse a spec that this executor cannot run, before anything starts.

        Raises:
            UsageError: The executor cannot run the spec.
        """

    def start(self, jobs: Sequence[EpisodeJob], prepared_run: PreparedRun) -> JobExecution:
        """Return the jobs as an object whose method `run` yields the episodes.

        The jobs start in the given order as far as possible, at the latest with `run`. Before an
        episode is yielded, the caller's process has recorded the episode by `PreparedRun.record`.
        """


class ThreadExecutor:
    """The executor that runs episodes on threads of this process, each with its own environment."""

    def check(self, spec: RunSpec) -> None:
        """Accept any spec."""

    def start(self, jobs: Sequence[EpisodeJob], prepared_run: PreparedRun) -> EpisodeWorkerPool:
        """Start the agent's model server, if any; `EpisodeWorkerPool.run` starts the threads."""
        if jobs:
            prepared_run.agent.start()
        return EpisodeWorkerPool(
            jobs, prepared_run.orders(), prepared_run.plan.spec.run_options.workers
        )


def resolve_executor(spec: RunSpec) -> Executor:
    """Return the executor that a spec names.

    Raises:
        UsageError: No executor has that name.
    """
    if spec.run_options.on is None:
        return ThreadExecutor()
    return cast(
        Executor, EXECUTORS.resolve(split(spec.run_options.on, ":")[0])(spec.run_options.on)
    )
