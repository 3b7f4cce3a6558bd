"""Validation of a dataset: gold must solve every task with equal results; wrong answers must not.

A trial is an episode with gold or a guess. Each task has these trials:

- gold, and gold again an odd number of seconds later,
- all `guesses`: doing nothing, a wrong answer, constants, tricks, the alternative solutions in the
  task's metadata, and gold with a shifted clock.

Afterwards the functions of `intercode.evaluate.task_checks` examine the trials.
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

from intercode.agents.builtin import OracleAgents, ScriptedAgent
from intercode.envs.stage import SandboxStage
from intercode.envs.traits import GuessedSolution, resolve_traits
from intercode.evaluate.episode_loop import PlayableEnv, Step, WrappedEnv
from intercode.evaluate.failing_golds import gold_failure, setup_failure
from intercode.evaluate.gold_leaks import GoldLeak, leaks
from intercode.evaluate.runner import RunResult, evaluate
from intercode.evaluate.summary import summarize
from intercode.evaluate.task_checks import (
    CHECKS,
    DOUBTS,
    FIRST_CONSTANT,
    GOLD,
    GOLD_REPEAT,
    NOOP,
    WAIT_FIELD,
    Check,
    GoldResourceUsage,
    Kind,
    SlowGoldTask,
    TaskProblem,
    TrialResult,
    Trials,
    compare_backends,
    find_slow_tasks,
    guesses,
    usage,
)
from intercode.evaluate.task_selection import select_tasks, ungradable_tasks
from intercode_sandbox.base import SupportsMemoryPeak

if TYPE_CHECKING:
    from intercode.agents.base import Agent, AgentFactory
    from intercode.episode import Turn
    from intercode.evaluate.progress import Progress
    from intercode.evaluate.summary import Statistics
    from intercode.records import Outcome
    from intercode.task import Dataset, Task


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of `validate`."""

    tasks: int
    statistics: Mapping[int, Statistics]
    """The statistics of each trial, over all tasks."""
    constants: Mapping[str, int]
    """Constant → the number of tasks that it solves."""
    solved_by_constants: int
    """The number of tasks that any constant solves."""
    problems: list[TaskProblem]
    doubts: list[TaskProblem]
    """The findings that a task's author may have intended, apart from `slow_tasks` and `leaks`."""
    slow_tasks: list[SlowGoldTask]
    leaks: list[GoldLeak]
    """All leaks; those that are a defect of the task are among `problems`, too."""
    usage: list[GoldResourceUsage]
    """The resources that gold uses, for each task."""
    seconds: float
    complete: bool
    """Whether every trial took place."""

    @property
    def valid(self) -> bool:
        """Whether every trial took place, and no task has a problem."""
        return self.complete and not self.problems

    def reasons(self) -> dict[str, str]:
        """Return the texts of all problems by task id, for an exclusion list."""
        texts_by_task: dict[str, list[str]] = {}
        for problem in self.problems:
            texts_by_task.setdefault(problem.task_id, []).append(problem.problem)
        return {task_id: "; ".join(texts) for task_id, texts in texts_by_task.items()}


