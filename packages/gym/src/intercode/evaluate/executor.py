"""Executors: threads of this process, or machines on which a run's episodes take place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from intercode.evaluate.episode_loop import (
    Semaphore,
    Shared,
    default_sandboxes,
    episode_seed,
    run_episode,
)
from intercode.evaluate.worker import Job, Orders, Pool, Runs
from intercode.registry import EXECUTORS
from intercode_sandbox.user_code import split

if TYPE_CHECKING:
    from intercode.evaluate.agent_setup import Actors
    from intercode.evaluate.progress import Progress
    from intercode.evaluate.run_setup import Plan, Setting
    from intercode.models import Budget
    from intercode.spec import RunSpec


def _discard(*episodes: Any) -> None:
    """Keep no record."""


@dataclass(frozen=True, slots=True)
class Work:
    """A prepared run: what is to be tried, who acts, and where."""

    plan: Plan
    agent: Actors
    setting: Setting
    progress: Progress
    budget: Budget | None = None
    """The money and tokens that models may take; None: the agent has a budget of its own."""
    record: Callable[..., None] = _discard
    """Takes episodes, and returns when they are safe."""

    def orders(self, resources: Shared | None = None) -> Orders:
        """Return the instructions of workers in this process.

        Args:
            resources: What limits their concurrency; default: what the spec says.
        """
        agent, run_options, seed = self.agent, self.plan.spec.how, self.plan.spec.seed
        resources = resources or Shared(
            calls=Semaphore(run_options.max_connections),
            sandboxes=Semaphore(run_options.max_sandboxes or default_sandboxes()),
            on_action=self.progress.action,
        )
        return Orders(
            attempt=lambda job, env: run_episode(
                env(),
                agent.factory,
                job.task,
                seed=episode_seed(seed, job.epoch, job.task.task_id),
                epoch=job.epoch,
                name=agent.name,
                shared=resources,
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
    """Runs the episodes of a run."""

    def check(self, spec: RunSpec) -> None:
        """Refuse a spec that cannot be run there, before anything is started.

        Raises:
            UsageError: It cannot.
        """

    def start(self, jobs: Sequence[Job], work: Work) -> Runs:
        """Return the jobs as what runs them, in this order as far as possible.

        It records each episode by `Work.record`, in this process, before it yields it.
        """


class Threads:
    """Runs episodes on threads of this process, which have an environment each."""

    def check(self, spec: RunSpec) -> None:
        """Accept any."""

    def start(self, jobs: Sequence[Job], work: Work) -> Pool:
        """See `Executor`."""
        if jobs:
            work.agent.start()
        return Pool(jobs, work.orders(), work.plan.spec.how.workers)


def resolve_executor(spec: RunSpec) -> Executor:
    """Return the executor that a spec names.

    Raises:
        UsageError: There is none of that name.
    """
    if spec.how.on is None:
        return Threads()
    return cast(Executor, EXECUTORS.resolve(split(spec.how.on, ":")[0])(spec.how.on))
