"""Resolution of an image's name to an image of the Docker engine.

A name has the same meaning as for the native provider. InterCode builds the image in the same way,
and imports the image into the engine once, under the image's digest. ``docker-daemon:REFERENCE``
names an image that the engine already has. A name may add archives to such an image, too.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from intercode_sandbox.docker.engine import LABEL, LEASE, DockerEngine, MissingDockerObjectError
from intercode_sandbox.errors import ImageError, SandboxError
from intercode_sandbox.host_files import joint_digest, sha256
from intercode_sandbox.images import (
    BuildScript,
    Image,
    Progress,
    host_mounts,
    resolve,
    resolve_hidden_paths,
)
from intercode_sandbox.images.base import ImageAddition, ParsedImageName, clean_environment, parse
from intercode_sandbox.images.image_export import write_tree
from intercode_sandbox.images.tarballs import opaque_folders
from intercode_sandbox.images.tree import find_entry
from intercode_sandbox.ownership import new_lease

SCHEME = "docker-daemon:"
REPOSITORY = "intercode"
"""The repository, in the engine, of all images that InterCode has created there."""
_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""The files of an image over which an engine mounts its own versions."""


@dataclass(frozen=True, slots=True)
class DockerEngineImage:
    """An image of the engine, and additional settings of its containers."""

    image: Image = field(hash=False)
    """Name, digest, and settings of programs. The layers are empty: the engine has the files."""
    reference: str
    """The digest or the name that the image has in the engine."""
    user: str = "0"
    """The image's user, in the format of ``USER``."""
    volumes: tuple[str, ...] = ()
    """The paths that the image declares as volumes."""
    binds: tuple[str, ...] = ()
    """Folders of this machine that are mounted read-only at the same path."""
    hidden_paths: tuple[str, ...] = ()
    """Paths below `binds` that no program may see."""
    named_home: bool = True
    """Whether the image itself sets ``HOME``."""
    files: dict[str, str | None] = field(default_factory=dict, hash=False)
    """Path of a file over which an engine mounts its own version → the image's content."""


class DockerImageFinder:
    """The finder of images in the engine, which remembers images that were requested before.

    Args:
        engine: The engine.
        build_script: A function that runs a script or command in a sandbox of an image.
        progress: A function that returns the receiver of a build's messages, or None.
    """

    def __init__(
        self,
        engine: DockerEngine,
        build_script: BuildScript,
        progress: Callable[[], Progress | None],
    ) -> None:
        self._engine = engine
        self._build_script = build_script
        self._progress = progress
        self._lock = threading.Lock()
        self._images_by_key: dict[str, DockerEngineImage] = {}
        self._layered_images: dict[Hashable, tuple[str, str]] = {}

    def find(self, image_or_name: str | Image) -> DockerEngineImage:
        """Return the image of a name; build or import it if necessary.

        Raises:
            ImageError: The image does not exist, or cannot be built.
            SandboxError: The engine failed.
        """
        if isinstance(image_or_name, Image):
            return self._convert_image(image_or_name)
        if image_or_name.startswith(SCHEME):
            return self._find_daemon_image(parse(image_or_name))
        image = resolve(image_or_name, build_script=self._build_script, progress=self._progress())
        return self._convert_image(image)

    def _convert_image(self, image: Image) -> DockerEngineImage:
        hidden_paths = tuple(_list_hidden_paths()) if image.host else ()
        cache_key = f"{image.digest} {image.cwd} {image.user} {hidden_paths}"
        with self._lock:
            if cache_key not in self._images_by_key:
                self._images_by_key[cache_key] = DockerEngineImage(
                    replace(image, layers=()),
                    self._import_image(image),
                    user=image.user or "0",
                    binds=tuple(host_mounts()) if image.host else (),
                    hidden_paths=hidden_paths,
                    files={path: _read_content(image.layers, path) or "" for path in _FILES},
                )
            return self._images_by_key[cache_key]

    def _import_image(self, image: Image) -> str:
        """Import an image of InterCode into the engine, unless the engine has the image already.

        Returns:
            The engine's digest of the image.
        """
        image_tag = f"{REPOSITORY}:{image.digest}"
        with self._engine.errors("looking for an image") as api:
            image_ids = api.images(image_tag, quiet=True)
        if image_ids:
            return str(image_ids[0])
        if progress := self._progress():
            progress(f"giving the image {image.name} to the engine")
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        failures: list[OSError] = []

        def stream() -> None:
            try:
                with os.fdopen(write_fd, "wb") as pipe_writer:
                    write_tree(image.layers, pipe_writer)
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=stream, name="intercode-import")
        thread.start()
        try:
            with (
                os.fdopen(read_fd, "rb") as pipe_reader,
                self._engine.errors("importing an image") as api,
            ):
                api.import_image_from_data(
                    pipe_reader, REPOSITORY, image.digest, changes=[f"LABEL {LABEL}=1"]
                )
        finally:
            thread.join()
        if failures:
            with self._engine.errors("removing a torn image") as api:
                api.remove_image(image_tag)
            raise ImageError(f"cannot read the image {image.name}: {failures[0]}")
        with self._engine.errors("looking for an image") as api:
            image_ids = api.images(image_tag, quiet=True)
        if not image_ids:
            raise SandboxError(f"the engine did not accept the image {image.name}")
        return str(image_ids[0])

    def _find_daemon_image(self, spec: ParsedImageName) -> DockerEngineImage:
        """Return the image that a name with ``docker-daemon:`` denotes.

        Each call inspects the image again, because a tag may have moved to another image.
        """
        name = spec.argument
        try:
            with self._engine.errors("looking for an image") as api:
                inspection = api.inspect_image(name)
        except MissingDockerObjectError as error:
            raise ImageError(
                f"the engine has no image {name!r}: `docker pull {name}`, or `docker build` it"
            ) from error
        reference, digest = inspection["Id"], str(inspection["Id"]).removeprefix("sha256:")
        if spec.additions:
            reference, digest = self._layer_archives(reference, spec.additions)
        config: dict[str, Any] = inspection.get("Config") or {}
        variables = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
        image = Image(
            name=str(spec),
            digest=digest,
            layers=(),
            env={**clean_environment(), **variables},
            cwd=config.get("WorkingDir") or "/",
        )
        return DockerEngineImage(
            image,
            reference,
            user=config.get("User") or "0",
            named_home="HOME" in variables,
            volumes=tuple(sorted(config.get("Volumes") or ())),
        )

    def _layer_archives(self, base: str, additions: tuple[ImageAddition, ...]) -> tuple[str, str]:
        """Return the image of `_lay_over`, computed again only after a change of an archive."""
        cache_key = (
            base,
            tuple((str(addition.path), *_stamp(addition.path)) for addition in additions),
        )
        with self._lock:
            if cache_key not in self._layered_images:
                self._layered_images[cache_key] = _lay_over(self._engine, base, additions)
            return self._layered_images[cache_key]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        info = path.stat()
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error}") from error
    return info.st_ino, info.st_size, info.st_mtime_ns


