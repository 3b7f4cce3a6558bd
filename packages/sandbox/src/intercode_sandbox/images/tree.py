"""A stack of overlayfs layers, or a build's context, as one tree whose links stay inside it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from intercode_sandbox.accounts import MAX_TABLE_BYTES, Account, resolve_account
from intercode_sandbox.errors import ImageError
from intercode_sandbox.files import file_digest, joint_digest

Parts = tuple[str, ...]
_MAX_LINKS = 40
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Error numbers of a name that no file has; a link may lead to any text."""
_HIGHEST_ID = 65535


class Tree:
    """The merged tree: finds what paths lead to.

    Args:
        layers: Lowest first; a build's context is one.
        is_hidden: Says of a path, relative to the root, that it is not there.
        sparse: Whether something below a hidden folder may be there.
        name: Its name for people.
    """

    def __init__(
        self,
        layers: Sequence[Path],
        is_hidden: Callable[[str], bool] = lambda path: False,
        sparse: bool = False,
        name: str = "",
    ) -> None:
        self.layers = tuple(layers)
        self._is_hidden = is_hidden
        self._sparse = sparse
        self.name = name
        self.visited_paths: set[Path] = set()
        """The paths that were looked at."""

    def resolve(self, path: str, allow_missing: bool = False) -> Parts | None:
        """Return the names on the way to a path's entry, links followed; None: there is none.

        Args:
            path: From the root.
            allow_missing: Whether what is not there is to be made: it counts as a directory.
        """
        current_parts: Parts = ()
        pending_names = list(reversed(path.split("/")))
        links = 0
        while pending_names:
            name = pending_names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                current_parts = current_parts[:-1]
                continue
            entry = self.look((*current_parts, name))
            if entry is None and not allow_missing:
                return None
            if entry is None or not entry.is_link:
                current_parts = (*current_parts, name)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            target = str(entry.path.readlink())
            current_parts = () if target.startswith("/") else current_parts
            pending_names += reversed(target.split("/"))
        return current_parts

    def look(self, parts: Parts) -> TreeEntry | None:
        """Return the entry at these names, of which none but the last is a link."""
        entries = merged_entries(self.layers, parts)
        if not entries or (parts and self._is_absent(parts, entries[0])):
            return None
        self.visited_paths.add(entries[0].path)
        return entries[0]

    def names(self, parts: Parts) -> list[str]:
        """List the names in a directory."""
        return [place[-1] for place, _ in self.walk(parts, deep=False)]

    def is_dir(self, path: str) -> bool:
        """Whether a path leads to a directory."""
        parts = self.resolve(path)
        entry = None if parts is None else self.look(parts)
        return entry is not None and entry.is_dir

    def walk(self, parts: Parts, deep: bool = True) -> Iterator[tuple[Parts, TreeEntry]]:
        """Yield all below a directory, in a fixed order, each directory before what is in it.

        Args:
            parts: The directory.
            deep: Whether also what is in its directories.
        """
        entries = merged_entries(self.layers, parts)
        folders = [entry.path for entry in entries if entry.is_dir]
        for name in sorted({entry.name for folder in folders for entry in folder.iterdir()}):
            candidates = visible_entries(folders, name)
            if not candidates:
                continue
            place = (*parts, name)
            descendants = self.walk(place) if candidates[0].is_dir else iter(())
            if self._is_hidden("/".join(place)):
                if not (self._sparse and candidates[0].is_dir):
                    continue
                visible_descendants = list(descendants)
                if not visible_descendants:
                    continue
                descendants = iter(visible_descendants)
            self.visited_paths.add(candidates[0].path)
            yield place, candidates[0]
            if deep:
                yield from descendants

    def _is_absent(self, parts: Parts, entry: TreeEntry) -> bool:
        if not self._is_hidden("/".join(parts)):
            return False
        return not (self._sparse and entry.is_dir and next(self.walk(parts), None) is not None)


_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


@dataclass(frozen=True, slots=True)
class TreeEntry:
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


