"""File changes of each turn, for the record: the difference between two listings of a sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from intercode.episode import FileChange, TurnChanges, decode, encode
from intercode.errors import OutputLimitError
from intercode_sandbox.base import Change

FILES = 100
"""Maximum number of paths in the record of a turn."""
TEXT = 4096
"""Maximum bytes of one file's content in the record."""
MAX_FILE_SIZE = 65536
"""Maximum size in bytes of a file whose content is read."""
ALL_TEXT = 65536
"""Maximum bytes of all file contents in the record of a turn."""


@runtime_checkable
class SupportsFileChanges(Protocol):
    """A workspace whose files can be compared with its image."""

    def changes(self) -> list[Change]:
        """List all differences from the image, sorted by path."""

    def read_file(self, path: str, limit: int = ...) -> bytes:
        """Return the content of a regular file."""


class FileChangeTracker:
    """A tracker that compares a workspace's files with the previous listing.

    Args:
        workspace: The workspace. Files that already differ from its image count for no turn.

    Raises:
        SandboxError: The workspace is lost.
    """

    def __init__(self, workspace: SupportsFileChanges) -> None:
        self.workspace = workspace
        self._last_changes = self._look()

    def turn(self) -> TurnChanges:
        """Return the file changes since the previous listing.

        Raises:
            SandboxError: The workspace is lost.
        """
        previous_changes, self._last_changes = self._last_changes, self._look()
        paths = sorted(
            path
            for path in previous_changes.keys() | self._last_changes.keys()
            if previous_changes.get(path) != self._last_changes.get(path)
        )
        remaining_bytes, files = ALL_TEXT, []
        for path in paths[:FILES]:
            file_change = self._add_text(
                _describe_change(previous_changes.get(path), self._last_changes.get(path)),
                remaining_bytes,
            )
            remaining_bytes -= len(encode(file_change.text or ""))
            files.append(file_change)
        return TurnChanges(tuple(files), len(paths) - len(files))

    def _look(self) -> dict[str, Change]:
        return {change.path: change for change in self.workspace.changes()}

    def _add_text(self, file: FileChange, remaining_bytes: int) -> FileChange:
        """Return the change with the beginning of the file's content, within the turn's limit."""
        if file.kind == "deleted" or file.type != "file":
            return file
        if file.size > MAX_FILE_SIZE:
            return replace(file, cut=True)
        try:
            content = self.workspace.read_file(file.path, MAX_FILE_SIZE)
        except (OSError, OutputLimitError):
            # A background program changed or removed the file after the listing.
            return replace(file, cut=True)
        if b"\0" in content:
            return file
        excerpt = content[: min(TEXT, remaining_bytes)]
        return replace(file, text=decode(excerpt), cut=len(excerpt) < len(content))


def _describe_change(previous_change: Change | None, current_change: Change | None) -> FileChange:
    """Return the difference between two states of a path.

    Each argument is a difference between the workspace and its image; None: no difference.
    """
    change = current_change or previous_change
    assert change is not None  # the caller compares only different states
    was_there, is_there = presence(previous_change, current_change)
    kind: Literal["added", "modified", "deleted"] = "modified" if was_there else "added"
    if not is_there:
        kind = "deleted"
    mode, size = (
        (current_change.mode, current_change.size)
        if current_change is not None and is_there
        else (0, 0)
    )
    return FileChange(change.path, kind, change.type, mode, size)


def presence(previous_change: Change | None, current_change: Change | None) -> tuple[bool, bool]:
    """Return whether a path existed at an earlier time, and whether the path exists now.

    Args:
        previous_change: The path's earlier difference from the image; None: no difference.
        current_change: The path's current difference from the image; None: no difference. At most
            one of the two arguments is None.
    """
    change = previous_change or current_change
    assert change is not None  # the caller compares only different states
    was_there = change.kind != ("deleted" if previous_change else "added")
    return was_there, current_change.kind != "deleted" if current_change else change.kind != "added"
