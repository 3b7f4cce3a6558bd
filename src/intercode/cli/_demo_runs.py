"""The runs of a demonstration: three scripted agents on an environment's bundled tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from intercode.agents.base import AgentFactory
from intercode.agents.stand_in import NAME, StandIn
from intercode.cli._progress import Watcher
from intercode.episode import Episode
from intercode.evaluate import Progress, RunResult, evaluate
from intercode.evaluate.exclusion import select
from intercode.evaluate.prepare import Plan, load, narrowed, secret_of, setting
from intercode.spec import RunSpec

STAND_IN = StandIn()
AGENTS: Mapping[str, tuple[str, str | AgentFactory]] = {
    "oracle": ("oracle", "oracle"),
    NAME: (f"{STAND_IN.name} ({NAME})", STAND_IN),
    "random": ("random", "random"),
}
"""Folder → what reports call the agent, and who it is; from the best to the worst."""


class Stage:
    """An environment that is ready to be run in.

    Args:
        env: Its name.
        out: Where its runs are kept.
        workers: Episodes at a time.
        limit: Only its first so many tasks.

    Raises:
        SandboxUnavailableError: This machine permits no sandbox.
        InterCodeError: Something else that it needs is not there.
    """

    def __init__(self, env: str, out: Path, workers: int, limit: int | None) -> None:
        self._out, self._workers, self._limit, self.env = out, workers, limit, env
        # It does not tell what it builds: that is small here.
        spec = RunSpec.of({"env": env, "secret": secret_of(*map(self.folder, AGENTS))})
        spec, everything = load(spec)
        dataset = narrowed(spec, everything, Watcher())
        self._plan = Plan(spec, dataset, select(dataset, None, limit))
        self._setting = setting(self._plan, Progress())
        self._context = self._setting.context()
        self.tasks, self.all_tasks = len(self._plan.tasks), len(everything)

    def folder(self, agent: str) -> Path:
        """A run's."""
        return self._out / f"{self.env}-{agent}"

    def run(self, agent: str, progress: Progress) -> RunResult:
        """One agent on all of the tasks; those that it has done before are not done again."""
        return self._evaluate(agent, progress, self._limit)

    def first_episode(self, agent: str) -> tuple[Episode | None, bool]:
        """Run the first of its episodes alone; the episode, and whether that was interrupted."""
        result = self._evaluate(agent, Progress(), limit=1)
        wanted = self._plan.tasks[0].task_id
        found = {episode.task_id: episode for episode in result.episodes()}
        return found.get(wanted), result.interrupted

    def _evaluate(self, agent: str, progress: Progress, limit: int | None) -> RunResult:
        label, factory = AGENTS[agent]
        spec = self._plan.spec.merge(agent=factory if isinstance(factory, str) else label)
        return evaluate(
            self._plan.dataset,
            factory,
            self._setting.make,
            workers=self._workers,
            out=self.folder(agent),
            limit=limit,
            progress=progress,
            settings=self._setting.facts,
            context={**replace(self._plan, spec=spec).context(), **self._context},
        )
