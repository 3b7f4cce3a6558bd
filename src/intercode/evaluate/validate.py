"""Whether the tasks of a dataset are sound: gold solves them, twice alike, and nothing else does.

Every task is tried with gold, with gold again an odd number of seconds later, and with all that is
in `guesses`: doing nothing, a wrong answer, constants. What is checked then is in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from intercode.agents.scripted import Oracle, ScriptedAgent
from intercode.evaluate.checks import (
    AGAIN,
    CHECKS,
    DOUBTS,
    GOLD,
    Problem,
    Slow,
    Trial,
    Usage,
    elsewhere,
    slow,
    usage,
)
from intercode.evaluate.exclusion import not_gradable, select
from intercode.evaluate.guesses import FIRST_CONSTANT, guesses
from intercode.evaluate.report import summarize
from intercode.evaluate.runner import RunResult, evaluate
from intercode.evaluate.watched import Seen, Watched

if TYPE_CHECKING:
    from intercode.agents.base import Agent, AgentFactory
    from intercode.evaluate.leaks import Leak
    from intercode.evaluate.loop import EpisodeEnv
    from intercode.evaluate.progress import Progress
    from intercode.evaluate.report import Outcome, Statistics
    from intercode.task import Dataset, Task


@dataclass(frozen=True, slots=True)
class Validation:
    """What came of it."""

    tasks: int
    statistics: Mapping[int, Statistics]
    """Of each trial, over all tasks."""
    constants: Mapping[str, int]
    """Constant → how many tasks it solves."""
    solved_by_constants: int
    """How many tasks any of them solves."""
    problems: list[Problem]
    doubts: list[Problem]
    """No problems but warnings, like the next two: a task may be meant to be like that."""
    slow: list[Slow]
    leaks: list[Leak]
    usage: list[Usage]
    """One for each task."""
    seconds: float
    complete: bool
    """Whether all was tried."""

    @property
    def valid(self) -> bool:
        """Whether all was tried, and all is as it should be."""
        return self.complete and not self.problems

    def reasons(self) -> dict[str, str]:
        """Task id → what is the matter with it."""
        found: dict[str, list[str]] = {}
        for problem in self.problems:
            found.setdefault(problem.task_id, []).append(problem.problem)
        return {task_id: "; ".join(texts) for task_id, texts in found.items()}


class Prober:
    """Makes the agent of each trial."""

    needs_gold = True

    def __call__(self, task: Task) -> Agent:
        """Gold's, where no environment is known."""
        return Oracle()(task)

    def within(self, env: Any, task: Task) -> Agent:
        """The one of the trial that the environment's episode is."""
        guess = guesses(env.episode.env).get(env.episode.epoch)
        return Oracle().within(env, task) if guess is None else ScriptedAgent(guess.actions(task))


def validate(
    dataset: Dataset,
    env_factory: Callable[[], EpisodeEnv],
    *,
    timeout: float,
    workers: int = 1,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    progress: Progress | None = None,
    settings: Mapping[str, Any] | None = None,
    also_on: Mapping[str, Callable[[], EpisodeEnv]] | None = None,
) -> Validation:
    """Try every task in all ways, and check what comes of it.

    Args:
        dataset: The tasks.
        env_factory: See `evaluate`, as for the other arguments.
        timeout: The time limit of an action in tasks that have none of their own.
        workers: Threads.
        limit: Only the first so many tasks.
        tasks: Only these.
        progress: Is told how it goes.
        settings: Of the environment.
        also_on: Name → what makes the same environment elsewhere: there gold must do the same.

    Raises:
        UsageError: The arguments make no sense.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    chosen = select(dataset, tasks, limit, not_gradable(dataset))
    seen = Seen()

    def attempt(
        agent: AgentFactory, make: Callable[[], EpisodeEnv], epochs: int
    ) -> tuple[RunResult, dict[str, dict[int, Trial]]]:
        trials: dict[str, dict[int, Trial]] = {task.task_id: {} for task in chosen}
        # On the disk, because observations may be large, and there may be many.
        with TemporaryDirectory(prefix="intercode-validate-") as folder:
            result = evaluate(
                dataset,
                agent,
                make,
                workers=workers,
                out=folder,
                limit=limit,
                tasks=tasks,
                epochs=epochs,
                progress=progress,
                settings=settings,
            )
            for episode in result.episodes():
                trials[episode.task_id][episode.epoch] = Trial.of(episode)
        return result, trials

    with closing(env_factory()) as env:
        tried = guesses(getattr(env, "name", ""))
    result, trials = attempt(
        Prober(), lambda: Watched(env_factory(), dataset, seen), epochs=max(tried) + 1
    )
    constants = {number: guess for number, guess in tried.items() if number >= FIRST_CONSTANT}
    statistics = {
        trial: summarize(_only(trial, result.outcomes)) for trial in (GOLD, AGAIN, *tried)
    }
    problems = [
        problem
        for task in chosen
        for check in CHECKS
        for problem in check(task, trials[task.task_id])
    ]
    runs = [result]
    for name, make in (also_on or {}).items():
        if runs[-1].interrupted:
            break
        other, there = attempt(Oracle(), make, epochs=1)
        runs.append(other)
        for task in chosen:
            problems += elsewhere(task, trials[task.task_id], there[task.task_id], name)
    used = [usage(task, trials[task.task_id], seen.memory.get(task.task_id)) for task in chosen]
    return Validation(
        tasks=len(chosen),
        statistics=statistics,
        constants={guess.name: statistics[n].successes for n, guess in constants.items()},
        solved_by_constants=len(
            {one.task_id for one in result.outcomes if one.epoch in constants and one.success}
        ),
        problems=problems,
        doubts=[
            doubt
            for task in chosen
            for check in DOUBTS
            for doubt in check(task, trials[task.task_id])
        ],
        slow=[
            found
            for task, one in zip(chosen, used, strict=True)
            for found in slow(task, one, timeout)
        ],
        leaks=[leak for task in chosen for leak in seen.leaks.get(task.task_id, ())],
        usage=used,
        seconds=sum(run.seconds for run in runs),
        complete=all(len(run.outcomes) == run.planned for run in runs)
        and len(runs) == 1 + len(also_on or {}),
    )


def _only(trial: int, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.epoch == trial]
