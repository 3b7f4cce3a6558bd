"""The store of built images, in the cache folder ROOT.

Each image has a folder. The folder is either complete or absent. The first process that needs an
image builds it, and other processes wait. The files are::

    ROOT/images/DIGEST/image.json     the image's record; its modification time is the last use
    ROOT/images/DIGEST/layer/         the image's top layer; lower layers belong to other images
    ROOT/images/DIGEST.tmp-PID-X/     a build, or files to be removed if DIGEST's lock is free
    ROOT/locks/DIGEST                 lock of a process that builds or removes, and its children
    ROOT/locks/use                    lock; shared: to begin using an image; exclusive: to remove
    ROOT/users/PID-X                  file locked by a process, with images and tarballs in use
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
from intercode_sandbox.host_files import cache_root, file_lock, remove_tree, tree_size
from intercode_sandbox.images.base import Fill, Image, Progress
from intercode_sandbox.privileges import make_private, transfer_ownership

LAYER = "layer"
RECORD = "image.json"
TOUCH_INTERVAL = 86400.0
"""Seconds after which a use of an image is recorded again."""
TEMPORARY = ".tmp-"
"""Part of the name of a build's folder, after the digest."""


@functools.cache
def _cache_at(root: Path) -> ImageCache:
    return ImageCache(root)


