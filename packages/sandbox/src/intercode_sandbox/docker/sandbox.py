"""One sandbox in a container, as its caller sees it, and its snapshots.

The sandbox is native's, over the container's process 1. A snapshot is the difference from the
image, kept as a stream to be laid over a container that waits already. It is not a commit of the
engine's: that makes an image, and then needs a new container of it.
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
from intercode_sandbox.files import Descriptor, cache_root, digest_of
from intercode_sandbox.images import Image
from intercode_sandbox.native.process import Seat
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.ownership import new_lease, when_gone
from intercode_sandbox.privileges import make_private

_FILES_SECONDS = 60.0


@dataclass(frozen=True)
class Origin:
    """The image or snapshot that a sandbox began as."""

    image: EngineImage
    saved: Saved | None
    """All that differs from the image: it must be there for as long as the sandbox is."""
    compared: Saved | None
    """The part of it from which changes are told; None: they are told from the image."""
    pristine: Callable[[Saved | None], Container]
    """Gives a container of the image, or of the snapshot over it, that no sandbox uses."""
    take: Callable[[Saved | None], Container]
    """Gives one that is the sandbox's own."""
    ended: Callable[[], None]
    """To be called when the sandbox needs its own no longer."""


class DockerSandbox(NativeSandbox):
    """See `sandbox.base.SandboxBackend`.

    Args:
        container: Its own, for as long as it is.
        image: How programs start.
        limits: Its limits.
        origin: What it began as.
        closed: Is told of its end.
    """

    def __init__(
        self,
        container: Container,
        image: Image,
        limits: Limits,
        origin: Origin,
        closed: Callable[[NativeSandbox], None],
    ) -> None:
        super().__init__(_seat(container), image, limits, closed)
        self.container = container
        self.origin = origin

    exec_private = None  # type: ignore[assignment]  # not a `SupportsPrivacy`

    def changes(self) -> list[Change]:
        """List all that differs from the image, sorted by path."""
        compared = self.origin.compared
        request = {"op": "changes", "timeout": _FILES_SECONDS, "layered": compared is not None}
        reply = self._until_still(lambda: self._compared(request, compared))
        return [Change(*entry) for entry in sorted(reply["changes"])]

    def snapshot(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the file system as it is now."""
        saved = self._saved()
        return DockerSnapshot(self.origin.image, saved, saved)

    def freeze(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the files as they are, and continue with them in a fresh container."""
        if not self.resting:
            self.kill()
            self.origin = replace(self.origin, saved=self._saved())
            self._rest()
            self.container.close()
            self.origin.ended()
        assert self.origin.saved is not None
        return DockerSnapshot(self.origin.image, self.origin.saved, self.origin.compared)

    def copied(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the files as they are."""
        return DockerSnapshot(self.origin.image, self._saved(), self.origin.compared)

    def _saved(self) -> Saved:
        return self._until_still(lambda: Saved(self.archive))

    def _continue(self, alone: bool) -> Seat:  # in a container nothing is ahead
        self.container = self.origin.take(self.origin.saved)
        return _seat(self.container)

    def archive(self, out: int) -> None:
        """Stream what differs from the image into a descriptor, as native's `archive.write`."""
        self._compared({"op": "archive", "timeout": _FILES_SECONDS}, None, out)

    def _compared(self, request: dict[str, Any], saved: Saved | None, *fds: int) -> dict[str, Any]:
        """Send a request that needs the root of a pristine container to compare with."""
        if self._end is not None:
            raise self._ended()
        with Descriptor(self.origin.pristine(saved).root()) as root:
            reply, _ = self._request(request, [root, *fds], seconds=2 * _FILES_SECONDS)
        return reply

    def _known(self, mute: bool) -> Evidence:
        return self.container.evidence(mute)

    def close(self) -> None:
        """End everything in it and free it. A slow end is left to the engine."""
        super().close()
        self.container.close()  # where the engine must be asked to
        self.origin = replace(self.origin, saved=None, compared=None)


def _seat(container: Container) -> Seat:
    return Seat(
        container.control,
        container.process,
        hand_over=container.hand_over,
        ids=container.ids,
        workers=container.workers,
    )


class Saved:
    """The stream, in a file. It goes with its last user: a snapshot, or a sandbox.

    Args:
        write: Streams it into the descriptor that it is given.
    """

    def __init__(self, write: Callable[[int], None]) -> None:
        self.name = new_lease()
        self.folder = cache_root() / "snapshots" / self.name
        try:
            make_private(self.folder.parent)
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error
        when_gone(self, shutil.rmtree, self.folder, True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._path = self.folder / "layer"
        self._lock = threading.Lock()
        self._pristine: Container | None = None
        try:
            with Descriptor(os.open(self._path, flags, 0o600)) as fd:
                write(fd)
        except SandboxError:
            raise
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error

    def apply(self, container: Container) -> None:
        """Lay it over a container."""
        with Descriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            container.ask({"op": "apply"}, [fd])

    def pristine(self, start: Callable[[], Container]) -> Container:
        """Return a container to compare others with, used by none; begun when first asked for."""
        with self._lock:
            if self._pristine is None or not self._pristine.alive:  # its finalizer closes it
                container = start()
                try:
                    self.apply(container)
                except BaseException:
                    container.close()
                    raise
                self._pristine = container
                when_gone(self, container.close)
            return self._pristine


class DockerSnapshot:
    """See `sandbox.base.Snapshot`. It is temporary: it goes with this object."""

    def __init__(self, below: EngineImage, saved: Saved, compared: Saved | None) -> None:
        image = below.image
        self.base = below
        self.compared = compared
        """See `Origin`."""
        self._saved: Saved | None = saved
        self.name = f"{image.name} (snapshot)"
        self.digest = digest_of(image.digest, saved.name)

    @property
    def below(self) -> EngineImage:
        """The image that it is laid over, under the snapshot's own name."""
        image = replace(self.base.image, name=self.name, digest=self.digest)
        return replace(self.base, image=image)

    @property
    def saved(self) -> Saved:
        """The stream.

        Raises:
            SandboxError: It was deleted.
        """
        if self._saved is None:
            raise SandboxError(f"the snapshot {self.name!r} was deleted")
        return self._saved

    def delete(self) -> None:
        """Free its storage, as soon as no sandbox needs it."""
        self._saved = self.compared = None
