"""The effect of each turn on files, for the record: the difference of two looks at a sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from intercode.episode import FileChange, TurnChanges, decode
from intercode.errors import OutputLimitError
from intercode_sandbox.base import Change

FILES = 100
"""The most paths that the record of a turn lists."""
TEXT = 4096
"""The most bytes that are kept of a file's content."""
LARGE = 65536
"""Of a larger file nothing is read."""
ALL_TEXT = 65536
"""The most bytes that are kept of all contents of a turn."""


@runtime_checkable
class ShowsFiles(Protocol):
    """A place whose files can be compared with its image."""

    def changes(self) -> list[Change]:
        """List all that differs from the image, sorted by path."""

    def read_file(self, path: str, limit: int = ...) -> bytes:
        """Return the content of a regular file."""


class Watch:
    """Compares a place with the last look at it.

    Args:
        place: The place; turns are not blamed for what differs from its image now.

    Raises:
        SandboxError: The place is lost.
    """

    def __init__(self, place: ShowsFiles) -> None:
        self.place = place
        self._seen = self._look()

    def turn(self) -> TurnChanges:
        """Return what has changed since the last look.

        Raises:
            SandboxError: The place is lost.
        """
        before, self._seen = self._seen, self._look()
        paths = sorted(
            path
            for path in before.keys() | self._seen.keys()
            if before.get(path) != self._seen.get(path)
        )
        left, files = ALL_TEXT, []
        for path in paths[:FILES]:
            found = self._with_text(_between(before.get(path), self._seen.get(path)), left)
            left -= len(found.text or "")
            files.append(found)
        return TurnChanges(tuple(files), len(paths) - len(files))

    def _look(self) -> dict[str, Change]:
        return {change.path: change for change in self.place.changes()}

    def _with_text(self, file: FileChange, left: int) -> FileChange:
        """Add the beginning of a file's content, within what is left for the turn."""
        if file.kind == "deleted" or file.type != "file":
            return file
        if file.size > LARGE:
            return replace(file, cut=True)
        try:
            content = self.place.read_file(file.path, LARGE)
        except (OSError, OutputLimitError):  # a program in the background was quicker
            return replace(file, cut=True)
        if b"\0" in content:
            return file
        kept = content[: min(TEXT, left)]
        return replace(file, text=decode(kept), cut=len(kept) < len(content))


def _between(before: Change | None, now: Change | None) -> FileChange:
    """Return the difference of two looks at a path, of which one is None where it is the image's.

    Both tell the difference from the image; the result is that from each other.
    """
    shown = now or before
    assert shown is not None  # else there were no difference
    was_there, is_there = presence(before, now)
    kind: Literal["added", "modified", "deleted"] = "modified" if was_there else "added"
    if not is_there:
        kind = "deleted"
    mode, size = (now.mode, now.size) if now is not None and is_there else (0, 0)
    return FileChange(shown.path, kind, shown.type, mode, size)


def presence(before: Change | None, now: Change | None) -> tuple[bool, bool]:
    """Return whether a path existed, and whether it exists now, by its changes from the image.

    Args:
        before: The change then; None: as in the image.
        now: The change now; None: as in the image. One of the two is a change.
    """
    change = before or now
    assert change is not None  # else there were no difference
    was_there = change.kind != ("deleted" if before else "added")
    return was_there, now.kind != "deleted" if now else change.kind != "added"
