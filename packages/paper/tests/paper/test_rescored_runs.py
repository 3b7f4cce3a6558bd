"""Rescored runs of a release that is made here, and the page of results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from intercode.cli.main import main
from intercode.errors import RecordError, UsageError
from intercode_paper.rescored_runs import GradeChange, GradeCounts, RescoredRun
from intercode_paper.rescored_runs_report import (
    BEGIN,
    END,
    RowsFile,
    merge,
    page_text,
    read_rows,
    tables,
    write_page,
)
from sources import ROOT

ROWS = ROOT / "benchmarks/results/recorded-2023.json"
PAGE = ROOT / "docs/results.md"
SCHEMA = """\
CREATE DATABASE IF NOT EXISTS `zoo`;
USE `zoo`;
CREATE TABLE `animal` (`id` int NOT NULL, `name` varchar(9), PRIMARY KEY (`id`)) ENGINE=InnoDB;
INSERT INTO `animal` VALUES (1,'Zoe'),(2,'Abe'),(3,'Bob');
"""
GOLD = "SELECT name FROM animal"


def episode(row: int, query: str, turns: list[tuple[str, float]], **fields: Any) -> dict[str, Any]:
    """An episode in the format of 2023."""
    actions, rewards = (list(column) for column in zip(*turns, strict=True))
    history = {"actions": actions, "observations": ["x"] * len(turns), "rewards": rewards}
    summary = {"max_reward": max(rewards)}
    return {"task_id": row, "query": query, "turn_history": history, "summary": summary, **fields}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A checkout with three SQL tasks, two Python tasks, and the runs of two models."""
    root = tmp_path / "release"
    tasks = [
        {"query": "Names?", "gold": GOLD, "db": "zoo", "hardness": "easy"},
        {"query": "How many?", "gold": "SELECT COUNT(*) FROM animal", "db": "zoo"},
        {"query": "Sorted names?", "gold": f"{GOLD} ORDER BY name", "db": "zoo"},
    ]
    write(root / "data/sql/spider/ic_spider_dev.json", tasks)
    (root / "data/sql/spider/ic_spider_dbs.sql").write_text(SCHEMA)
    queries = [str(task["query"]) for task in tasks]
    results = root / "data/results"
    strong = [
        episode(0, queries[0], [("SELECT 1", 0.0), (f"{GOLD} ORDER BY id DESC", 0.5)]),
        episode(1, queries[1], [("SELECT 3", 1.0)]),
        episode(2, queries[2], [(f"{GOLD} ORDER BY name", 1.0)]),
    ]
    weak = [
        episode(0, queries[0], [("SELECT id FROM animal", 0.0)]),
        episode(1, queries[1], [("SELECT COUNT(id) FROM animal", 1.0), ("SELECT 9", 0.0)]),
    ]
    for model, episodes in (("strong", strong), ("weak", weak)):
        path = results / f"sql/{model}/ic_sql_multiturn_{model}_10_turns.json"
        write(path, {str(entry["task_id"]): entry for entry in episodes})
        one = results / f"sql/{model}/ic_sql_multiturn_{model}_1_turns.json"
        write(one, {"1": episodes[1]})
    # The release has no data of these, and the other runs are scored nevertheless.
    write(results / "bash/weak/ic_bash_multiturn_weak_10_turns_fs_1.json", {"0": weak[0]})
    write(results / "odd/m/ic_odd_multiturn_m_3_turns.json", {"0": weak[0]})
    return root


def rescored(release: Path, *options: str) -> int:
    return main(["replay", "--upstream", str(release), "--rescore", "--quiet", *options])


