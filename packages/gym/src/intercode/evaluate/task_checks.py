"""Checks of a task: pure functions of the task and of its trials, see `CHECKS` and `DOUBTS`.

`validate` tries each task in several trials, which are the epochs of one run: gold, gold again, and
the guesses. The guesses are:

- doing nothing, and a wrong answer,
- constants, which ignore the task,
- tricks with the task's verification,
- the alternative solutions in the task's metadata,
- gold with a shifted clock (`intercode.evaluate.clock_checks`).

A constant that solves an SQL or Python task is a problem. The author of the task can exclude
constants by changed copies of the database, or by further tests. A Bash task that ``true`` solves
is also a problem. Other Bash constants only raise a doubt, because they may print the right answer
by chance. The expected value of a Python test also raises a doubt, because an agent would have to
guess the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from intercode.envs.traits import GuessedSolution, constant_actions, detect_environment, find_traits
from intercode.evaluate.clock_checks import (
    TIMES,
    UNCHANGED_CLOCK,
    ZONE,
    ClockShift,
    clock_guesses,
    find_time_words,
)
from intercode.evaluate.steered_asserts import find_steered_assert
from intercode.evaluate.verifier_exploits import alternatives, found_no_program, tricks
from intercode.rewards.swe_plan import APPLY, make_plan

if TYPE_CHECKING:
    from intercode.episode import Episode, Turn
    from intercode.task import Task

GOLD, GOLD_REPEAT = 0, 1
"""The epochs of the two trials of gold."""
NOOP, GARBAGE, FIRST_CONSTANT = 2, 3, 4
"""The epochs of the first guesses: doing nothing, a wrong answer, and the first of the constants.
`guesses` gives later epochs to the further guesses."""
WAIT_FIELD = "waited"
"""The field of an episode's metadata with the seconds by which `validate` delayed a trial of gold.
The delay lets the two trials of gold see different times."""
SLOW_SHARE = 0.25
"""The share of the time limit above which an action of gold, or its tests, count as slow."""
_MAX_OBSERVATION = 1000
_MAX_TEXT = 160
_MAX_NAMES = 5

Kind = Literal[
    "gold",
    "free",
    "varies",
    "clock",
    "error",
    "refused",
    "leak",
    "tests",
    "command",
    "constant",
    "empty",
    "twin",
    "steered",
    "setup",
    "fails",
    "windows",
]


def guesses(env: str, tasks: Sequence[Task] = ()) -> Mapping[int, GuessedSolution]:
    """Return the guesses in an environment: trial → guess.

    Args:
        env: The environment's name.
        tasks: The tasks to try, which determine the tricks, alternative solutions and clock shifts.
    """
    traits = find_traits(env)
    verified = any(task.verification is not None for task in tasks)
    further_guesses = [
        *traits.constants,
        *(tricks(traits.language) if verified else ()),
        *alternatives(tasks),
        *clock_guesses(traits.language, tasks),
    ]
    wrong_answer = GuessedSolution("a wrong answer", constant_actions(*traits.wrong))
    noop_guess = GuessedSolution("doing nothing", constant_actions(), idle=True)
    return {
        NOOP: noop_guess,
        GARBAGE: wrong_answer,
        **dict(enumerate(further_guesses, FIRST_CONSTANT)),
    }


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """A problem of a task, or a doubt, which the task's author may have intended."""

    task_id: str
    kind: Kind
    """The kind of the finding.

    Problems:

    - ``gold``: Gold does not solve the task.
    - ``free``: A guess solves the task.
    - ``varies``: Gold's result varies from run to run, or with the sandbox provider or engine.
    - ``clock``: Gold's result depends on the clock, but the task's metadata does not say so.
    - ``refused``: An alternative solution does not solve the task.
    - ``leak``: The agent can read the fix of a repository task.
    - ``tests``: The task's lists of passing and failing tests are wrong at the base commit.
    - ``command``: A command of gold does not run.
    - ``error``: A trial ended in an error instead of a score.

    Doubts:

    - ``constant``: A constant solves the task, perhaps by chance.
    - ``empty``: Gold's answer is empty.
    - ``twin``: A repository's test has no mutated twin (`intercode.rewards.mutated_tests`).
    - ``steered``: A submission can change a test's expected value.
    - ``setup``: A line of the setup fails.
    - ``fails``: An action of gold fails.
    - ``windows``: Lines of gold, setup or verification end with a carriage return.
    - ``clock``: The task depends on the time zone, or seems to depend on the clock.
    """
    problem: str
    """A description for people."""
    reward: float | None = None
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class SlowGoldTask:
    """A task whose gold takes more than the share `SLOW_SHARE` of the time limit."""

    task_id: str
    seconds: float
    """Seconds of gold's slowest action, or of its tests if these take longer."""
    limit: float
    suggested_timeout: float
    """A time limit with a margin, in seconds."""


