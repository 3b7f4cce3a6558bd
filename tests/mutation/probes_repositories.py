"""Probes of repositories: whether an answer can be read in what an agent is given, unreported."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path

from intercode.envs.swe import SweEnv
from intercode.evaluate.gold_leaks import leaks
from intercode.evaluate.validate import validate
from intercode.task import Dataset, Task
from intercode_sandbox.images.base import SEARCH_PATH

from .tools import one_of

FULL = "def add(a, b):\n    return a + b\n"
STUB = "def add(a, b):\n    return None\n"
GOLD = "--- a/add.py\n+++ b/add.py\n@@ -2 +2 @@\n-    return None\n+    return a + b\n"
TESTS = (
    "import unittest\nfrom add import add\nclass T(unittest.TestCase):\n"
    "    def test_x(self):\n        self.assertEqual(add(1, 2), 3)\n"
    "    def test_y(self):\n        self.assertIsNone(None)\n"
)
READ = "a + b"
PYTHON = shutil.which("python3", path=SEARCH_PATH) or "python3"
"""That of the image ``host``."""


def _git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *settings, *arguments]
    subprocess.run(command, env=env, check=True, capture_output=True)


def _repository(folder: Path) -> Task:
    """Make a repository with the answer in its first commit, and a task at its second."""
    folder.mkdir()
    _git(folder, "init", "--quiet", "--initial-branch=main")
    Path(folder, "add.py").write_text(FULL)
    Path(folder, "test_x.py").write_text(TESTS)
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message=Write")
    Path(folder, "add.py").write_text(STUB)
    _git(folder, "commit", "--quiet", "--all", "--message=Leave a stub")
    facts = {"repository": str(folder), "base_commit": "main", "runner": "unittest",
             "FAIL_TO_PASS": ["test_x.T.test_x"]}  # fmt: skip
    return Task("t", "?", (GOLD,), metadata=facts)


def _shown(command: str, files: dict[str, str] | None = None) -> str:
    """Return the output of an agent's command; files, if given, are in the image."""
    with tempfile.TemporaryDirectory() as place:
        task = _repository(Path(place, "add"))
        image = _image(Path(place), files) if files else None
        with closing(SweEnv(Dataset([task]), image=image)) as env:
            env.reset()
            return "read" if READ in env.step(command)[0] else "not read"


def _image(place: Path, files: dict[str, str]) -> str:
    path = place / "image.tar"
    with tarfile.open(path, "w") as archive:
        for name, source in files.items():
            (place / "file").write_text(source)
            if name.endswith(".whl"):
                with zipfile.ZipFile(place / "wheel", "w") as wheel:
                    wheel.writestr("add.py", source)
                (place / "wheel").rename(place / "file")
            elif name.endswith(".pyc"):
                compile_ = "import py_compile, sys; py_compile.compile(sys.argv[1], sys.argv[2])"
                command = [PYTHON, "-c", compile_, str(place / "file"), str(place / "pyc")]
                subprocess.run(command, check=True)
                (place / "pyc").rename(place / "file")
            archive.add(place / "file", name)
    return f"host+{path}"


def commits_before_the_base() -> bool:
    return one_of(_shown("git show HEAD~1:add.py"), "not read", "read")


def objects_without_a_name() -> bool:
    command = "git cat-file --batch --batch-all-objects < /dev/null"
    return one_of(_shown(command), "not read", "read")


def repositories_of_an_image() -> bool:
    files = {"repo/.git/rr-cache/x/postimage": FULL}
    return one_of(_shown("cat .git/rr-cache/x/postimage", files), "not read", "read")


def _reported(history: str, files: dict[str, str] | None = None) -> bool:
    with tempfile.TemporaryDirectory() as place:
        task = _repository(Path(place, "add"))
        image = _image(Path(place), files) if files else None
        with closing(SweEnv(Dataset([task]), image=image, history=history)) as env:
            env.reset()
            return bool(leaks(task, env.workspace, image or "host", flags=False))


def fixes_in_objects() -> bool:
    return _reported("full")


def fixes_in_archives() -> bool:
    return _reported("none", {"opt/add-2-py3-none-any.whl": FULL})


def fixes_that_are_compiled() -> bool:
    return _reported("none", {"repo/__pycache__/add.cpython-311.pyc": FULL})


def tests_that_pass_before() -> bool:
    with tempfile.TemporaryDirectory() as place:
        task = _repository(Path(place, "add"))
        names = ["test_x.T.test_x", "test_x.T.test_y"]
        facts = {**task.metadata, "FAIL_TO_PASS": names}
        tasks = Dataset([Task("t", "?", task.gold, metadata=facts)])
        return not validate(tasks, lambda: SweEnv(tasks), timeout=60.0).valid
