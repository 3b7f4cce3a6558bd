"""Summaries of outcomes: statistics by group, turn and attempt, and the spending of episodes.

All are pure functions of `Outcome`. Episodes that ended in an error count in no mean, and in no
rate except the rate of errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from intercode.evaluate.statistics import IntervalEstimate, mean, pass_of_attempts, rate
from intercode.failure_modes import FAILURE_MODES
from intercode.outcomes import OUTCOMES, OutcomeKind
from intercode.records import LEVELS, Outcome

__all__ = ["Outcome", "Statistics", "by_tag", "summarize"]

Number = TypeVar("Number", int, float)

UNKNOWN = "unknown"
"""The group of episodes whose record stops before their end."""
_ATTEMPT_COUNTS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A summary of outcomes.

    Rates and means are over the scored episodes; None: no episode was scored. In the success rate
    and the mean reward, all forks of an attempt at a task count together as one episode.
    """

    episodes: int
    """Episodes with a result."""
    errors: int
    """Episodes without a result."""
    error_rate: float | None
    """Errors as a share of all episodes."""
    successes: int
    success_rate: float | None
    success_low: float | None
    """Lower end of the success rate's 95 % interval (Wilson's). Several attempts at a task are a
    cluster."""
    success_high: float | None
    """Upper end of the success rate's interval."""
    clusters: int | None
    """The number of images or databases of the episodes, which are the clusters. None: all episodes
    have the same image or database, or each episode has another."""
    clustered_low: float | None
    """Lower end of the success rate's 95 % interval with images or databases as clusters."""
    clustered_high: float | None
    few_clusters: bool
    """Whether the clustered interval is still likely to be too narrow."""
    mean_reward: float | None
    reward_low: float | None
    """Lower end of the mean reward's 95 % interval (Student's t). If all rewards are in [0, 1], the
    interval is limited to [0, 1]. None: all rewards are equal, or are too few for an interval."""
    reward_high: float | None
    mean_turns: float | None
    mean_seconds: float | None
    invalid_rate: float | None
    """The share of turns whose action failed or could not be executed."""
    unexecuted_rate: float | None
    """The share of turns whose action could not be executed, such as a reply without code."""
    outcomes: Mapping[OutcomeKind, int]
    """The number of episodes of each kind of `intercode.outcomes`, including those with errors."""
    restarts: int
    """Restarts of episodes after the loss of a sandbox."""
    permuted: int
    """Successes in SQL whose columns come in another order than gold's."""
    explained: int
    """Successes in SQL whose answer has a further, explanatory column."""
    hard_coded: int
    """Successes in SQL whose answer reads no table, although gold reads one."""
    tokens_in: int | None
    """Paid input tokens of all episodes, including those with errors; None: not recorded."""
    tokens_out: int | None
    cost: float | None
    """US dollars of all episodes, including those with errors; None: not recorded."""

    def remarks(self) -> list[str]:
        """Return remarks on the success rate, as sentences."""
        counts = {
            "Successes with columns in another order than gold's: {}.": self.permuted,
            "Successes with a further column that explains the answer: {}.": self.explained,
            "Successes by an answer that reads no table: {}.": self.hard_coded,
        }
        return [text.format(count) for text, count in counts.items() if count]


def summarize(outcomes: Iterable[Outcome]) -> Statistics:
    """Compute the statistics of outcomes, which may be empty."""
    all_outcomes = list(outcomes)
    scored_outcomes = [outcome for outcome in all_outcomes if not outcome.failed]
    n, turns = len(scored_outcomes), sum(outcome.turns for outcome in scored_outcomes)

    def share(amount: float, denominator: int) -> float | None:
        return amount / denominator if denominator else None

    return Statistics(
        episodes=n,
        errors=len(all_outcomes) - n,
        error_rate=share(len(all_outcomes) - n, len(all_outcomes)),
        successes=sum(outcome.success for outcome in scored_outcomes),
        **_intervals(scored_outcomes),
        mean_turns=share(turns, n),
        mean_seconds=share(math.fsum(outcome.seconds for outcome in scored_outcomes), n),
        invalid_rate=share(sum(outcome.invalid for outcome in scored_outcomes), turns),
        unexecuted_rate=share(sum(outcome.unexecuted for outcome in scored_outcomes), turns),
        outcomes={kind: sum(outcome.kind == kind for outcome in all_outcomes) for kind in OUTCOMES},
        restarts=sum(outcome.restarts for outcome in all_outcomes),
        permuted=sum(outcome.permuted and outcome.success for outcome in scored_outcomes),
        explained=sum(outcome.explained and outcome.success for outcome in scored_outcomes),
        hard_coded=sum(outcome.hard_coded and outcome.success for outcome in scored_outcomes),
        tokens_in=total(outcome.tokens_in for outcome in all_outcomes),
        tokens_out=total(outcome.tokens_out for outcome in all_outcomes),
        cost=total(outcome.cost for outcome in all_outcomes),
    )