@dataclass(frozen=True, slots=True)
class GoldResourceUsage:
    """The resources that gold uses."""

    task_id: str
    seconds: float
    """Seconds of gold's slowest action, or of its tests if these take longer."""
    memory: int | None
    """The peak memory of gold's sandbox in bytes, including written files; None: not measured."""
    suggested_timeout: float
    """A time limit with a margin, in whole seconds."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The part of an episode that the checks need."""

    reward: float | None
    error: str | None
    error_type: str | None
    score_detail: str
    """The detail of a score below 1."""
    observations: tuple[tuple[int, str], ...]
    """The hash and the first characters of the observation of each turn."""
    slowest_seconds: float
    """Seconds of the slowest action."""
    rest: float
    """Seconds of the episode outside its actions: of the reset and of the scoring."""
    timed_out: bool
    twinless_tests: tuple[str, ...] = ()
    """The passing tests without a known mutated twin (`intercode.rewards.mutated_tests`)."""
    guess: GuessedSolution | None = None
    """The guess that this trial tries; None: the trial tries gold."""
    no_rows: bool = False
    """Whether gold is a query whose result has no rows."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The parts of the score."""
    failed: tuple[str, ...] = ()
    """The first failing tests of a repository."""
    patch_error: str = ""
    """The message with which git refuses the patch that the trial applies; empty: no refusal."""

    @classmethod
    def from_episode(
        cls, episode: Episode, guesses_by_trial: Mapping[int, GuessedSolution]
    ) -> TrialResult:
        """Return the trial of an episode.

        Args:
            episode: The episode.
            guesses_by_trial: The guesses, by trial.
        """
        detail = episode.score.detail if episode.score is not None else {}
        action_seconds = sum(turn.seconds for turn in episode.turns)
        return cls(
            reward=episode.reward,
            error=episode.error,
            error_type=episode.metadata.get("error_type"),
            score_detail="" if episode.success else _one_line(detail),
            observations=tuple(
                (hash(turn.observation), turn.observation[:_MAX_OBSERVATION])
                for turn in episode.turns
            ),
            slowest_seconds=max((turn.seconds for turn in episode.turns), default=0.0),
            rest=episode.seconds - episode.metadata.get(WAIT_FIELD, 0.0) - action_seconds,
            timed_out=any(turn.info.get("timed_out") for turn in episode.turns),
            twinless_tests=tuple(detail.get("without_twin", ())),
            guess=guesses_by_trial.get(episode.epoch),
            no_rows=detail.get("gold_rows") == [],
            parts=episode.score.parts if episode.score is not None else {},
            failed=tuple(detail.get("failed", ())),
            patch_error=_patch_error(episode.turns),
        )

    @property
    def name(self) -> str:
        """A name for people."""
        return "gold" if self.guess is None else self.guess.name

    @property
    def has_output(self) -> bool:
        """Whether any observation has text."""
        return any(text for _, text in self.observations)


Trials = Mapping[int, TrialResult]
"""The completed trials of one task, by number."""
Check = Callable[["Task", Trials], "Iterator[TaskProblem]"]