class ImageCache:
    """The store of images in one cache folder. Safe among threads and processes.

    Args:
        root: The cache folder.

    Raises:
        ImageError: The folder cannot be written, or its images belong to another user.
    """

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
                if not os.access(folder, os.W_OK):  # the file system may be read-only
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        except OSError as error:
            raise ImageError(
                f"cannot store images in {root}: {error.strerror}; set INTERCODE_CACHE to a "
                "folder that you may write"
            ) from None
        self._memory: dict[Hashable, tuple[Image, tuple[str, ...]]] = {}
        self.inputs: dict[Hashable, tuple[str, ...]] = {}
        """Parsed name of an image → the paths that its build has used, its `inputs`."""
        self._mutex = threading.Lock()
        self._marked_names: set[str] = set()
        self._users_file: int | None = None

    @staticmethod
    def default() -> ImageCache:
        """Return the cache in the folder that the environment variables name now.

        All calls in this process return the same `ImageCache` for the same folder.
        """
        return _cache_at(cache_root())

    # --- in this process ---------------------------------------------------------------------

    def recall(self, key: Hashable) -> Image | None:
        """Return the image that this process has remembered under a key, within microseconds.

        None: no image is remembered, or another process has removed a layer.
        """
        entry = self._memory.get(key)
        if entry is None:
            return None
        image, record_paths = entry
        try:
            for record_path in record_paths:
                _touch(record_path)
        except OSError:
            self._memory.pop(key, None)
            return None
        return image

    def remember(self, key: Hashable, image: Image) -> None:
        """Remember an image under a key in this process, for `recall`."""
        record_paths = [
            str(layer.parent / RECORD)
            for layer in image.layers
            if layer.is_relative_to(self.images)
        ]
        self._memory[key] = (image, tuple(record_paths))

    # --- on disk -----------------------------------------------------------------------------

    def lookup(self, digest: str) -> Image | None:
        """Return a built image, and mark the image as used by this process.

        None: the image, or one of its layers, is not in the cache.
        """
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
        """Return an image with one more layer than `template`, built unless the cache has it.

        Args:
            template: The image, with its final digest, but without its topmost layer.
            spec: The name from which the image is built.
            fill: Fills the topmost layer: see `Fill`.
            progress: Receives the messages.

        Raises:
            ImageError: The build failed.
        """
        digest = template.digest
        if image := self.lookup(digest):
            return image
        with file_lock(self.locks / digest, wait=False) as lock_fd:
            if lock_fd is not None:
                return self._build(template, spec, fill, lock_fd, progress)
        progress(f"waiting for another process that builds {template.name}")
        with file_lock(self.locks / digest) as lock_fd:
            assert lock_fd is not None  # file_lock with a wait always yields a descriptor
            return self._build(template, spec, fill, lock_fd, progress)

    def _build(
        self, template: Image, spec: str, fill: Fill, lock_fd: int, progress: Progress
    ) -> Image:
        digest = template.digest
        if built_image := self.lookup(digest):
            return built_image
        progress(f"building {template.name}")
        start_time = time.monotonic()
        remove_tree(self.images / digest)  # a folder without a valid record may exist
        temporary_folder = self.temporary(digest)
        try:
            layer = temporary_folder / LAYER
            layer.mkdir(parents=True)
            layer.chmod(0o755)
            details = fill(layer, lock_fd)
            transfer_ownership(layer)
            image = replace(template, layers=(*template.layers, self.images / digest / LAYER))
            self._write(
                temporary_folder, image, spec, {**details, "seconds": time.monotonic() - start_time}
            )
            temporary_folder.rename(self.images / digest)
        except OSError as error:
            raise ImageError(f"cannot build the image {template.name}: {error}") from error
        finally:
            remove_tree(temporary_folder)
        built_image = self.lookup(digest)
        if built_image is None:
            raise ImageError(f"{template.name} was removed immediately after it was built")
        progress(f"built {template.name} in {time.monotonic() - start_time:.1f} s")
        return built_image

    def temporary(self, digest: str) -> Path:
        """Return the path of a new temporary folder for an image.

        `sweep` removes the folder if no process holds the lock of `digest`.
        """
        return self.images / f"{digest}{TEMPORARY}{_unique_name()}"

    def _write(self, folder: Path, image: Image, spec: str, details: dict[str, object]) -> None:
        record = {
            "name": image.name,
            "spec": spec,
            "digest": image.digest,
            # Paths in the cache are relative, so the cache folder can be moved.
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
        """Return the record of a built image; None: the record is missing or incomplete."""
        # The digest may come from a run's record that a stranger has written. As a part of a path
        # it must not lead to other folders.
        if not digest.isalnum():
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

    def mark_used(self, digest_or_name: str) -> None:
        """Record that this process uses an image or a tarball, until the process ends.

        The caller must hold ``locks/use``, to exclude a concurrent removal.

        Args:
            digest_or_name: The digest of the image, or the name of the tarball.
        """
        with self._mutex:
            if digest_or_name in self._marked_names:
                return
            if self._users_file is None:
                # The lock on this file is held until this process ends, for any cause.
                users_path = self.users / _unique_name()
                open_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._users_file = os.open(users_path, open_flags, 0o644)
                fcntl.flock(self._users_file, fcntl.LOCK_EX)
            os.write(self._users_file, digest_or_name.encode() + b"\n")
            self._marked_names.add(digest_or_name)

    def in_use(self) -> set[str]:
        """Return the names that running processes have marked as used by `mark_used`.

        The files of ended processes are removed. The caller must hold ``locks/use`` exclusively.
        Otherwise a process could be between creating and locking its file, and would seem to have
        ended.
        """
        used_names: set[str] = set()
        for users_path in self.users.iterdir():
            with file_lock(users_path, wait=False) as lock_fd:
                if lock_fd is None:
                    used_names.update(users_path.read_text(encoding="ascii").split())
        return used_names


def _unique_name() -> str:
    # A pid alone is not unique: containers may share a cache, and pids of each begin with 1.
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _touch(record_path: str) -> None:
    if time.time() - os.stat(record_path).st_mtime > TOUCH_INTERVAL:  # noqa: PTH116 - on a hot path
        os.utime(record_path)


_TEMPORARY_NAME = re.compile(r"(?P<digest>[0-9a-f]+)" + re.escape(TEMPORARY) + r"(?P<pid>\d+)-.*")
_DYING_SECONDS = 1.0
"""Seconds for which `sweep` waits for the end of a killed build's programs."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Facts on a built image, from `list_images`."""

    name: str
    spec: str
    """The name from which the image was built."""
    digest: str
    size: int
    """Bytes on disk of the image's top layer."""
    created: str
    """Time of the build, in ISO 8601, UTC."""
    last_used: float
    """Time of the last use in seconds since the epoch, to the accuracy of a day."""
    layers: tuple[str, ...]
    """The digests of the images whose top layers the image consists of, the lowest first. The last
    digest is the image's own."""
    in_use: bool
    """Whether a running process uses the image, or an image that contains its top layer."""
    path: Path

    def to_json(self) -> dict[str, object]:
        """Return the fields as plain data."""
        return {**dataclasses.asdict(self), "layers": list(self.layers), "path": str(self.path)}


def list_images(cache: ImageCache | None = None) -> list[ImageInfo]:
    """Return facts on all built images, the most recently used first.

    Args:
        cache: The cache; None: the default one.
    """
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
    """Remove the images that were not used for some time; return facts on them.

    Images that a running process uses, and images that a retained image contains, are never
    removed.

    Args:
        unused_seconds: Seconds since the last use; uses are recorded to the day.
        include_recent: Whether to remove all images that are not in use, at any age.
        dry_run: Whether to return the facts without removing the images.
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
            # After this line the image is absent. Its files are removed without the lock.
            info.path.rename(removed_folders[-1])
    for removed_folder in removed_folders:
        remove_tree(removed_folder)
    return victims


def sweep(cache: ImageCache | None = None) -> list[Path]:
    """Remove the temporary folders that killed builds and removals have left; return their paths.

    Args:
        cache: The cache; None: the default one.
    """
    cache = cache or ImageCache.default()
    removed_folders: list[Path] = []
    for folder in cache.images.iterdir():
        match = _TEMPORARY_NAME.fullmatch(folder.name)
        if match and _remove_temporary(folder, cache.locks / match["digest"], match["pid"]):
            removed_folders.append(folder)
    return removed_folders


def _remove_temporary(folder: Path, lock_path: Path, pid: str) -> bool:
    """Remove the temporary folder of a build, unless the build still runs.

    Args:
        folder: The folder.
        lock_path: The file of the build's lock.
        pid: The pid of the building process.

    Returns:
        Whether the folder was removed.
    """
    deadline = time.monotonic() + _DYING_SECONDS
    while True:
        with file_lock(lock_path, wait=False) as lock_fd:
            if lock_fd is not None:
                remove_tree(folder)
                return True
        # If the building process was killed, its programs still hold the lock until they end.
        if Path("/proc", pid).exists() or time.monotonic() > deadline:
            return False
        time.sleep(0.02)


TARBALL_FOLDERS = ("packs", "repositories", "agents")
"""Names of the folders, in the cache, with tarballs that were packed for images."""
_TEMPORARY_LIFETIME = 86400.0
"""Age in seconds after which an incomplete tarball is removed."""


@dataclass(frozen=True, slots=True)
class SourceTarballInfo:
    """Facts on a tarball in the cache, which was packed for images."""

    path: Path
    size: int
    """Bytes on disk."""
    last_used: float
    """Time of the last use in seconds since the epoch."""

    def to_json(self) -> dict[str, object]:
        """Return the fields as plain data."""
        return {**asdict(self), "path": str(self.path)}


def take_tarball(path: Path) -> bool:
    """Mark a tarball as used by this process, if the tarball exists.

    The tarball is then not removed while this process runs.

    Returns:
        Whether the tarball exists.
    """
    cache = ImageCache.default()
    with file_lock(cache.locks / "use", shared=True):
        return _mark_tarball_used(cache, path)


def keep_tarball(temporary_path: Path, path: Path) -> None:
    """Move a new tarball to its final path, and mark the tarball as used by this process.

    If another process has created an equal tarball meanwhile, that tarball is kept. A new file
    would make other processes check images again.

    Args:
        temporary_path: The path of the new tarball.
        path: The final path.
    """
    cache = ImageCache.default()
    with file_lock(cache.locks / "use", shared=True):
        if not _mark_tarball_used(cache, path):
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
) -> list[SourceTarballInfo]:
    """Remove the tarballs that were not used for some time; return facts on them.

    Tarballs that a running process uses, and tarballs that the name of an image contains, are never
    removed.

    Args:
        unused_seconds: Seconds since the last use.
        include_recent: Whether to remove all tarballs that are not in use, at any age.
        dry_run: Whether to return the facts without removing the tarballs.
        excluded_digests: The digests of images that do not protect their tarballs, because the
            caller is about to remove these images.
    """
    cache = ImageCache.default()
    image_specs = [info.spec for info in list_images(cache) if info.digest not in excluded_digests]
    victims = []
    with file_lock(cache.locks / "use"):
        used_names, now = cache.in_use(), time.time()
        for path in _tarballs(cache, torn=False):
            info = path.stat()
            is_old = include_recent or now - info.st_atime >= unused_seconds
            if (
                is_old
                and path.name not in used_names
                and not any(path.name in image_spec for image_spec in image_specs)
            ):
                victims.append(SourceTarballInfo(path, info.st_blocks * 512, info.st_atime))
        if not dry_run:
            for victim in victims:
                victim.path.unlink()
    if not dry_run:
        for path in _tarballs(cache, torn=True):
            if now - path.lstat().st_mtime > _TEMPORARY_LIFETIME:
                remove_tree(path)
    return victims


def _tarballs(cache: ImageCache, *, torn: bool) -> list[Path]:
    """Return the paths of tarballs in the cache, in a fixed order.

    Args:
        cache: The cache.
        torn: Whether to return the incomplete tarballs, rather than the complete ones.
    """
    pattern = ".*" if torn else "[!.]*.tar"
    return sorted(
        path for folder_name in TARBALL_FOLDERS for path in (cache.root / folder_name).glob(pattern)
    )