def validate(
    dataset: Dataset,
    env_factory: Callable[[], PlayableEnv],
    *,
    timeout: float,
    tasks: Sequence[str] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    backends: Mapping[str, Callable[[], PlayableEnv]] | None = None,
) -> ValidationResult:
    """Try every task with gold and all guesses, and check the trials.

    Args:
        dataset: The tasks.
        env_factory: As for `evaluate`.
        timeout: The time limit of an action, in seconds, for tasks without their own limit.
        tasks: The ids of the tasks to try; None: all gradable tasks.
        workers: Threads, each with its own environment.
        progress: Observes the work.
        backends: Name → factory of the same environment with another sandbox provider or engine,
            where gold must behave in the same way.

    Returns:
        The problems, doubts and statistics.

    Raises:
        TaskNotFoundError: An id in `tasks` is unknown.
        UsageError: The arguments are inconsistent.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    selected_tasks = select_tasks(dataset, tasks, None, ungradable_tasks(dataset))
    probe_findings = ProbeFindings(dataset)
    with closing(env_factory()) as env:
        name = getattr(env, "name", "")
    guesses_by_trial = guesses(name, selected_tasks)
    options = {"tasks": tasks, "workers": workers, "progress": progress, "settings": {"env": name}}
    probed_factory = probe_findings.wrap_factory(env_factory)
    first_result, trials = _attempt(
        dataset, _TrialAgentFactory(guesses_by_trial), probed_factory, guesses_by_trial, options
    )
    runs, problems = [first_result], _findings(CHECKS, selected_tasks, trials)
    for backend_name, backend_factory in (backends or {}).items():
        if runs[-1].interrupted:
            break
        backend_result, backend_trials = _attempt(
            dataset, OracleAgents(), backend_factory, {}, options
        )
        runs.append(backend_result)
        for task in selected_tasks:
            problems += compare_backends(
                task, trials[task.task_id], backend_trials[task.task_id], backend_name
            )
    task_leaks = [
        leak for task in selected_tasks for leak in probe_findings.leaks.get(task.task_id, ())
    ]
    problems += [
        TaskProblem(finding.task_id, "leak", finding.text)
        for finding in task_leaks
        if finding.is_problem
    ]
    failures = [
        finding
        for task in selected_tasks
        for finding in probe_findings.failures.get(task.task_id, ())
    ]
    problems += [finding for finding in failures if finding.kind == "command"]
    is_complete = len(runs) == 1 + len(backends or {})
    usages = [
        usage(task, trials[task.task_id], probe_findings.memory.get(task.task_id))
        for task in selected_tasks
    ]
    return ValidationResult(
        tasks=len(selected_tasks),
        **_statistics(first_result.outcomes, guesses_by_trial),
        problems=problems,
        doubts=_findings(DOUBTS, selected_tasks, trials)
        + [finding for finding in failures if finding.kind != "command"],
        slow_tasks=[
            finding
            for pair in zip(selected_tasks, usages, strict=True)
            for finding in find_slow_tasks(*pair, timeout)
        ],
        leaks=task_leaks,
        usage=usages,
        seconds=sum(run.seconds for run in runs),
        complete=is_complete and all(len(run.outcomes) == run.planned for run in runs),
    )


def _attempt(
    dataset: Dataset,
    agent: AgentFactory,
    env_factory: Callable[[], PlayableEnv],
    guesses_by_trial: Mapping[int, GuessedSolution],
    options: Mapping[str, Any],
) -> tuple[RunResult, Mapping[str, Trials]]:
    """Run an agent over the dataset, and return the trials of each task.

    The run has one epoch for each trial. Without guesses, gold is tried once.
    """
    trials: dict[str, dict[int, TrialResult]] = defaultdict(dict)
    # The run is written to disk, because its observations may be too large for memory.
    with TemporaryDirectory(prefix="intercode-validate-") as folder:
        epochs = max(guesses_by_trial, default=GOLD) + 1
        result = evaluate(dataset, agent, env_factory, out=folder, epochs=epochs, **options)
        for episode in result.episodes():
            trials[episode.task_id][episode.epoch] = TrialResult.from_episode(
                episode, guesses_by_trial
            )
    return result, trials


def _findings(
    checks: Sequence[Check], tasks: Sequence[Task], trials: Mapping[str, Trials]
) -> list[TaskProblem]:
    return [
        problem
        for task in tasks
        for check in checks
        for problem in check(task, trials[task.task_id])
    ]


def _statistics(
    outcomes: Sequence[Outcome], guesses_by_trial: Mapping[int, GuessedSolution]
) -> dict[str, Any]:
    """Return the statistics of a `ValidationResult`, by trial and by constant."""
    statistics = {
        trial: summarize(outcome for outcome in outcomes if outcome.epoch == trial)
        for trial in (GOLD, GOLD_REPEAT, *guesses_by_trial)
    }
    constants = {
        trial: guess
        for trial, guess in guesses_by_trial.items()
        if trial >= FIRST_CONSTANT and guess.role == "constant"
    }
    solved_ids = {
        outcome.task_id for outcome in outcomes if outcome.epoch in constants and outcome.success
    }
    return {
        "statistics": statistics,
        "constants": {guess.name: statistics[n].successes for n, guess in constants.items()},
        "solved_by_constants": len(solved_ids),
    }


class _TrialAgentFactory:
    """The factory of each trial's agent.

    Args:
        guesses_by_trial: The guesses, by trial.
    """

    needs_gold = True

    def __init__(self, guesses_by_trial: Mapping[int, GuessedSolution]) -> None:
        self._guesses_by_trial = guesses_by_trial

    def __call__(self, task: Task) -> Agent:
        """Return the agent that runs gold, for a caller that passes no environment."""
        return OracleAgents()(task)

    def make_agent(self, env: Any, task: Task) -> Agent:
        """Return the agent for a trial, which is selected by the epoch of the current episode."""
        guess = self._guesses_by_trial.get(env.episode.epoch)
        if guess is None or (guess.role == "clock" and guess.actions(task)):
            return _PrefixedAgent(
                guess.actions(task) if guess else (), OracleAgents().make_agent(env, task)
            )
        return ScriptedAgent(guess.actions(task))


class _PrefixedAgent:
    """An agent that takes some actions before another agent acts.

    Args:
        actions: The first actions.
        agent: The agent that acts afterwards.
    """

    def __init__(self, actions: Sequence[str], agent: Agent) -> None:
        self._actions = iter(actions)
        self._agent = agent

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the next action."""
        action = next(self._actions, None)
        return self._agent.act(observation, history) if action is None else action


