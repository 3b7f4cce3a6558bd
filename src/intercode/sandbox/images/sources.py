"""The tarballs that InterCode itself made for images: packed folders, prepared repositories.

They lie in the cache beside the images (``packs/``, ``repositories/``), are named by what is in
them, and can be made again. The time of the last use is their access time, set on purpose: by its
modification time a process knows whether a tarball is still the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from intercode.files import locked, remove_tree
from intercode.sandbox.images.cache import ImageCache
from intercode.sandbox.images.prune import list_images

FOLDERS = ("packs", "repositories")
_TORN_AFTER = 86400.0
"""Seconds after which what is half made has no maker any more."""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A tarball."""

    path: Path
    size: int
    """Bytes on disk."""
    last_used: float
    """Seconds since the epoch."""

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        return {**asdict(self), "path": str(self.path)}


def take(place: Path) -> bool:
    """Use a tarball if it is there, so that nobody removes it while this process lives.

    Returns:
        Whether it is there.
    """
    cache = ImageCache.default()
    with locked(cache.locks / "use", shared=True):
        return _take(cache, place)


def keep(made: Path, place: Path) -> None:
    """Put a new tarball in its place, unless another is there by now, and use it."""
    cache = ImageCache.default()
    with locked(cache.locks / "use", shared=True):
        if not _take(cache, place):  # a new file would have images looked at anew
            made.replace(place)
            _take(cache, place)


def _take(cache: ImageCache, place: Path) -> bool:
    try:
        os.utime(place, ns=(time.time_ns(), place.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    cache.mark_used(place.name)
    return True


def prune_sources(
    unused_for: float = 30 * 86400.0,
    *,
    everything: bool = False,
    dry_run: bool = False,
    without: Collection[str] = (),
    cache: ImageCache | None = None,
) -> list[SourceInfo]:
    """Remove the tarballs that were not used for so many seconds, and say which they were.

    Kept in any case: what a living process uses, and what an image is made of.

    Args:
        unused_for: Seconds.
        everything: Remove all that are not in use.
        dry_run: Only say which.
        without: The digests of images that do not count, as they are about to be removed.
        cache: Where; default: the user's.
    """
    cache = cache or ImageCache.default()
    specs = [info.spec for info in list_images(cache) if info.digest not in without]
    victims = []
    with locked(cache.locks / "use"):
        used, now = cache.in_use(), time.time()
        for path in _entries(cache, torn=False):
            info = path.stat()
            old = everything or now - info.st_atime >= unused_for
            if old and path.name not in used and not any(path.name in spec for spec in specs):
                victims.append(SourceInfo(path, info.st_blocks * 512, info.st_atime))
        if not dry_run:
            for victim in victims:
                victim.path.unlink()
    if not dry_run:
        for path in _entries(cache, torn=True):
            if now - path.lstat().st_mtime > _TORN_AFTER:
                remove_tree(path)
    return victims


def _entries(cache: ImageCache, *, torn: bool) -> list[Path]:
    """The tarballs, or what was to become one, in a fixed order."""
    pattern = ".*" if torn else "[!.]*.tar"
    return sorted(path for name in FOLDERS for path in (cache.root / name).glob(pattern))
