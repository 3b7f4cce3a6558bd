"""Formats and parsers of sizes, times and counts, such as ``512M`` and ``30s``.

`LIMITS` defines the valid values of each limit of `intercode.Limits`. All sources of limits use it:
Python, ``intercode.toml``, a task, the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

from intercode_sandbox.linux_capabilities import parse_capabilities

LONGEST_SECONDS = 1e6
"""The longest possible time limit, in seconds."""
MIB = 1024**2

_UNITS = {"": 1, "K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def format_count(count: int, noun: str) -> str:
    """Return a number and its noun, with an s in the plural.

    >>> format_count(1, "task"), format_count(0, "task")
    ('1 task', '0 tasks')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def format_names(names: Sequence[str], max_names: int) -> str:
    """Return the first `max_names` names as a text, with the number of the remaining names.

    >>> format_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    remainder = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return f"{', '.join(names[:max_names])}{remainder}"


def size(value: object, minimum: int = 1) -> int:
    """Parse a number of bytes, written ``512M``, ``1GiB`` or ``1000000``.

    Raises:
        ValueError: The value is not a size, or is below `minimum`. The message begins with
            "must", like the messages of the other parsers.
    """
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    byte_count = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if match is None or byte_count < 1:
        raise ValueError(f"must be a size such as 512M or 1G, not {value!r}")
    if byte_count < minimum:
        sufficient_units = (unit for unit in "MGT" if float(match[1]) * _UNITS[unit] >= minimum)
        raise ValueError(
            f"must be at least {format_size(minimum)}, and {value} is {byte_count:,} bytes; "
            f"did you mean {match[1]}{next(sufficient_units, 'T')}?"
        )
    return byte_count


def format_size(byte_count: int) -> str:
    """Return a number of bytes as a text in the largest unit that divides it, such as ``32M``."""
    unit = next(unit for unit in "TGMK " if byte_count % _UNITS[unit.strip()] == 0)
    return f"{byte_count // _UNITS[unit.strip()]}{unit}".strip()


def seconds(value: object) -> float:
    """Parse a time limit in seconds: a number, or a text with or without an ``s``.

    Raises:
        ValueError: The value is not a time above 0 and at most `LONGEST_SECONDS`.
    """
    duration = math.nan
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", value.strip().rstrip("s"))
        duration = float(match[0]) if match else math.nan
    elif isinstance(value, Real) and not isinstance(value, bool):
        duration = float(value)
    if not 0 < duration <= LONGEST_SECONDS:
        upper_bound = f"{LONGEST_SECONDS:.0f}"
        raise ValueError(
            f"must be a number of seconds, above 0 and at most {upper_bound}, not {value!r}"
        )
    return duration


def whole_number(value: object, minimum: int = 1) -> int:
    """Validate and return a whole number.

    Raises:
        ValueError: The value is not a whole number, or is below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"must be a whole number, at least {minimum}, not {value!r}")
    return int(value)


def truth_value(value: object) -> bool:
    """Validate and return a truth value.

    Raises:
        ValueError: The value is neither True nor False.
    """
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


LIMITS: Mapping[str, Callable[[object], Any]] = {
    "timeout": seconds,
    # The measured minimum for Python's interpreter and its grader is 28 MiB; for Bash, 20 MiB.
    "memory": partial(size, minimum=32 * MIB),
    "disk": partial(size, minimum=MIB),
    "output": size,
    "processes": whole_number,
    "files": partial(whole_number, minimum=64),
    "open_files": partial(whole_number, minimum=512),  # a shell needs 512 descriptors
    "capabilities": parse_capabilities,
    "debugger": truth_value,
    "private": truth_value,
}
"""Name of a limit → the function that parses and validates its value."""
