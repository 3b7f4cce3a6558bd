"""The count of lines of code: ``scripts/lines``."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(REPOSITORY / "scripts" / "lines"))
PYTHON = '''"""A docstring
of two lines."""

import os  # with a comment
# a comment alone


def name(
    path: str,
) -> str:
    """A docstring."""
    text = """
    a value
    """
    return os.path.basename(path) + text
'''
C = """/* A comment
   of two lines. */
#include <stdio.h>

int main(void) { /* why */
  return 0; // and why
}
"""


def test_python_without_blank_lines_comments_and_docstrings() -> None:
    assert SCRIPT["python_lines"](PYTHON) == 8


def test_c_without_blank_lines_and_comments() -> None:
    assert SCRIPT["c_lines"](C) == 4


def test_the_repository_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not for an export: git lists the files")
    SCRIPT["main"](["--since", "HEAD", "scripts", "packages/sandbox/src/intercode_sandbox"])
    rows = capsys.readouterr().out.splitlines()
    assert any(
        "packages/sandbox/src/intercode_sandbox (all)" in row and " C " in row for row in rows
    )
