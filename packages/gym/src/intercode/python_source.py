"""Parser of Python source for several threads."""

from __future__ import annotations

import ast
import threading
import warnings

_parse_lock = threading.Lock()


def parse(source: str) -> ast.Module:
    """Parse Python source, without printing the parser's warnings.

    A lock admits one thread at a time, because CPython's threads share the parser's depth counter
    and the warning filters. In CPython 3.11, two concurrent calls can raise a SystemError.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: The source is not Python, or too deep.
    """
    with _parse_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
