"""Syntax of the languages that InterCode writes and reads: SQL names, Python source."""

from __future__ import annotations

import ast
import threading
import warnings

_parse_lock = threading.Lock()


def parse(source: str) -> ast.Module:
    """Parse Python source; its warnings are not for our terminal.

    One thread at a time: CPython counts the depth of a syntax tree, and keeps the filters of
    warnings, once for all threads. Two that parse at once can end with a SystemError (in 3.11).

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: The source is not Python, or too deep.
    """
    with _parse_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def quoted(name: str, mark: str = '"') -> str:
    """Quote a name, or with ``'`` a text, for SQL: standard SQL's mark, or MySQL's backtick."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"
