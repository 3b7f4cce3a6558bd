"""``scratch``: nothing but where a sandbox mounts its own ``/proc`` and ``/dev``.

For a tarball that is a whole root file system to be laid over, and for workers, which need no
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from intercode.errors import ImageError
from intercode.sandbox.images.base import Context, Image, digest_of


def make(argument: str, context: Context) -> Image:
    """The empty image."""
    if argument:
        raise ImageError(f"the image 'scratch' takes no argument, not {argument!r}")
    template = Image(name="scratch", digest=digest_of("scratch", "2"), layers=())
    return context.cache.build(template, "scratch", _fill, context.progress)


def _fill(layer: Path, lock: int) -> Mapping[str, object]:
    for name in ("dev", "proc"):
        (layer / name).mkdir()
    return {"version": "2"}
