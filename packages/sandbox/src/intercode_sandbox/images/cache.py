"""The store of built images: one folder each, complete or absent, built once by the first user.

::

    ROOT/images/DIGEST/image.json     the record; its modification time is the last use
    ROOT/images/DIGEST/layer/         the image's top layer; lower ones belong to other images
    ROOT/images/DIGEST.tmp-PID-X/     being built; incomplete, if DIGEST's lock is free
    ROOT/locks/DIGEST                 held by a builder or remover, and by its children
    ROOT/locks/use                    shared: taking an image into use; exclusive: removing images
    ROOT/users/PID-X                  held by a process; lists the images and tarballs it uses
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import functools
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from intercode_sandbox.errors import ImageError
from intercode_sandbox.files import cache_root, file_lock, remove_tree, tree_size
from intercode_sandbox.images.base import Fill, Image, Progress
from intercode_sandbox.privileges import make_private, transfer_ownership

LAYER = "layer"
RECORD = "image.json"
TOUCH_INTERVAL = 86400.0
TEMPORARY = ".tmp-"


@functools.cache
def _cache_at(root: Path) -> ImageCache:
    return ImageCache(root)


class ImageCache:
    """The images below one folder. Safe among threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images = root / "images"
        self.locks = root / "locks"
        self.users = root / "users"
        if os.access(self.images, os.F_OK) and self.images.stat().st_uid != os.geteuid():
            raise ImageError(
                f"the images in {self.images} belong to another user; "
                "set INTERCODE_CACHE to a folder of your own"
            )
        try:
            make_private(self.images)
            for folder in (self.locks, self.users):
                folder.mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK):  # for instance on a read-only file system
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        except OSError as error:
            raise ImageError(
                f"cannot store images in {root}: {error.strerror}; set INTERCODE_CACHE to a "
                "folder that you may write"
            ) from None
        self._memory: dict[Hashable, tuple[Image, tuple[str, ...]]] = {}
        self.inputs: dict[Hashable, tuple[str, ...]] = {}
        """Parsed name → the input paths of a remembered image."""
        self._mutex = threading.Lock()
        self._marked_names: set[str] = set()
        self._users_file: int | None = None

    @staticmethod
    def default() -> ImageCache:
        """Return the cache in the folder that the environment names now; one object per folder."""
        return _cache_at(cache_root())

    # --- in this process ---------------------------------------------------------------------

    def recall(self, key: Hashable) -> Image | None:
        """Return the image remembered under a key, if it is complete. Costs microseconds."""
        entry = self._memory.get(key)
        if entry is None:
            return None
        image, records = entry
        try:
            for record in records:
                _touch(record)
        except OSError:
            self._memory.pop(key, None)
            return None
        return image

    def remember(self, key: Hashable, image: Image) -> None:
        """Remember an image for `recall`."""
        records = [str(p.parent / RECORD) for p in image.layers if p.is_relative_to(self.images)]
        self._memory[key] = (image, tuple(records))

    # --- on disk -----------------------------------------------------------------------------

    def lookup(self, digest: str) -> Image | None:
        """Return a built image with all of its layers, and mark it as used by this process."""
        with file_lock(self.locks / "use", shared=True):
            record = self.read(digest)
            if record is None:
                return None
            image = self._image(record)
            if not all(layer.is_dir() for layer in image.layers):
                return None
            self.mark_used(digest)
        _touch(str(self.images / digest / RECORD))
        return image

    def build(self, template: Image, spec: str, fill: Fill, progress: Progress) -> Image:
        """Return the template with one more layer on top, filled by `fill` unless it exists."""
        digest = template.digest
        if image := self.lookup(digest):
            return image
        with file_lock(self.locks / digest, wait=False) as lock:
            if lock is not None:
                return self._build(template, spec, fill, lock, progress)
        progress(f"waiting for another process that builds {template.name}")
        with file_lock(self.locks / digest) as lock:
            assert lock is not None  # after a wait
            return self._build(template, spec, fill, lock, progress)

    def _build(
        self, template: Image, spec: str, fill: Fill, lock: int, progress: Progress
    ) -> Image:
        digest = template.digest
        if built_image := self.lookup(digest):
            return built_image
        progress(f"building {template.name}")
        start_time = time.monotonic()
        remove_tree(self.images / digest)  # may exist, but incomplete
        temporary = self.temporary(digest)
        try:
            layer = temporary / LAYER
            layer.mkdir(parents=True)
            layer.chmod(0o755)
            details = fill(layer, lock)
            transfer_ownership(layer)
            image = replace(template, layers=(*template.layers, self.images / digest / LAYER))
            self._write(
                temporary, image, spec, {**details, "seconds": time.monotonic() - start_time}
            )
            temporary.rename(self.images / digest)
        except OSError as error:
            raise ImageError(f"cannot build the image {template.name}: {error}") from error
        finally:
            remove_tree(temporary)
        built_image = self.lookup(digest)
        if built_image is None:
            raise ImageError(f"{template.name} was removed immediately after it was built")
        progress(f"built {template.name} in {time.monotonic() - start_time:.1f} s")
        return built_image

    def temporary(self, digest: str) -> Path:
        """Return a new name of a folder that a sweep removes as soon as digest's lock is free."""
        return self.images / f"{digest}{TEMPORARY}{_unique_name()}"

    def _write(self, folder: Path, image: Image, spec: str, details: dict[str, object]) -> None:
        record = {
            "name": image.name,
            "spec": spec,
            "digest": image.digest,
            # Relative to the folder of images if below it: so the cache can move.
            "layers": [self._relative_path(layer) for layer in image.layers],
            "host": image.host,
            "env": dict(image.env),
            "cwd": image.cwd,
            "user": image.user,
            "config": dict(image.config),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "size": tree_size(folder / LAYER),
            "built": details,
        }
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def _relative_path(self, layer: Path) -> str:
        return str(layer.relative_to(self.images) if self.images in layer.parents else layer)

    def read(self, digest: str) -> dict[str, Any] | None:
        """Return an image's record, or None if it is missing or incomplete."""
        if not digest.isalnum():  # it may come from a stranger's run record
            return None
        try:
            text = (self.images / digest / RECORD).read_text(encoding="utf-8")
            record = json.loads(text)
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and "layers" in record else None

    def _image(self, record: Mapping[str, Any]) -> Image:
        return Image(
            name=record["name"],
            digest=record["digest"],
            layers=tuple(self.images / layer for layer in record["layers"]),
            host=record["host"],
            env=dict(record["env"]),
            cwd=record["cwd"],
            user=record.get("user", ""),
            config=record.get("config", {}),
        )

    # --- use by processes --------------------------------------------------------------------

    def mark_used(self, name: str) -> None:
        """Record that this process uses an image, by its digest, or a tarball, by its name.

        The caller must hold ``locks/use``, to exclude a concurrent removal.
        """
        with self._mutex:
            if name in self._marked_names:
                return
            if self._users_file is None:
                # Held until this process ends, in any way.
                path = self.users / _unique_name()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._users_file = os.open(path, flags, 0o644)
                fcntl.flock(self._users_file, fcntl.LOCK_EX)
            os.write(self._users_file, name.encode() + b"\n")
            self._marked_names.add(name)

    def in_use(self) -> set[str]:
        """Return the names that living processes have marked as used. Forget ended processes.

        The caller must hold ``locks/use`` exclusively: a process that takes an image into use first
        creates its file and then locks it.
        """
        names: set[str] = set()
        for path in self.users.iterdir():
            with file_lock(path, wait=False) as descriptor:
                if descriptor is None:
                    names.update(path.read_text(encoding="ascii").split())
        return names


