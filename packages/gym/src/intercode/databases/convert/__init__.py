"""Conversion of database content (dumps, scripts, files) and of schemas between engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from intercode.sql_identifiers import quote_identifier

Progress = Callable[[str], None]
"""Function that is called with a line of text about slow work, or about an omitted part."""


def join_quoted(names: Iterable[str]) -> str:
    """Return names, quoted for SQLite and separated by commas."""
    return ", ".join(map(quote_identifier, names))
