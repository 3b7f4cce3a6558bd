"""The numbers of a run, against numbers worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from intercode.episode import Episode, Score, Status, Turn
from intercode.evaluate.statistics import pass_at_k, pass_hat_k, pass_of_attempts, wilson
from intercode.evaluate.summary import (
    by_attempts,
    by_image_or_database,
    by_level,
    by_tag,
    by_turn,
    errors_by_type,
    spending_by_outcome,
    summarize,
)
from intercode.records import Outcome
from intercode.report.runs import compute_coverage


def outcome(
    reward: float | None, status: Status = "submitted", *tags: str, turns: int = 1, **more: Any
) -> Outcome:
    score, error = (None, "SandboxError: gone") if reward is None else (Score(reward), None)
    kind = Episode("t", "q", "bash", status=status, score=score, error=error).outcome
    made = Outcome("t", 0, status, reward, reward == 1.0, turns, 2.0, kind, tags=tags)
    return replace(made, **more)


def test_errors_are_no_zeros() -> None:
    stats = summarize(
        [
            outcome(1.0),
            outcome(0.5, "truncated", turns=3, invalid=2, unexecuted=1),
            outcome(0.0, "skipped"),
            outcome(None, "error", turns=9, invalid=9),
        ]
    )
    assert (stats.episodes, stats.errors, stats.successes) == (3, 1, 1)
    assert stats.success_rate == pytest.approx(1 / 3)
    assert stats.mean_reward == pytest.approx(0.5)
    assert stats.mean_turns == pytest.approx(5 / 3)
    counts = {kind: count for kind, count in stats.outcomes.items() if count}
    assert counts == {"solved": 1, "turn-limit": 1, "ended-by-agent": 1, "lost": 1}
    assert stats.error_rate == 0.25
    assert (stats.invalid_rate, stats.unexecuted_rate) == pytest.approx((2 / 5, 1 / 5))
    assert stats.reward_low is not None and stats.reward_low < 0.5


def test_nothing_has_no_rate() -> None:
    stats = summarize([outcome(None, "error")])
    assert stats.success_rate is stats.mean_reward is stats.success_low is None
    assert stats.invalid_rate is stats.cost is stats.clusters is None
    assert summarize([]).error_rate is None and by_turn([]) == by_attempts([]) == []


def test_one_episode_says_nothing_of_the_spread() -> None:
    stats = summarize([outcome(0.5)])
    assert stats.reward_low is stats.reward_high is None


def test_a_mean_reward_has_no_interval_outside_of_the_rewards_range() -> None:
    """But where a reward is negative, as in 2023's SQL, nothing is known of the range."""
    high = summarize([*[outcome(1.0)] * 9, outcome(0.4)])
    low = summarize([*[outcome(0.0)] * 9, outcome(0.6)])
    assert high.reward_high == 1.0 and high.reward_low is not None and high.reward_low > 0
    assert low.reward_low == 0.0 and low.reward_high is not None and low.reward_high < 1
    beyond = summarize([outcome(-1.0), outcome(0.0), outcome(0.6)])
    assert beyond.reward_low is not None and beyond.reward_low < -1


def test_tags_and_errors() -> None:
    outcomes = [outcome(1.0, "submitted", "a", "b"), outcome(0.0, "submitted", "b")]
    tags = by_tag(outcomes)
    assert list(tags) == ["b", "a"]
    assert (tags["a"].success_rate, tags["b"].success_rate) == (1.0, 0.5)
    assert errors_by_type([*outcomes, outcome(None, "error")]) == {"unknown": 1}


def test_attempts_at_one_task_say_nothing_of_the_others_of_its_tag() -> None:
    outcomes = [
        outcome(float(epoch > 0), "submitted", tag, task_id=task, epoch=epoch)
        for task, tag in (("1", "a"), ("2", "b"), ("3", "b"))
        for epoch in range(3)
    ]
    tags = by_tag(outcomes)
    assert tags["a"].success_rate == tags["b"].success_rate == pytest.approx(2 / 3)
    assert tags["a"].success_low is None and tags["b"].success_low is not None
    # Where nothing else was asked they tell of that task.
    assert by_tag(outcomes[:3])["a"].success_low == wilson(2, 3)[0]


def test_levels_are_in_their_order() -> None:
    outcomes = [outcome(0.0, "submitted", tag) for tag in ("hard", "x", "extra", "hard", "easy")]
    assert list(by_level(outcomes)) == ["easy", "hard", "extra"]
    assert by_level(outcomes)["hard"].episodes == 2