def test_each_run_is_graded_three_times(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    page.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    options = ["--engine", "sqlite", "--rows", str(rows), "--page", str(page)]
    assert rescored(release, *options) == 0
    shown = capsys.readouterr()
    assert "no grading exists for 'odd'" in shown.err and "weak_10_turns_fs_1.json: " in shown.err
    runs = {(run.model, run.strategy): run for run in read_rows(rows)}
    strong, weak = (runs[model, "try again"] for model in ("strong", "weak"))
    assert (strong.episodes, strong.recorded) == (3, 2)
    assert strong.source.endswith(", sqlite")
    assert strong.counts["2023"] == GradeCounts(2, 3, 2)
    # The order of the names is free, and the number is right on the original data only.
    assert strong.counts["default"] == GradeCounts(2, 3, 2)
    assert {(c.grading, c.kind, c.reason, c.episodes) for c in strong.changes} == {
        ("default", "gained", "rows in another order, which the query leaves open", 1),
        ("default", "lost", "right on the original data only", 1),
    }
    assert (weak.recorded, weak.counts["2023"]) == (1, GradeCounts(0, 2, 0))
    assert [(c.kind, c.reason) for c in weak.changes] == [
        ("lost", "solved before the last turn only")
    ]
    assert runs["weak", "single turn"].recorded == 1
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n") and text.endswith(f"{END}\n\nAfter.\n")
    assert (
        "SQL: success rate" in text and "old" not in text and "66.7 % (20.8 - 93.9 %) of 3" in text
    )
    assert "66.7 % (20.8 - 93.9 %) of 3" in shown.out


def test_python_and_ctf(release: Path, tmp_path: Path, provider: object) -> None:
    """2023 tests gold's name, and ignores capitals of a flag."""
    query, flag = "Double it.", "Find it."
    tests = ["assert double(1) == 2", "assert double('a') == 'aa'"]
    gold = "def double(x):\n  return 2 * x"
    write(
        release / "data/python/mbpp/ic_mbpp.json", [{"query": query, "gold": gold, "tests": tests}]
    )
    turns = [("def f(x):\n    return 3", 0.0), ("def f(x) x", 1.0)]
    run_file = release / "data/results/python/m/ic_python_multiturn_m_7_turns.json"
    write(run_file, {"0": episode(0, query, turns)})
    task = {"task_id": 0, "query": flag, "gold": "picoCTF{a}", "source": "made", "tags": ["x"]}
    write(release / "data/ctf/ic_ctf.json", [task])
    turns = [("ls", 0.0), ("submit picoCTF{A}", 1.0)]
    run_file = release / "data/results/ctf/m/ic_ctf_multiturn_m_10_turns.json"
    write(run_file, {"0": episode(0, flag, turns)})
    rows = tmp_path / "rows.json"
    for env in ("python", "ctf"):
        assert rescored(release, "--env", env, "--rows", str(rows)) == 0
    python, ctf = read_rows(rows)
    solved, failed = GradeCounts(1, 1, 1), GradeCounts(0, 1, 1)
    assert python.counts == {"2023": solved, "default": failed, "reviewed": failed}
    assert ctf.counts == {"2023": solved, "default": failed}
    for made in (python, ctf):
        ((grading, kind, episodes),) = [(c.grading, c.kind, c.episodes) for c in made.changes]
        assert (grading, kind, episodes) == ("default", "lost", 1)


def test_rows_of_other_runs_stay(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.json"
    folder = release / "data/results/sql"
    options = ["--engine", "sqlite", "--rows", str(rows), "--json"]
    for model in ("strong", "weak"):
        assert rescored(release, *options, "--results", str(folder / model)) == 0
    printed = [json.loads(text) for text in capsys.readouterr().out.split("\n{") if text[:1] == "{"]
    assert len(printed[0]["runs"]) == 2
    assert [(run.model, run.episodes) for run in read_rows(rows)] == [
        ("strong", 1), ("weak", 1), ("strong", 3), ("weak", 2),
    ]  # fmt: skip
    content = rows.read_bytes()
    assert rescored(release, *options, "--limit", "1") == 2
    assert "--limit would replace rows" in capsys.readouterr().err
    assert rows.read_bytes() == content


def test_a_missing_folder_of_rows_is_found_before_the_rescoring(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rescored(release, "--env", "bash", "--rows", str(tmp_path / "none/rows.json")) == 1
    assert "its folder is missing or not writable" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"episodes": 0},
        {"recorded": 101},
        {"counts": {"default": GradeCounts(101, 100)}},
        {"counts": {"default": GradeCounts(1, 100, 101)}},
        {"counts": {"default": GradeCounts(0, 0)}},
        {"counts": {"unknown": GradeCounts(1, 100)}},
        {"changes": [GradeChange("unknown", "lost", "reason", 1)]},
    ],
)
def test_impossible_rows_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    row = replace(run("a", 1, 1), **changes)
    file.write_bytes(msgspec.json.encode(RowsFile("rows", [row])))
    with pytest.raises(RecordError, match="not a row of rescored runs: bash, a"):
        read_rows(file)


def run(model: str, recorded: int, default: int, episodes: int = 100) -> RescoredRun:
    counts = {"default": GradeCounts(default, episodes)}
    return RescoredRun("bash", model, "try again", episodes, recorded, counts)


def test_the_order_of_models() -> None:
    runs = [run("a", 80, 20), run("b", 75, 60), run("c", 10, 10)]
    (order,) = [table for table in tables(runs) if table.title == "Order of models"]
    assert order.rows == (
        ("Bash, try again", "recorded", "a, b > c", "-"),
        ("Bash, try again", "default", "b > a, c", "1 of 3"),
    )


def test_a_new_run_replaces_the_earlier_one() -> None:
    assert merge([run("b", 1, 1), run("a", 1, 1)], [run("b", 2, 2)]) == [
        run("a", 1, 1),
        run("b", 2, 2),
    ]


def test_what_is_malformed_is_refused(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    with pytest.raises(RecordError, match="not a file of rescored runs"):
        read_rows(file)
    with pytest.raises(RecordError, match="cannot read"):
        read_rows(tmp_path / "none")
    unknown = ROWS.read_text().replace('"env": "bash"', '"env": "cobol"', 1)
    file.write_text(unknown)
    with pytest.raises(RecordError, match="not a row of rescored runs: cobol"):
        read_rows(file)
    with pytest.raises(UsageError, match="no place for tables"):
        write_page(file, [])
    assert main(["replay", "--rescore"]) == 2
    assert "--upstream DIR" in capsys.readouterr().err
    assert rescored(tmp_path, "--suite", "x") == 2
    assert "--rescore excludes" in capsys.readouterr().err
    assert rescored(release, "--env", "bash") == 2
    shown = capsys.readouterr().err
    assert "no run of bash that can be scored" in shown and shown.count("left out") == 1
    assert main(["replay", "--upstream", "x", "--results", "y", "--rows", "z"]) == 2
    assert "for --rescore" in capsys.readouterr().err
    assert main(["replay", "--upstream", "x"]) == 2
    assert "--results FILE" in capsys.readouterr().err


def test_the_page_has_the_tables_of_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    generated = text[text.index(BEGIN) : text.index(END) + len(END)]
    assert generated == page_text(read_rows(ROWS)), (
        "write the page again: intercode replay --rescore --rows … --page docs/results.md"
    )
