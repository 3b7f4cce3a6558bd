"""Layers that sandboxes leave: snapshots, and what a script or a command makes of an image."""

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
from intercode_sandbox.capabilities import CAPABILITIES
from intercode_sandbox.errors import ImageError, OutputLimitError, SandboxError
from intercode_sandbox.files import cache_root, joint_digest, remove_tree
from intercode_sandbox.images import Command, Image
from intercode_sandbox.images.base import SCRIPT
from intercode_sandbox.native import archive
from intercode_sandbox.native.archive import SHARED_MEMORY
from intercode_sandbox.native.cgroup import PREFIX, parents, remove_all
from intercode_sandbox.native.exit_ledger import LEDGERS, Ending, read_ledgers
from intercode_sandbox.native.frozen_layers import FrozenLayer
from intercode_sandbox.ownership import is_gone, new_lease, register_finalizer
from intercode_sandbox.privileges import hand_over, is_root, make_private

_SUFFIX = " (snapshot)"
_MAX_FROZEN_LAYERS = 30
"""Each file that is opened is looked for in all layers."""
_HIDDEN_PART = 4
"""Of a limit, one part of so many may be used by what frozen layers hide."""
_SPECIAL_FILES = 256
"""An agent may have made any number of them, and each start copies them."""


class Layer:
    """A saved layer's folder. It goes with its last user: a snapshot, one over it, a sandbox.

    Args:
        forget: Is told of a layer that is about to go.

    Raises:
        SandboxError: The folder cannot be made.
    """

    def __init__(self, forget: Callable[[Path], None]) -> None:
        folder = cache_root() / "snapshots" / new_lease()
        self.path = folder / "layer"
        self.special: Sequence[archive.Special] = ()
        self._discard = register_finalizer(self, _discard, folder, self.path, forget)
        try:
            make_private(folder.parent)
            make_private(folder)
            self.path.mkdir(mode=0o755)
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error

    @classmethod
    def of(cls, write: Callable[[int], None], forget: Callable[[Path], None]) -> Layer:
        """Return a new layer with what `write` streams."""
        layer = cls(forget)
        layer.fill(write)
        return layer

    @property
    def name(self) -> str:
        """A name that no other layer has."""
        return self.path.parent.name

    def fill(self, write: Callable[[int], None]) -> None:
        """Unpack into it what `write` streams; see `fill`."""
        self.special = fill(self.path, write, self.discard)[:_SPECIAL_FILES]

    def discard(self) -> None:
        """Remove the layer's folder."""
        self._discard()


@dataclass(frozen=True)
class Files:
    """The files that a sandbox starts with. They are there for as long as this is."""

    image: Image
    """The image, from which changes are told."""
    saved_layers: tuple[Layer, ...] = ()
    """The layers of the image that are saved ones."""
    copy: Layer | None = None
    """A copy of what was changed of the image, until some time."""
    frozen_layers: tuple[FrozenLayer, ...] = ()
    """Layers of what was changed since then, the lowest first."""

    @property
    def digest(self) -> str:
        """A digest of all of them."""
        layer_names = [] if self.copy is None else [self.copy.name]
        layer_names += [f"{layer.owner}/{layer.name}" for layer in self.frozen_layers]
        return joint_digest(self.image.digest, *layer_names) if layer_names else self.image.digest

    @property
    def usage(self) -> tuple[int, int]:
        """The bytes and files of the frozen layers."""
        return sum(layer.bytes for layer in self.frozen_layers), sum(
            layer.files for layer in self.frozen_layers
        )

    def crowded(self, limits: Limits) -> bool:
        """Whether there are many frozen layers, or what they hide of each other may be much."""
        hidden_usage = replace(self, frozen_layers=self.frozen_layers[1:]).usage
        max_usage = limits.disk // _HIDDEN_PART, limits.files // _HIDDEN_PART
        return (
            len(self.frozen_layers) >= _MAX_FROZEN_LAYERS
            or hidden_usage[0] > max_usage[0]
            or hidden_usage[1] > max_usage[1]
        )

    @property
    def layers(self) -> list[str]:
        """The folders of all layers, the lowest first."""
        copies = () if self.copy is None else (self.copy.path,)
        return [str(path) for path in (*self.image.layers, *copies)]

    @property
    def special(self) -> list[tuple[str, Sequence[archive.Special]]]:
        """The files of special modes of each layer that has some."""
        layers = [*self.saved_layers, self.copy]
        return [(str(layer.path), layer.special) for layer in layers if layer and layer.special]

    def with_image(self, layer: Layer) -> Files:
        """Return these with all that was changed in a layer of the image."""
        digest, layers = (
            joint_digest(self.image.digest, layer.name),
            (*self.image.layers, layer.path),
        )
        image = replace(self.image, name=_name(self.image), digest=digest, layers=layers)
        return Files(image, (*self.saved_layers, layer))

    def with_copy(self, layer: Layer) -> Files:
        """Return these with all that was changed in a layer over the image."""
        return Files(self.image, self.saved_layers, layer)

    def with_frozen_layer(self, layer: FrozenLayer) -> Files:
        """Return these with a layer of what was changed of them."""
        return replace(self, frozen_layers=(*self.frozen_layers, layer))


def _name(image: Image) -> str:
    return f"{image.name.removesuffix(_SUFFIX)}{_SUFFIX}"


