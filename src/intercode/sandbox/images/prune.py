"""Which images there are, and removing those that nobody needs."""

from __future__ import annotations

import dataclasses
import re
import time
from dataclasses import dataclass
from pathlib import Path

from intercode.files import locked, remove_tree
from intercode.sandbox.images.cache import RECORD, TEMPORARY, ImageCache

_TORN = re.compile(r"(?P<digest>[0-9a-f]+)" + re.escape(TEMPORARY) + r"(?P<pid>\d+)-.*")
_DYING = 1.0


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A built image, as `list_images` tells of it."""

    name: str
    spec: str
    """What it was built from."""
    digest: str
    size: int
    """Bytes on disk of its own layer."""
    created: str
    """ISO 8601, UTC."""
    last_used: float
    """Seconds since the epoch, exact to a day."""
    layers: tuple[str, ...]
    """The digests of the built images that it consists of, lowest first, itself last."""
    in_use: bool
    """A living process uses it, or an image that is built on it."""
    path: Path

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        return {**dataclasses.asdict(self), "layers": list(self.layers), "path": str(self.path)}


def list_images(cache: ImageCache | None = None) -> list[ImageInfo]:
    """All built images, the last used first."""
    cache = cache or ImageCache.default()
    with locked(cache.locks / "use"):
        return _list(cache)


def _list(cache: ImageCache) -> list[ImageInfo]:
    found: dict[str, ImageInfo] = {}
    for folder in cache.images.iterdir():
        record = cache.read(folder.name)
        if record is None:
            continue
        found[folder.name] = ImageInfo(
            name=record["name"],
            spec=record["spec"],
            digest=folder.name,
            size=record["size"],
            created=record["created"],
            last_used=(folder / RECORD).stat().st_mtime,
            layers=tuple(Path(x).parts[0] for x in record["layers"] if not x.startswith("/")),
            in_use=False,
            path=folder,
        )
    used = {part for digest in cache.in_use() & found.keys() for part in found[digest].layers}
    infos = [dataclasses.replace(info, in_use=info.digest in used) for info in found.values()]
    return sorted(infos, key=lambda info: (-info.last_used, info.name))


def prune(
    unused_for: float = 30 * 86400.0,
    *,
    everything: bool = False,
    dry_run: bool = False,
    cache: ImageCache | None = None,
) -> list[ImageInfo]:
    """Remove the images that were not used for so many seconds, and say which they were.

    Kept in any case: what a living process uses, and what a kept image is built on.

    Args:
        unused_for: Seconds; uses are recorded to the day.
        everything: Remove all that are not in use.
        dry_run: Only say which.
        cache: Where; default: the user's.
    """
    cache = cache or ImageCache.default()
    sweep(cache)
    removed: list[Path] = []
    with locked(cache.locks / "use"):
        infos = _list(cache)
        now = time.time()
        kept = [
            info
            for info in infos
            if info.in_use or not (everything or now - info.last_used >= unused_for)
        ]
        needed = {part for info in kept for part in info.layers}
        victims = [info for info in infos if info.digest not in needed]
        if dry_run:
            return victims
        for info in victims:
            removed.append(cache.temporary(info.digest))
            info.path.rename(removed[-1])  # gone at once; its files are removed after
    for path in removed:
        remove_tree(path)
    return victims


def sweep(cache: ImageCache | None = None) -> list[Path]:
    """Remove what builds and removals that were killed have left, and say what that was."""
    cache = cache or ImageCache.default()
    swept: list[Path] = []
    for folder in cache.images.iterdir():
        match = _TORN.fullmatch(folder.name)
        if match and _remove_torn(folder, cache.locks / match["digest"], match["pid"]):
            swept.append(folder)
    return swept


def _remove_torn(folder: Path, lock: Path, pid: str) -> bool:
    """Remove a build's folder unless it is being built, and say whether it was."""
    deadline = time.monotonic() + _DYING
    while True:
        with locked(lock, wait=False) as alone:
            if alone is not None:
                remove_tree(folder)
                return True
        # The programs of a builder that was killed hold its lock until they are gone too.
        if Path("/proc", pid).exists() or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
