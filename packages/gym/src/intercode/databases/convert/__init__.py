"""Databases from one form into another: dumps, scripts, files; schemas between engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from intercode.syntax import quoted

Progress = Callable[[str], None]
"""Called with a line about work that takes long, or about a part that is left out."""


def join_quoted(names: Iterable[str]) -> str:
    """Return names for SQLite, quoted, with commas between."""
    return ", ".join(map(quoted, names))
