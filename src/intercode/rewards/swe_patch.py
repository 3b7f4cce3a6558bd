"""Which files a unified diff touches. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HEADER = re.compile(r"(?:---|\+\+\+|rename from|rename to|copy from|copy to) (.+)")
_GIT = re.compile(r'diff --git (a/.+|"a/.+") (b/.+|"b/.+")')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def touched(patch: str) -> frozenset[str]:
    """The paths of a diff, without the ``a/`` and ``b/`` before them.

    Raises:
        ValueError: A path leads out of the folder that the diff is for.
    """
    paths = frozenset(_paths(patch))
    for path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"it changes {path!r}, which is not in the repository")
    return paths


def _paths(patch: str) -> Iterator[str]:
    old = new = 0  # lines of a hunk that are still to come: no header is among them
    for line in patch.split("\n"):
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
        elif match := _HUNK.match(line):
            old, new = (1 if count is None else int(count) for count in match.groups())
        elif match := _HEADER.match(line):
            prefixed = line.startswith(("---", "+++"))
            path = _unquoted(match[1] if match[1].startswith('"') else match[1].partition("\t")[0])
            if path != "/dev/null":
                yield re.sub(r"^[ab]/", "", path) if prefixed else path
        elif match := _GIT.match(line):
            yield from (_unquoted(name)[2:] for name in match.groups())


def _unquoted(name: str) -> str:
    """A file's name, as git writes it: with anything unusual in it, quoted as in C."""
    if not name.startswith('"'):
        return name
    inner = name[1:].rpartition('"')[0].encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_character, inner).decode("utf-8", "surrogateescape")


def _character(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPES.get(code, code)
