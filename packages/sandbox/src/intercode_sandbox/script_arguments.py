"""Arguments of Bash for scripts of any length.

The kernel limits one argument of a program to 128 KiB. A longer script is passed by standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SHELL = ("/bin/bash", "--norc", "--noprofile", "-c")
"""A Bash without start-up files. The script is the next argument."""
_MAX_ARGUMENT_BYTES = 100_000
"""Maximum size in bytes of a script that is passed as an argument. The kernel's limit,
MAX_ARG_STRLEN, is 131,072."""
END = b"\0"
"""The byte that ends a long script, if standard input is a pipe that stays open."""
# This script reads the long script from standard input into REPLY, and evaluates it. The unset is
# on the first line of the evaluated text, so lines of the long script keep their numbers.
_READ = "IFS= read -rd ''; exec </dev/null; eval \"unset REPLY;$REPLY\""


class ScriptCommand(NamedTuple):
    """The command line of a shell that runs a script, and the shell's input."""

    argv: list[str]
    stdin: bytes | None
    """The script, if it is long; None: `argv` contains the script, and the input is empty."""


def script(text: str, *arguments: str, shell: Sequence[str] = SHELL) -> ScriptCommand:
    """Return the command line and the input by which a shell runs a script.

    The script's own standard input is empty.

    Args:
        text: The script.
        arguments: The script's ``$0``, ``$1`` and so on.
        shell: The shell, with the options before its script.
    """
    script_bytes = text.encode("utf-8", "surrogateescape")
    if len(script_bytes) <= _MAX_ARGUMENT_BYTES:
        return ScriptCommand([*shell, text, *arguments], None)
    return ScriptCommand([*shell, _READ, *arguments], script_bytes)
