"""A small repository with a bug, its fix in its later history, and tasks over it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from intercode.task import Task

CALC = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n"
FIXED = CALC.replace("a - b", "a + b  # the fix that nobody may see")
TESTS = """\
import unittest

import calc


class CalcTest(unittest.TestCase):
    def test_double(self):
        self.assertEqual(calc.double(2), 4)
"""
TEST_PATCH = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -6,3 +6,6 @@ import calc
 class CalcTest(unittest.TestCase):
     def test_double(self):
         self.assertEqual(calc.double(2), 4)
+
+    def test_add(self):
+        self.assertEqual(calc.add(1, 2), 3)
"""
GOLD = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
 
 
 def double(a):
"""  # noqa: W293
FILES = {
    "calc.py": CALC,
    "README.md": "# calc\n",
    "tests/__init__.py": "",
    "tests/test_calc.py": TESTS,
    "docs/x.txt": "x\n",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git as a person would, who is not just then in another repository (nor in its hook)."""
    settings = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "gc.auto=0"]
    done = subprocess.run(
        ["git", *settings, *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        check=True,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def make_repository(folder: Path, object_format: str = "sha1") -> str:
    """A repository whose history goes on after the base commit; that commit's name."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main", f"--object-format={object_format}")
    write(folder, FILES)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=Begin")
    write(folder, {"docs/x.txt": "y\n"})
    git(folder, "commit", "--quiet", "--all", "--message=More")
    base = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "v1")
    write(folder, {"calc.py": FIXED})
    git(folder, "commit", "--quiet", "--all", "--message=Fix add")
    git(folder, "tag", "-a", "v2", "--message=the fix")
    return base


def task(name: str = "add", runner: str = "pytest", **facts: Any) -> Task:
    """A task; the repository is in `facts`."""
    names = {
        "pytest": "tests/test_calc.py::CalcTest::test_{}",
        "unittest": "tests.test_calc.CalcTest.test_{}",
        "command": "python3 -m unittest tests.test_calc.CalcTest.test_{}",
    }
    name_of = names.get(runner, "{}")
    metadata = {
        "runner": runner,
        "base_commit": "v1",
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": [name_of.format("add")],
        "PASS_TO_PASS": [name_of.format("double")],
        **facts,
    }
    return Task(name, "add() subtracts.", (GOLD,), timeout=20.0, metadata=metadata)
