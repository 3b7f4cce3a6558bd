"""What ``git status --short`` in ``/`` says, from the changes of a sandbox: no git is run.

The 2023 images had a repository in ``/`` that tracked all but the system's directories. What git
does not see is not seen here: empty directories, times, owners, modes but for the executable
bit, sockets and pipes.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from intercode.sandbox.base import Change, FileType

_SYSTEM = """
bin boot dev etc home lib media opt proc root run sbin srv sys usr var .dockerenv
"""
IGNORED = frozenset(_SYSTEM.split())
"""Names in ``/`` that the images' ``.gitignore`` lists."""

Pair = tuple[str, str]
"""A path and its status, in the order in which the 2023 reward held them."""


@dataclass(frozen=True, slots=True)
class Index:
    """The tracked files of an image."""

    files: Mapping[str, tuple[FileType, bool]]
    """Path without the leading slash → its type, and whether its owner may execute it."""
    directories: frozenset[str] = field(init=False)
    """All directories with a tracked file in or below them."""

    def __post_init__(self) -> None:
        above = {d for path in self.files for d in parents(path)}
        object.__setattr__(self, "directories", frozenset(above))


def parents(path: str) -> list[str]:
    """The directories above a relative path, the highest first.

    >>> parents("a/b/c")
    ['a', 'a/b']
    """
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def seen_by_git(path: str) -> bool:
    """Whether git looks at a relative path at all."""
    parts = path.split("/")
    return parts[0] not in IGNORED and ".git" not in parts


def status(index: Index, changes: Iterable[Change]) -> list[tuple[str, str]]:
    """The lines of ``git status --short``: (code, path), paths unquoted, directories with ``/``.

    Args:
        index: What is tracked.
        changes: All that differs from the image of which `index` was made.
    """
    tracked: list[tuple[str, str]] = []
    untracked: set[str] = set()
    for change in changes:
        path = change.path.lstrip("/")
        if not seen_by_git(path):
            continue
        known = index.files.get(path)
        if known is None:
            shown = _shown(index, path)
            if shown and change.kind != "deleted" and change.type in ("file", "symlink"):
                untracked.add(shown)
        elif change.kind == "deleted" or change.type == "dir":
            tracked.append((" D", path))
        elif change.type in ("file", "symlink") and change.type != known[0]:
            tracked.append((" T", path))
        elif change.type != known[0] or change.content_changed or _executable(change) != known[1]:
            tracked.append((" M", path))
    return sorted(tracked, key=_by_path) + [("??", path) for path in sorted(untracked, key=_bytes)]


def _executable(change: Change) -> bool:
    """A symlink's mode is no mode to git."""
    return change.type == "file" and bool(change.mode & stat.S_IXUSR)


def _shown(index: Index, path: str) -> str | None:
    """How an untracked path is shown: as the highest directory that holds nothing tracked.

    Not at all, below a tracked file that became a directory.
    """
    for directory in parents(path):
        if directory in index.files:
            return None
        if directory not in index.directories:
            return directory + "/"
    return path


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _by_path(line: tuple[str, str]) -> bytes:
    return _bytes(line[1])


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def quoted(path: str) -> str:
    r"""A path as git's short format writes it: quoted as in C, if it must be.

    >>> quoted("Icon\r"), quoted("a b"), quoted("é"), quoted("a-b")
    ('"Icon\\r"', '"a b"', '"\\303\\251"', 'a-b')
    """
    escaped = "".join(
        f"\\{_ESCAPES[b]}" if b in _ESCAPES else chr(b) if 32 <= b < 127 else f"\\{b:03o}"
        for b in _bytes(path)
    )
    return f'"{escaped}"' if escaped != path or " " in path else path


def short(lines: Iterable[tuple[str, str]]) -> str:
    """The text that git prints."""
    return "".join(f"{code} {quoted(path)}\n" for code, path in lines)


def pairs(text: str) -> list[Pair]:
    r"""The text as the 2023 reward read it: split at whitespace, taken in twos.

    So a path with a space puts all that follows it out of step.

    >>> pairs(' M a.txt\n?? "b c"\n?? d\n')
    [('a.txt', 'M'), ('"b', '??'), ('??', 'c"')]
    """
    words = text.split()
    return [(path, code) for code, path in zip(words[::2], words[1::2], strict=False)]
