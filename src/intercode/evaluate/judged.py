"""A judge's part in a run: the name of a rate that hangs on it, and its cost.

A success that is a model's word is not what the same run without a judge would call one. So its
rate has another name wherever it stands: ``success (judged by MODEL)`` for people, keys that begin
with ``judged_`` for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intercode.evaluate.report import Statistics
from intercode.evaluate.spending import total
from intercode.evaluate.table import Kind, Table, shown
from intercode.records import Outcome


@dataclass(frozen=True, slots=True)
class Judging:
    """Counts of a judge's work in some episodes."""

    model: str
    asked: int
    """Episodes that it was asked about."""
    same: int
    """Those that are a success by its word."""
    split: int
    """Those in which its votes, or the two orders of one, disagreed."""
    steered: int
    """Those in which it would have called a decoy the same, so that it was not believed."""
    malformed: int
    """Replies that were none."""
    success_by_execution: float | None
    """The rate without its word; None: no episode has a score."""
    tokens_in: int | None
    """Of all episodes, those with errors too; None: not recorded."""
    tokens_out: int | None
    cost: float | None
    """US dollars, likewise."""


def judge_of(manifest: Mapping[str, Any], outcomes: Iterable[Outcome] = ()) -> str | None:
    """The model that judged a run, by its record or else by its episodes; None: none did."""
    recorded = manifest.get("env", {}).get("judge", {}).get("model")
    found = (outcome.judged.model for outcome in outcomes if outcome.judged is not None)
    return str(recorded) if recorded else next(found, None)


def rate_name(judge: str | None) -> str:
    """The name of a run's rate of success."""
    return "success" if judge is None else f"success (judged by {judge})"


def with_judge(label: str, judge: str | None) -> str:
    """The name of an agent or a run that has such a rate."""
    return label if judge is None else f"{label}, judged by {judge}"


def judging(judge: str | None, outcomes: Sequence[Outcome]) -> Judging | None:
    """A judge's work in a run; None if it has none."""
    if judge is None:
        return None
    judged = [outcome.judged for outcome in outcomes if outcome.judged is not None]
    scored = [outcome for outcome in outcomes if not outcome.failed]
    alone = sum(o.success and not (o.judged is not None and o.judged.same) for o in scored)
    return Judging(
        model=judge,
        asked=sum(one.asked for one in judged),
        same=sum(one.same for one in judged),
        split=sum(one.split for one in judged),
        steered=sum(one.steered for one in judged),
        malformed=sum(one.malformed for one in judged),
        success_by_execution=alone / len(scored) if scored else None,
        tokens_in=total(one.tokens_in for one in judged),
        tokens_out=total(one.tokens_out for one in judged),
        cost=total(one.cost for one in judged),
    )


_COLUMNS: tuple[tuple[str, Kind], ...] = (
    ("", "text"),
    ("asked about", "count"),
    ("the same", "count"),
    ("disagreed", "count"),
    ("steered", "count"),
    ("malformed", "count"),
    ("by execution alone", "rate"),
    ("tokens in", "count"),
    ("tokens out", "count"),
    ("dollars", "money"),
)
_NOTE = (
    "Asked where the files are as gold's and the output is not. Disagreed: its votes, or the two "
    "orders of one. Steered: it called a decoy the same, and was not believed. Malformed: replies "
    "that were none.\nIts tokens and dollars are in no other table."
)


def tables(found: Mapping[str, Judging | None]) -> list[Table]:
    """A line for each name that has a judge; empty if none has one."""
    rows = tuple(
        (name, *list(asdict(one).values())[1:]) for name, one in found.items() if one is not None
    )
    return [Table("The judge", _COLUMNS, rows, _NOTE)] if rows else []


def in_words(found: Judging | None) -> str:
    """How much of a rate is the judge's word; empty if there is none."""
    if found is None:
        return ""
    alone = shown(found.success_by_execution, "rate")
    return f"Judged by {found.model}: {found.same} by its word; by execution alone {alone}."


def as_data(statistics: Statistics, judge: str | None) -> dict[str, Any]:
    """Statistics as plain data; what hangs on a judge's word has a name of its own."""
    return {
        f"judged_{name}" if judge is not None and name.startswith(_JUDGED) else name: value
        for name, value in asdict(statistics).items()
    }


_JUDGED = ("success", "clustered", "mean_reward", "reward")
