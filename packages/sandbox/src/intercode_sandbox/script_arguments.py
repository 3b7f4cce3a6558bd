"""Bash scripts of any length: the kernel limits one argument to 128 KiB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SHELL = ("/bin/bash", "--norc", "--noprofile", "-c")
"""A Bash without start-up files; its script follows."""
_MAX_ARGUMENT_BYTES = 100_000
"""Maximum size in bytes of a script as an argument: the kernel's MAX_ARG_STRLEN is 131,072."""
END = b"\0"
"""The end of a long script in a pipe that stays open."""
# The variable is unset before the script begins, and lines keep their numbers.
_READ = "IFS= read -rd ''; exec </dev/null; eval \"unset REPLY;$REPLY\""


class Script(NamedTuple):
    """A program that runs a script, and the program's input."""

    argv: list[str]
    stdin: bytes | None
    """A long script; None: an empty input, with the script in `argv`."""


def script(text: str, *arguments: str, shell: Sequence[str] = SHELL) -> Script:
    """Return the program that runs a script with an empty input.

    Args:
        text: The script.
        arguments: ``$0``, ``$1`` and so on.
        shell: The shell, with the options before its script.
    """
    data = text.encode("utf-8", "surrogateescape")
    if len(data) <= _MAX_ARGUMENT_BYTES:
        return Script([*shell, text, *arguments], None)
    return Script([*shell, _READ, *arguments], data)
