"""Checks of a task: pure functions of it and of what came of its trials: `CHECKS`, `DOUBTS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from intercode.envs.traits import Guess
from intercode.evaluate.guesses import FIRST_CONSTANT, NOTHING, guesses

if TYPE_CHECKING:
    from intercode.episode import Episode
    from intercode.task import Task

GOLD, AGAIN = 0, 1
"""The trials of gold. Trials are the epochs of the run that tries a task; see `guesses`."""
WAITED = "waited"
"""In an episode's metadata: seconds for which gold was held back, so that the clock is another."""
SLOW = 0.25
"""The share of its time limit from which on an action of gold's is called slow."""
_KEPT = 1000
_SHOWN = 160

Kind = Literal["gold", "free", "varies", "error", "constant", "empty", "twin"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is the matter with a task."""

    task_id: str
    kind: Kind
    """``gold`` does not solve it; it is solved for ``free``; it ``varies`` from run to run; or
    there was an ``error`` instead of a score. Doubts: a ``constant`` solves it, perhaps by chance;
    gold's answer is ``empty``; a test has no ``twin``."""
    problem: str
    """The same for people."""
    reward: float | None = None
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """A task whose gold comes near the time limit."""

    task_id: str
    seconds: float
    """Of gold's slowest action, or of its tests."""
    limit: float
    suggested_timeout: float
    """A time limit with room to spare."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What gold takes."""

    task_id: str
    seconds: float
    """Of its slowest action, or of its tests."""
    memory: int | None
    """The most bytes that its sandbox has used, files that it wrote included; None where nobody
    counts."""
    suggested_timeout: float
    """A time limit with room to spare, in whole seconds."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the checks need to know of an episode."""

    reward: float | None
    error: str | None
    error_type: str | None
    why: str
    """What the reward says of a value below 1."""
    observations: tuple[tuple[int, str], ...]
    """Of each turn: a hash, and how it begins."""
    slowest: float
    """Seconds of the action that took longest."""
    rest: float
    """Seconds that no action took: to begin and to score."""
    timed_out: bool
    without_twin: tuple[str, ...] = ()
    """Tests that have passed, and whose twins nobody knows (`intercode.rewards.swe_twins`)."""
    guess: Guess | None = None
    """The guess that was tried; None: gold."""
    no_rows: bool = False
    """Whether gold is a query whose result has no rows."""

    @classmethod
    def of(cls, episode: Episode) -> Trial:
        """What came of an episode."""
        score = episode.score
        detail = score.detail if score is not None else {}
        waited = episode.metadata.get(WAITED, 0.0)
        return cls(
            reward=episode.reward,
            error=episode.error,
            error_type=episode.metadata.get("error_type"),
            why=_details(score.detail) if score is not None and not episode.success else "",
            observations=tuple(
                (hash(turn.observation), turn.observation[:_KEPT]) for turn in episode.turns
            ),
            slowest=max((turn.seconds for turn in episode.turns), default=0.0),
            rest=episode.seconds - waited - sum(turn.seconds for turn in episode.turns),
            timed_out=any(turn.info.get("timed_out") for turn in episode.turns),
            without_twin=tuple(detail.get("without_twin", ())),
            guess=guesses(episode.env).get(episode.epoch),
            no_rows=detail.get("gold_rows") == [],
        )

    @property
    def name(self) -> str:
        """A name of the trial, for people."""
        return "gold" if self.guess is None else self.guess.name

    @property
    def shown(self) -> Sequence[str]:
        """How each observation begins."""
        return [text for _, text in self.observations]


Trials = Mapping[int, Trial]
"""The trials of one task that took place."""


def _scores(task: Task, trials: Trials) -> Iterator[Problem]:
    """Every trial has a score; if several have none, the first says why."""
    for _, trial in sorted(trials.items()):
        if trial.reward is None:
            text = f"{trial.name} cannot be scored: {trial.error}"
            yield Problem(task.task_id, "error", text, error_type=trial.error_type)
            return


def _gold_solves(task: Task, trials: Trials) -> Iterator[Problem]:
    """Gold scores 1.0."""
    if not task.gold:
        yield Problem(task.task_id, "gold", "it has no gold: nothing shows that it can be solved")
        return
    for number in (GOLD, AGAIN):
        trial = trials.get(number)
        if trial is not None and trial.reward is not None and trial.reward != 1.0:
            text = f"gold scores {trial.reward:.2f}"
            if trial.timed_out:
                text += ", it ran into the time limit"
            if trial.why:
                text += f" ({trial.why})"
            yield Problem(task.task_id, "gold", text, trial.reward)
            return


def _is_not_free(task: Task, trials: Trials) -> Iterator[Problem]:
    """Doing nothing, a wrong answer, and constants do not score 1.0."""
    for number, trial in sorted(trials.items()):
        # What needs nothing done is solved by every constant, too.
        said = number < FIRST_CONSTANT or not _free(trials.get(NOTHING))
        if trial.guess is not None and not trial.guess.by_chance and _free(trial) and said:
            text = f"{trial.name} scores 1.00"
            if trial.guess.idle and GOLD in trials and not any(trials[GOLD].shown):
                text += ": gold prints nothing, and changes nothing that counts"
            yield Problem(task.task_id, "free", text, 1.0)


def _free(trial: Trial | None) -> bool:
    return trial is not None and trial.reward == 1.0


def _does_not_vary(task: Task, trials: Trials) -> Iterator[Problem]:
    """Gold does the same twice: rewards and observations."""
    one, other = trials.get(GOLD), trials.get(AGAIN)
    if one is None or other is None:
        return
    # Where the reward runs gold, too, and what it did at about the same time was the same, the
    # clock has made the difference.
    if one.reward == 1.0 and not task.verification and not task.tests:
        yield from varies(task, one, other, "an odd number of seconds later", "with the clock")
    else:
        yield from varies(task, one, other, "the second time", "from run to run")


def varies(task: Task, one: Trial, other: Trial, when: str, between: str) -> Iterator[Problem]:
    """Two trials of gold do the same, if both have a score.

    Args:
        task: The task.
        one: The one.
        other: The other one.
        when: What is special about the other one.
        between: What lies between them.
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
    """Gold does the same on another back end, of this name."""
    other = there.get(GOLD)
    if other is None or GOLD not in here:
        return
    if other.reward is None:
        text = f"on {name} gold cannot be scored: {other.error}"
        yield Problem(task.task_id, "error", text, error_type=other.error_type)
    else:
        yield from varies(task, here[GOLD], other, f"on {name}", f"on {name}")


CHECKS: tuple[Callable[[Task, Trials], Iterator[Problem]], ...] = (
    _scores,
    _gold_solves,
    _is_not_free,
    _does_not_vary,
)


def _has_twins(task: Task, trials: Trials) -> Iterator[Problem]:
    """Every test of a repository's has a twin."""
    if GOLD in trials and (tests := trials[GOLD].without_twin):
        text = f"a test has no twin, so that tampering with it does not show: {tests[0]}"
        if len(tests) > 1:
            text += f", and {len(tests) - 1} more"
        yield Problem(task.task_id, "twin", text)


def _is_no_constant(task: Task, trials: Trials) -> Iterator[Problem]:
    """No constant is the answer."""
    names = [t.name for t in trials.values() if t.guess and t.guess.by_chance and _free(t)]
    if names and not _free(trials.get(NOTHING)):
        text = f"{' and '.join(names)} scores 1.00: a constant, perhaps by chance"
        yield Problem(task.task_id, "constant", text, 1.0)


def _has_rows(task: Task, trials: Trials) -> Iterator[Problem]:
    """Gold's answer says something."""
    if GOLD in trials and trials[GOLD].no_rows:
        yield Problem(task.task_id, "empty", "gold's result has no rows")


DOUBTS: tuple[Callable[[Task, Trials], Iterator[Problem]], ...] = (
    _is_no_constant,
    _has_rows,
    _has_twins,
)
"""Checks that find what may be intended."""


def usage(task: Task, trials: Trials, memory: int | None) -> Usage:
    """What gold takes.

    How long the tests of gold take is known by what doing nothing, which fails them, does not take.
    """
    golds = [trials[number] for number in (GOLD, AGAIN) if number in trials]
    seconds = max((trial.slowest for trial in golds), default=0.0)
    if golds and NOTHING in trials:
        seconds = max(seconds, min(trial.rest for trial in golds) - trials[NOTHING].rest)
    return Usage(task.task_id, seconds, memory, float(max(1, math.ceil(seconds / SLOW))))


def slow(task: Task, used: Usage, timeout: float) -> Iterator[Slow]:
    """Gold's actions leave room below the time limit, and so do its tests."""
    limit = timeout if task.timeout is None else task.timeout
    if used.seconds > SLOW * limit:
        yield Slow(task.task_id, used.seconds, limit, max(limit, used.suggested_timeout))


def _difference(one: str, other: str) -> str:
    """The first lines that differ, if they are among what was kept."""
    for mine, theirs in zip_longest(one.split("\n"), other.split("\n"), fillvalue=""):
        if mine != theirs:
            return f": {mine[:_SHOWN]!r}, then {theirs[:_SHOWN]!r}"
    return ""


def _details(detail: Mapping[str, Any]) -> str:
    """What a score's detail says, in a line."""
    text = ", ".join(f"{name}: {value}" for name, value in detail.items())
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