def _unique_name() -> str:
    # A pid alone is not unique: containers that share a cache each count from 1.
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _touch(record: str) -> None:
    if time.time() - os.stat(record).st_mtime > TOUCH_INTERVAL:  # noqa: PTH116 - on a hot path
        os.utime(record)


_TEMPORARY_NAME = re.compile(r"(?P<digest>[0-9a-f]+)" + re.escape(TEMPORARY) + r"(?P<pid>\d+)-.*")
_DYING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A built image, in the listing of `list_images`."""

    name: str
    spec: str
    """The name from which the image was built."""
    digest: str
    size: int
    """Bytes on disk of the image's top layer."""
    created: str
    """ISO 8601, UTC."""
    last_used: float
    """Seconds since the epoch, to the accuracy of a day."""
    layers: tuple[str, ...]
    """The digests of the built images it consists of, lowest first, its own last."""
    in_use: bool
    """Whether a living process uses the image, or an image built on it."""
    path: Path

    def to_json(self) -> dict[str, object]:
        """Return the fields as plain data."""
        return {**dataclasses.asdict(self), "layers": list(self.layers), "path": str(self.path)}


def list_images(cache: ImageCache | None = None) -> list[ImageInfo]:
    """Return all built images, the last used first."""
    cache = cache or ImageCache.default()
    with file_lock(cache.locks / "use"):
        return _list_infos(cache)


def _list_infos(cache: ImageCache) -> list[ImageInfo]:
    infos_by_digest: dict[str, ImageInfo] = {}
    for folder in cache.images.iterdir():
        record = cache.read(folder.name)
        if record is None:
            continue
        infos_by_digest[folder.name] = ImageInfo(
            name=record["name"],
            spec=record["spec"],
            digest=folder.name,
            size=record["size"],
            created=record["created"],
            last_used=(folder / RECORD).stat().st_mtime,
            layers=tuple(
                Path(layer).parts[0] for layer in record["layers"] if not layer.startswith("/")
            ),
            in_use=False,
            path=folder,
        )
    used_digests = {
        layer_digest
        for digest in cache.in_use() & infos_by_digest.keys()
        for layer_digest in infos_by_digest[digest].layers
    }
    infos = [
        dataclasses.replace(info, in_use=info.digest in used_digests)
        for info in infos_by_digest.values()
    ]
    return sorted(infos, key=lambda info: (-info.last_used, info.name))


