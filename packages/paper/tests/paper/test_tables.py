"""The tables of 2023: digit for digit from the recorded files, and from files like them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.errors import RecordError
from intercode_paper.paper_tables import SkippedResultsFile, rates, tables
from intercode_paper.results_files import load_results

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
    levels = [episode(0, [1.0], hardness="hard"), episode(1, [0.0], hardness="easy")]
    write(sql / "ic_sql_multiturn_m-1_turns.json", levels)
    write(sql / "ic_sql_multiturn_m_10_turns.json", [*levels, episode(2, [0, 1], hardness="easy")])
    write(sql / "ic_sql_plan_solve_10_turns.json", levels[:1])
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


def counts(folder: Path) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Successes and episodes of each experiment of a folder."""
    found = [one for one in rates(folder) if one.group == "all"]
    return {(r.env, r.model, r.strategy): (r.successes, r.episodes) for r in found}


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


def person(task: int, reward: float) -> dict[str, Any]:
    return {
        "environment": "ic_sql",
        "query_idx": task,
        "query": f"task {task}",
        "gold": "SELECT 1",
        "reward": reward,
        "trajectory": [{"action": "show tables;", "observation": "('t',)"}],
        "info": {"reward": reward},
    }


def test_every_kind_of_file_of_a_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two experiments are never pooled, and a file that cannot be read ends nothing."""
    results, solved, failed = tmp_path / "data/results", [episode(0, [1.0])], [episode(0, [0.0])]
    sql, bash, ctf = results / "sql/m", results / "bash/m", results / "ctf"
    for name, episodes in {
        "multiturn_m_10_turns": solved,
        "multiturn_m_10_turns_handicap": failed,
        "multiturn_m-1_turns": solved,
        "multiturn_m-1_turns_handicap": failed,
        "plan_solve": solved,
        "plan_solve_refine_3_turns": failed,
    }.items():
        write(sql / f"ic_sql_{name}.json", episodes)
    write(results / "sql/n/ic_sql_multiturn_n_1_turns.json", solved)
    people = {"7": person(7, 1.0), "3": person(3, 0.25)}
    (sql / "ic_sql_multiturn_human_10_turns.json").write_text(json.dumps(people))
    refined = episode(0, [1.0], dataset="./data/nl2bash/nl2bash_fs_1.json")
    write(bash / "ic_bash_plan_solve_fs_1.json", failed)
    write(bash / "ic_bash_plan_solve_fs_2.json", solved)
    write(bash / "ic_bash_plan_solve_refine_3_turns.json", [refined])
    write(results / "python/m/ic_python_multiturn_n_7_turns.json", solved)
    write(ctf / "ic_ctf_multiturn_n_10_turns.json", [*solved, episode(1, [0.0])])
    write(ctf / "ic_ctf_n_25_turns.json", solved)
    expected = {
        ("bash", "m", "Plan & Solve"): (1, 2),
        ("bash", "m", "Plan & Solve, refined"): (1, 1),
        ("ctf", "n", "try again, 10 turns"): (1, 2),
        ("ctf", "n", "try again, 25 turns"): (1, 1),
        ("python", "n", "try again"): (1, 1),
        ("sql", "human", "try again"): (1, 2),
        ("sql", "m", "single turn"): (1, 1),
        ("sql", "m", "single turn, handicap"): (0, 1),
        ("sql", "m", "try again"): (1, 1),
        ("sql", "m", "try again, handicap"): (0, 1),
        ("sql", "m", "Plan & Solve"): (1, 1),
        ("sql", "m", "Plan & Solve, refined"): (0, 1),
        ("sql", "n", "single turn"): (1, 1),
    }
    assert counts(tmp_path) == expected
    assert {r.group for r in rates(tmp_path) if "refined" in r.strategy} == {"all", "fs_1"}

    for name, text in {
        "sql/m/ic_sql_react_10_turns.json": "version https://git-lfs.github.com/spec/v1",
        "sql/o/ic_sql_multiturn_o_10_turns.json": json.dumps({"4": {"query": "q"}}),
        "sql/o/ic_sql_multiturn_o_10_turns_old.json": json.dumps({"0": solved[0]}),
        "sql/o/ic_sql_notes.json": "{}",
        # Another copy of an experiment; the one in its model's folder counts.
        "python/n/ic_python_multiturn_n_7_turns.json": json.dumps({"0": solved[0]}),
    }.items():
        (results / name).parent.mkdir(exist_ok=True)
        (results / name).write_text(text)
    write(tmp_path / "data/sql/ic_sql_dev.json", solved)  # tasks, not results
    assert main(["report", "--paper", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "m, try again, handicap" in shown.out
    unknown = "its name is not that of a recorded run (ic_ENV_…)"
    assert shown.err.splitlines() == [
        f"intercode: skipped {results / name}: {reason}"
        for name, reason in {
            "python/m/ic_python_multiturn_n_7_turns.json": "its episodes are of the same "
            f"experiment as {results / 'python/n/ic_python_multiturn_n_7_turns.json'}",
            "sql/m/ic_sql_react_10_turns.json": "not JSON: Expecting value: line 1 column 1 "
            "(char 0)",
            "sql/o/ic_sql_multiturn_o_10_turns.json": "episode '4': Object missing required "
            "field `turn_history`",
            "sql/o/ic_sql_multiturn_o_10_turns_old.json": unknown,
            "sql/o/ic_sql_notes.json": unknown,
        }.items()
    ]
    assert main(["report", "--paper", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["skipped"]) == 5 and set(told["skipped"][0]) == {"path", "reason"}
    assert counts(tmp_path) == expected


@needs_upstream
def test_a_part_of_the_release_is_read_whole() -> None:
    skipped: list[SkippedResultsFile] = []
    found = rates(UPSTREAM, skipped.append)
    assert not skipped
    assert sum(r.episodes for r in found if r.group == "all" and r.strategy != "single turn") == (
        len([e for path in (UPSTREAM / "data/results").rglob("*.json") for e in episodes_of(path)])
        - 1034  # the single turn of SQL has a file of its own
    )


def episodes_of(path: Path) -> Any:
    return load_results(path).episodes


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
