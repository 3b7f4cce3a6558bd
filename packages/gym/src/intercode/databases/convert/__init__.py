"""Conversion of databases: dumps, scripts and files, and schemas between engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from intercode.syntax import quote_identifier

Progress = Callable[[str], None]
"""Called with a line of text about slow work, or about an omitted part."""


def join_quoted(names: Iterable[str]) -> str:
    """Return quoted names for SQLite, separated by commas."""
    return ", ".join(map(quote_identifier, names))
