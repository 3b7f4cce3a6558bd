"""Snapshots of native sandboxes, and the layers that scripts or commands add to an image.

A sandbox's files are saved as a layer on disk (`SnapshotLayer`), or frozen in memory
(`FrozenLayer`).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from intercode_sandbox.base import Limits, SandboxBackend
from intercode_sandbox.errors import ImageError, OutputLimitError, SandboxError
from intercode_sandbox.host_files import cache_root, joint_digest, remove_tree
from intercode_sandbox.images import Command, Image
from intercode_sandbox.images.base import SCRIPT
from intercode_sandbox.linux_capabilities import CAPABILITIES
from intercode_sandbox.native import change_stream
from intercode_sandbox.native.cgroup import PREFIX, parents, remove_all
from intercode_sandbox.native.change_stream import SHARED_MEMORY
from intercode_sandbox.native.exit_ledger import LEDGERS, EndingSandbox, read_ledgers
from intercode_sandbox.native.frozen_layers import FrozenLayer
from intercode_sandbox.ownership import is_gone, new_lease, register_finalizer
from intercode_sandbox.privileges import is_root, make_private, transfer_ownership

_SUFFIX = " (snapshot)"
_MAX_FROZEN_LAYERS = 30
"""Maximum number of frozen layers of one sandbox. More layers would make each opening of a file
slower, because the kernel looks up the file in all of them."""
_HIDDEN_SHARE = 4
"""Divisor of a sandbox's limits. Later frozen layers may hide content of earlier ones, which still
uses memory. All layers but the first may use one fourth of the limits of bytes and files."""
_SPECIAL_FILES = 256
"""Maximum number of files with setuid or setgid bits in a snapshot. An agent may create any number
of such files, and each start of a sandbox copies them."""


class SnapshotLayer:
    """A folder on disk with a layer that was saved from a sandbox.

    Snapshots and sandboxes that need the layer hold references to this object. The folder is
    removed when the last reference ends.

    Args:
        forget: A function that is called with the layer's path before the folder is removed.

    Raises:
        SandboxError: The folder cannot be created.
    """

    def __init__(self, forget: Callable[[Path], None]) -> None:
        folder = cache_root() / "snapshots" / new_lease()
        self.path = folder / "layer"
        self.special: Sequence[change_stream.Special] = ()
        self._discard = register_finalizer(self, _discard, folder, self.path, forget)
        try:
            make_private(folder.parent)
            make_private(folder)
            self.path.mkdir(mode=0o755)
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error

    @classmethod
    def write(
        cls, write_stream: Callable[[int], None], forget: Callable[[Path], None]
    ) -> SnapshotLayer:
        """Return a new layer with the files of a stream.

        Args:
            write_stream: A function that writes a stream of `archive` to a descriptor.
            forget: See the constructor.
        """
        layer = cls(forget)
        layer.fill(write_stream)
        return layer

    @property
    def name(self) -> str:
        """The layer's name, unique on this machine."""
        return self.path.parent.name

    def fill(self, write_stream: Callable[[int], None]) -> None:
        """Unpack the files of a stream into the layer: see `unpack_stream`."""
        self.special = unpack_stream(self.path, write_stream, self.discard)[:_SPECIAL_FILES]

    def discard(self) -> None:
        """Remove the layer's folder."""
        self._discard()


