"""Reading a stack of overlayfs layers as the one tree that they make."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


@dataclass(frozen=True, slots=True)
class Found:
    """A path of the merged tree."""

    path: Path
    """The entry that is seen, in the highest layer that has it."""
    info: os.stat_result

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.info.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.info.st_mode)


def look(layers: Sequence[Path], parts: Sequence[str]) -> Found | None:
    """What the merged tree has at a path.

    Args:
        layers: Lowest first.
        parts: The path's names from the root; none but the last may be a symbolic link.
    """
    entries = merged(layers, parts)
    return entries[0] if entries else None


def merged(layers: Sequence[Path], parts: Sequence[str]) -> list[Found]:
    """As `look`: what is seen, or all the directories that merge into one, highest first."""
    entries = [Found(folder, folder.lstat()) for folder in reversed(layers)]
    for name in parts:
        folders = [entry.path for entry in entries if entry.is_dir]
        entries = visible(folders, name)
    return entries


def visible(folders: Sequence[Path], name: str) -> list[Found]:
    """An entry of a merged directory: one that is seen, or the directories that merge into one."""
    entries: list[Found] = []
    for folder in folders:
        path = folder / name
        try:
            info = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISDIR(info.st_mode):
            entries.append(Found(path, info))
            if _is_opaque(path):
                break
            continue
        deleted = stat.S_ISCHR(info.st_mode) and info.st_rdev == 0
        if not entries and not deleted:
            entries.append(Found(path, info))
        break
    return entries


def _is_opaque(path: Path) -> bool:
    return any(_attribute(path, name) == b"y" for name in _OPAQUE)


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:  # it has none, or it is not ours to read
        return None
