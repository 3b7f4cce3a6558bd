"""What must not change: all that is recorded in `recorded/` is as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest

from .__main__ import RECORDED

ROOT = Path(__file__).parents[2]
RENEW = "python -m tests.golden"
SUBJECTS = sorted(path.name for path in RECORDED.glob("*.json"))


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what would be recorded now."""
    folder = tmp_path_factory.mktemp("golden")
    # A process of its own: what other tests have registered or started is not in it.
    command = [sys.executable, "-m", "tests.golden", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("subject", SUBJECTS)
def test_as_recorded(now: Path, subject: str) -> None:
    recorded, found = ((folder / subject).read_text().splitlines() for folder in (RECORDED, now))
    diff = "\n".join(unified_diff(recorded, found, "recorded", "now", lineterm=""))
    assert not diff, f"{subject} is not as recorded; if that is meant: {RENEW}\n{diff}"


def test_every_package_has_a_list_of_public_names() -> None:
    names = json.loads((RECORDED / "names.json").read_text("utf-8"))
    modules = {path.parent.name for path in ROOT.glob("packages/*/src/*/__init__.py")}
    assert modules == {name.partition(".")[0] for name in names if name.startswith("intercode")}


def test_every_subject_is_recorded(now: Path) -> None:
    assert sorted(path.name for path in now.iterdir()) == SUBJECTS, f"renew with: {RENEW}"
