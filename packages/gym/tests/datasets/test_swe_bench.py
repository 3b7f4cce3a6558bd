"""SWE-bench as its authors lay it out: small files of that layout, and a local mirror."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.swe_tasks import GOLD, TEST_PATCH, git, make_repository
from intercode import datasets
from intercode.envs.swe import SweEnv
from intercode.errors import TaskError


def rows(base: str) -> list[dict[str, Any]]:
    return [
        {
            "repo": "ann/calc",
            "instance_id": "ann__calc-1",
            "base_commit": base,
            "patch": GOLD,
            "test_patch": TEST_PATCH,
            "problem_statement": "add() subtracts.",
            "hints_text": "Turn the sign round.",
            "created_at": "2024-01-01T00:00:00Z",
            "version": "1.0",
            "FAIL_TO_PASS": '["tests/test_calc.py::CalcTest::test_add"]',
            "PASS_TO_PASS": '["tests/test_calc.py::CalcTest::test_double"]',
            "environment_setup_commit": base,
        }
    ]


def write(path: Path, data: list[dict[str, Any]]) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in data)
    path.write_text(lines if path.suffix == ".jsonl" else json.dumps(data))
    return path


@pytest.mark.parametrize("name", ["test.jsonl", "swe-bench-lite.json"])
def test_rows(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, rows("0" * 40))
    for root in (file, tmp_path):
        tasks = datasets.load("swe-bench", root=root)
        task = tasks["ann__calc-1"]
        assert (tasks.name, len(tasks)) == ("swe-bench", 1)
        assert (task.query, task.gold, task.tags) == ("add() subtracts.", (GOLD,), ("ann/calc",))
        assert (task.metadata["version"], task.metadata["test_timeout"]) == ("1.0", 1800.0)
        assert "Turn" not in json.dumps(task.to_dict())  # what was said later is no hint to give


def test_an_episode_from_a_mirror(tmp_path: Path) -> None:
    repository = tmp_path / "work"
    base = make_repository(repository)
    mirror = tmp_path / "mirror"
    (mirror / "ann").mkdir(parents=True)
    git(repository, "clone", "--quiet", "--mirror", ".", str(mirror / "ann" / "calc.git"))
    (tmp_path / "rows").mkdir()
    write(tmp_path / "rows" / "test.jsonl", rows(base))
    tasks = datasets.load("swe-bench-verified", root=tmp_path / "rows")
    for where in (mirror, f"file://{mirror}"):
        env = SweEnv(tasks, repositories=where)
        env.reset()
        for action in env.solution(tasks[0]):
            *_, info = env.step(action)
        assert info["success"]
        env.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: place, "there are 0"),
        (lambda place: write(place / "a.json", [{"repo": "x"}]), "row 1: field .* is missing"),
        (lambda place: write(place / "a.txt", []), "unknown format .txt"),
    ],
)
def test_malformed(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        datasets.load("swe-bench", root=make(tmp_path))
