"""Validation of a dataset: gold solves every task, twice alike, and nothing else does.

Every task is tried with gold, with gold again an odd number of seconds later, and with all
`guesses`: doing nothing, a wrong answer, constants, tricks. Alternative solutions, which a task's
metadata may have, are tried, too. Then the trials are checked, see `checks`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from intercode.agents.builtin import Oracle, ScriptedAgent
from intercode.envs.stage import SandboxStage
from intercode.envs.traits import Guess, traits_in
from intercode.evaluate.checks import (
    AGAIN,
    CHECKS,
    DOUBTS,
    FIRST_CONSTANT,
    GOLD,
    NOTHING,
    WAITED,
    Check,
    Kind,
    Problem,
    Slow,
    Trial,
    Trials,
    Usage,
    elsewhere,
    guesses,
    slow,
    usage,
)
from intercode.evaluate.exclusion import not_gradable, select
from intercode.evaluate.failing import gold_failure, setup_failure
from intercode.evaluate.leaks import Leak, leaks
from intercode.evaluate.loop import EpisodeEnv, Step, WrappedEnv
from intercode.evaluate.runner import RunResult, evaluate
from intercode.evaluate.summary import summarize
from intercode_sandbox.base import CountsMemory

if TYPE_CHECKING:
    from intercode.agents.base import Agent, AgentFactory
    from intercode.episode import Turn
    from intercode.evaluate.progress import Progress
    from intercode.evaluate.summary import Statistics
    from intercode.records import Outcome
    from intercode.task import Dataset, Task


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of `validate`."""

    tasks: int
    statistics: Mapping[int, Statistics]
    """The statistics of each trial, over all tasks."""
    constants: Mapping[str, int]
    """Constant → the number of tasks that it solves."""
    solved_by_constants: int
    """The number of tasks that any of them solves."""
    problems: list[Problem]
    doubts: list[Problem]
    """Warnings, like `slow` and `leaks`: a task may be meant to be like that."""
    slow: list[Slow]
    leaks: list[Leak]
    usage: list[Usage]
    """One for each task."""
    seconds: float
    complete: bool
    """Whether every trial took place."""

    @property
    def valid(self) -> bool:
        """Whether every trial took place, and no task has a problem."""
        return self.complete and not self.problems

    def reasons(self) -> dict[str, str]:
        """Return task id → its problems, for those that have any."""
        found: dict[str, list[str]] = {}
        for problem in self.problems:
            found.setdefault(problem.task_id, []).append(problem.problem)
        return {task_id: "; ".join(texts) for task_id, texts in found.items()}


def validate(
    dataset: Dataset,
    env_factory: Callable[[], EpisodeEnv],
    *,
    timeout: float,
    tasks: Sequence[str] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    also_on: Mapping[str, Callable[[], EpisodeEnv]] | None = None,
) -> Validation:
    """Try every task in all ways, and check the trials.

    Args:
        dataset: The tasks.
        env_factory: As for `evaluate`.
        timeout: The time limit of an action in tasks that have none of their own, in seconds.
        tasks: The ids of the tasks to try; None: all that can be graded.
        workers: Threads, each with an environment of its own.
        progress: Observes the work.
        also_on: Name → factory of the same environment on another back end, where gold must behave
            in the same way.

    Raises:
        UsageError: The arguments make no sense.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    chosen = select(dataset, tasks, None, not_gradable(dataset))
    seen = Seen(dataset)
    with closing(env_factory()) as env:
        name = getattr(env, "name", "")
    tried = guesses(name, chosen)
    options = {"tasks": tasks, "workers": workers, "progress": progress, "settings": {"env": name}}
    probing = seen.probing(env_factory)
    first, trials = _attempt(dataset, _Prober(tried), probing, tried, options)
    runs, problems = [first], _findings(CHECKS, chosen, trials)
    for place, make in (also_on or {}).items():
        if runs[-1].interrupted:
            break
        other, there = _attempt(dataset, Oracle(), make, {}, options)
        runs.append(other)
        for task in chosen:
            problems += elsewhere(task, trials[task.task_id], there[task.task_id], place)
    readable = [leak for task in chosen for leak in seen.leaks.get(task.task_id, ())]
    problems += [Problem(one.task_id, "leak", one.text) for one in readable if one.is_problem]
    failures = [one for task in chosen for one in seen.failures.get(task.task_id, ())]
    problems += [one for one in failures if one.kind == "command"]
    complete = len(runs) == 1 + len(also_on or {})
    used = [usage(task, trials[task.task_id], seen.memory.get(task.task_id)) for task in chosen]
    return Validation(
        tasks=len(chosen),
        **_statistics(first.outcomes, tried),
        problems=problems,
        doubts=_findings(DOUBTS, chosen, trials)
        + [one for one in failures if one.kind != "command"],
        slow=[one for pair in zip(chosen, used, strict=True) for one in slow(*pair, timeout)],
        leaks=readable,
        usage=used,
        seconds=sum(run.seconds for run in runs),
        complete=complete and all(len(run.outcomes) == run.planned for run in runs),
    )


def _attempt(
    dataset: Dataset,
    agent: AgentFactory,
    make: Callable[[], EpisodeEnv],
    tried: Mapping[int, Guess],
    options: Mapping[str, Any],
) -> tuple[RunResult, Mapping[str, Trials]]:
    """Run an agent, and return each task's trials. Without guesses, gold is tried once."""
    trials: dict[str, dict[int, Trial]] = defaultdict(dict)
    # On the disk, because observations may be large, and there may be many.
    with TemporaryDirectory(prefix="intercode-validate-") as folder:
        epochs = max(tried, default=GOLD) + 1
        result = evaluate(dataset, agent, make, out=folder, epochs=epochs, **options)
        for episode in result.episodes():
            trials[episode.task_id][episode.epoch] = Trial.of(episode, tried)
    return result, trials