def prune(
    unused_seconds: float = 30 * 86400.0, *, include_recent: bool = False, dry_run: bool = False
) -> list[ImageInfo]:
    """Remove the images that were not used for `unused_seconds`; return them.

    The images of living processes, and images below retained images, are always retained.

    Args:
        unused_seconds: Seconds; uses are recorded to the day.
        include_recent: Whether to remove all images that are not in use.
        dry_run: Only return them.
    """
    cache = ImageCache.default()
    sweep(cache)
    removed_folders: list[Path] = []
    with file_lock(cache.locks / "use"):
        infos = _list_infos(cache)
        now = time.time()
        retained_images = [
            info
            for info in infos
            if info.in_use or not (include_recent or now - info.last_used >= unused_seconds)
        ]
        needed_digests = {layer_digest for info in retained_images for layer_digest in info.layers}
        victims = [info for info in infos if info.digest not in needed_digests]
        if dry_run:
            return victims
        for info in victims:
            removed_folders.append(cache.temporary(info.digest))
            info.path.rename(removed_folders[-1])  # absent at once; the files are removed later
    for path in removed_folders:
        remove_tree(path)
    return victims


def sweep(cache: ImageCache | None = None) -> list[Path]:
    """Remove the folders left by killed builds and removals; return them."""
    cache = cache or ImageCache.default()
    removed_folders: list[Path] = []
    for folder in cache.images.iterdir():
        match = _TEMPORARY_NAME.fullmatch(folder.name)
        if match and _remove_temporary(folder, cache.locks / match["digest"], match["pid"]):
            removed_folders.append(folder)
    return removed_folders


def _remove_temporary(folder: Path, lock: Path, pid: str) -> bool:
    """Remove a build's folder unless the build still runs; return whether it was removed."""
    deadline = time.monotonic() + _DYING_SECONDS
    while True:
        with file_lock(lock, wait=False) as descriptor:
            if descriptor is not None:
                remove_tree(folder)
                return True
        # The programs of a killed builder hold its lock until they have ended, too.
        if Path("/proc", pid).exists() or time.monotonic() > deadline:
            return False
        time.sleep(0.02)


TARBALL_FOLDERS = ("packs", "repositories", "agents")
_TEMPORARY_LIFETIME = 86400.0
"""Seconds after which an incomplete tarball is considered abandoned."""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A tarball of the cache."""

    path: Path
    size: int
    """Bytes on disk."""
    last_used: float
    """Seconds since the epoch."""

    def to_json(self) -> dict[str, object]:
        """Return the fields as plain data."""
        return {**asdict(self), "path": str(self.path)}


def take_tarball(path: Path) -> bool:
    """Mark a tarball as used, if it exists, to retain it while this process lives.

    Returns:
        Whether the tarball exists.
    """
    cache = ImageCache.default()
    with file_lock(cache.locks / "use", shared=True):
        return _mark_tarball_used(cache, path)


def keep_tarball(temporary_path: Path, path: Path) -> None:
    """Move a new tarball to its path, unless another exists by now, and mark it as used."""
    cache = ImageCache.default()
    with file_lock(cache.locks / "use", shared=True):
        if not _mark_tarball_used(cache, path):  # a new file would cause images to be checked again
            temporary_path.replace(path)
            _mark_tarball_used(cache, path)


def _mark_tarball_used(cache: ImageCache, path: Path) -> bool:
    try:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    cache.mark_used(path.name)
    return True


def prune_sources(
    unused_seconds: float = 30 * 86400.0,
    *,
    include_recent: bool = False,
    dry_run: bool = False,
    excluded_digests: Collection[str] = (),
) -> list[SourceInfo]:
    """Remove the tarballs that were not used for `unused_seconds`; return them.

    The tarballs of living processes, and tarballs in images, are always retained.

    Args:
        unused_seconds: Seconds.
        include_recent: Whether to remove all tarballs that are not in use.
        dry_run: Only return them.
        excluded_digests: The digests of images that do not count, since they are about to be
            removed.
    """
    cache = ImageCache.default()
    specs = [info.spec for info in list_images(cache) if info.digest not in excluded_digests]
    victims = []
    with file_lock(cache.locks / "use"):
        used_names, now = cache.in_use(), time.time()
        for path in _tarballs(cache, torn=False):
            info = path.stat()
            is_old = include_recent or now - info.st_atime >= unused_seconds
            if (
                is_old
                and path.name not in used_names
                and not any(path.name in image_spec for image_spec in specs)
            ):
                victims.append(SourceInfo(path, info.st_blocks * 512, info.st_atime))
        if not dry_run:
            for victim in victims:
                victim.path.unlink()
    if not dry_run:
        for path in _tarballs(cache, torn=True):
            if now - path.lstat().st_mtime > _TEMPORARY_LIFETIME:
                remove_tree(path)
    return victims


def _tarballs(cache: ImageCache, *, torn: bool) -> list[Path]:
    """Return the tarballs, or the incomplete ones, in a fixed order."""
    pattern = ".*" if torn else "[!.]*.tar"
    return sorted(path for name in TARBALL_FOLDERS for path in (cache.root / name).glob(pattern))