def _intervals(scored_outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Estimate the success rate and the mean reward, with intervals.

    The success rate has a second interval, with images or databases as clusters.
    """
    clusters, attempts = _clusters(scored_outcomes), _attempts(scored_outcomes)
    weights = _weights(scored_outcomes)
    success, low, high = _value_and_bounds(_rate(scored_outcomes, attempts, weights))
    clustered_rate = _rate(scored_outcomes, clusters, weights) if clusters else None
    rewards = [outcome.reward or 0.0 for outcome in scored_outcomes]
    reward, reward_low, reward_high = _value_and_bounds(
        mean(rewards, attempts, weights) if scored_outcomes else None
    )
    # Equal rewards give an interval of length 0, which would wrongly claim certainty.
    if reward_low == reward_high:
        reward_low = reward_high = None
    elif (
        reward_low is not None
        and reward_high is not None
        and 0 <= min(rewards) <= max(rewards) <= 1
    ):
        reward_low, reward_high = max(0.0, reward_low), min(1.0, reward_high)
    _, clustered_low, clustered_high = _value_and_bounds(clustered_rate)
    return {
        "success_rate": success,
        "success_low": low,
        "success_high": high,
        "clusters": len(set(clusters)) if clusters else None,
        "clustered_low": clustered_low,
        "clustered_high": clustered_high,
        "few_clusters": clustered_rate is not None and clustered_rate.has_few_clusters,
        "mean_reward": reward,
        "reward_low": reward_low,
        "reward_high": reward_high,
    }


def by_tag(outcomes: Iterable[Outcome]) -> dict[str, Statistics]:
    """Map each tag to the statistics of its tasks' episodes; most episodes first."""
    return _summarize_groups(outcomes, lambda outcome: outcome.tags)


def by_level(outcomes: Iterable[Outcome]) -> dict[str, Statistics]:
    """Map each level of difficulty to the statistics of its episodes, the easiest level first."""
    statistics_by_level = _summarize_groups(
        outcomes, lambda outcome: [outcome.level] if outcome.level else []
    )
    return {level: statistics_by_level[level] for level in LEVELS if level in statistics_by_level}


def by_image_or_database(outcomes: Iterable[Outcome]) -> dict[str, Statistics]:
    """Map each image or database to the statistics of its episodes."""
    return _summarize_groups(outcomes, lambda outcome: [outcome.place] if outcome.place else [])


def errors_by_type(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Count the episodes that ended with each type of error."""
    kinds = Counter(outcome.error_type or "unknown" for outcome in outcomes if outcome.failed)
    return dict(sorted(kinds.items()))


def by_failure_mode(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Count the episodes with each failure mode, in the order of `FAILURE_MODES`."""
    counts = Counter(mode for outcome in outcomes for mode in outcome.modes)
    return {mode: counts[mode] for mode in FAILURE_MODES if counts[mode]}


def by_turn(outcomes: Iterable[Outcome], turns: int | None = None) -> list[IntervalEstimate]:
    """Estimate the success rate within one turn, within two, and so on.

    The estimate is not the rate under a lower limit: an agent that knows the limit may plan for it.

    Args:
        outcomes: The outcomes; outcomes with errors do not count.
        turns: The number of turns; default: the maximum of all episodes.

    Returns:
        One estimate for each number of turns, starting with 1; empty if no episode was scored.
    """
    scored_outcomes = [outcome for outcome in outcomes if not outcome.failed]
    if not scored_outcomes:
        return []
    clusters, weights = _attempts(scored_outcomes), _weights(scored_outcomes)
    last_turn = turns or max(outcome.turns for outcome in scored_outcomes)
    return [
        rate(
            [
                scored_outcome.solved_at is not None and scored_outcome.solved_at <= turn
                for scored_outcome in scored_outcomes
            ],
            clusters,
            weights,
        )
        for turn in range(1, max(1, last_turn) + 1)
    ]


@dataclass(frozen=True, slots=True)
class AttemptRates:
    """The rates of several attempts at each task."""

    k: int
    tasks: int
    """The number of tasks with at least `k` scored attempts; other tasks do not count."""
    pass_at_k: float
    pass_hat_k: float


def by_attempts(outcomes: Iterable[Outcome]) -> list[AttemptRates]:
    """Compute the means of pass@k and pass^k over the tasks, for several numbers `k` of attempts.

    The numbers are those of `_ATTEMPT_COUNTS` that some task reaches. The result is empty if each
    task has only one scored attempt.
    """
    forks: dict[str, dict[int, list[bool]]] = {}
    scored_outcomes = [outcome for outcome in outcomes if not outcome.failed]
    has_forks = _weights(scored_outcomes) is not None
    for attempt_index, outcome in enumerate(scored_outcomes):
        attempts = forks.setdefault(outcome.task_id, {})
        attempts.setdefault(outcome.epoch if has_forks else attempt_index, []).append(
            outcome.success
        )
    rates = [
        [sum(successes) / len(successes) for successes in task.values()] for task in forks.values()
    ]
    max_attempts = max(map(len, rates), default=0)
    attempt_rates = []
    for k in [k for k in _ATTEMPT_COUNTS if k <= max_attempts] if max_attempts > 1 else []:
        tasks = [pass_of_attempts(task, k) for task in rates if len(task) >= k]
        pass_at_mean, pass_hat_mean = (
            math.fsum(values) / len(tasks) for values in zip(*tasks, strict=True)
        )
        attempt_rates.append(AttemptRates(k, len(tasks), pass_at_mean, pass_hat_mean))
    return attempt_rates


def _rate(
    outcomes: Sequence[Outcome],
    clusters: Sequence[Hashable] | None,
    weights: Sequence[float] | None,
) -> IntervalEstimate | None:
    return rate([outcome.success for outcome in outcomes], clusters, weights) if outcomes else None


def _weights(outcomes: Sequence[Outcome]) -> list[float] | None:
    """Return weights with which the forks of an attempt together count as one; None: no forks."""
    attempts = Counter((outcome.task_id, outcome.epoch) for outcome in outcomes)
    # In an unfinished run, a fork may be the only recorded episode of its attempt, and then has the
    # weight of an attempt.
    if not any(outcome.branch for outcome in outcomes) or max(attempts.values()) == 1:
        return None
    return [1 / attempts[outcome.task_id, outcome.epoch] for outcome in outcomes]


def _value_and_bounds(
    estimate: IntervalEstimate | None,
) -> tuple[float | None, float | None, float | None]:
    if estimate is None:
        return None, None, None
    return estimate.value, _finite_value(estimate.low), _finite_value(estimate.high)


def _attempts(outcomes: Sequence[Outcome]) -> Sequence[Hashable] | None:
    """Return the cluster of each outcome, for intervals over several attempts at each task.

    The cluster is the outcome's task. If all outcomes are of one task and have forks, the cluster
    is the attempt.

    Returns:
        The clusters; None: the outcomes are independent, because each task has one outcome, or all
        are separate attempts at the same task.
    """
    tasks = [outcome.task_id for outcome in outcomes]
    if len(set(tasks)) == 1 and _weights(outcomes) is not None:
        return [outcome.epoch for outcome in outcomes]
    return None if len(set(tasks)) in (1, len(tasks)) else tasks


def _clusters(outcomes: Sequence[Outcome]) -> list[str] | None:
    clusters = [outcome.place for outcome in outcomes]
    return None if len(set(clusters)) in (0, 1, len(clusters)) else clusters


def _summarize_groups(
    outcomes: Iterable[Outcome], group_names: Callable[[Outcome], Iterable[str]]
) -> dict[str, Statistics]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for name in group_names(outcome):
            groups.setdefault(name, []).append(outcome)
    sorted_groups = sorted(
        groups.items(), key=lambda group_entry: (-len(group_entry[1]), group_entry[0])
    )
    tasks = len({outcome.task_id for group in groups.values() for outcome in group})
    return {name: _summarize_group(group, tasks) for name, group in sorted_groups}


def _summarize_group(outcomes: Sequence[Outcome], tasks: int) -> Statistics:
    """Summarize a group of outcomes, such as those of a tag.

    If the run has several tasks, but the group has several episodes of only one task, the intervals
    are None. Attempts at one task contain no information on similar tasks.

    Args:
        outcomes: The outcomes of the group.
        tasks: The number of tasks of all groups.
    """
    statistics = summarize(outcomes)
    if (
        statistics.episodes > 1
        and tasks > 1
        and len({outcome.task_id for outcome in outcomes}) == 1
    ):
        return replace(
            statistics, success_low=None, success_high=None, reward_low=None, reward_high=None
        )
    return statistics


def _finite_value(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class SpendingTotals:
    """The total turns, time in seconds and cost in US dollars of some episodes."""

    episodes: int
    turns: int
    invalid: int
    """Turns with an action that failed or could not be executed."""
    seconds: float
    action_seconds: float
    model_seconds: float
    tokens_in: int | None
    tokens_out: int | None
    cost: float | None


def spending_by_outcome(outcomes: Iterable[Outcome]) -> dict[str, SpendingTotals]:
    """Group the turns, time and cost of a run by the outcome of its episodes."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.kind or UNKNOWN, []).append(outcome)
    return {
        name: SpendingTotals(
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
        for name in (*OUTCOMES, UNKNOWN)
        if (group := groups.get(name))
    }


def total(values: Iterable[Number | None]) -> Number | None:
    """Sum the known values; None if all are unknown."""
    numbers = [value for value in values if value is not None]
    return sum(numbers[1:], numbers[0]) if numbers else None
