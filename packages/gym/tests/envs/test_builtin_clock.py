"""Gold and second solutions of bundled tasks: by two users, in two time zones, on two days."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ordinary import ordinary_user

PROGRAM = Path(__file__).with_name("builtin_at.py")


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the moved clock")
@pytest.mark.parametrize(
    ("ordinary", "seconds", "zone"), [(False, 86400, "ODD-13:45"), (True, 40 * 86400, "ODD+11")]
)
def test_solutions_are_worth_all_at_any_time(ordinary: bool, seconds: int, zone: str) -> None:
    with ordinary_user() as user:
        argv = [sys.executable, str(PROGRAM), "5", str(seconds), zone]
        done = subprocess.run(
            [*user.prefix, *argv] if ordinary else argv,
            env={**user.env, "TZ": zone},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