def find_entry(layers: Sequence[Path], parts: Sequence[str]) -> TreeEntry | None:
    """Return the entry that the merged tree has at a path.

    Args:
        layers: Lowest first.
        parts: The path's names from the root; none but the last may be a symbolic link.
    """
    entries = merged_entries(layers, parts)
    return entries[0] if entries else None


def merged_entries(layers: Sequence[Path], parts: Sequence[str]) -> list[TreeEntry]:
    """Look as `find_entry` does: the visible entry, or directories that merge, highest first."""
    entries = [TreeEntry(folder, folder.lstat()) for folder in reversed(layers)]
    for name in parts:
        folders = [entry.path for entry in entries if entry.is_dir]
        entries = visible_entries(folders, name)
    return entries


def visible_entries(folders: Sequence[Path], name: str) -> list[TreeEntry]:
    """Return an entry of a merged directory: one that is seen, or directories that merge."""
    entries: list[TreeEntry] = []
    for folder in folders:
        path = folder / name
        try:
            info = path.lstat()
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            continue
        if stat.S_ISDIR(info.st_mode):
            entries.append(TreeEntry(path, info))
            if _is_opaque(path):
                break
            continue
        is_whiteout = stat.S_ISCHR(info.st_mode) and info.st_rdev == 0
        if not entries and not is_whiteout:
            entries.append(TreeEntry(path, info))
        break
    return entries


def _is_opaque(path: Path) -> bool:
    return any(_attribute(path, name) == b"y" for name in _OPAQUE)


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:  # it has none, or it is not ours to read
        return None


def content_digest(layers: Sequence[Path]) -> str:
    """Return a digest of the merged tree: of each path its kind, mode, content or link's target.

    Owners and times are in none: an ordinary user's files are all their own.

    Raises:
        OSError: A file cannot be read.
    """
    parts: list[str | bytes] = []
    for place, entry in Tree(layers).walk(()):
        kind, mode = stat.S_IFMT(entry.info.st_mode), stat.S_IMODE(entry.info.st_mode)
        content: str | bytes = ""
        if entry.is_link:
            mode, content = 0, os.fsencode(entry.path.readlink())
        elif stat.S_ISREG(kind):
            content = file_digest(entry.path)
        parts += ["/".join(place), f"{kind:o} {mode:o}", content]
    return joint_digest(*parts)


def resolve_image_account(layers: Sequence[Path], text: str) -> Account:
    """Return the account that ``USER`` means in an image: see `resolve_account`.

    Raises:
        ImageError: The image has no such user or group, or sandboxes cannot have it.
    """
    tree = Tree(layers)

    def read(path: str) -> str:
        parts = tree.resolve(path)
        entry = tree.look(parts) if parts is not None else None
        if entry is None or not entry.path.is_file():
            return ""
        with entry.path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TABLE_BYTES)

    try:
        account = resolve_account(text, read)
    except LookupError as error:
        raise ImageError(str(error)) from None
    if (number := max(account.uid, account.gid)) > _HIGHEST_ID:
        raise ImageError(f"sandboxes have users and groups up to {_HIGHEST_ID}, not {number}")
    return account


def resolve_image_owner(layers: Sequence[Path], text: str) -> tuple[int, int]:
    """Return the user and group id that ``--chown`` means; a number alone is that of both.

    Raises:
        ImageError: As `resolve_image_account`.
    """
    name, _, group = text.partition(":")
    account = resolve_image_account(layers, f"{name}:{group or name}" if name.isdigit() else text)
    return account.uid, account.gid


def set_times(layer: Path, begin_time: float, timestamp: int) -> None:
    """Set the times of the files in a layer that have one from `begin_time` on, to `timestamp`.

    Args:
        layer: Its folder.
        begin_time: When the building of the layer began, in seconds since 1970.
        timestamp: The time that the files get, in seconds since 1970.
    """
    for folder, folders, files in os.walk(layer, topdown=False):
        for name in (*files, *folders, "."):
            path = os.path.join(folder, name)  # noqa: PTH118 - it is one of thousands
            if os.lstat(path).st_mtime > begin_time:
                os.utime(path, (timestamp, timestamp), follow_symlinks=False)
