"""Tarballs: the unpacking of untrusted ones over an image, and the packing of folders.

The path of a member is resolved as the kernel would resolve it inside the image. A folder in the
path may be a symbolic link, of the archive or of the image. The link is followed within the image,
and never out of the image's root.
"""

from __future__ import annotations

import lzma
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import (
    DiskBudget,
    cache_root,
    file_digest,
    joint_digest,
    open_regular,
    sha256,
)
from intercode_sandbox.images.base import Image, ImageAddition, ImageBuilderContext
from intercode_sandbox.images.cache import keep_tarball
from intercode_sandbox.images.host import host_mounts
from intercode_sandbox.images.tree import MergedTree, MergedTreeEntry, Parts, find_entry
from intercode_sandbox.privileges import is_root

VERSION = "1"
REPLACES_HEADER = "INTERCODE.replaces"
"""Name of the header by which a folder of a tarball hides the image's folder at the same path."""

DAMAGE = (
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,  # a malformed number
    OverflowError,  # a time that the system cannot represent
    RecursionError,  # headers that are nested too deeply
)
"""The errors that a damaged archive may raise."""


def add_archive(
    base: Image, addition: ImageAddition, spec: str, context: ImageBuilderContext
) -> Image:
    """Return an image with a further layer: the files of a tarball.

    The digest covers the base and the tarball.

    Args:
        base: The image below.
        addition: The tarball.
        spec: The name of the resulting image.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The tarball cannot be read, is damaged, or has members that no image may have.
    """
    try:
        file = open_regular(addition.path)
    except OSError as error:
        raise ImageError(f"cannot read the archive {addition.path}: {error.strerror}") from None
    with file:
        checksum = sha256(file)
        template = replace(
            base,
            name=f"{base.name}+{addition.path.name}",
            digest=joint_digest("archive", VERSION, base.digest, checksum),
        )

        def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
            file.seek(0)
            member_count = unpack(file, addition.path, layer, base)
            return {"version": VERSION, "sha256": checksum, "members": member_count}

        return context.cache.build(template, spec, fill, context.progress)


