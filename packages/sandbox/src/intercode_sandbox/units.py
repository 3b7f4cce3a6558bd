"""Sizes, times and counts as people write them, and the limits that are written so.

`LIMITS` says once for all sources (Python, ``intercode.toml``, a task, the command line) which
values a limit of `intercode.Limits` may have. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

from intercode_sandbox.capabilities import named

LONGEST_SECONDS = 1e6
"""The longest time limit there is."""
MIB = 1024**2

_UNITS = {"": 1, "K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, of which the plural has an s.

    >>> counted(1, "task"), counted(0, "task")
    ('1 task', '0 tasks')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def abbreviated(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many others there are.

    >>> abbreviated(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def size(value: object, least: int = 1) -> int:
    """Return a number of bytes, written as ``512M``, ``1GiB`` or ``1000000``.

    Raises:
        ValueError: The value is not a size, or is below the least one. Its message begins with
            "must", as do those of the others.
    """
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    found = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if match is None or found < 1:
        raise ValueError(f"must be a size such as 512M or 1G, not {value!r}")
    if found < least:
        larger = (unit for unit in "MGT" if float(match[1]) * _UNITS[unit] >= least)
        raise ValueError(
            f"must be at least {short(least)}, and {value} is {found:,} bytes; "
            f"did you mean {match[1]}{next(larger, 'T')}?"
        )
    return found


def short(count: int) -> str:
    """Return bytes in the largest unit that divides them: ``32M``."""
    unit = next(unit for unit in "TGMK " if count % _UNITS[unit.strip()] == 0)
    return f"{count // _UNITS[unit.strip()]}{unit}".strip()


def seconds(value: object) -> float:
    """Return a time limit in seconds, also from a text, with or without an ``s``.

    Raises:
        ValueError: The value is not a time that can be waited for.
    """
    found = math.nan
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", value.strip().rstrip("s"))
        found = float(match[0]) if match else math.nan
    elif isinstance(value, Real) and not isinstance(value, bool):
        found = float(value)
    if not 0 < found <= LONGEST_SECONDS:
        most = f"{LONGEST_SECONDS:.0f}"
        raise ValueError(f"must be a number of seconds, above 0 and at most {most}, not {value!r}")
    return found


def whole(value: object, least: int = 1) -> int:
    """Return a whole number.

    Raises:
        ValueError: The value is not one, or is below the least one.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"must be a whole number, at least {least}, not {value!r}")
    return int(value)


LIMITS: Mapping[str, Callable[[object], Any]] = {
    "timeout": seconds,
    # Python's interpreter and its grader start with 28 MiB, Bash with 20 (measured).
    "memory": partial(size, least=32 * MIB),
    "disk": partial(size, least=MIB),
    "output": size,
    "processes": whole,
    "files": partial(whole, least=64),
    "open_files": partial(whole, least=512),  # for a shell
    "capabilities": named,
}
"""Limit → what reads and checks its value."""
