"""The SWE environment: resets of a small and of a large repository, and a grading."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import intercode
from floors import median_ms
from intercode.task import Dataset, Task
from rows import Row, below

FILES, BYTES = 2000, 50_000
"""Of the large one: 100 MB."""


def repository(folder: Path, large: bool) -> None:
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "test_calc.py").write_text(
        "import calc, unittest\n\n\nclass Case(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
    )
    for number in range(FILES if large else 0):
        path = folder / f"d{number % 40}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(BYTES))
    for command in ("init --quiet", "add --all", "commit --quiet --message=Begin"):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command.split()],
            cwd=folder,
            check=True,
        )


def issues() -> list[Row]:
    """Resets, the first look at the repository, and scoring by one test."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        os.environ["INTERCODE_CACHE"], before = place, os.environ.get("INTERCODE_CACHE")
        try:
            for name, limit in (("small", 10), ("100 MB", 20)):
                folder = Path(place, name)
                repository(folder, large=name != "small")
                rows += episodes(folder, name, limit)
        finally:
            del os.environ["INTERCODE_CACHE"]
            if before is not None:
                os.environ["INTERCODE_CACHE"] = before
    return rows


def episodes(folder: Path, name: str, limit: float) -> list[Row]:
    metadata = {
        "repository": str(folder),
        "base_commit": "HEAD",
        "runner": "unittest",
        "FAIL_TO_PASS": ["test_calc.Case.test_add"],
    }
    tasks = Dataset([Task("calc", "?", timeout=60.0, metadata=metadata)])
    env: Any = intercode.make("swe", data=tasks)
    resets: list[float] = []
    looks, scores = [], []
    with closing(env):
        first = median_ms(env.reset, 1)
        resets += [median_ms(env.reset, 1) for _ in range(40)]
        for _ in range(10):
            env.reset()
            looks.append(median_ms(lambda: env.step("git status --short"), 1))
            scores.append(median_ms(lambda: env.step("submit"), 1))
    return [
        Row(f"SWE, {name}: preparing the repository", first, "ms"),
        below(f"SWE, {name}: reset", median(resets), limit, "ms"),
        Row(f"SWE, {name}: the first git status", median(looks), "ms"),
        Row(f"SWE, {name}: scoring one unittest", median(scores), "ms"),
    ]
