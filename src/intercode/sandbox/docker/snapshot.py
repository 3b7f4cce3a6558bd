"""A saved file system: what differs from the image, kept as a stream to be laid over it again.

Not a commit of the engine's: that makes an image and then needs a new container of it, where the
stream is laid over a container that waits already.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace

from intercode.errors import SandboxError
from intercode.rights import make_private
from intercode.sandbox.docker.container import Container
from intercode.sandbox.docker.images import EngineImage
from intercode.sandbox.images import cache_root
from intercode.sandbox.images.base import digest_of
from intercode.sandbox.native import lease
from intercode.sandbox.ownership import when_gone


class Saved:
    """The stream, in a file. It goes with its last user: a snapshot, or a sandbox.

    Args:
        write: Streams it into the descriptor that it is given.
    """

    def __init__(self, write: Callable[[int], None]) -> None:
        self.name = lease.name()
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
            fd = os.open(self._path, flags, 0o600)
            try:
                write(fd)
            finally:
                os.close(fd)
        except SandboxError:
            raise
        except OSError as error:
            raise SandboxError(f"the snapshot could not be saved: {error}") from error

    def apply(self, container: Container) -> None:
        """Lay it over a container."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            container.ask({"op": "apply"}, [fd])
        finally:
            os.close(fd)

    def pristine(self, start: Callable[[], Container]) -> Container:
        """A container that nobody uses, to compare others with; begun when first asked for."""
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

    def __init__(self, below: EngineImage, saved: Saved) -> None:
        image = below.image
        self.base = below
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
        self._saved = None
