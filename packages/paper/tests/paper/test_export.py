"""Runs in the form of 2023's results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.episode import Episode, Turn
from intercode.records import MANIFEST, load_actions
from intercode_paper.paper_tables import rates
from intercode_paper.results_files import load_results
from report.test_export import ODD, episodes, export, run as run, write


def test_the_form_of_2023(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sql" / "mine" / "ic_sql_multiturn_mine_4_turns.json"
    path.parent.mkdir(parents=True)
    assert main(["export", str(run), "--to", "paper", "--out", str(path)]) == 0
    assert "4 episodes, 1 without a result left out" in capsys.readouterr().err
    found = {episode.task_id: episode for episode in load_results(path).episodes}
    assert list(found) == ["0", "1", "flag", "none"]
    assert {task for task, episode in found.items() if episode.success} == {"0", "flag"}
    assert [turn.reward for turn in found["0"].turns] == [0.0, 1.0]
    assert [turn.reward for turn in found["1"].turns] == [0.25, 0.5]
    assert found["0"].turns[1].action == f"cat 1 {ODD}"
    assert found["0"].turns[0].valid is False and found["0"].hardness == "hard"
    raw = json.loads(path.read_text())
    assert raw["1"]["task_id"] == 1 and raw["flag"]["task_id"] == "flag"
    assert raw["1"]["summary"] == {
        "max_reward": 0.5,
        "max_reward_idx": 1,
        "turns_taken": 2,
        "turns_max": 4,
    }
    actions = load_actions(path)
    assert actions["flag"][-1] == "submit flag{x}" and actions["none"] == ["skip"]
    whole = [rate for rate in rates(tmp_path) if rate.group == "all"]
    assert [(r.strategy, r.successes, r.episodes) for r in whole] == [
        ("single turn", 0, 4),
        ("try again", 2, 4),
    ]


def thinking(note: str) -> list[Episode]:
    """As a model that notes something at each of its calls leaves them."""
    found = episodes()[1:5]  # solved, truncated, with an answer, skipped at once
    found[0].turns.insert(1, Turn("", "no code", ok=False, info={"invalid": True}))
    for episode in found:
        calls = [{"turn": n, note: f"why {n}"} for n in range(len(episode.turns) + 1)]
        episode.metadata["model"] = {"calls": [*calls, {"turn": 9, "error": "BudgetError"}]}
    return found


def test_react_in_the_form_of_2023(tmp_path: Path) -> None:
    path = tmp_path / "ic_sql_react_4_turns.json"
    run = write(tmp_path, thinking("thought"))
    assert main(["export", str(run), "--to", "paper", "--out", str(path)]) == 0
    read = {episode.task_id: episode for episode in load_results(path).episodes}
    for episode in thinking("thought"):
        found = read[episode.task_id]
        assert found.react and found.max_reward == episode.reward
        assert found.thoughts == tuple(f"why {n}" for n in range(len(episode.turns) + 1))
        *turns, last = found.turns
        assert [turn.command for turn in turns] == [t.action or None for t in episode.turns]
        assert [turn.observation for turn in turns] == [t.observation for t in episode.turns]
        assert last.command is not None and last.command.startswith(("submit", "skip"))
        assert last.reward == episode.reward
    raw = json.loads(path.read_text())
    assert raw["0"]["turn_history"]["actions"][0] == f"execute[cat 0 {ODD}]"
    assert len({len(values) for values in raw["0"]["turn_history"].values()}) == 1
    assert [raw[task]["summary"]["turns_taken"] for task in ("0", "1")] == [4, 2]
    assert load_actions(path)["0"] == [f"cat 0 {ODD}", f"cat 1 {ODD}", "submit"]


def test_plan_and_solve_in_the_form_of_2023(tmp_path: Path) -> None:
    path = tmp_path / "ic_sql_plan_solve_4_turns.json"
    agent = {"name": "plan-solve-refine", "options": {}, "digest": ""}
    run = write(tmp_path, thinking("step"), agent=agent)
    assert main(["export", str(run), "--to", "paper", "--out", str(path)]) == 0
    recorded = load_results(path)
    assert recorded.meta == agent
    found = {episode.task_id: episode for episode in recorded.episodes}
    assert found["0"].thoughts == ("why 0", "why 1", "why 2") and not found["0"].react
    assert [turn.command for turn in found["1"].turns] == [f"cat {n} {ODD}" for n in (0, 1)]
    assert {task: e.max_reward for task, e in found.items()} == {
        "0": 1.0,
        "1": 0.5,
        "flag": 1.0,
        "none": 0.0,
    }


def test_several_attempts_at_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = episodes()[1]
    second.epoch = 1
    run = write(tmp_path, [episodes()[1], second])
    assert main(["export", str(run), "--to", "paper"]) == 2
    assert "--epoch N" in capsys.readouterr().err
    assert len(json.loads(export(capsys, run, "--to", "paper", "--epoch", 1))) == 1


def test_a_damaged_record(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged := tmp_path / "run").mkdir()
    (damaged / MANIFEST).write_text("[]")
    assert main(["export", str(damaged), "--to", "paper", "--out", str(tmp_path / "x.json")]) == 2
    assert f"{damaged / MANIFEST} is not a JSON object" in capsys.readouterr().err
