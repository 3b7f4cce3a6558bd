"""``scratch``: nothing, for a tarball that is a whole root file system to be laid over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from intercode.errors import ImageError
from intercode.sandbox.images.base import Context, Image, digest_of


def make(argument: str, context: Context) -> Image:
    """The empty image."""
    if argument:
        raise ImageError(f"the image 'scratch' takes no argument, not {argument!r}")
    template = Image(name="scratch", digest=digest_of("scratch", "1"), layers=())
    return context.cache.build(template, "scratch", _nothing, context.progress)


def _nothing(layer: Path, lock: int) -> Mapping[str, object]:
    return {"version": "1"}
