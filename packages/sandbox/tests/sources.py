"""The folders of the packages' sources, for processes that do not know them by themselves."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = tuple(sorted(ROOT.glob("packages/*/src")))


def source_of(name: str) -> Path:
    """Return a file of a package, by its name from the package on: ``intercode/task.py``."""
    return next(folder / name for folder in SOURCES if (folder / name).exists())
