"""Sandboxes in containers, and their snapshots.

`DockerSandbox` is a `NativeSandbox` whose process 1 runs in a container. A snapshot is a file with
the stream of all differences from the image. A sandbox of the snapshot takes an unused container
of the image, mostly one started in advance, and applies the stream. The engine's own snapshots
(``docker commit``) would be slower: each would create an image, and need a new container of it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from intercode_sandbox.base import Change, FailureEvidence, Limits
from intercode_sandbox.docker.container import DockerContainer
from intercode_sandbox.docker.images import DockerEngineImage
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.host_files import FileDescriptor, cache_root, joint_digest
from intercode_sandbox.images import Image
from intercode_sandbox.native.process import SandboxSlot
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.ownership import new_lease, register_finalizer
from intercode_sandbox.privileges import make_private

_FILES_SECONDS = 60.0


@dataclass(frozen=True)
class SandboxOrigin:
    """The image or snapshot from which a sandbox started."""

    image: DockerEngineImage
    layer: SnapshotFile | None
    """The sandbox's differences from the image at its start; None: no differences. The reference
    keeps the file as long as the sandbox exists."""
    baseline_layer: SnapshotFile | None
    """The snapshot with which `changes` compares the files; None: `changes` compares with the
    image."""
    get_baseline: Callable[[SnapshotFile | None], DockerContainer]
    """A function that returns a container for comparisons, which no sandbox uses. The container has
    the files of the image, or of a snapshot over the image."""
    take: Callable[[SnapshotFile | None], DockerContainer]
    """A function that returns a container for the sandbox alone, with the changes of a snapshot."""
    count_end: Callable[[], None]
    """A function that is called when the sandbox no longer needs its container."""


class DockerSandbox(NativeSandbox):
    """The Docker implementation of `SandboxBackend`.

    Args:
        container: A container for this sandbox alone.
        image: The image, with the settings of programs.
        limits: The sandbox's limits.
        origin: The image or snapshot from which the sandbox starts.
        on_close: A function that is called with this object when it is closed.
    """

    def __init__(
        self,
        container: DockerContainer,
        image: Image,
        limits: Limits,
        origin: SandboxOrigin,
        on_close: Callable[[NativeSandbox], None],
    ) -> None:
        super().__init__(_make_slot(container), image, limits, on_close)
        self.container = container
        self.origin = origin

    exec_private = None  # type: ignore[assignment]  # not a `SupportsPrivateExec`

    def changes(self) -> list[Change]:
        """List all differences from the image or `SandboxOrigin.baseline_layer`, sorted by path."""
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
        """Save the present files, and end all processes: see `SupportsFork.freeze`.

        The next request starts a new container with the same files.
        """
        if not self.resting:
            self.kill()
            self.origin = replace(self.origin, layer=self._save_stream())
            self._suspend()
            self.container.close()
            self.origin.count_end()
        assert self.origin.layer is not None
        return DockerSnapshot(self.origin.image, self.origin.layer, self.origin.baseline_layer)

    def save_copy(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the present files: see `SupportsFork.save_copy`."""
        return DockerSnapshot(self.origin.image, self._save_stream(), self.origin.baseline_layer)

    def _save_stream(self) -> SnapshotFile:
        return self._wait_until_still(lambda: SnapshotFile(self.archive))

    # The argument `alone` has no effect, because a container has no prepared program.
    def _continue(self, skip_program: bool) -> SandboxSlot:
        self.container = self.origin.take(self.origin.layer)
        return _make_slot(self.container)

    def archive(self, descriptor: int) -> None:
        """Write a stream of all differences from the image to a descriptor.

        The module `intercode_sandbox.native.change_stream` describes the format.
        """
        self._request_comparison({"op": "archive", "timeout": _FILES_SECONDS}, None, descriptor)

    def _request_comparison(
        self, request: dict[str, Any], baseline_layer: SnapshotFile | None, *fds: int
    ) -> dict[str, Any]:
        """Send a request by which process 1 compares the sandbox's files with a baseline.

        Args:
            request: The request.
            baseline_layer: The snapshot that is the baseline; None: the image.
            *fds: Further descriptors for process 1.
        """
        if self._end is not None:
            raise self._end_error()
        with FileDescriptor(self.origin.get_baseline(baseline_layer).root()) as baseline_root_fd:
            reply, _ = self._request(request, [baseline_root_fd, *fds], seconds=2 * _FILES_SECONDS)
        return reply

    def _keeper_evidence(self, is_timeout: bool) -> FailureEvidence:
        return self.container.evidence(is_timeout)

    def close(self) -> None:
        """End all processes and free the resources.

        If the kernel takes long to end the processes, only the engine waits for their end.
        """
        super().close()
        self.container.close()  # if necessary, this call makes the engine kill the container
        self.origin = replace(self.origin, layer=None, baseline_layer=None)


def _make_slot(container: DockerContainer) -> SandboxSlot:
    return SandboxSlot(
        container.control,
        container.process,
        on_slow_end=container.request_kill,
        ids=container.ids,
        workers=container.workers,
    )


class SnapshotFile:
    """A file with the stream of a snapshot's changes.

    Snapshots and sandboxes that need the file hold references to this object. The file is removed
    when the last reference ends.

    Args:
        write: A function that writes the stream to a descriptor.

    Raises:
        SandboxError: The stream cannot be created or written.
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
        open_flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._path = self.folder / "layer"
        self._lock = threading.Lock()
        self._baseline: DockerContainer | None = None
        try:
            with FileDescriptor(os.open(self._path, open_flags, 0o600)) as fd:
                write(fd)
        except SandboxError:
            raise
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error

    def apply(self, container: DockerContainer) -> None:
        """Apply the snapshot's changes to the files of an unused container."""
        with FileDescriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            container.ask({"op": "apply"}, [fd])

    def get_baseline(self, start: Callable[[], DockerContainer]) -> DockerContainer:
        """Return the container with the snapshot's files for comparisons.

        The first call starts the container.

        Args:
            start: A function that starts a container of the image.
        """
        with self._lock:
            # A container that has ended is closed by its finalizer.
            if self._baseline is None or not self._baseline.alive:
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
    """The Docker implementation of `Snapshot`.

    The storage is freed as soon as no snapshot and no sandbox refers to it.

    Args:
        base_image: The image below the snapshot.
        layer: All differences from the image.
        baseline_layer: The value for `SandboxOrigin.baseline_layer` of the snapshot's sandboxes.
    """

    def __init__(
        self,
        base_image: DockerEngineImage,
        layer: SnapshotFile,
        baseline_layer: SnapshotFile | None,
    ) -> None:
        image = base_image.image
        self.base = base_image
        self.baseline_layer = baseline_layer
        """The value for `SandboxOrigin.baseline_layer` of the snapshot's sandboxes."""
        self._layer: SnapshotFile | None = layer
        self.name = f"{image.name} (snapshot)"
        self.digest = joint_digest(image.digest, layer.name)

    @property
    def engine_image(self) -> DockerEngineImage:
        """The image below the snapshot, but with the name and digest of the snapshot."""
        image = replace(self.base.image, name=self.name, digest=self.digest)
        return replace(self.base, image=image)

    @property
    def layer(self) -> SnapshotFile:
        """The file with all differences from the image.

        Raises:
            SandboxError: The snapshot was deleted.
        """
        if self._layer is None:
            raise SandboxError(f"the snapshot {self.name!r} was deleted")
        return self._layer

    def delete(self) -> None:
        """Free the storage as soon as no sandbox and no other snapshot needs it."""
        self._layer = self.baseline_layer = None
