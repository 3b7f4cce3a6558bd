"""The files of an image as one tree: the merged view of its overlayfs layers.

The context of a Dockerfile's build is such a tree, too, of one folder. Symbolic links are resolved
inside the tree, and never lead out of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import file_digest, joint_digest
from intercode_sandbox.image_accounts import MAX_TABLE_BYTES, ImageAccount, resolve_account

Parts = tuple[str, ...]
"""A path in a tree, as the names from the root."""
_MAX_LINKS = 40
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Error numbers that mean that no file exists at a path. A link's target, and so a path, may be any
text."""
_HIGHEST_ID = 65535
"""The highest user or group id that sandboxes have."""


class MergedTree:
    """The merged tree of several layers.

    Args:
        layers: Folders, the lowest layer first.
        is_hidden: A function that returns whether a path, relative to the root, counts as missing.
            The rules of a ``.dockerignore`` file are such a function.
        sparse: Whether entries below a hidden folder may be visible.
        name: Display name.
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
        """The paths on disk of all entries that were returned so far."""

    def resolve(self, path: str, allow_missing: bool = False) -> Parts | None:
        """Resolve all symbolic links of a path, and return the real path.

        Args:
            path: A path from the root.
            allow_missing: Whether a missing entry counts as a directory that will be created.

        Returns:
            The real path; None: an entry is missing, or the path has too many links.
        """
        current_parts: Parts = ()
        pending_names = list(reversed(path.split("/")))
        link_count = 0
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
            link_count += 1
            if link_count > _MAX_LINKS:
                return None
            target = str(entry.path.readlink())
            current_parts = () if target.startswith("/") else current_parts
            pending_names += reversed(target.split("/"))
        return current_parts

    def look(self, parts: Parts) -> MergedTreeEntry | None:
        """Return the visible entry at a path, or None.

        Args:
            parts: The path. Only its last name may be a symbolic link.
        """
        entries = merged_entries(self.layers, parts)
        if not entries or (parts and self._is_absent(parts, entries[0])):
            return None
        self.visited_paths.add(entries[0].path)
        return entries[0]

    def names(self, parts: Parts) -> list[str]:
        """Return the names of the visible entries of a directory."""
        return [entry_parts[-1] for entry_parts, _ in self.walk(parts, deep=False)]

    def is_dir(self, path: str) -> bool:
        """Return whether a path, with its links resolved, is a directory."""
        parts = self.resolve(path)
        entry = None if parts is None else self.look(parts)
        return entry is not None and entry.is_dir

    def walk(self, parts: Parts, deep: bool = True) -> Iterator[tuple[Parts, MergedTreeEntry]]:
        """Yield the path and the entry of all visible files and folders below a directory.

        The order is fixed, with each directory before its content.

        Args:
            parts: The directory.
            deep: Whether to include the content of nested directories.
        """
        entries = merged_entries(self.layers, parts)
        folders = [entry.path for entry in entries if entry.is_dir]
        for name in sorted({entry.name for folder in folders for entry in folder.iterdir()}):
            candidates = visible_entries(folders, name)
            if not candidates:
                continue
            entry_parts = (*parts, name)
            descendants = self.walk(entry_parts) if candidates[0].is_dir else iter(())
            if self._is_hidden("/".join(entry_parts)):
                if not (self._sparse and candidates[0].is_dir):
                    continue
                visible_descendants = list(descendants)
                if not visible_descendants:
                    continue
                descendants = iter(visible_descendants)
            self.visited_paths.add(candidates[0].path)
            yield entry_parts, candidates[0]
            if deep:
                yield from descendants

    def _is_absent(self, parts: Parts, entry: MergedTreeEntry) -> bool:
        if not self._is_hidden("/".join(parts)):
            return False
        return not (self._sparse and entry.is_dir and next(self.walk(parts), None) is not None)


_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


@dataclass(frozen=True, slots=True)
class MergedTreeEntry:
    """A file, folder or link of a merged tree."""

    path: Path
    """The path on disk, in the highest layer that has the entry."""
    info: os.stat_result

    @property
    def is_dir(self) -> bool:
        """Whether the entry is a directory."""
        return stat.S_ISDIR(self.info.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether the entry is a symbolic link."""
        return stat.S_ISLNK(self.info.st_mode)


def find_entry(layers: Sequence[Path], parts: Sequence[str]) -> MergedTreeEntry | None:
    """Return the entry of the merged tree at a path.

    Args:
        layers: Folders, the lowest layer first.
        parts: The names of the path. Only the last name may be a symbolic link.
    """
    entries = merged_entries(layers, parts)
    return entries[0] if entries else None


