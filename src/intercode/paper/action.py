r"""How an action's text became a process in 2023: as a string pasted into a command line.

The text was put between double quotes after ``/bin/bash -c`` and the whole was split as a POSIX
shell would. So a double quote inside the action ends the quoting, what follows a space outside
quotes becomes ``$0``, ``$1``…, and a backslash before ``"`` or ``\`` is eaten. Gold goes the
same way.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

START = "/"
"""The directory in which an episode begins, and in which every ``cd`` is run."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one action makes the engine do."""

    argv: tuple[bytes, ...] | None
    """The process, or None: the text cannot be split, and nothing is run."""
    cwd: str
    """Where it is run."""
    enters: str | None = None
    """For a ``cd``: the directory of later actions, if this one exits with 0."""


def split(command: str) -> tuple[bytes, ...] | None:
    """The process of a command's text, or None for a text that is malformed.

    >>> split('echo "a b" c')
    (b'/bin/bash', b'-c', b'echo a', b'b c')
    >>> split('echo "') is None
    True
    """
    return words_of(f'/bin/bash -c "{command.strip()}"')


def words_of(line: str) -> tuple[bytes, ...] | None:
    """The process of a command line, or None for one that is malformed."""
    try:
        argv = shlex.split(line)
        words = tuple(word.encode("utf-8", "surrogateescape") for word in argv)
    except ValueError:  # unbalanced quotes; or a lone surrogate, which is not text either
        return None
    return None if any(b"\0" in word for word in words) else words


def resolve(current: str, path: str) -> str:
    """The directory that `path` names, seen from `current`: text only, nothing is looked up.

    >>> resolve("/testbed/dir1", "../dir2 && ls")
    '/testbed/dir2 && ls'
    """
    kept: list[str] = []
    for part in (path if path.startswith("/") else f"{current}/{path}").split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    return "/" + "/".join(kept)


Split = Callable[[str], "tuple[bytes, ...] | None"]
"""Makes a process of a command's text, or None of one that is malformed."""


def plan(action: str, cwd: str, split: Split = split) -> Call:
    """What `action` makes the engine do while `cwd` is the current directory."""
    if not action.startswith("cd"):
        return Call(split(action), cwd)
    path = resolve(cwd, action.partition("cd ")[2].strip())
    return Call(split(f"cd {path}"), START, enters=path)
