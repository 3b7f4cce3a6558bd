"""Where the turns, the time and the money of a run went."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from intercode.records import Outcome

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Spending:
    """What some episodes took, all together."""

    episodes: int
    turns: int
    invalid: int
    """Turns whose action could not be executed or failed."""
    seconds: float
    action_seconds: float
    model_seconds: float
    tokens_in: int | None
    tokens_out: int | None
    cost: float | None


def spending(outcomes: Iterable[Outcome]) -> dict[str, Spending]:
    """Where turns, time and money went: by how the episodes ended."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault("solved" if outcome.success else outcome.status, []).append(outcome)
    order = ["solved", "submitted", "truncated", "skipped", "ended", "error"]
    return {
        "not solved" if name == "submitted" else name: Spending(
            episodes=len(group),
            turns=sum(outcome.turns for outcome in group),
            invalid=sum(outcome.invalid for outcome in group),
            seconds=math.fsum(outcome.seconds for outcome in group),
            action_seconds=math.fsum(outcome.action_seconds for outcome in group),
            model_seconds=math.fsum(outcome.model_seconds for outcome in group),
            tokens_in=total(outcome.tokens_in for outcome in group),
            tokens_out=total(outcome.tokens_out for outcome in group),
            cost=total(outcome.cost for outcome in group),
        )
        for name in order
        if (group := groups.get(name))
    }


def total(values: Iterable[Number | None]) -> Number | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
