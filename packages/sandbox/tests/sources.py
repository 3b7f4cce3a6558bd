"""The folders of the packages' sources and tests, for processes that do not know them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[3]
"""The repository."""
SOURCES = tuple(sorted(ROOT.glob("packages/*/src")))
TESTS = (ROOT / "tests", *sorted(ROOT.glob("packages/*/tests")))
"""The folders from which tests import."""
TEST_PATH = os.pathsep.join(map(str, TESTS))
"""Their names, as ``PYTHONPATH`` has them."""


def source_of(name: str) -> Path:
    """Return a file of a package, by its name from the package on: ``intercode/task.py``."""
    return next(folder / name for folder in SOURCES if (folder / name).exists())


def path_of(name: str) -> Path:
    """Return a file or folder of tests, by its name from their folder on: ``sandbox/static``."""
    return next(folder / name for folder in TESTS if (folder / name).exists())
