"""A folder that is a root file system, used where it is."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from intercode.errors import ImageError
from intercode.rights import sandboxes_user
from intercode.sandbox.images.base import Context, Image, digest_of

_DOCKERFILE = "intercode.sandbox.images.dockerfile"


def make(argument: str, context: Context) -> Image:
    """The image of a folder; its digest is that of its files' names, types, modes, sizes, times."""
    folder = Path(argument)
    if not folder.is_dir():
        problem = "is no folder" if folder.exists() else "does not exist"
        raise ImageError(f"the image {argument} {problem}")
    if not any((folder / name).is_dir() for name in ("usr", "bin")):
        if (folder / "Dockerfile").is_file():
            return importlib.import_module(_DOCKERFILE).make(argument, context)  # type: ignore[no-any-return]
        raise ImageError(
            f"the folder {argument} is no root file system: it has no /usr and no /bin; nor is "
            "there a Dockerfile in it"
        )
    owner = sandboxes_user() or os.geteuid()
    if owner and folder.stat().st_uid != owner:
        raise ImageError(
            f"the folder {argument} belongs to another user, and a sandbox of yours could not "
            f"write over its files; copy it: cp -r {argument} COPY"
        )
    context.progress(f"reading {argument}")
    return Image(name=folder.name or "/", digest=_digest(folder), layers=(folder,))


def _digest(folder: Path) -> str:
    lines: list[bytes] = []
    pending = [os.fsencode(folder)]
    start = len(pending[0].rstrip(b"/"))
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError as error:
            raise ImageError(f"cannot read the image {folder}: {error}") from error
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            facts = b"%o %d %d" % (info.st_mode, info.st_size, info.st_mtime_ns)
            lines.append(entry.path[start:] + b"\0" + facts)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return digest_of("folder", *sorted(lines))
