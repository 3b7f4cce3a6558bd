"""Conversion of database content (dumps, scripts, files) and of schemas between engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from intercode.sql_identifiers import quote_identifier

ViewT = TypeVar("ViewT")
Progress = Callable[[str], None]
"""Function that is called with a line of text about slow work, or about an omitted part."""


def join_quoted(names: Iterable[str]) -> str:
    """Return names, quoted for SQLite and separated by commas."""
    return ", ".join(map(quote_identifier, names))


def make_views(views: Iterable[ViewT], make: Callable[[ViewT], str | None]) -> dict[ViewT, str]:
    """Create views of which some may read later ones; return the errors of the failed views.

    Failed views are tried again until no view of a pass succeeds. Each pass is in the reverse order
    of the pass before it, so a long chain in either order needs few passes.

    Args:
        views: The views.
        make: A function that creates a view and returns the error, or None for success.
    """
    pending_views = list(views)
    while True:
        results = {view: make(view) for view in pending_views}
        problems = {view: problem for view, problem in results.items() if problem is not None}
        if len(problems) == len(results):
            return problems
        pending_views = [*reversed(problems)]