def merged_entries(layers: Sequence[Path], parts: Sequence[str]) -> list[MergedTreeEntry]:
    """Return the entries of all layers at a path that are not hidden by a higher layer.

    A file is the only entry. Directories of several layers merge: the highest one comes first.

    Args:
        layers: Folders, the lowest layer first.
        parts: The names of the path.
    """
    entries = [MergedTreeEntry(folder, folder.lstat()) for folder in reversed(layers)]
    for name in parts:
        folders = [entry.path for entry in entries if entry.is_dir]
        entries = visible_entries(folders, name)
    return entries


def visible_entries(folders: Sequence[Path], name: str) -> list[MergedTreeEntry]:
    """Return the entries of this name in a merged directory: see `merged_entries`.

    Args:
        folders: The directories that merge, the highest layer first.
        name: The name.
    """
    entries: list[MergedTreeEntry] = []
    for folder in folders:
        path = folder / name
        try:
            info = path.lstat()
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            continue
        if stat.S_ISDIR(info.st_mode):
            entries.append(MergedTreeEntry(path, info))
            if _is_opaque(path):
                break
            continue
        is_whiteout = stat.S_ISCHR(info.st_mode) and info.st_rdev == 0
        if not entries and not is_whiteout:
            entries.append(MergedTreeEntry(path, info))
        break
    return entries


def _is_opaque(path: Path) -> bool:
    return any(_attribute(path, name) == b"y" for name in _OPAQUE)


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:  # the attribute is missing, or not readable by this user
        return None


def content_digest(layers: Sequence[Path]) -> str:
    """Return a digest of a merged tree.

    The digest covers each path with its kind, its mode, and its content or link's target. Owners
    and times do not count: files that an ordinary user unpacks all belong to that user.

    Args:
        layers: Folders, the lowest layer first.

    Raises:
        OSError: A file cannot be read.
    """
    digest_inputs: list[str | bytes] = []
    for entry_parts, entry in MergedTree(layers).walk(()):
        kind, mode = stat.S_IFMT(entry.info.st_mode), stat.S_IMODE(entry.info.st_mode)
        content: str | bytes = ""
        if entry.is_link:
            mode, content = 0, os.fsencode(entry.path.readlink())
        elif stat.S_ISREG(kind):
            content = file_digest(entry.path)
        digest_inputs += ["/".join(entry_parts), f"{kind:o} {mode:o}", content]
    return joint_digest(*digest_inputs)


def resolve_image_account(layers: Sequence[Path], user_spec: str) -> ImageAccount:
    """Return the account of an image that a ``USER`` instruction names: see `resolve_account`.

    Args:
        layers: The image's layers, the lowest first.
        user_spec: The argument of ``USER``.

    Raises:
        ImageError: The image has no such user or group, or sandboxes cannot have it.
    """
    tree = MergedTree(layers)

    def read(path: str) -> str:
        parts = tree.resolve(path)
        entry = tree.look(parts) if parts is not None else None
        if entry is None or not entry.path.is_file():
            return ""
        with entry.path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TABLE_BYTES)

    try:
        account = resolve_account(user_spec, read)
    except LookupError as error:
        raise ImageError(str(error)) from None
    if (highest_id := max(account.uid, account.gid)) > _HIGHEST_ID:
        raise ImageError(f"sandboxes have users and groups up to {_HIGHEST_ID}, not {highest_id}")
    return account


def resolve_image_owner(layers: Sequence[Path], owner_spec: str) -> tuple[int, int]:
    """Return the user id and group id that an option ``--chown`` names.

    Args:
        layers: The image's layers, the lowest first.
        owner_spec: The value of ``--chown``. A single number means both ids.

    Raises:
        ImageError: See `resolve_image_account`.
    """
    name, _, group = owner_spec.partition(":")
    account = resolve_image_account(
        layers, f"{name}:{group or name}" if name.isdigit() else owner_spec
    )
    return account.uid, account.gid


def set_times(layer: Path, begin_time: float, timestamp: int) -> None:
    """Set the times of the files that a layer's build has created, to make builds identical.

    Files with a time before the build have got this time explicitly, and keep it.

    Args:
        layer: The layer's folder.
        begin_time: The start of the layer's build, in seconds since 1970.
        timestamp: The new time of files that are later than `begin_time`, in seconds since 1970.
    """
    for folder, folder_names, files in os.walk(layer, topdown=False):
        for name in (*files, *folder_names, "."):
            path = os.path.join(folder, name)  # noqa: PTH118 - it is one of thousands
            if os.lstat(path).st_mtime > begin_time:
                os.utime(path, (timestamp, timestamp), follow_symlinks=False)
