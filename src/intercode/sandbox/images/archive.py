"""A tarball laid over an image, in a layer of its own."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from intercode.errors import ImageError
from intercode.files import sha256
from intercode.sandbox.images.base import Context, Image, digest_of
from intercode.sandbox.images.host import host_mounts
from intercode.sandbox.images.spec import Addition
from intercode.sandbox.images.unpack import Unpacker

VERSION = "1"

DAMAGE = (
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,  # a number that is none
    OverflowError,  # a time beyond all clocks
    RecursionError,  # headers of headers of headers
)
"""What a damaged archive may raise."""


def add(base: Image, addition: Addition, spec: str, context: Context) -> Image:
    """The image with the archive's files; known by the base and by the archive's bytes."""
    try:
        file = addition.path.open("rb")
    except OSError as error:
        raise ImageError(f"cannot read the archive {addition.path}: {error.strerror}") from None
    with file:
        checksum = sha256(file)
        template = replace(
            base,
            name=f"{base.name}+{addition.path.name}",
            digest=digest_of("archive", VERSION, base.digest, checksum),
        )

        def fill(layer: Path, lock: int) -> Mapping[str, object]:
            file.seek(0)
            members = unpack(file, addition.path, layer, base)
            return {"version": VERSION, "sha256": checksum, "members": members}

        return context.cache.build(template, spec, fill, context.progress)


def unpack(file: BinaryIO, path: Path, layer: Path, base: Image) -> int:
    """Unpack an archive, as root's ``tar -x`` at ``/`` would, into a layer; count its members.

    Raises:
        ImageError: It is damaged, or holds what no image may.
    """
    mounted = host_mounts() if base.host else ()
    unpacker = Unpacker(layer, base.layers, tuple(name.strip("/") for name in mounted))
    count = 0
    try:
        with tarfile.open(
            fileobj=file, mode="r:*", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            while (member := archive.next()) is not None:
                unpacker.add(archive, member)
                count += 1
                archive.members.clear()  # type: ignore[attr-defined] # it keeps them all
            while archive.fileobj.read(1 << 20):
                pass  # only at its end does a compressed file tell whether it was whole
        unpacker.finish()
    except DAMAGE as error:
        raise ImageError(f"cannot unpack the archive {path}: {error}") from error
    except ImageError as error:
        raise ImageError(f"refused the archive {path}: {error}") from None
    return count