@dataclass(frozen=True)
class SandboxStartFiles:
    """The files at a sandbox's start: an image, and changes over the image.

    The storage of the changes exists for as long as this object.
    """

    image: Image
    """The image, with which `changes` compares the files."""
    saved_layers: tuple[SnapshotLayer, ...] = ()
    """The layers of the image that were saved as snapshots. The references keep their storage."""
    copy: SnapshotLayer | None = None
    """A layer on disk with the changes over the image, up to the time of the copy."""
    frozen_layers: tuple[FrozenLayer, ...] = ()
    """Layers in memory with later changes, the lowest layer first."""

    @property
    def digest(self) -> str:
        """A digest of the image and of all layers over it."""
        layer_names = [] if self.copy is None else [self.copy.name]
        layer_names += [
            f"{frozen_layer.owner}/{frozen_layer.name}" for frozen_layer in self.frozen_layers
        ]
        return joint_digest(self.image.digest, *layer_names) if layer_names else self.image.digest

    @property
    def usage(self) -> tuple[int, int]:
        """The numbers of bytes and of files of all frozen layers together."""
        return sum(frozen_layer.bytes for frozen_layer in self.frozen_layers), sum(
            frozen_layer.files for frozen_layer in self.frozen_layers
        )

    def is_crowded(self, limits: Limits) -> bool:
        """Return whether a copy should replace the frozen layers at the next save.

        True if the layers are too many, or if they may hide too much content of each other: see
        `_MAX_FROZEN_LAYERS` and `_HIDDEN_SHARE`.

        Args:
            limits: The sandbox's limits.
        """
        later_layers_usage = replace(self, frozen_layers=self.frozen_layers[1:]).usage
        max_usage = limits.disk // _HIDDEN_SHARE, limits.files // _HIDDEN_SHARE
        return (
            len(self.frozen_layers) >= _MAX_FROZEN_LAYERS
            or later_layers_usage[0] > max_usage[0]
            or later_layers_usage[1] > max_usage[1]
        )

    @property
    def layers(self) -> list[str]:
        """The folders of all layers on disk, the lowest layer first."""
        copy_paths = () if self.copy is None else (self.copy.path,)
        return [str(path) for path in (*self.image.layers, *copy_paths)]

    @property
    def special(self) -> list[tuple[str, Sequence[change_stream.Special]]]:
        """The folder of a layer, and its files with setuid or setgid bits, for each such layer."""
        layers = [*self.saved_layers, self.copy]
        return [(str(layer.path), layer.special) for layer in layers if layer and layer.special]

    def with_image(self, layer: SnapshotLayer) -> SandboxStartFiles:
        """Return the same files as a new image, with `layer` as its topmost layer.

        Args:
            layer: A layer with all changes over the present image.
        """
        digest, layer_paths = (
            joint_digest(self.image.digest, layer.name),
            (*self.image.layers, layer.path),
        )
        image = replace(self.image, name=_name(self.image), digest=digest, layers=layer_paths)
        return SandboxStartFiles(image, (*self.saved_layers, layer))

    def with_copy(self, layer: SnapshotLayer) -> SandboxStartFiles:
        """Return the same files as the present image and a copy of the changes.

        Args:
            layer: A layer with all changes over the present image.
        """
        return SandboxStartFiles(self.image, self.saved_layers, layer)

    def with_frozen_layer(self, layer: FrozenLayer) -> SandboxStartFiles:
        """Return these files with one further frozen layer, of the latest changes."""
        return replace(self, frozen_layers=(*self.frozen_layers, layer))


def _name(image: Image) -> str:
    return f"{image.name.removesuffix(_SUFFIX)}{_SUFFIX}"


class NativeSnapshot:
    """The native implementation of `Snapshot`.

    The storage is freed as soon as no snapshot and no sandbox refers to it.

    Args:
        files: The files of sandboxes that start from the snapshot.
    """

    def __init__(self, files: SandboxStartFiles) -> None:
        self._files: SandboxStartFiles | None = files
        self.name = _name(files.image)

    @property
    def files(self) -> SandboxStartFiles:
        """The files of sandboxes that start from the snapshot.

        Raises:
            SandboxError: The snapshot was deleted.
        """
        if self._files is None:
            raise SandboxError(f"the snapshot {self.name!r} was deleted")
        return self._files

    @property
    def image(self) -> Image:
        """The image with which `changes` compares the files of the snapshot's sandboxes."""
        return self.files.image

    def delete(self) -> None:
        """Free the storage as soon as no sandbox and no other snapshot needs it."""
        self._files = None


def unpack_stream(
    layer: Path, write_stream: Callable[[int], None], on_failure: Callable[[], None] = lambda: None
) -> list[change_stream.Special]:
    """Unpack a stream of a sandbox's files into an empty folder, on a separate thread.

    Args:
        layer: The folder.
        write_stream: A function that writes the stream to a descriptor. This thread calls it.
        on_failure: A function that the unpacking thread calls after a failure, to remove the
            folder. The caller's thread cannot do this safely. An exception there, such as Ctrl-C,
            may come while the other thread still writes. The unpacking thread holds a reference to
            `on_failure` until its end.

    Returns:
        See `archive.extract`.

    Raises:
        OutputLimitError: No disk of any size could hold the files.
        SandboxError: The stream broke off, or the folder cannot be written.
    """
    pipe_fds = os.pipe2(os.O_CLOEXEC)
    # Python closes both files when their last references end.
    reader, writer = (
        open(pipe_fds[0], "rb"),
        open(pipe_fds[1], "wb"),
    )
    failures: list[BaseException] = []
    special_files: list[change_stream.Special] = []

    def unpack() -> None:
        opaque_attribute = "trusted.overlay.opaque" if is_root() else "user.overlay.opaque"
        try:
            with reader:  # after a failure the closed pipe ends `write`, by EPIPE
                special_files.extend(
                    change_stream.extract(reader.fileno(), layer, opaque_attribute)
                )
            transfer_ownership(layer)
        except Exception as error:  # noqa: BLE001 - any error leaves the snapshot incomplete
            failures.append(error)
            on_failure()

    thread = threading.Thread(target=unpack, name="intercode-snapshot")
    thread.start()
    try:
        write_stream(writer.fileno())
    except BrokenPipeError:
        thread.join()
        if not failures:  # otherwise the pipe broke because of the failure that is raised below
            raise
    finally:
        writer.close()
        thread.join()
    if failures:
        error = failures[0]
        if isinstance(error, OSError) and error.errno == errno.EMLINK:
            raise OutputLimitError(
                "a file has more hard links than the disk's file system permits"
            ) from error
        raise SandboxError(f"the snapshot could not be saved: {error}") from error
    return special_files