def _list_hidden_paths() -> list[str]:
    return [path for path in resolve_hidden_paths() if Path(path).exists()]


def _lay_over(
    engine: DockerEngine, base: str, additions: Sequence[ImageAddition]
) -> tuple[str, str]:
    """Return an image of the engine: `base` with archives unpacked at its root.

    The first call creates the image. Its name contains a digest of its inputs, by which later calls
    find it.

    Args:
        engine: The engine.
        base: The engine's digest of the image below.
        additions: The archives, in order.

    Returns:
        The image's name in the engine, and the digest of the inputs, which is equal in every
        engine.

    Raises:
        ImageError: An archive cannot be read, or is a script.
        SandboxError: The engine failed.
    """
    input_digests = [base]
    for addition in additions:
        if addition.is_script:
            raise ImageError(
                f"{addition.text} cannot run over an image of the engine: run it in the Dockerfile"
            )
        input_digests.append(_archive_digest(addition.path))
    digest = joint_digest(*input_digests)
    image_tag = f"{REPOSITORY}:{digest}"
    with engine.errors("looking for an image") as api:
        image_ids = api.images(image_tag, quiet=True)
    if not image_ids:
        _build_layered_image(engine, digest, base, additions)
    return image_tag, digest


def _build_layered_image(
    engine: DockerEngine, digest: str, base: str, additions: Sequence[ImageAddition]
) -> None:
    # If this process is killed, `provider.sweep` finds and removes the container by the labels.
    labels = {LABEL: "1", LEASE: new_lease()}
    with engine.errors("laying files over an image") as api:
        container_id = api.create_container(base, ["-"], labels=labels)["Id"]
        try:
            for addition in additions:
                _check_free(engine, container_id, addition)
                with addition.path.open("rb") as archive:
                    api.put_archive(container_id, "/", archive)
            # The new image has the container's useless command "-" in place of the image's command.
            # InterCode never runs either of them.
            api.commit(container_id, REPOSITORY, digest, changes=[f"LABEL {LABEL}=1"])
        finally:
            api.remove_container(container_id, force=True, v=True)


def _check_free(engine: DockerEngine, container_id: str, addition: ImageAddition) -> None:
    """Refuse an archive with a folder that must hide a folder of the image.

    An engine cannot hide the image's folder, but would merge both folders.
    """
    for folder_path in opaque_folders(addition.path):
        try:
            with engine.errors("looking at an image") as api:
                api.get_archive(container_id, f"/{folder_path}")[0].close()
        except MissingDockerObjectError:
            continue
        raise ImageError(
            f"the image has /{folder_path}, which an engine cannot hide: remove it in the "
            "Dockerfile, "
            "name another 'metadata.directory', or use --sandbox native"
        )


def _archive_digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error}") from error


def _read_content(layers: Sequence[Path], path: str) -> str | None:
    """Return the content of a small file of an image; None if it is not a regular file.

    Args:
        layers: The image's layers, the lowest first.
        path: The path in the image.
    """
    entry = find_entry(layers, path.strip("/").split("/"))
    if entry is None or not stat.S_ISREG(entry.info.st_mode):
        return None
    return os.fsdecode(entry.path.read_bytes())


def prune(dry_run: bool = False) -> list[tuple[str, int]]:
    """Remove the images of InterCode that no container uses from the engine, if an engine runs.

    Args:
        dry_run: Whether to return the images without removing them.

    Returns:
        The first 12 digits of the identifier, and the size in bytes, of each image.
    """
    removed_images = []
    with suppress(SandboxError), closing(DockerEngine()) as engine:
        with engine.errors("listing images") as api:
            images = api.images(all=True, filters={"label": f"{LABEL}=1"})
        for image in images:
            with suppress(SandboxError), engine.errors("removing an image") as api:
                if api.containers(all=True, quiet=True, filters={"ancestor": image["Id"]}):
                    continue
                if not dry_run:
                    api.remove_image(image["Id"], force=True)
                removed_images.append(
                    (image["Id"].removeprefix("sha256:")[:12], int(image["Size"]))
                )
    return removed_images