def test_databases_are_clusters() -> None:
    outcomes = [
        outcome(float(n < 10), task_id=str(n), place="one" if n < 10 else "two" if n < 15 else "x")
        for n in range(20)
    ]
    stats = summarize(outcomes)
    assert (stats.success_low, stats.success_high) == wilson(10, 20)
    assert stats.clusters == 3 and stats.few_clusters
    assert stats.clustered_low is not None and stats.success_low is not None
    assert stats.clustered_low < stats.success_low
    assert [s.episodes for s in by_image_or_database(outcomes).values()] == [10, 5, 5]
    # Nothing to tell: one for all, or one for each.
    assert summarize([replace(o, place="p") for o in outcomes]).clusters is None
    assert summarize([replace(o, place=o.task_id) for o in outcomes]).clusters is None


def test_several_attempts() -> None:
    solved = {"a": 3, "b": 1, "c": 0}
    outcomes = [
        outcome(float(epoch < count), task_id=task, epoch=epoch)
        for task, count in solved.items()
        for epoch in range(3)
    ]
    found = {a.k: a for a in by_attempts([*outcomes, outcome(None, "error", task_id="c")])}
    assert list(found) == [1, 2, 3]
    assert (found[1].pass_at_k, found[1].pass_hat_k) == pytest.approx((4 / 9, 4 / 9))
    assert found[2].pass_at_k == pytest.approx((1 + pass_at_k(3, 1, 2)) / 3)
    assert (found[3].pass_at_k, found[3].pass_hat_k) == pytest.approx((2 / 3, 1 / 3))
    assert by_attempts(outcomes[::3]) == []
    # Attempts at a task are alike: nine of them are not nine tasks.
    low = summarize(outcomes).success_low
    assert low is not None and low < wilson(4, 9)[0]


def test_success_by_turn() -> None:
    outcomes = [
        outcome(1.0, turns=1, solved_at=1),
        outcome(1.0, turns=3, solved_at=3),
        outcome(0.2, "truncated", turns=4),
        outcome(None, "error", turns=8),
    ]
    curve = by_turn(outcomes)
    assert [round(point.value, 3) for point in curve] == [0.333, 0.333, 0.667, 0.667]
    assert (curve[2].low, curve[2].high) == wilson(2, 3)
    assert len(by_turn(outcomes, 10)) == 10


def test_the_outcome_of_an_episode() -> None:
    turns = [
        Turn("cat", "?", ok=False, seconds=0.5),
        Turn("", "no code", ok=False, info={"executed": False}),
        Turn("ls", "a", reward=1.0, seconds=1.0),
        Turn("ls", "a", reward=1.0),
    ]
    episode = Episode("t", "q", "bash", turns=turns, status="submitted", score=Score(1.0))
    episode.metadata.update(tags=["count", "easy"], image="db")
    found = Outcome.from_episode(episode)
    assert (found.solved_at, found.invalid, found.unexecuted) == (3, 2, 1)
    assert found.action_seconds == 1.5
    assert (found.place, found.level, found.cost) == ("db", "easy", None)
    episode.turns = [replace(turn, reward=0.0) for turn in turns]  # rewarded at the end only
    assert Outcome.from_episode(episode).solved_at == 4
    episode.score = Score(0.99)
    assert Outcome.from_episode(episode).solved_at is None


def test_what_was_said_before_a_sandbox_died_was_paid_for() -> None:
    talk = {"input_tokens": 10, "output_tokens": 2, "cost": 0.5, "calls": [{"seconds": 1.0}]}
    episode = Episode("t", "q", "bash", metadata={"model": talk, "earlier": [talk, talk]})
    found = Outcome.from_episode(episode)
    assert (found.tokens_in, found.tokens_out, found.cost) == (30, 6, 1.5)
    assert found.model_seconds == 3.0
    named = Episode("t", "q", "bash", metadata={"model": "mine"})  # by an agent of one's own
    assert Outcome.from_episode(named).tokens_in is None
    episode.metadata["earlier"] = [{**talk, "cost": None}]  # of a price that nobody knows
    assert (
        Outcome.from_episode(episode).cost is None and Outcome.from_episode(episode).tokens_in == 20
    )


