"""What came of a run, in numbers. Pure functions of episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from intercode.episode import Episode, Status


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the statistics need to know of an episode; small enough to keep of each."""

    task_id: str
    epoch: int
    status: Status
    reward: float | None
    success: bool
    turns: int
    seconds: float
    error: str | None = None
    error_type: str | None = None
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, episode: Episode) -> Outcome:
        """The outcome of an episode."""
        return cls(
            task_id=episode.task_id,
            epoch=episode.epoch,
            status=episode.status,
            reward=episode.reward,
            success=episode.success,
            turns=len(episode.turns),
            seconds=episode.seconds,
            error=episode.error,
            error_type=episode.metadata.get("error_type"),
            tags=tuple(episode.metadata.get("tags", ())),
        )

    @property
    def failed(self) -> bool:
        """Whether there is no result: an error is counted apart, never as a reward of 0."""
        return self.status == "error"


@dataclass(frozen=True, slots=True)
class Statistics:
    """A summary of outcomes. Rates and means are over the scored episodes, None without any."""

    episodes: int
    """Episodes that have a result."""
    errors: int
    """Episodes that have none."""
    successes: int
    success_rate: float | None
    success_low: float | None
    """Lower end of the success rate's 95 % interval (Wilson)."""
    success_high: float | None
    """Upper end of it."""
    mean_reward: float | None
    mean_turns: float | None
    mean_seconds: float | None
    truncated: int
    """Scored episodes that ran out of turns."""
    skipped: int
    """Scored episodes that the agent gave up."""


def wilson(successes: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """The Wilson score interval of a proportion; by default the 95 % one."""
    if total == 0:
        return 0.0, 1.0
    p = successes / total
    scale = 1 + z * z / total
    centre = (p + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    # At p = 0 and p = 1 the ends are exact; rounding must not move them past.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return low, high


def summarize(outcomes: Iterable[Outcome]) -> Statistics:
    """The statistics of some outcomes."""
    everything = list(outcomes)
    scored = [outcome for outcome in everything if not outcome.failed]
    n = len(scored)
    successes = sum(outcome.success for outcome in scored)
    low, high = wilson(successes, n) if n else (None, None)
    return Statistics(
        episodes=n,
        errors=len(everything) - n,
        successes=successes,
        success_rate=successes / n if n else None,
        success_low=low,
        success_high=high,
        mean_reward=math.fsum(outcome.reward or 0.0 for outcome in scored) / n if n else None,
        mean_turns=sum(outcome.turns for outcome in scored) / n if n else None,
        mean_seconds=math.fsum(outcome.seconds for outcome in scored) / n if n else None,
        truncated=sum(outcome.status == "truncated" for outcome in scored),
        skipped=sum(outcome.status == "skipped" for outcome in scored),
    )


def by_tag(outcomes: Iterable[Outcome]) -> dict[str, Statistics]:
    """Tag → the statistics of the episodes whose task has it; most episodes first."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for tag in outcome.tags:
            groups.setdefault(tag, []).append(outcome)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return {tag: summarize(group) for tag, group in ordered}


def errors_by_type(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Kind of error → how many episodes ended by it."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.failed:
            kind = outcome.error_type or "unknown"
            counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items()))