class GoldRepeatDelay:
    """A clock that delays the two trials of a task's gold.

    The trials then start an odd number of seconds apart. The delay exposes gold whose result
    differs from second to second, even if only between even and odd seconds.

    Args:
        now: Returns the seconds since 1970.
        sleep: Sleeps for a number of seconds.
    """

    LATEST_START = 0.7
    """The fraction of a second after which no trial starts. The rest of the second is left for the
    trial's actions, which should run in the same second."""

    def __init__(
        self, now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._start_seconds: dict[tuple[str, int], int] = {}
        self._lock = Lock()

    def wait(self, task_id: str, trial: int) -> float:
        """Wait until a trial may start.

        Returns:
            The delay in seconds.
        """
        start_time = self._now()
        while not self._try_begin(task_id, trial, now := self._now()):
            self._sleep(1 - now % 1)
        return now - start_time

    def _try_begin(self, task_id: str, trial: int, now: float) -> bool:
        with self._lock:
            paired_start = self._start_seconds.get(
                (task_id, GOLD if trial == GOLD_REPEAT else GOLD_REPEAT)
            )
            if now % 1 > self.LATEST_START or (
                paired_start is not None and (int(now) - paired_start) % 2 == 0
            ):
                return False
            self._start_seconds[task_id, trial] = int(now)
            return True


class ProbeFindings:
    """The findings of all probed environments. The workers share one object."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.clock = GoldRepeatDelay()
        self.leaks: dict[str, list[GoldLeak]] = {}
        self.failures: dict[str, list[TaskProblem]] = {}
        """Task id → problems and doubts about a gold or a setup that fails."""
        self.memory: dict[str, int] = {}
        """Task id → the peak memory in bytes of the sandboxes in which gold ran."""

    def wrap_factory(self, env_factory: Callable[[], PlayableEnv]) -> Callable[[], PlayableEnv]:
        """Return a factory of probed environments, from a factory of environments."""
        return lambda: ProbingEnv(env_factory(), self)


class ProbingEnv(WrappedEnv):
    """An environment that also searches for leaks and failures, measures memory and delays gold."""

    def __init__(self, env: PlayableEnv, probe_findings: ProbeFindings) -> None:
        super().__init__(env)
        self._probe_findings = probe_findings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: str, /) -> Step:
        """Take an action, with the probes of the trial before or after the action.

        The search for leaks precedes the first action of the trial that does nothing. At that time
        the sandbox is in the state in which an agent finds it. The search for failing golds, and
        the measurement of memory, follow the last action of gold.
        """
        episode, workspace = self.episode, getattr(self._env, "workspace", None)
        task_id, is_gold = episode.task_id, episode.epoch in (GOLD, GOLD_REPEAT)
        if episode.epoch == NOOP and not episode.turns:
            flags = resolve_traits(self._env).secret_gold
            image = episode.metadata.get("image", "")
            task = self._probe_findings.dataset.by_id(task_id)
            self._probe_findings.leaks[task_id] = leaks(task, workspace, image, flags=flags)
        if is_gold and not episode.turns:
            episode.metadata[WAIT_FIELD] = self._probe_findings.clock.wait(task_id, episode.epoch)
        result = self._env.step(action)
        is_last = result[2] or result[3]
        if episode.epoch == GOLD and is_last:
            self._probe_findings.failures[task_id] = self._failures(task_id)
        if is_gold and is_last and isinstance(workspace, SupportsMemoryPeak):
            peak_memory = max(
                workspace.memory_peak() or 0, self._probe_findings.memory.get(task_id, 0)
            )
            if peak_memory:
                self._probe_findings.memory[task_id] = peak_memory
        return result

    def _failures(self, task_id: str) -> list[TaskProblem]:
        """Return the failures of a task's gold and setup; empty without a shell."""
        task, stage = self._probe_findings.dataset.by_id(task_id), getattr(self._env, "stage", None)
        if not isinstance(stage, SandboxStage) or resolve_traits(self._env).language != "bash":
            return []
        failures: list[tuple[Kind, str]] = []
        if text := setup_failure(task, stage):
            failures.append(("setup", text))
        if failure := gold_failure(task, self.episode.turns, stage):
            failures.append(failure)
        return [TaskProblem(task_id, kind, text) for kind, text in failures]