def unpack(file: BinaryIO, tarball_path: Path, layer: Path, base: Image) -> int:
    """Unpack a tarball into a layer, as ``tar -x`` of root at ``/`` would do.

    Args:
        file: The open tarball.
        tarball_path: The path of the tarball, for messages.
        layer: The empty folder of the layer.
        base: The image below.

    Returns:
        The number of members.

    Raises:
        ImageError: The archive is damaged, or has members that no image may have.
    """
    mounts = host_mounts() if base.host else ()
    unpacker = LayerUnpacker(layer, base.layers, tuple(mount.strip("/") for mount in mounts))
    member_count = 0
    try:
        with tarfile.open(
            fileobj=file, mode="r:*", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            while (member := archive.next()) is not None:
                unpacker.add(archive, member)
                member_count += 1
                # Otherwise the archive would keep all members in memory.
                archive.members.clear()  # type: ignore[attr-defined]
            while archive.fileobj.read(1 << 20):
                pass  # only the end of a compressed file proves that the file is complete
        unpacker.finish()
    except DAMAGE as error:
        raise ImageError(f"cannot unpack the archive {tarball_path}: {error}") from error
    except ImageError as error:
        raise ImageError(f"refused the archive {tarball_path}: {error}") from None
    return member_count


_MAX_ID = 65535
"""The highest user or group id that sandboxes have."""


class MemberSource(Protocol):
    """A source of the content of members: a ``tarfile.TarFile``, or a substitute."""

    def extractfile(self, member: tarfile.TarInfo) -> IO[bytes] | None:
        """Return an open file with the content of a member that is a regular file."""


@dataclass(frozen=True, slots=True)
class _FileMetadata:
    mode: int
    uid: int
    gid: int
    mtime: float


class LayerUnpacker:
    """A writer of one layer, from the members of untrusted archives."""

    def __init__(self, layer: Path, lower_layers: Sequence[Path], mounts: Sequence[str]) -> None:
        """Prepare the writer of a layer.

        Args:
            layer: The empty folder of the layer.
            lower_layers: The layers below, the lowest first.
            mounts: Names in the root at which sandboxes have a mount, which would hide members.
        """
        self._layer = layer
        self._lower_layers = lower_layers
        self._tree = MergedTree((*lower_layers, layer))
        self._budget = DiskBudget(layer)
        self._mounts = frozenset(mounts)
        self._can_set_owner = is_root()  # other users may lack the ids of a member's owner
        # These directories get their owners, modes and times at the end. Until then they must be
        # writable, and each write into them changes their times.
        self._folders: dict[Parts, _FileMetadata] = {}
        # Path of a directory in an archive → its real path, with links resolved.
        self._resolved_folders: dict[Parts, Parts] = {}
        # These directories exist in the layers below, too.
        self._shared_folders: set[Parts] = {()}

    def add(self, archive: MemberSource, member: tarfile.TarInfo) -> None:
        """Write one member into the layer.

        Args:
            archive: The source of the member's content.
            member: The member.

        Raises:
            ImageError: No image may have a member of this kind, or of this name.
        """
        parts = split_name(member.name)
        if not parts:
            return  # the member is "./", the root directory, which stays unchanged
        metadata = _FileMetadata(
            member.mode & 0o7777,
            _valid_owner_id(member.uid),
            _valid_owner_id(member.gid),
            member.mtime,
        )
        parent_parts = self._ensure_folder(parts[:-1], metadata.mtime)
        real_parts = (*parent_parts, parts[-1])
        if real_parts[0] in self._mounts and not (member.isdir() and len(real_parts) == 1):
            raise ImageError(
                f"{member.name!r} would be hidden: in the image 'host' /{real_parts[0]} is this "
                "machine's own, read-only"
            )
        if member.isdir():
            real_parts = self._ensure_folder(parts, metadata.mtime)
            self._folders[real_parts] = metadata
            if REPLACES_HEADER in member.pax_headers:
                self._hide_below(real_parts)
            return
        layer_path = self._layer.joinpath(*real_parts)
        self._budget.take(0, file_count=1)
        self._clear(layer_path, real_parts, member.name)
        if member.islnk():
            self._link(member, layer_path)
            return
        if member.issym():
            layer_path.symlink_to(member.linkname)
        elif member.isfile():
            self._write(archive, member, layer_path)
        elif member.isfifo():
            os.mkfifo(layer_path, 0o600)
        else:
            raise ImageError(f"{member.name!r} is a device or of an unknown type")
        self._set_metadata(layer_path, metadata)

    def finish(self) -> None:
        """Set the modes, owners and times of all directories, after the last member."""
        for folder_parts in sorted(self._folders, key=len, reverse=True):
            self._set_metadata(self._layer.joinpath(*folder_parts), self._folders[folder_parts])

    def _ensure_folder(self, parts: Parts, mtime: float) -> Parts:
        """Return the real path of a directory, with links resolved.

        The directory and its parents are created in the layer if missing.

        Args:
            parts: The path of the directory in the archive.
            mtime: The time of directories that neither the archive nor the image has.
        """
        if (cached_parts := self._resolved_folders.get(parts)) is not None:
            return cached_parts
        real_parts = self._tree.resolve("/".join(parts), allow_missing=True)
        if real_parts is None:
            raise ImageError(f"{'/'.join(parts)!r} goes through too many symbolic links")
        for depth in range(1, len(real_parts) + 1):
            prefix = real_parts[:depth]
            entry = self._tree.look(prefix)
            if entry is not None and not entry.is_dir:
                raise ImageError(f"{'/'.join(prefix)!r} is both a file and a directory")
            self._make_folder(prefix, entry, mtime)
        self._resolved_folders[parts] = real_parts
        return real_parts

    def _make_folder(self, parts: Parts, lower_entry: MergedTreeEntry | None, mtime: float) -> None:
        """Create a directory in the layer, unless the layer has it already.

        Args:
            parts: The real path of the directory.
            lower_entry: The image's directory at this path, which gives owner, mode and time; None:
                the directory is new.
            mtime: The time of a new directory.
        """
        if parts in self._folders:
            return
        self._budget.take(0, file_count=1)
        self._layer.joinpath(*parts).mkdir(mode=0o700)
        if lower_entry is None:
            self._folders[parts] = _FileMetadata(0o755, 0, 0, mtime)
        else:
            self._shared_folders.add(parts)
            info = lower_entry.info
            mode = stat.S_IMODE(info.st_mode)
            self._folders[parts] = _FileMetadata(mode, info.st_uid, info.st_gid, info.st_mtime)

    def _hide_below(self, parts: Parts) -> None:
        """Make a directory of the layer hide the directories of lower layers at its path."""
        if find_entry(self._lower_layers, parts) is not None:
            attribute_name = (
                "trusted.overlay.opaque" if self._can_set_owner else "user.overlay.opaque"
            )
            os.setxattr(self._layer.joinpath(*parts), attribute_name, b"y")
            self._shared_folders.discard(parts)

    def _clear(self, path: Path, parts: Parts, member_name: str) -> None:
        """Make room for a member that is not a directory: remove an earlier member at its path.

        Raises:
            ImageError: The path is a directory of the archive or of the image.
        """
        if parts in self._folders:
            raise ImageError(f"{member_name!r} is both a file and a directory")
        lower_entry = (
            find_entry(self._lower_layers, parts) if parts[:-1] in self._shared_folders else None
        )
        if lower_entry is not None and lower_entry.is_dir:
            raise ImageError(f"{member_name!r} would replace a directory of the image")
        if os.path.lexists(path):
            path.unlink()
            # The removed entry may have been a link, by which a path was resolved.
            self._resolved_folders.clear()

    def _link(self, member: tarfile.TarInfo, path: Path) -> None:
        target_parts = split_name(member.linkname)
        target_parent = self._ensure_folder(target_parts[:-1], member.mtime)
        target = self._layer.joinpath(*target_parent, *target_parts[-1:])
        if not _is_plain(target):
            raise ImageError(
                f"{member.name!r} is a hard link to {member.linkname!r}, which is not an earlier "
                "file of the archive"
            )
        os.link(target, path, follow_symlinks=False)

    def _write(self, archive: MemberSource, member: tarfile.TarInfo, path: Path) -> None:
        source = archive.extractfile(member)
        assert source is not None  # true for regular files
        written_bytes = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with source, os.fdopen(descriptor, "wb") as target:
            while block := source.read(1 << 20):
                self._budget.take(len(block))
                written_bytes += target.write(block)
        if written_bytes != member.size:
            raise tarfile.ReadError(f"{member.name!r} ends early")

    def _set_metadata(self, path: Path, metadata: _FileMetadata) -> None:
        if self._can_set_owner:
            os.chown(path, metadata.uid, metadata.gid, follow_symlinks=False)
        if not path.is_symlink():
            # The mode is set after the owner, because a change of the owner clears setuid.
            path.chmod(metadata.mode)
        os.utime(path, (metadata.mtime, metadata.mtime), follow_symlinks=False)


def split_name(name: str) -> Parts:
    """Split the name of an archive's member into the names of a path.

    Raises:
        ImageError: The name is absolute, leads out of the archive, or contains a NUL.
    """
    if name.startswith("/"):
        raise ImageError(f"{name!r} is an absolute path")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ImageError(f"{name!r} points out of the archive")
    if "\0" in name:
        raise ImageError(f"{name!r} holds a NUL")
    return parts


def _valid_owner_id(owner_id: int) -> int:
    """Return a user or group id if sandboxes have it, otherwise the id of root."""
    return owner_id if 0 <= owner_id <= _MAX_ID else 0


def _is_plain(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def pack(
    folder: Path, image_path: str, excluded_names: Collection[str] = (), *, read_only: bool = False
) -> Path:
    """Pack a folder into a tarball in the cache, and return the path of the tarball.

    The tarball can be added to an image, by the name ``IMAGE+TARBALL``. The tarball's name is a
    digest of its bytes. The bytes depend only on the names, content and executable bits of the
    files. So two copies of a folder give the same tarball, by any user at any time.

    Args:
        folder: The folder to pack.
        image_path: The absolute path that the folder gets in the image.
        excluded_names: Names directly in the folder that are omitted.
        read_only: Whether to remove the permission to write from files and folders.

    Raises:
        ImageError: The folder cannot be read, or the cache cannot be written.
    """
    if not folder.is_dir():
        raise ImageError(f"there is no folder {folder}")
    packs_folder = cache_root() / "packs"
    try:
        packs_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=packs_folder, prefix=".", delete=False) as file:
            temporary_path = Path(file.name)
            try:
                write_tarball(file, folder, image_path, excluded_names, read_only=read_only)
                file.flush()
                tarball_path = packs_folder / f"{file_digest(temporary_path)}.tar"
                keep_tarball(temporary_path, tarball_path)
            finally:
                temporary_path.unlink(missing_ok=True)
    except OSError as error:
        raise ImageError(f"cannot pack the folder {folder}: {error}") from error
    return tarball_path


def write_tarball(
    file: IO[bytes],
    folder: Path,
    image_path: str,
    excluded_names: Collection[str] = (),
    *,
    keep_times: bool = False,
    read_only: bool = False,
    opaque_names: Collection[str] = (),
) -> None:
    """Write a folder's content as a tarball into an open file.

    Args:
        file: A file open for writing.
        folder: The folder to pack.
        image_path: The absolute path that the folder gets in the image.
        excluded_names: Names directly in the folder that are omitted.
        keep_times: Whether files keep their times, to the second; otherwise their time is 0.
        read_only: Whether to remove the permission to write.
        opaque_names: Names of nested folders, directly in the folder, that hide the image's folders
            at their paths.
    """
    opaque_paths = {f"{image_path.strip('/')}/{name}" for name in opaque_names}
    excluded_paths = {f"{image_path.strip('/')}/{name}" for name in excluded_names}

    def prepare_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name in excluded_paths:
            return None
        mtime = int(member.mtime) if keep_times else 0
        member = _normalise_member(member, mtime)
        member.mode &= ~0o222 if read_only else ~0
        if member.name in opaque_paths:
            member.pax_headers = {REPLACES_HEADER: "1"}
        return member

    tar_format = tarfile.PAX_FORMAT if opaque_names else tarfile.GNU_FORMAT
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        _add_parents(archive, PurePosixPath(image_path))
        archive.add(folder, image_path.strip("/"), filter=prepare_member)


def opaque_folders(tarball: Path) -> list[str]:
    """Return the paths of a tarball's folders that hide the image's folders at their paths.

    `write_tarball` marks such folders by the header `REPLACES_HEADER`.

    Raises:
        OSError: The tarball cannot be read.
    """
    if tarball.suffix != ".tar":  # tarballs of `write_tarball` are not compressed
        return []
    try:
        with tarfile.open(tarball, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            return [member.name for member in archive if REPLACES_HEADER in member.pax_headers]
    except tarfile.TarError:  # `unpack` raises the error for a damaged tarball
        return []


def _add_parents(archive: tarfile.TarFile, image_path: PurePosixPath) -> None:
    for parent in reversed(image_path.relative_to("/").parents):
        if parent.parts:
            member = tarfile.TarInfo(str(parent))
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)


def _normalise_member(member: tarfile.TarInfo, mtime: int) -> tarfile.TarInfo:
    """Return a member without metadata that differ between two copies of the same files."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = mtime
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