class NativeSnapshot:
    """See `sandbox.base.Snapshot`. It is temporary: it goes with this object.

    Args:
        files: What sandboxes of it start with.
    """

    def __init__(self, files: Files) -> None:
        self._files: Files | None = files
        self.name = _name(files.image)

    @property
    def files(self) -> Files:
        """The files that sandboxes of it start with.

        Raises:
            SandboxError: It was deleted.
        """
        if self._files is None:
            raise SandboxError(f"the snapshot {self.name!r} was deleted")
        return self._files

    @property
    def image(self) -> Image:
        """Image that changes in its sandboxes are told from."""
        return self.files.image

    def delete(self) -> None:
        """Free its storage, as soon as no sandbox and no other snapshot needs it."""
        self._files = None


def fill(
    layer: Path, write: Callable[[int], None], on_failure: Callable[[], None] = lambda: None
) -> list[archive.Special]:
    """Unpack into an empty folder what `write` streams into the descriptor that it is given.

    Args:
        layer: The folder.
        write: Streams.
        on_failure: The thread that unpacks calls it if it fails. Only that thread knows when
            nothing is written any more: an exception in the caller's, as of Ctrl-C, may come
            earlier. It has a reference to `on_failure` until its end.

    Returns:
        See `archive.extract`.

    Raises:
        OutputLimitError: There is what the folder's disk cannot hold, however large it is.
        SandboxError: The stream broke off, or the folder cannot be written.
    """
    ends = os.pipe2(os.O_CLOEXEC)
    reader, writer = open(ends[0], "rb"), open(ends[1], "wb")  # closed with their last reference
    failure: list[BaseException] = []
    special: list[archive.Special] = []

    def unpack() -> None:
        attribute = "trusted.overlay.opaque" if is_root() else "user.overlay.opaque"
        try:
            with reader:  # a writer still at work gets EPIPE
                special.extend(archive.extract(reader.fileno(), layer, attribute))
            hand_over(layer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the snapshot is not whole
            failure.append(error)
            on_failure()

    thread = threading.Thread(target=unpack, name="intercode-snapshot")
    thread.start()
    try:
        write(writer.fileno())
    except BrokenPipeError:
        thread.join()
        if not failure:  # else that is why
            raise
    finally:
        writer.close()
        thread.join()
    if failure:
        error = failure[0]
        if isinstance(error, OSError) and error.errno == errno.EMLINK:
            raise OutputLimitError(
                "a file has more hard links than the disk's file system permits"
            ) from error
        raise SandboxError(f"the snapshot could not be saved: {error}") from error
    return special


def _sweep_snapshots(dry_run: bool = False) -> list[str]:
    """Remove the snapshots of processes that are gone; what was found."""
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
    with suppress(OSError):  # the next sweep tries again
        remove_tree(folder)


_SECONDS = 600.0
_LIMITS = Limits(memory=4 << 30, disk=4 << 30, processes=1024)
"""Limits within which packages can be installed."""


class SupportsArchive(SandboxBackend, Protocol):
    """A sandbox that can tell what it changed as `archive.write` does."""

    def archive(self, descriptor: int) -> None:
        """Stream it into a descriptor."""


def build_script(
    start: Callable[[Image, Limits, bool], SupportsArchive],
    base: Image,
    script: bytes | Command,
    layer: Path,
) -> None:
    """Run a set-up script, or a command, in a sandbox of `base`; leave what it changed in `layer`.

    Raises:
        ImageError: It failed, or did not end in time.
    """
    if isinstance(script, Command):
        limits = replace(_LIMITS, capabilities=tuple(CAPABILITIES))
        subject, command = "the command", script
    else:
        base, limits = replace(base, cwd="/", user=""), _LIMITS
        subject = "the set-up script"
        command = Command(("/bin/bash", SCRIPT), script, timeout=_SECONDS)
    sandbox = start(base, limits, command.network)
    try:
        if command.script is not None:
            sandbox.write_file(SCRIPT, command.script, 0o755)
        result = sandbox.exec(command.argv, timeout=command.timeout, merge_stderr=True)
        if not result.ok:
            tail = result.stdout.decode(errors="replace")[-2000:]
            reason = "did not end in time" if result.timed_out else f"exit code {result.exit_code}"
            raise ImageError(f"{subject} over {base.name} failed ({reason}):\n{tail}")
        sandbox.kill()
        for path, mode in fill(layer, sandbox.archive):
            # It is the image's author who wants it so, and what an engine would build.
            Path(layer, path).chmod(mode)
        remove_tree(layer / SHARED_MEMORY[1:])
        with suppress(OSError):  # something else was made in it
            (layer / SHARED_MEMORY[1:]).parent.rmdir()
    finally:
        sandbox.close()


def endings() -> list[Ending]:
    """List the sandboxes of all callers that were closed, and that the kernel has not ended yet."""
    return read_ledgers(cache_root() / LEDGERS)


def sweep(dry_run: bool = False) -> list[str]:
    """Remove what belongs to callers that are gone; the paths that were found."""
    removed_paths = []
    leases = {ending.lease for ending in endings()}
    for parent in parents():
        for folder in Path(parent).glob(f"{PREFIX}*"):
            lease = folder.name.removeprefix(PREFIX)
            if lease in leases or not is_gone(lease):
                continue
            removed_paths.append(str(folder))
            if not dry_run:
                remove_all(lease)
    return removed_paths + _sweep_snapshots(dry_run)
