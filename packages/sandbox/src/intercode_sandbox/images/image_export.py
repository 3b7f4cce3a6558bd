"""Export of an image to one file, and its import on another machine.

The file is an ordinary tarball of the image's whole tree. ``docker import`` and ``scratch+./FILE``
accept it, too. A global header of the tarball has the image's name, digest and settings.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import platform
import stat
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import atomic_file
from intercode_sandbox.images.base import ARCHIVES, Image, Progress
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.tarballs import DAMAGE, unpack
from intercode_sandbox.images.tree import MergedTree, MergedTreeEntry, content_digest
from intercode_sandbox.privileges import has_single_user

_HEADER = "INTERCODE.image"
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class _ImageArchiveHeader(msgspec.Struct, frozen=True):
    """The content of an exported image's header: its fields, and facts that the import checks.

    The facts are the architecture of the machine, and the digest of the tree.
    """

    spec: str
    machine: str
    tree: _Digest
    name: str
    digest: _Digest
    env: dict[str, str]
    cwd: str
    user: str
    config: dict[str, Any]

    def image(self) -> Image:
        """Return the image that the header describes, without layers."""
        return Image(self.name, self.digest, (), False, self.env, self.cwd, self.user, self.config)


_OPENERS: dict[str, Callable[..., Any]] = {
    ".tar": open,
    ".tar.gz": partial(gzip.open, compresslevel=6),
    ".tgz": partial(gzip.open, compresslevel=6),
    ".tar.xz": partial(lzma.open, preset=3),
    ".tar.bz2": bz2.open,
}
"""Ending of a file's name, of `ARCHIVES` → the function that opens the file for writing. The levels
of compression are low, to be fast."""


def export_image(image: Image, spec: str, file: Path) -> None:
    """Export an image to a file.

    Args:
        image: The image.
        spec: The name under which the image is imported.
        file: The target; the ending of its name determines the compression.

    Raises:
        ImageError: The image is based on this machine's ``host``, the file's name has none of the
            endings `ARCHIVES`, or the file cannot be written.
    """
    opener = next((_OPENERS[ending] for ending in ARCHIVES if file.name.endswith(ending)), None)
    if opener is None:
        raise ImageError(f"{file} must end in one of {', '.join(ARCHIVES)}")
    if image.host:
        raise ImageError(
            f"the image {spec!r} contains this machine's own /usr, which cannot be exported: use "
            "an image that is based on base, debian:SUITE or a tarball"
        )
    archive_header = _ImageArchiveHeader(
        spec=spec,
        machine=platform.machine(),
        tree=content_digest(image.layers),
        name=image.name,
        digest=image.digest,
        env=dict(image.env),
        cwd=image.cwd,
        user=image.user,
        config=dict(image.config),
    )
    try:
        with atomic_file(file) as temporary_path, opener(temporary_path, "wb") as stream:
            write_tree(
                image.layers, stream, {_HEADER: msgspec.json.encode(archive_header).decode()}
            )
    except OSError as error:
        raise ImageError(f"cannot write {file}: {error.strerror or error}") from error


def import_image(
    file: Path, pinned_digests: Collection[str], cache: ImageCache, progress: Progress
) -> tuple[str, Image]:
    """Import an image from a file into the cache; return its original name, and the image.

    Args:
        file: A file of `export_image`.
        pinned_digests: Digests of images that equal the digests of their trees. For such an image
            the import checks that the file's content has this digest.
        cache: The cache.
        progress: A function that receives the messages.

    Raises:
        ImageError: The file is of another kind or damaged. Or the image is for another
            architecture, or for users that this process's sandboxes cannot have.
    """
    archive_header = _read_facts(file)
    if archive_header.machine != platform.machine():
        raise ImageError(
            f"{file} is for {archive_header.machine}, and this machine is {platform.machine()}"
        )
    if has_single_user() and archive_header.user:
        raise ImageError(
            f"{file} is for the user {archive_header.user}, but an ordinary user's sandboxes "
            "have only the "
            "user root: run as root"
        )
    template = archive_header.image()

    def fill(layer: Path, _: int) -> Mapping[str, object]:
        with file.open("rb") as archive_file:
            unpack(archive_file, file, layer, template)
        tree_digest = content_digest((layer,))
        if tree_digest != archive_header.tree or (
            archive_header.digest in pinned_digests and tree_digest != archive_header.digest
        ):
            raise ImageError(f"{file} has other files than recorded: their digest is {tree_digest}")
        return {"imported": str(file), "tree": tree_digest}

    return archive_header.spec, cache.build(template, archive_header.spec, fill, progress)


def _read_facts(file: Path) -> _ImageArchiveHeader:
    try:
        with tarfile.open(file, "r:*") as archive:
            archive.next()
            return msgspec.json.decode(archive.pax_headers[_HEADER], type=_ImageArchiveHeader)
    except (*DAMAGE, KeyError, msgspec.MsgspecError) as error:
        raise ImageError(
            f"cannot read {file} as an image: {error}. It must be a file of 'intercode images "
            "export'; to use another tarball with a root file system, name the image "
            "scratch+./FILE"
        ) from error


_ATTRIBUTE = "SCHILY.xattr."
_ATTRIBUTE_PREFIXES = ("security.capability", "user.")


def write_tree(
    layers: Sequence[Path], stream: IO[bytes], headers: Mapping[str, str] | None = None
) -> None:
    """Write the merged tree of an image's layers as a tarball.

    Args:
        layers: Folders, the lowest layer first.
        stream: A file open for writing. The output is sequential, so the file may be a pipe.
        headers: Global headers of the tarball.

    Raises:
        OSError: A layer cannot be read, or the reader has closed its end.
    """
    with tarfile.open(
        fileobj=stream,
        mode="w|",
        format=tarfile.PAX_FORMAT,
        errors="surrogateescape",
        pax_headers=headers,
    ) as tar:
        writer = _TreeTarWriter(tar)
        for parts, entry in MergedTree(layers).walk(()):
            writer.add("/".join(parts), entry)


class _TreeTarWriter:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        self.names: dict[tuple[int, int], str] = {}
        # If this process is an ordinary user's, the layers belong to that user on this machine. In
        # the tarball the same files belong to root.
        self.user_id = os.geteuid()

    def add(self, member_name: str, entry: MergedTreeEntry) -> None:
        status = entry.info
        tar_info = tarfile.TarInfo(member_name)
        seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
        tar_info.mode, tar_info.mtime = stat.S_IMODE(status.st_mode), seconds
        tar_info.uid = 0 if status.st_uid == self.user_id else status.st_uid
        tar_info.gid = 0 if self.user_id and status.st_gid == os.getegid() else status.st_gid
        # The header has the exact time as text. As a number with a fraction it would be rounded.
        tar_info.pax_headers = {"mtime": f"{seconds}.{nanoseconds:09}", **_attributes(entry.path)}
        first_name = self.names.setdefault((status.st_dev, status.st_ino), member_name)
        if entry.is_dir:
            tar_info.type = tarfile.DIRTYPE
        elif entry.is_link:
            tar_info.type, tar_info.linkname = tarfile.SYMTYPE, str(entry.path.readlink())
        elif first_name != member_name:
            tar_info.type, tar_info.linkname = tarfile.LNKTYPE, first_name
        elif stat.S_ISREG(status.st_mode):
            tar_info.size = status.st_size
            with entry.path.open("rb") as file:
                self.tar.addfile(tar_info, file)
            return
        elif stat.S_ISFIFO(status.st_mode):
            tar_info.type = tarfile.FIFOTYPE
        else:
            return  # images have no devices, and a socket is useless without its process
        self.tar.addfile(tar_info)


def _attributes(path: Path) -> dict[str, str]:
    attributes = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith(_ATTRIBUTE_PREFIXES) and not name.startswith("user.overlay."):
            value = os.getxattr(path, name, follow_symlinks=False)
            attributes[_ATTRIBUTE + name] = value.decode("utf-8", "surrogateescape")
    return attributes