def test_where_it_went() -> None:
    found = spending_by_outcome(
        [
            outcome(1.0, turns=2, cost=0.25, tokens_in=10),
            outcome(0.0, turns=3, cost=0.5, invalid=2),
            outcome(None, "error", turns=1),
        ]
    )
    assert list(found) == ["solved", "not-solved", "lost"]
    assert (found["solved"].turns, found["solved"].cost, found["solved"].tokens_in) == (2, 0.25, 10)
    assert (found["not-solved"].invalid, found["not-solved"].tokens_in) == (2, None)
    assert found["lost"].cost is None


def test_coverage() -> None:
    manifest: dict[str, Any] = {
        "dataset": {"tasks": 10},
        "excluded": {"t1": "broken", "t2": "broken"},
        "sessions": [
            {"settings": {"limit": 2, "tasks": None, "epochs": 1}},
            {"settings": {"limit": None, "tasks": None, "epochs": 2}},
        ],
    }
    outcomes = [outcome(1.0), outcome(0.0), outcome(None, "error")]
    found = compute_coverage(manifest, outcomes)
    assert (found.planned, found.scored, found.errored, found.missing) == (16, 2, 1, 13)
    assert (found.excluded, found.coverage) == (2, 0.1)
    chosen = [{"settings": {"tasks": ["t0", "t1", "t3"], "limit": None, "epochs": 1}}]
    assert compute_coverage({**manifest, "sessions": chosen}, []).planned == 2
    assert compute_coverage({}, outcomes).coverage is None


# Forks


def forked(task: str, epoch: int, *wins: bool) -> list[Outcome]:
    return [
        outcome(float(win), task_id=task, epoch=epoch, branch=(n,), solved_at=1 if win else None)
        for n, win in enumerate(wins)
    ]


def test_forks_of_an_attempt_count_once() -> None:
    many = forked("a", 0, *([True] * 8))
    stats = summarize([*many, outcome(0.0, task_id="b"), outcome(0.0, task_id="c")])
    assert (stats.success_rate, stats.mean_reward) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert (stats.episodes, stats.successes) == (10, 8)
    assert by_turn([*many, outcome(0.0, task_id="b")])[0].value == pytest.approx(0.5)
    # The same as one episode with the mean of its forks, whatever their number.
    some = summarize([*forked("a", 0, True, False), *forked("b", 0, True, False, True, False)])
    assert some.success_rate == pytest.approx(0.5)


def test_forks_of_one_attempt_alone_tell_no_interval() -> None:
    stats = summarize(forked("a", 0, True, False, True))
    assert (stats.success_low, stats.success_high) == (0.0, 1.0)
    assert stats.reward_low is None


def test_forks_are_not_attempts() -> None:
    assert by_attempts(forked("a", 0, True, False)) == []
    two = by_attempts([*forked("a", 0, True, False), *forked("a", 1, False, False)])
    assert [(one.k, one.pass_at_k, one.pass_hat_k) for one in two] == [(1, 0.25, 0.25), (2, 0.5, 0)]


def test_pass_of_attempts_without_forks_is_that_of_2021() -> None:
    for n, c, k in [(5, 2, 1), (5, 2, 3), (5, 0, 2), (5, 5, 5), (10, 3, 8)]:
        at, hat = pass_of_attempts([1.0] * c + [0.0] * (n - c), k)
        assert at == pytest.approx(pass_at_k(n, c, k)) and hat == pytest.approx(pass_hat_k(n, c, k))


def test_intervals_cover_where_tasks_are_forked_unevenly() -> None:
    """Tasks differ, forks share a beginning, and hard tasks are forked more often."""
    dice = random.Random(5)
    truth, rounds = 0.5, 300
    covered = naive = 0
    for _ in range(rounds):
        outcomes = []
        for task in range(40):
            chance = dice.choice((0.2, 0.8))
            begun = chance + dice.choice((-0.2, 0.2))  # what the shared beginning has made of it
            count = 12 if chance < 0.5 and dice.random() < 0.7 else 1
            wins = [dice.random() < begun for _ in range(count)]
            outcomes += forked(f"t{task}", 0, *wins)
        found = summarize(outcomes)
        assert found.success_low is not None and found.success_high is not None
        covered += found.success_low <= truth <= found.success_high
        low, high = wilson(found.successes, found.episodes)
        naive += low <= truth <= high
    assert covered / rounds > 0.92
    assert naive / rounds < 0.1