def _unscored_trials(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report the first trial without a score."""
    for _, trial in sorted(trials.items()):
        if trial.reward is None:
            text = f"{trial.name} cannot be scored: {trial.error}"
            yield TaskProblem(task.task_id, "error", text, error_type=trial.error_type)
            return


def _shortfall(trial: TrialResult) -> str:
    """Return the reason why a trial's solution fails; empty: no failure, or no score."""
    if trial.reward is None or (trial.reward == 1.0 and not trial.patch_error):
        return ""
    if trial.patch_error:
        return f"{trial.name}'s patch does not apply: {trial.patch_error}"
    note = ", it ran into the time limit" if trial.timed_out else ""
    detail = f" ({trial.score_detail})" if trial.score_detail else ""
    return f"{trial.name} scores {trial.reward:.2f}{note}{detail}"


def _failing_golds(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report gold that is missing, does not score 1.0, or has a patch that does not apply."""
    if not task.gold:
        yield TaskProblem(task.task_id, "gold", "it has no gold, so no solution is known")
        return
    for trial_number in (GOLD, GOLD_REPEAT):
        trial = trials.get(trial_number)
        if trial is not None and (text := _shortfall(trial)):
            yield TaskProblem(task.task_id, "gold", text, trial.reward)
            return


def must_fail(guess: GuessedSolution | None, observations: Sequence[str]) -> bool:
    """Return whether the success of a trial is a fault of its task.

    Gold and alternative solutions may succeed, and so may guesses that are right by chance.

    Args:
        guess: The guess that the trial submits; None: the trial submits gold.
        observations: The observations of the trial's turns.
    """
    return not (
        guess is None
        or guess.by_chance
        or guess.role in ("alternative", "clock")
        or found_no_program(guess, observations)
    )


def _free_guesses(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report wrong guesses that score 1.0, except those that may be right by chance."""
    for trial_number, trial in sorted(trials.items()):
        # If doing nothing solves a task, most later guesses solve the task, too. Their reports
        # would add nothing.
        should_report = trial_number < FIRST_CONSTANT or not _is_free(trials.get(NOOP))
        is_wrong = must_fail(trial.guess, [text for _, text in trial.observations])
        if is_wrong and _is_free(trial) and should_report:
            text = f"{trial.name} scores 1.00"
            is_idle = trial.guess is not None and trial.guess.idle
            if is_idle and GOLD in trials and not trials[GOLD].has_output:
                text += (
                    ": its verification accepts everything"
                    if task.verification
                    else ": gold prints nothing and changes nothing that is scored"
                )
            yield TaskProblem(task.task_id, "free", text, 1.0)


def _refused_alternatives(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report alternative solutions that do not score 1.0."""
    for trial in trials.values():
        guess = trial.guess
        if guess is None or guess.role != "alternative" or not guess.actions(task):
            continue
        if text := _shortfall(trial):
            yield TaskProblem(task.task_id, "refused", text, trial.reward)


def _is_free(trial: TrialResult | None) -> bool:
    return trial is not None and trial.reward == 1.0


def _varying_results(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report gold whose rewards or observations differ from trial to trial."""
    first_trial, second_trial = trials.get(GOLD), trials.get(GOLD_REPEAT)
    if first_trial is None or second_trial is None:
        return
    # Without verification and tests, the reward compares the trial with gold, which the reward runs
    # at about the same time. A reward of 1.0 shows that both runs were equal. If a later run
    # differs, the cause is the clock, not chance.
    if first_trial.reward == 1.0 and not task.verification and not task.tests:
        yield from find_variation(
            task, first_trial, second_trial, "an odd number of seconds later", "with the clock"
        )
    else:
        yield from find_variation(
            task, first_trial, second_trial, "the second time", "from run to run"
        )


def _clock_effects(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report gold whose result differs with a shifted clock."""
    for problem in _find_clock_effect(task, trials, TIMES):
        text = (
            f"{problem.problem}; if its text depends on the clock, mark the task (metadata 'clock')"
        )
        yield replace(problem, problem=text)


def _find_clock_effect(
    task: Task, trials: Trials, clock_moves: Sequence[ClockShift]
) -> Iterator[TaskProblem]:
    """Report the first of several clock shifts that changes gold's result."""
    trials_by_name = {
        trial.name: replace(trial, observations=trial.observations[1:]) for trial in trials.values()
    }
    base = trials_by_name.get(UNCHANGED_CLOCK.name)
    if base is None or not base.guess or not base.guess.actions(task):
        # The task has no gold or is marked as dependent on the clock, or no clock can be shifted.
        return
    if any(_varying_results(task, trials)):
        return
    for move in clock_moves:
        if move.name in trials_by_name:
            for problem in find_variation(
                task, base, trials_by_name[move.name], move.name, move.name
            ):
                yield replace(problem, kind="clock")
                return


def find_variation(
    task: Task, first_trial: TrialResult, second_trial: TrialResult, condition: str, cause: str
) -> Iterator[TaskProblem]:
    """Report the first difference between two trials of gold, if both have a score.

    Args:
        task: The task.
        first_trial: The first trial.
        second_trial: The second trial.
        condition: The words for the condition of the second trial, such as ``the second time``.
            In the description, the words precede that trial's reward.
        cause: The words for the cause of a difference between observations, such as
            ``from run to run``.
    """
    if first_trial.reward is None or second_trial.reward is None:
        return
    if first_trial.reward != second_trial.reward:
        text = f"gold scores {first_trial.reward:.2f}, and {condition} {second_trial.reward:.2f}"
        yield TaskProblem(
            task.task_id, "varies", text, min(first_trial.reward, second_trial.reward)
        )
        return
    for turn, (first_observation, second_observation) in enumerate(
        zip_longest(first_trial.observations, second_trial.observations), 1
    ):
        if first_observation != second_observation:
            text = f"gold's observation in turn {turn} differs {cause}"
            if first_observation and second_observation:
                text += _difference(first_observation[1], second_observation[1])
            yield TaskProblem(task.task_id, "varies", text, first_trial.reward)
            return


def compare_backends(
    task: Task, main_trials: Trials, backend_trials: Trials, name: str
) -> Iterator[TaskProblem]:
    """Report gold that behaves differently with another sandbox provider or database engine.

    Args:
        task: The task.
        main_trials: The trials with the main provider or engine.
        backend_trials: The trials with the other provider or engine.
        name: The name of the other provider or engine.
    """
    gold_trial = backend_trials.get(GOLD)
    if gold_trial is None or GOLD not in main_trials:
        return
    if gold_trial.reward is None:
        text = f"on {name} gold cannot be scored: {gold_trial.error}"
        yield TaskProblem(task.task_id, "error", text, error_type=gold_trial.error_type)
    else:
        yield from find_variation(task, main_trials[GOLD], gold_trial, f"on {name}", f"on {name}")


def _mislisted_tests(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report repository tests that wrongly pass or fail before the first action."""
    noop_trial = trials.get(NOOP)
    if noop_trial is None or "fail_to_pass" not in noop_trial.parts:
        return
    plan = make_plan(task)
    passing_share, failing_share = (
        noop_trial.parts["fail_to_pass"],
        1 - noop_trial.parts["pass_to_pass"],
    )
    for name, tests, mislisted_share, state in (
        ("FAIL_TO_PASS", plan.fail_to_pass, passing_share, "pass"),
        ("PASS_TO_PASS", plan.pass_to_pass, failing_share, "fail"),
    ):
        if count := round(mislisted_share * len(tests)):
            test_names = [
                test for test in tests if (test in noop_trial.failed) == (state == "fail")
            ]
            text = f"{count} of {len(tests)} tests of {name} {state} before any action"
            # If the numbers differ, the record has only a part of the tests' names.
            if len(test_names) == count:
                text += (
                    f": {', '.join(test_names[:_MAX_NAMES])}{', …' if count > _MAX_NAMES else ''}"
                )
            yield TaskProblem(task.task_id, "tests", text, noop_trial.reward)


CHECKS: tuple[Check, ...] = (
    _unscored_trials,
    _failing_golds,
    _free_guesses,
    _refused_alternatives,
    _varying_results,
    _clock_effects,
    _mislisted_tests,
)


def _twinless_tests(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report tests of a repository without a mutated twin, which would detect tampering."""
    if GOLD in trials and (tests := trials[GOLD].twinless_tests):
        text = f"a test has no twin, so tampering with it is not detected: {tests[0]}"
        if len(tests) > 1:
            text += f", and {len(tests) - 1} more"
        yield TaskProblem(task.task_id, "twin", text)


def _constants(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report constants that solve the task, perhaps by chance."""
    names = [
        trial.name
        for trial in trials.values()
        if trial.guess and trial.guess.by_chance and _is_free(trial)
    ]
    if names and not _is_free(trials.get(NOOP)):
        text = f"{' and '.join(names)} scores 1.00: a constant, perhaps by chance"
        yield TaskProblem(task.task_id, "constant", text, 1.0)


def _zone_effects(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report gold whose result depends on the time zone, or whose text seems to read the clock."""
    yield from _find_clock_effect(task, trials, [ZONE])
    if task.depends_on_clock or any(_varying_results(task, trials)):
        return
    if words := find_time_words(task, detect_environment([task])):
        text = (
            f"gold or its tests read the clock ({words}), but the task is not marked (metadata "
            "'clock')"
        )
        yield TaskProblem(task.task_id, "clock", text)


def _empty_results(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report gold whose answer is empty."""
    if GOLD in trials and trials[GOLD].no_rows:
        yield TaskProblem(task.task_id, "empty", "gold's result has no rows")


def _steered_asserts(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report an assert whose expected value a submission can change."""
    for test in task.tests:
        if text := find_steered_assert(test):
            text = (
                f"the submission can change the data that it is compared with: {text[:_MAX_TEXT]}"
            )
            yield TaskProblem(task.task_id, "steered", text)
            return


def _windows_line_ends(task: Task, trials: Trials) -> Iterator[TaskProblem]:
    """Report scripts with Windows line ends: for Bash, the carriage return is part of a command."""
    scripts_by_field = {
        "gold": task.gold,
        "setup": (task.setup,),
        "verification": (task.verification,),
    }
    for name, scripts in scripts_by_field.items():
        if any("\r\n" in script for script in scripts if script):
            text = (
                f"lines of its {name} end with a carriage return, as on Windows, which is part of "
                "the text"
            )
            yield TaskProblem(task.task_id, "windows", text)


DOUBTS: tuple[Check, ...] = (
    _constants,
    _empty_results,
    _twinless_tests,
    _zone_effects,
    _steered_asserts,
    _windows_line_ends,
)
"""Checks whose findings may be intended."""


def usage(task: Task, trials: Trials, memory: int | None) -> GoldResourceUsage:
    """Return the resources that gold uses.

    The time of gold's tests is an estimate: the time outside actions in gold's trial, minus the
    same time in the trial that does nothing. The tests of the latter usually fail early.

    Args:
        task: The task.
        trials: The trials of the task.
        memory: The peak memory of gold's sandbox in bytes; None: not measured.
    """
    gold_trials = [
        trials[trial_number] for trial_number in (GOLD, GOLD_REPEAT) if trial_number in trials
    ]
    seconds = max((trial.slowest_seconds for trial in gold_trials), default=0.0)
    if gold_trials and NOOP in trials:
        seconds = max(seconds, min(trial.rest for trial in gold_trials) - trials[NOOP].rest)
    return GoldResourceUsage(
        task.task_id, seconds, memory, float(max(1, math.ceil(seconds / SLOW_SHARE)))
    )


def find_slow_tasks(
    task: Task, gold_usage: GoldResourceUsage, timeout: float
) -> Iterator[SlowGoldTask]:
    """Report gold whose slowest action, or tests, exceed a share of the time limit (`SLOW_SHARE`).

    Args:
        task: The task.
        gold_usage: The resources that gold uses.
        timeout: The time limit of an action, in seconds, for a task without its own limit.
    """
    limit = timeout if task.timeout is None else task.timeout
    if gold_usage.seconds > SLOW_SHARE * limit:
        yield SlowGoldTask(
            task.task_id, gold_usage.seconds, limit, max(limit, gold_usage.suggested_timeout)
        )


def _difference(first_text: str, second_text: str) -> str:
    """Return the first lines in which two observations differ, from the observations' beginnings.

    The result is empty if the beginnings, which are all that a trial keeps, are equal.
    """
    for first_line, second_line in zip_longest(
        first_text.split("\n"), second_text.split("\n"), fillvalue=""
    ):
        if first_line != second_line:
            return f": {first_line[:_MAX_TEXT]!r}, then {second_line[:_MAX_TEXT]!r}"
    return ""


def _patch_error(turns: Sequence[Turn]) -> str:
    """Return git's message about the first refused patch; empty: no patch is refused."""
    for turn in turns:
        if turn.exit_code and turn.action.startswith(APPLY) and not turn.info.get("timed_out"):
            return _cut(turn.observation) or f"exit code {turn.exit_code}"
    return ""


def _one_line(detail: Mapping[str, Any]) -> str:
    text = ", ".join(
        f"{name}: {value}"
        for name, value in detail.items()
        if value or (isinstance(value, int | float) and value is not False)
    )
    return _cut(text)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
