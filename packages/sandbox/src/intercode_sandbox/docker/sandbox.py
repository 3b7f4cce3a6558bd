"""A sandbox in a container, from the caller's side, and its snapshots.

The sandbox is a native one, over the container's process 1. A snapshot is the difference from the
image, stored as a stream and applied to a container that waits already. A snapshot is not a
commit of the engine: the engine would create an image, and then need a new container of it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from intercode_sandbox.base import Change, Evidence, Limits
from intercode_sandbox.docker.container import Container
from intercode_sandbox.docker.images import EngineImage
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.files import Descriptor, cache_root, joint_digest
from intercode_sandbox.images import Image
from intercode_sandbox.native.process import SandboxSlot
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.ownership import new_lease, register_finalizer
from intercode_sandbox.privileges import make_private

_FILES_SECONDS = 60.0


@dataclass(frozen=True)
class Origin:
    """The image or snapshot from which a sandbox started."""

    image: EngineImage
    layer: SnapshotFile | None
    """All differences from the image; they must exist as long as the sandbox."""
    baseline_layer: SnapshotFile | None
    """The baseline of changes; None: the image is the baseline."""
    get_baseline: Callable[[SnapshotFile | None], Container]
    """Returns a container of the image, or of the snapshot over it, that no sandbox uses."""
    take: Callable[[SnapshotFile | None], Container]
    """Returns a container for the sandbox alone."""
    count_end: Callable[[], None]
    """Called when the sandbox no longer needs its container."""


class DockerSandbox(NativeSandbox):
    """The Docker implementation of `SandboxBackend`.

    Args:
        container: A container for this sandbox alone.
        image: Settings of its programs.
        limits: Its limits.
        origin: The image or snapshot at its start.
        on_close: Called at its end.
    """

    def __init__(
        self,
        container: Container,
        image: Image,
        limits: Limits,
        origin: Origin,
        on_close: Callable[[NativeSandbox], None],
    ) -> None:
        super().__init__(_make_slot(container), image, limits, on_close)
        self.container = container
        self.origin = origin

    exec_private = None  # type: ignore[assignment]  # not a `SupportsPrivacy`

    def changes(self) -> list[Change]:
        """List all differences from the image, sorted by path."""
        baseline_layer = self.origin.baseline_layer
        request = {
            "op": "changes",
            "timeout": _FILES_SECONDS,
            "layered": baseline_layer is not None,
        }
        reply = self._wait_until_still(lambda: self._request_comparison(request, baseline_layer))
        return [Change(*entry) for entry in sorted(reply["changes"])]

    def snapshot(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the present file system."""
        layer = self._save_stream()
        return DockerSnapshot(self.origin.image, layer, layer)

    def freeze(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the present files, and continue with them in a fresh container."""
        if not self.resting:
            self.kill()
            self.origin = replace(self.origin, layer=self._save_stream())
            self._suspend()
            self.container.close()
            self.origin.count_end()
        assert self.origin.layer is not None
        return DockerSnapshot(self.origin.image, self.origin.layer, self.origin.baseline_layer)

    def save_copy(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the present files."""
        return DockerSnapshot(self.origin.image, self._save_stream(), self.origin.baseline_layer)

    def _save_stream(self) -> SnapshotFile:
        return self._wait_until_still(lambda: SnapshotFile(self.archive))

    def _continue(self, alone: bool) -> SandboxSlot:  # a container prepares no program
        self.container = self.origin.take(self.origin.layer)
        return _make_slot(self.container)

    def archive(self, descriptor: int) -> None:
        """Write all differences from the image to a descriptor, in `native.archive`'s format."""
        self._request_comparison({"op": "archive", "timeout": _FILES_SECONDS}, None, descriptor)

    def _request_comparison(
        self, request: dict[str, Any], layer: SnapshotFile | None, *fds: int
    ) -> dict[str, Any]:
        """Send a request that compares the sandbox with the root of a pristine container."""
        if self._end is not None:
            raise self._end_error()
        with Descriptor(self.origin.get_baseline(layer).root()) as root:
            reply, _ = self._request(request, [root, *fds], seconds=2 * _FILES_SECONDS)
        return reply

    def _keeper_evidence(self, mute: bool) -> Evidence:
        return self.container.evidence(mute)

    def close(self) -> None:
        """End all processes and free the resources. A slow end is left to the engine."""
        super().close()
        self.container.close()  # requests the end from the engine if necessary
        self.origin = replace(self.origin, layer=None, baseline_layer=None)


def _make_slot(container: Container) -> SandboxSlot:
    return SandboxSlot(
        container.control,
        container.process,
        on_slow_end=container.request_kill,
        ids=container.ids,
        workers=container.workers,
    )


class SnapshotFile:
    """A snapshot's stream in a file, removed with its last user: a snapshot, or a sandbox.

    Args:
        write: Streams the changes into a descriptor.
    """

    def __init__(self, write: Callable[[int], None]) -> None:
        self.name = new_lease()
        self.folder = cache_root() / "snapshots" / self.name
        try:
            make_private(self.folder.parent)
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error
        register_finalizer(self, shutil.rmtree, self.folder, True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._path = self.folder / "layer"
        self._lock = threading.Lock()
        self._baseline: Container | None = None
        try:
            with Descriptor(os.open(self._path, flags, 0o600)) as fd:
                write(fd)
        except SandboxError:
            raise
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error

    def apply(self, container: Container) -> None:
        """Apply the changes to a container."""
        with Descriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            container.ask({"op": "apply"}, [fd])

    def get_baseline(self, start: Callable[[], Container]) -> Container:
        """Return an unused container for comparisons, which the first call starts."""
        with self._lock:
            if self._baseline is None or not self._baseline.alive:  # its finalizer closes it
                container = start()
                try:
                    self.apply(container)
                except BaseException:
                    container.close()
                    raise
                self._baseline = container
                register_finalizer(self, container.close)
            return self._baseline


class DockerSnapshot:
    """The Docker implementation of `Snapshot`; its storage is freed with this object."""

    def __init__(
        self, base_image: EngineImage, layer: SnapshotFile, baseline_layer: SnapshotFile | None
    ) -> None:
        image = base_image.image
        self.base = base_image
        self.baseline_layer = baseline_layer
        """See `Origin.baseline_layer`."""
        self._layer: SnapshotFile | None = layer
        self.name = f"{image.name} (snapshot)"
        self.digest = joint_digest(image.digest, layer.name)

    @property
    def engine_image(self) -> EngineImage:
        """The image below the snapshot, under the snapshot's name and digest."""
        image = replace(self.base.image, name=self.name, digest=self.digest)
        return replace(self.base, image=image)

    @property
    def layer(self) -> SnapshotFile:
        """The stream of changes.

        Raises:
            SandboxError: The snapshot was deleted.
        """
        if self._layer is None:
            raise SandboxError(f"the snapshot {self.name!r} was deleted")
        return self._layer

    def delete(self) -> None:
        """Free the storage, as soon as no sandbox needs it."""
        self._layer = self.baseline_layer = None
