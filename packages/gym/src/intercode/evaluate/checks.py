"""Checks of a task: pure functions of it and of its trials, see `CHECKS` and `DOUBTS`.

Trials are the epochs of the run that tries a task: gold, gold again, and the guesses: doing
nothing, a wrong answer, constants, which ignore the task, tricks with its verification, and the
alternative solutions that the task's metadata has. In SQL and Python a constant that
solves a task is a problem: copies of the database, or further tests, would refuse it. So is Bash's
``true``. Another Bash constant may print the right answer by chance, and an agent must guess the
value that a Python test expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from intercode.envs.traits import Guess, always, environment_for, traits_of
from intercode.evaluate.moved_clock import AS_IT_IS, TIMES, ZONE, Move, asks_for_time, moves
from intercode.evaluate.steered import steered
from intercode.evaluate.tricks import NO_PROGRAM, alternatives, tricks
from intercode.rewards.swe_plan import APPLY, make_plan

if TYPE_CHECKING:
    from intercode.episode import Episode, Turn
    from intercode.task import Task

GOLD, AGAIN = 0, 1
"""The trials of gold."""
NOTHING, WRONG, FIRST_CONSTANT = 2, 3, 4
"""The trials of guesses; the constants are followed by the others: see `guesses`."""
WAITED = "waited"
"""In an episode's metadata: the seconds for which gold was held back, to get another clock."""
SLOW = 0.25
"""The share of its time limit from which on an action of gold's is called slow."""
_KEPT = 1000
_SHOWN = 160
_NAMED = 5

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