def _findings(
    checks: Sequence[Check], tasks: Sequence[Task], trials: Mapping[str, Trials]
) -> list[Problem]:
    return [one for task in tasks for check in checks for one in check(task, trials[task.task_id])]


def _statistics(outcomes: Sequence[Outcome], tried: Mapping[int, Guess]) -> dict[str, Any]:
    """Return the statistics of a `Validation`, by trial and by constant."""
    statistics = {
        trial: summarize(one for one in outcomes if one.epoch == trial)
        for trial in (GOLD, AGAIN, *tried)
    }
    constants = {
        trial: guess
        for trial, guess in tried.items()
        if trial >= FIRST_CONSTANT and guess.role == "constant"
    }
    solved = {one.task_id for one in outcomes if one.epoch in constants and one.success}
    return {
        "statistics": statistics,
        "constants": {guess.name: statistics[n].successes for n, guess in constants.items()},
        "solved_by_constants": len(solved),
    }


class _Prober:
    """The factory of the agent of each trial.

    Args:
        tried: The guesses, by trial.
    """

    needs_gold = True

    def __init__(self, tried: Mapping[int, Guess]) -> None:
        self._tried = tried

    def __call__(self, task: Task) -> Agent:
        """Return gold's agent, where no environment is known."""
        return Oracle()(task)

    def within(self, env: Any, task: Task) -> Agent:
        """Return the agent of the trial that the environment's episode is."""
        guess = self._tried.get(env.episode.epoch)
        if guess is None or (guess.role == "clock" and guess.actions(task)):
            return _Preceded(guess.actions(task) if guess else (), Oracle().within(env, task))
        return ScriptedAgent(guess.actions(task))


class _Preceded:
    """An agent that takes some actions before another one acts.

    Args:
        actions: The actions.
        agent: The other agent.
    """

    def __init__(self, actions: Sequence[str], agent: Agent) -> None:
        self._actions = iter(actions)
        self._agent = agent

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the next action."""
        action = next(self._actions, None)
        return self._agent.act(observation, history) if action is None else action


class Clock:
    """Holds back the two trials of a task's gold until an odd number of seconds lies between them.

    So all gold shows that depends on whole seconds, even on whether their number is even.

    Args:
        now: Returns the seconds since 1970.
        sleep: Waits for some seconds.
    """

    LATEST = 0.7
    """The part of a second in which a trial may begin: its actions have the rest of it."""

    def __init__(
        self, now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._begun: dict[tuple[str, int], int] = {}
        self._lock = Lock()

    def wait(self, task_id: str, trial: int) -> float:
        """Wait until a trial may begin.

        Returns:
            The seconds for which it was held back.
        """
        first = self._now()
        while not self._begins(task_id, trial, now := self._now()):
            self._sleep(1 - now % 1)
        return now - first

    def _begins(self, task_id: str, trial: int, now: float) -> bool:
        with self._lock:
            other = self._begun.get((task_id, GOLD if trial == AGAIN else AGAIN))
            if now % 1 > self.LATEST or (other is not None and (int(now) - other) % 2 == 0):
                return False
            self._begun[task_id, trial] = int(now)
            return True


class Seen:
    """The findings of all probes. Workers share it; each has other tasks, or another trial."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.clock = Clock()
        self.leaks: dict[str, list[Leak]] = {}
        self.failures: dict[str, list[Problem]] = {}
        """Task → problems and doubts: of gold or a setup that fails."""
        self.memory: dict[str, int] = {}
        """Task → the most bytes that a sandbox has used in which gold ran."""

    def probing(self, make: Callable[[], EpisodeEnv]) -> Callable[[], EpisodeEnv]:
        """Return a factory of probed environments, from one of environments."""
        return lambda: ProbedEnv(make(), self)


class ProbedEnv(WrappedEnv):
    """An environment that is searched for leaks and measured, and in which gold begins on time."""

    def __init__(self, env: EpisodeEnv, seen: Seen) -> None:
        super().__init__(env)
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: str, /) -> Step:
        """Take an action. Doing nothing finds the sandbox as an agent finds it: it is searched."""
        episode, place = self.episode, getattr(self._env, "place", None)
        task_id, is_gold = episode.task_id, episode.epoch in (GOLD, AGAIN)
        if episode.epoch == NOTHING and not episode.turns:
            flags = traits_in(self._env).secret_gold
            image = episode.metadata.get("image", "")
            task = self._seen.dataset.by_id(task_id)
            self._seen.leaks[task_id] = leaks(task, place, image, flags=flags)
        if is_gold and not episode.turns:
            episode.metadata[WAITED] = self._seen.clock.wait(task_id, episode.epoch)
        result = self._env.step(action)
        is_last = result[2] or result[3]
        if episode.epoch == GOLD and is_last:
            self._seen.failures[task_id] = self._failures(task_id)
        if is_gold and is_last and isinstance(place, CountsMemory):
            used = max(place.memory_peak() or 0, self._seen.memory.get(task_id, 0))
            if used:
                self._seen.memory[task_id] = used
        return result

    def _failures(self, task_id: str) -> list[Problem]:
        """Return what fails of a task's gold and its setup, in a shell."""
        task, stage = self._seen.dataset.by_id(task_id), getattr(self._env, "stage", None)
        if not isinstance(stage, SandboxStage) or traits_in(self._env).language != "bash":
            return []
        failures: list[tuple[Kind, str]] = []
        if text := setup_failure(task, stage):
            failures.append(("setup", text))
        if failure := gold_failure(task, self.episode.turns, stage):
            failures.append(failure)
        return [Problem(task_id, kind, text) for kind, text in failures]
