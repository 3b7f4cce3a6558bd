"""The 2023 SQL reward, in the three versions that the recorded runs show.

An answer is the rows of the agent's last query, compared as text with gold's. The ``released``
reward is their overlap (intersection over union of the two multisets) times Kendall's τ between
the two orders of what they share, so that it can be negative. Before the release it was the
``early`` one, the overlap alone; and ``first``, under which a gold that fails agrees with any rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from intercode.episode import Score

Answer = list[Any] | str | None
"""What a statement gave: rows, the text of an error, or None if it has no result. Rows are
tuples; only their text counts."""
Version = Literal["released", "early", "first"]
VERSIONS: tuple[Version, ...] = ("released", "early", "first")


@dataclass(frozen=True, slots=True)
class Rewards:
    """One answer's reward under each version."""

    released: float
    early: float
    first: float

    def of(self, version: Version) -> float:
        """The reward under one version."""
        value: float = getattr(self, version)
        return value


def rewards(answer: Answer, gold: Answer) -> Rewards:
    """All versions of the reward.

    Args:
        answer: What the agent's last action gave. Anything but rows is worth nothing.
        gold: What gold gave, just now. A gold that failed counts as one without rows.
    """
    if not isinstance(answer, list):
        return Rewards(0.0, 0.0, 0.0)
    failed = isinstance(gold, str)
    ours = [str(row) for row in answer]
    theirs = [str(row) for row in gold] if isinstance(gold, list) else []
    common = Counter(ours) & Counter(theirs)
    overlap = _overlap(Counter(ours), Counter(theirs))
    tau = _tau(_kept(ours, common), _kept(theirs, common)) if common else math.nan
    # Rounded as numpy does: -0.95 · 0.5 becomes -0.48, where Python's own gives -0.47.
    scaled = overlap if math.isnan(tau) else float(numpy.round(tau * overlap, 2))
    return Rewards(scaled, overlap, 1.0 if failed else overlap)


def score(answer: Answer, gold: Answer, version: Version = "released") -> Score:
    """The reward, with the 2023 ``info`` as its detail."""
    every = rewards(answer, gold)
    failed = isinstance(gold, str)
    info = {
        "agent_obs": str(answer),
        "eval_obs": str(gold if isinstance(gold, list) else []),
        "corrupt_gold": failed,
        "reward": every.of(version),
    }
    return Score(every.of(version), {"overlap": every.early}, info)


def _overlap(ours: Counter[str], theirs: Counter[str]) -> float:
    union = sum((ours | theirs).values())
    return sum((ours & theirs).values()) / union if union else 1.0


def _kept(rows: Iterable[str], common: Counter[str]) -> list[str]:
    """The rows that both sides have, in this side's order; the first ones of repeated rows."""
    left = Counter(common)
    kept = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            kept.append(row)
    return kept


def _tau(one: Sequence[str], two: Sequence[str]) -> float:
    """Kendall's τ-b of two lists, pairing what stands at the same place; NaN if it has none.

    The steps of the last line are those of SciPy: another order of the operations would round
    another way.
    """
    pairs = sorted(zip(one, two, strict=True))
    total = len(pairs) * (len(pairs) - 1) // 2
    # Both lists hold the same rows, so that their ties are as many.
    tied, tied_twice = _ties(one), _ties(pairs)
    if tied == total:
        return math.nan
    concordant_less_discordant = (
        total - 2 * tied + tied_twice - 2 * _inversions([row for _, row in pairs])
    )
    tau = concordant_less_discordant / math.sqrt(total - tied) / math.sqrt(total - tied)
    return min(1.0, max(-1.0, tau))


def _ties(values: Iterable[object]) -> int:
    return sum(count * (count - 1) // 2 for count in Counter(values).values())


def _inversions(values: Iterable[str]) -> int:
    """How many pairs stand the wrong way round."""
    seen: list[str] = []
    count = 0
    for value in values:
        place = bisect_right(seen, value)
        count += len(seen) - place
        seen.insert(place, value)
    return count
