"""With a skill against without it: the example helps in some tasks and hurts in others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from intercode.cli.main import main
from intercode.records import read_episodes
from sources import ROOT

EXAMPLES = ROOT / "examples/skills"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs without the skill and with it."""
    out = tmp_path_factory.mktemp("sweep")
    assert main([*command(out), "--workers", "2"]) == 0
    return out


def command(out: Path) -> list[str]:
    model = ["--model", f"scripted/{EXAMPLES / 'model.jsonl'}"]
    both = ["--skill", "none", "--skill", str(EXAMPLES / "ledger-totals")]
    where = ["sweep", str(EXAMPLES / "ledgers"), "--agent", "try-again", "noop"]
    return [*where, *model, *both, "--quiet", "--out", str(out)]


def episodes(sweep: Path, end: str) -> dict[str, Any]:
    (run,) = sweep.glob(f"*{end}")
    return {episode.task_id: episode for episode in read_episodes(run / "episodes.jsonl")}


def compared(sweep: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*command(sweep), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    return dict(found)


def test_each_is_a_run_and_an_agent_without_a_model_is_run_once(sweep: Path) -> None:
    names = sorted(run.name.rpartition("model.jsonl-")[2] for run in sweep.iterdir())
    assert names == ["ledgers-noop", "no-skill", "with-ledger-totals"]


def test_it_helps_where_it_fits_and_hurts_where_it_does_not(sweep: Path) -> None:
    before, after = episodes(sweep, "no-skill"), episodes(sweep, "with-ledger-totals")
    seen = {
        (task.rpartition("-")[0], bool(before[task].success), bool(after[task].success))
        for task in before
    }
    assert seen == {
        ("house", False, True),
        ("abroad", True, False),
        ("round", True, True),
        ("mixed", False, False),
    }
    assert all(after[task].turns[0].action.startswith("cat /skills/") for task in after)
    assert not any("/skills/" in turn.action for e in before.values() for turn in e.turns)


def test_the_comparison_is_what_scipy_says(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(sweep, capsys)
    before, after = episodes(sweep, "no-skill"), episodes(sweep, "with-ledger-totals")
    one = [float(before[task].success) for task in before]
    other = [float(after[task].success) for task in before]

    assert found["tasks"] == len(before) == 24
    assert (found["first"], found["second"]) == (sum(one) / 24, sum(other) / 24)
    only_first = sum(a > b for a, b in zip(one, other, strict=True))
    only_second = sum(b > a for a, b in zip(one, other, strict=True))
    test = stats.binomtest(only_first, only_first + only_second)
    assert found["test"] == {
        "only_first": only_first,
        "only_second": only_second,
        "p": pytest.approx(test.pvalue),
    }
    agrees(found["difference"], one, other)

    for name, take in (
        ("tokens", lambda e: sum(e.metadata["model"][f"{k}_tokens"] for k in ("input", "output"))),
        ("turns", lambda e: len(e.turns)),
    ):
        first = [float(take(before[task])) for task in before]
        second = [float(take(after[task])) for task in before]
        spent = found[name]
        assert spent["tasks"] == 24
        assert spent["first"] == pytest.approx(sum(first) / 24)
        assert spent["second"] == pytest.approx(sum(second) / 24)
        agrees(spent["difference"], first, second)
    assert found["cost"] is None, "the price of a script is not known"


def agrees(found: dict[str, float], one: list[float], other: list[float]) -> None:
    """The paired difference, and its t interval."""
    assert found["value"] == pytest.approx((sum(other) - sum(one)) / len(one))
    if len({b - a for a, b in zip(one, other, strict=True)}) > 1:
        ends = stats.ttest_rel(other, one).confidence_interval(0.95)
        assert (found["low"], found["high"]) == pytest.approx((ends.low, ends.high))


def test_what_can_be_shown_has_the_power_that_is_promised(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exact test's, at the smallest difference, by all ways in which tasks may differ."""
    found = compared(sweep, capsys)
    n, differing, delta = found["tasks"], found["differing"], found["detectable"]
    power = 0.0
    for pairs in range(n + 1):
        for wins in range(pairs + 1):
            if stats.binomtest(wins, pairs).pvalue < 0.05 if pairs else False:
                chance = stats.binom.pmf(wins, pairs, (differing + delta) / (2 * differing))
                power += stats.binom.pmf(pairs, n, differing) * chance
    assert power == pytest.approx(0.8, abs=1e-4)
    assert found["needed"] <= n, "what was seen can be seen with so many"


def test_a_skill_that_no_agent_reads_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    skill = ["--skill", str(EXAMPLES / "ledger-totals")]
    assert main(["sweep", "bash", "--agent", "noop", "oracle", *skill, "--limit", "1"]) == 2
    assert "none reads a skill" in capsys.readouterr().err


def test_people_are_told_both(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(command(sweep)) == 0
    told = capsys.readouterr().out
    assert "Task by task: bash · ledgers" in told
    assert "Consumption per task: bash · ledgers" in told
    assert "with ledger-totals" in told