def _sweep_snapshots(dry_run: bool = False) -> list[str]:
    """Remove the snapshots of processes that have ended; return the paths of their folders.

    Args:
        dry_run: Whether to return the paths without removing the folders.
    """
    removed_paths = []
    parent = cache_root() / "snapshots"
    for folder in parent.iterdir() if os.access(parent, os.R_OK) else ():
        if is_gone(folder.name):
            removed_paths.append(str(folder))
            if not dry_run:
                _remove(folder)
    return removed_paths


def _discard(folder: Path, layer: Path, forget: Callable[[Path], None]) -> None:
    forget(layer)
    _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # the next call of `sweep` tries again
        remove_tree(folder)


_SECONDS = 600.0
"""Time limit of a set-up script, in seconds."""
_LIMITS = Limits(memory=4 << 30, disk=4 << 30, processes=1024)
"""Limits of the sandbox that runs a script or a command. They suffice to install packages."""


class SupportsChangeStream(SandboxBackend, Protocol):
    """A sandbox that can stream its changes, in the format of the module `archive`."""

    def archive(self, descriptor: int) -> None:
        """Stream the sandbox's changes, relative to its image, into a file descriptor."""


def build_script(
    start: Callable[[Image, Limits, bool], SupportsChangeStream],
    base: Image,
    script: bytes | Command,
    layer: Path,
) -> None:
    """Run a set-up script, or a command, in a sandbox of `base`; write its changes into `layer`.

    Args:
        start: A function that starts a sandbox of an image, with limits and a network policy.
        base: The image.
        script: The content of a Bash script; or the command of a Dockerfile's step.
        layer: An empty folder.

    Raises:
        ImageError: The script failed, or did not end in time.
    """
    if isinstance(script, Command):
        limits = replace(_LIMITS, capabilities=tuple(CAPABILITIES))
        script_label, command = "the command", script
    else:
        base, limits = replace(base, cwd="/", user=""), _LIMITS
        script_label = "the set-up script"
        command = Command(("/bin/bash", SCRIPT), script, timeout=_SECONDS)
    sandbox = start(base, limits, command.network)
    try:
        if command.script is not None:
            sandbox.write_file(SCRIPT, command.script, 0o755)
        result = sandbox.exec(command.argv, timeout=command.timeout, merge_stderr=True)
        if not result.ok:
            output_tail = result.stdout.decode(errors="replace")[-2000:]
            reason = "did not end in time" if result.timed_out else f"exit code {result.exit_code}"
            raise ImageError(f"{script_label} over {base.name} failed ({reason}):\n{output_tail}")
        sandbox.kill()
        for path, mode in unpack_stream(layer, sandbox.archive):
            # The author of the image intends the setuid and setgid bits, which an engine such as
            # Docker would keep, too.
            Path(layer, path).chmod(mode)
        remove_tree(layer / SHARED_MEMORY[1:])
        with suppress(OSError):  # the parent folder has other content
            (layer / SHARED_MEMORY[1:]).parent.rmdir()
    finally:
        sandbox.close()


def endings() -> list[EndingSandbox]:
    """Return the closed sandboxes, of all processes, that the kernel has not ended yet."""
    return read_ledgers(cache_root() / LEDGERS)


def sweep(dry_run: bool = False) -> list[str]:
    """Remove the cgroups and snapshots that ended processes have left; return their paths.

    Args:
        dry_run: Whether to return the paths without removing anything.
    """
    removed_paths = []
    ending_leases = {ending.lease for ending in endings()}
    for parent in parents():
        for cgroup_folder in Path(parent).glob(f"{PREFIX}*"):
            lease = cgroup_folder.name.removeprefix(PREFIX)
            if lease in ending_leases or not is_gone(lease):
                continue
            removed_paths.append(str(cgroup_folder))
            if not dry_run:
                remove_all(lease)
    return removed_paths + _sweep_snapshots(dry_run)
