"""The SWE environment: resets of a small and of a large repository, and a grading."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import intercode
from episodes import play
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
    """Episodes of a look at the repository, and scoring by one test."""
    with tempfile.TemporaryDirectory() as place, patch.dict(os.environ, INTERCODE_CACHE=place):
        return [
            row
            for name, limit in (("small", 10), ("100 MB", 20))
            for row in episodes(Path(place, name), name, limit)
        ]


def episodes(folder: Path, name: str, limit: float) -> list[Row]:
    repository(folder, large=name != "small")
    metadata = {
        "repository": str(folder),
        "base_commit": "HEAD",
        "runner": "unittest",
        "FAIL_TO_PASS": ["test_calc.Case.test_add"],
    }
    tasks = Dataset([Task("calc", "?", timeout=60.0, metadata=metadata)])
    with closing(intercode.make("swe", data=tasks)) as env:
        first = median_ms(env.reset, 1)
        found = play(f"swe, {name}", env, "git status --short", "submit", 0.0, 10)
    return [Row(f"swe, {name}: preparing the repository", first, "ms")] + [
        below(figure, ms, limit, "ms") if figure.endswith("reset") else Row(figure, ms, "ms")
        for figure, ms in found.items()
    ]
