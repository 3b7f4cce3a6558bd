"""The tables of 2023: digit for digit from the recorded files, and from files like them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.errors import RecordError
from intercode.paper.tables import rates, tables

from .upstream import UPSTREAM, needs_upstream

# Success rate in percent and episodes, from the paper, of the files that were recorded whole.
PUBLISHED = {
    ("sql", "gpt-3.5", "single turn"): ("10.5", 1034),
    ("sql", "gpt-3.5", "try again"): ("47.3", 1034),
    ("sql", "gpt-3.5", "ReAct"): ("58.7", 1034),
    ("sql", "gpt-3.5", "Plan & Solve"): ("49.1", 1034),
    ("sql", "gpt-4", "single turn"): ("9.1", 1034),
    ("sql", "gpt-4", "try again"): ("73.7", 1034),
    ("bash", "gpt-3.5", "single turn"): ("34.5", 200),
    ("bash", "gpt-3.5", "try again"): ("46.5", 200),
    ("bash", "gpt-3.5", "ReAct"): ("20.5", 200),
    ("bash", "gpt-3.5", "Plan & Solve"): ("28.0", 200),
    ("bash", "gpt-4", "single turn"): ("34.0", 200),
    ("bash", "gpt-4", "try again"): ("48.5", 200),
}
COUNTED = {("python", "gpt-3.5"): (69, 117), ("python", "gpt-4"): (70, 119)}


@needs_upstream
def test_the_published_rates_digit_for_digit(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(r.env, r.model, r.strategy): r for r in rates(UPSTREAM) if r.group == "all"}
    checked = 0
    for key, (percent, episodes) in PUBLISHED.items():
        if key in found and found[key].episodes == episodes:
            assert f"{100 * found[key].value:.1f}" == percent, key
            checked += 1
    for (env, model), counts in COUNTED.items():
        if rate := found.get((env, model, "try again")):
            assert (rate.successes, rate.episodes) == counts
            checked += 1
    assert checked >= 1, "none of the files that are there is whole"
    assert main(["report", "--paper", str(UPSTREAM)]) == 0
    shown = capsys.readouterr().out
    for (env, model, strategy), rate in found.items():
        assert f"{env}: success rate" in shown
        [line] = [x for x in shown.splitlines() if x.startswith(f"{model}, {strategy}  ")][:1]
        assert line
        assert f"{rate.successes} of {rate.episodes}" in shown


def episode(task: int, rewards: list[float], **more: Any) -> dict[str, Any]:
    return {
        "task_id": task,
        "query": f"task {task}",
        "turn_history": {
            "actions": ["ls"] * len(rewards),
            "observations": ["x"] * len(rewards),
            "rewards": rewards,
        },
        "summary": {"max_reward": max(rewards)},
        **more,
    }


def write(path: Path, episodes: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({str(e["task_id"]): e for e in episodes}))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    bash, sql = tmp_path / "bash" / "m", tmp_path / "sql" / "m"
    write(bash / "ic_bash_multiturn_m_10_turns_fs_1.json", [episode(0, [0.1, 1.0])])
    write(
        bash / "ic_bash_multiturn_m_10_turns_fs_2.json",
        [episode(0, [1.0]), episode(1, [0.5]), episode(2, [0.5])],
    )
    write(bash / "ic_bash_multiturn_m_5_turns_fs_1.json", [episode(0, [0.0])])  # another experiment
    levels = [episode(0, [1.0], hardness="hard"), episode(1, [0.0], hardness="easy")]
    write(sql / "ic_sql_multiturn_m-1_turns.json", levels)
    write(sql / "ic_sql_multiturn_m_10_turns.json", [*levels, episode(2, [0, 1], hardness="easy")])
    write(sql / "ic_sql_plan_solve_10_turns.json", levels[:1])
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


def test_rates(release: Path) -> None:
    found = {(r.env, r.strategy, r.group): (r.successes, r.episodes) for r in rates(release)}
    assert found == {
        ("bash", "single turn", "all"): (1, 4),
        ("bash", "single turn", "fs_1"): (0, 1),
        ("bash", "single turn", "fs_2"): (1, 3),
        ("bash", "try again", "all"): (2, 4),
        ("bash", "try again", "fs_1"): (1, 1),
        ("bash", "try again", "fs_2"): (1, 3),
        ("sql", "single turn", "all"): (1, 2),
        ("sql", "single turn", "hard"): (1, 1),
        ("sql", "single turn", "easy"): (0, 1),
        ("sql", "try again", "all"): (2, 3),
        ("sql", "try again", "hard"): (1, 1),
        ("sql", "try again", "easy"): (1, 2),
        ("sql", "Plan & Solve", "all"): (1, 1),
        ("sql", "Plan & Solve", "hard"): (1, 1),
    }


def test_the_tables(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash, sql = tables(rates(release))
    assert [name for name, _ in sql.columns][1:4] == ["easy", "hard", "all"]
    assert bash.cells()[1][0] == "m, try again" and "the rest of 200" in bash.cells()[1][-1]
    assert sql.cells()[2][1] == "-"
    assert main(["report", "--paper", str(release), "--markdown"]) == 0
    assert "| m, try again | 100.0 % | 33.3 % | 50.0 % |" in capsys.readouterr().out
    assert main(["report", "--paper", str(release), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rates"][0]["success_rate"] == 0.25


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match="no recorded runs"):
        rates(tmp_path)
    (tmp_path / "ic_bash_react_10_turns_fs_1.json").write_text("[1]")
    with pytest.raises(RecordError, match=r"fs_1\.json: episode '0'"):
        rates(tmp_path)
    assert main(["report", "--paper", str(tmp_path), "--html", "x.html"]) == 2
    assert main(["report"]) == 2
    assert "--paper" in capsys.readouterr().err
