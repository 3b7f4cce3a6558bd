"""Syntax helpers: quoting of SQL names, and parsing of Python source."""

from __future__ import annotations

import ast
import threading
import warnings

_parse_lock = threading.Lock()


def parse(source: str) -> ast.Module:
    """Parse Python source, without its warnings on InterCode's terminal.

    A lock admits one thread at a time: CPython shares the depth counter of the parser and the
    warning filters among threads. Two concurrent calls can raise a SystemError (in 3.11).

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: The source is not Python, or too deep.
    """
    with _parse_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def quote_identifier(name: str, quote: str = '"') -> str:
    """Quote a name for SQL with the standard's ``"`` or MySQL's backtick, or a text with ``'``."""
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"
