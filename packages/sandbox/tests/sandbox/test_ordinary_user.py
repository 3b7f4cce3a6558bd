"""The suite once more as an ordinary user, where the tests run as root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ordinary import ordinary_user

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user anyway")
@pytest.mark.timeout(900)  # it is hundreds of tests
def test_the_suite_passes_as_an_ordinary_user() -> None:
    with ordinary_user() as user:
        home = user.home
        pytest_arguments = (
            *("-q", "-m", "ordinary", "-p", "no:cacheprovider", "--basetemp", f"{home}/pytest"),
            *(str(TESTS / "sandbox"), str(TESTS / "interpreters")),
        )
        done = subprocess.run(
            [
                *user.prefix,
                *(sys.executable, "-m", "pytest", *pytest_arguments),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "INTERCODE_CACHE": f"{home}/cache",
                "HYPOTHESIS_STORAGE_DIRECTORY": f"{home}/hypothesis",
                "PYTHONDONTWRITEBYTECODE": "1",
                # Where it is set, the same examples of the property-based tests every time.
                **{name: os.environ[name] for name in ("CI",) if name in os.environ},
            },
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 250, "most of them ran"