def guesses(env: str, tasks: Sequence[Task] = ()) -> Mapping[int, Guess]:
    """Return the guesses in an environment: trial → guess.

    Args:
        env: The environment's name.
        tasks: The tasks that are tried.
    """
    traits = traits_of(env)
    verified = any(task.verification is not None for task in tasks)
    more = [
        *traits.constants,
        *(tricks(traits.language) if verified else ()),
        *alternatives(tasks),
        *moves(traits.language, tasks),
    ]
    wrong = Guess("a wrong answer", always(*traits.wrong))
    nothing = Guess("doing nothing", always(), idle=True)
    return {NOTHING: nothing, WRONG: wrong, **dict(enumerate(more, FIRST_CONSTANT))}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a task, or a doubt."""

    task_id: str
    kind: Kind
    """``gold`` does not solve it; it is solved for ``free``; it ``varies`` from run to run; it
    depends on the ``clock`` without a mark; an alternative solution is ``refused``; its fix can be
    read, a ``leak``; its lists of ``tests`` do not hold at the base commit; the ``command`` of
    its gold does not run; or there was an ``error`` instead of a score. Doubts: a ``constant``
    solves it, perhaps by chance; gold's answer is ``empty``; a test has no ``twin``; a submission
    has ``steered`` what it is compared with; a line of its ``setup`` fails, or its gold ``fails``;
    its lines end as on ``windows``; it depends on the time zone, or seems to on the ``clock``.
    """
    problem: str
    """A description for people."""
    reward: float | None = None
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """A task whose gold comes near the time limit."""

    task_id: str
    seconds: float
    """The time of gold's slowest action, or of its tests."""
    limit: float
    suggested_timeout: float
    """A time limit with room to spare."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that gold takes."""

    task_id: str
    seconds: float
    """The time of its slowest action, or of its tests."""
    memory: int | None
    """The most bytes that its sandbox has used, files that it wrote included; None where it is not
    counted."""
    suggested_timeout: float
    """A time limit with room to spare, in whole seconds."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The part of an episode that the checks need."""

    reward: float | None
    error: str | None
    error_type: str | None
    why: str
    """The detail of a score below 1."""
    observations: tuple[tuple[int, str], ...]
    """The hash of each turn's observation, and its beginning."""
    slowest: float
    """Seconds of the action that took longest."""
    rest: float
    """Seconds that no action took: to begin and to score."""
    timed_out: bool
    without_twin: tuple[str, ...] = ()
    """Tests that have passed and have no known twins (`intercode.rewards.swe_twins`)."""
    guess: Guess | None = None
    """The guess that was tried; None: gold."""
    no_rows: bool = False
    """Whether gold is a query whose result has no rows."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The parts of the score."""
    failed: tuple[str, ...] = ()
    """The first tests of a repository that have failed."""
    patch_error: str = ""
    """The message of git about a patch that it refuses."""

    @classmethod
    def of(cls, episode: Episode, tried: Mapping[int, Guess]) -> Trial:
        """Return the trial of an episode.

        Args:
            episode: The episode.
            tried: The guesses, by trial.
        """
        detail = episode.score.detail if episode.score is not None else {}
        busy = sum(turn.seconds for turn in episode.turns)
        return cls(
            reward=episode.reward,
            error=episode.error,
            error_type=episode.metadata.get("error_type"),
            why="" if episode.success else _one_line(detail),
            observations=tuple(
                (hash(turn.observation), turn.observation[:_KEPT]) for turn in episode.turns
            ),
            slowest=max((turn.seconds for turn in episode.turns), default=0.0),
            rest=episode.seconds - episode.metadata.get(WAITED, 0.0) - busy,
            timed_out=any(turn.info.get("timed_out") for turn in episode.turns),
            without_twin=tuple(detail.get("without_twin", ())),
            guess=tried.get(episode.epoch),
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
    def prints(self) -> bool:
        """Whether any observation has text."""
        return any(text for _, text in self.observations)


Trials = Mapping[int, Trial]
"""The trials of one task that took place, by number."""
Check = Callable[["Task", Trials], "Iterator[Problem]"]


def _scores(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report the first trial without a score."""
    for _, trial in sorted(trials.items()):
        if trial.reward is None:
            text = f"{trial.name} cannot be scored: {trial.error}"
            yield Problem(task.task_id, "error", text, error_type=trial.error_type)
            return


def _shortfall(trial: Trial) -> str:
    """Return how a solution falls short of 1.0; empty: it does not, or has no score."""
    if trial.reward is None or (trial.reward == 1.0 and not trial.patch_error):
        return ""
    if trial.patch_error:
        return f"{trial.name}'s patch does not apply: {trial.patch_error}"
    late = ", it ran into the time limit" if trial.timed_out else ""
    return f"{trial.name} scores {trial.reward:.2f}{late}{f' ({trial.why})' if trial.why else ''}"


def _gold_solves(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report gold that does not score 1.0."""
    if not task.gold:
        yield Problem(task.task_id, "gold", "it has no gold: nothing shows that it can be solved")
        return
    for number in (GOLD, AGAIN):
        trial = trials.get(number)
        if trial is not None and (text := _shortfall(trial)):
            yield Problem(task.task_id, "gold", text, trial.reward)
            return


def _is_not_free(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report guesses that score 1.0."""
    for number, trial in sorted(trials.items()):
        # A task that is solved by doing nothing is solved by every constant, too.
        said = number < FIRST_CONSTANT or not _free(trials.get(NOTHING))
        if trial.guess is None or trial.guess.role in ("alternative", "clock"):
            continue
        if any(NO_PROGRAM in text for _, text in trial.observations):
            continue  # it is gold
        if not trial.guess.by_chance and _free(trial) and said:
            text = f"{trial.name} scores 1.00"
            if trial.guess.idle and GOLD in trials and not trials[GOLD].prints:
                text += (
                    ": its verification lets everything pass"
                    if task.verification
                    else ": gold prints nothing, and changes nothing that counts"
                )
            yield Problem(task.task_id, "free", text, 1.0)


def _alternatives_solve(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report alternative solutions that do not score 1.0."""
    for trial in trials.values():
        guess = trial.guess
        if guess is None or guess.role != "alternative" or not guess.actions(task):
            continue
        if text := _shortfall(trial):
            yield Problem(task.task_id, "refused", text, trial.reward)


def _free(trial: Trial | None) -> bool:
    return trial is not None and trial.reward == 1.0


def _does_not_vary(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report gold whose rewards or observations differ from trial to trial."""
    one, other = trials.get(GOLD), trials.get(AGAIN)
    if one is None or other is None:
        return
    # Where the reward runs gold, too, and found no difference at about the same time, the clock has
    # made the difference.
    if one.reward == 1.0 and not task.verification and not task.tests:
        yield from varies(task, one, other, "an odd number of seconds later", "with the clock")
    else:
        yield from varies(task, one, other, "the second time", "from run to run")


def _at_other_times(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report gold that differs when the clock is moved."""
    for problem in _moved(task, trials, TIMES):
        text = f"{problem.problem}; if its words depend on the clock, mark it (metadata 'clock')"
        yield replace(problem, problem=text)


def _moved(task: Task, trials: Trials, several: Sequence[Move]) -> Iterator[Problem]:
    """Report the first of several moves of the clock that makes a difference."""
    tried = {t.name: replace(t, observations=t.observations[1:]) for t in trials.values()}
    base = tried.get(AS_IT_IS.name)
    if base is None or not base.guess or not base.guess.actions(task):
        return  # it is marked, or the clock cannot be moved
    if any(_does_not_vary(task, trials)):
        return
    for move in several:
        if move.name in tried:
            for problem in varies(task, base, tried[move.name], move.name, move.name):
                yield replace(problem, kind="clock")
                return


def varies(task: Task, one: Trial, other: Trial, when: str, between: str) -> Iterator[Problem]:
    """Report the first difference between two trials of gold, if both have a score.

    Args:
        task: The task.
        one: The one trial.
        other: The other one.
        when: How the other one differs, after its reward: ``the second time``.
        between: The cause of a difference between observations: ``from run to run``.
    """
    if one.reward is None or other.reward is None:
        return
    if one.reward != other.reward:
        text = f"gold scores {one.reward:.2f}, and {when} {other.reward:.2f}"
        yield Problem(task.task_id, "varies", text, min(one.reward, other.reward))
        return
    for turn, (first, second) in enumerate(zip_longest(one.observations, other.observations), 1):
        if first != second:
            text = f"what gold shows in turn {turn} differs {between}"
            if first and second:
                text += _difference(first[1], second[1])
            yield Problem(task.task_id, "varies", text, one.reward)
            return


def elsewhere(task: Task, here: Trials, there: Trials, name: str) -> Iterator[Problem]:
    """Report gold that behaves differently on another back end, of this name."""
    other = there.get(GOLD)
    if other is None or GOLD not in here:
        return
    if other.reward is None:
        text = f"on {name} gold cannot be scored: {other.error}"
        yield Problem(task.task_id, "error", text, error_type=other.error_type)
    else:
        yield from varies(task, here[GOLD], other, f"on {name}", f"on {name}")


def _tests_are_as_listed(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report tests of a repository that pass or fail before anything was done, and should not."""
    nothing = trials.get(NOTHING)
    if nothing is None or "fail_to_pass" not in nothing.parts:
        return
    plan = make_plan(task)
    passing, failing = nothing.parts["fail_to_pass"], 1 - nothing.parts["pass_to_pass"]
    for name, tests, share, state in (
        ("FAIL_TO_PASS", plan.fail_to_pass, passing, "pass"),
        ("PASS_TO_PASS", plan.pass_to_pass, failing, "fail"),
    ):
        if count := round(share * len(tests)):
            shown = [one for one in tests if (one in nothing.failed) == (state == "fail")]
            text = f"{count} of {len(tests)} tests of {name} {state} before anything was done"
            if len(shown) == count:  # else there are more than the record has
                text += f": {', '.join(shown[:_NAMED])}{', …' if count > _NAMED else ''}"
            yield Problem(task.task_id, "tests", text, nothing.reward)


CHECKS: tuple[Check, ...] = (
    _scores,
    _gold_solves,
    _is_not_free,
    _alternatives_solve,
    _does_not_vary,
    _at_other_times,
    _tests_are_as_listed,
)


def _has_twins(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report tests of a repository that have no twin."""
    if GOLD in trials and (tests := trials[GOLD].without_twin):
        text = f"a test has no twin, so that tampering with it does not show: {tests[0]}"
        if len(tests) > 1:
            text += f", and {len(tests) - 1} more"
        yield Problem(task.task_id, "twin", text)


def _is_no_constant(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report constants that are the answer."""
    names = [t.name for t in trials.values() if t.guess and t.guess.by_chance and _free(t)]
    if names and not _free(trials.get(NOTHING)):
        text = f"{' and '.join(names)} scores 1.00: a constant, perhaps by chance"
        yield Problem(task.task_id, "constant", text, 1.0)


def _in_another_zone(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report gold that differs in another time zone, or whose words ask for the time."""
    yield from _moved(task, trials, [ZONE])
    if task.depends_on_clock or any(_does_not_vary(task, trials)):
        return
    if words := asks_for_time(task, environment_for([task])):
        text = f"gold or its tests ask for the time ({words}), and the task is not marked"
        yield Problem(task.task_id, "clock", text)


def _has_rows(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report gold whose answer is empty."""
    if GOLD in trials and trials[GOLD].no_rows:
        yield Problem(task.task_id, "empty", "gold's result has no rows")


def _is_not_steered(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report an assert whose expected value a submission can change."""
    for test in task.tests:
        if text := steered(test):
            text = f"the submission can change what it is compared with: {text[:_SHOWN]}"
            yield Problem(task.task_id, "steered", text)
            return


def _ends_lines_with_a_line_feed(task: Task, trials: Trials) -> Iterator[Problem]:
    """Report programs with line ends of Windows: Bash takes a carriage return for a character."""
    texts = {"gold": task.gold, "setup": (task.setup,), "verification": (task.verification,)}
    for name, parts in texts.items():
        if any("\r\n" in part for part in parts if part):
            text = f"lines of its {name} end as on Windows, with a carriage return that counts"
            yield Problem(task.task_id, "windows", text)


DOUBTS: tuple[Check, ...] = (
    _is_no_constant,
    _has_rows,
    _has_twins,
    _in_another_zone,
    _is_not_steered,
    _ends_lines_with_a_line_feed,
)
"""Checks whose findings may be intended."""


def usage(task: Task, trials: Trials, memory: int | None) -> Usage:
    """Return the resources that gold takes.

    The time of gold's tests is the time by which it is slower than doing nothing, which fails them.
    """
    golds = [trials[number] for number in (GOLD, AGAIN) if number in trials]
    seconds = max((trial.slowest for trial in golds), default=0.0)
    if golds and NOTHING in trials:
        seconds = max(seconds, min(trial.rest for trial in golds) - trials[NOTHING].rest)
    return Usage(task.task_id, seconds, memory, float(max(1, math.ceil(seconds / SLOW))))


def slow(task: Task, used: Usage, timeout: float) -> Iterator[Slow]:
    """Report gold whose actions, or tests, come near the time limit."""
    limit = timeout if task.timeout is None else task.timeout
    if used.seconds > SLOW * limit:
        yield Slow(task.task_id, used.seconds, limit, max(limit, used.suggested_timeout))


def _difference(one: str, other: str) -> str:
    """Show the first lines that differ, if they are in the beginnings that were kept."""
    for mine, theirs in zip_longest(one.split("\n"), other.split("\n"), fillvalue=""):
        if mine != theirs:
            return f": {mine[:_SHOWN]!r}, then {theirs[:_SHOWN]!r}"
    return ""


def _patch_error(turns: Sequence[Turn]) -> str:
    """Return the message of git about the first patch that it refuses; empty: it refuses none."""
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
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
