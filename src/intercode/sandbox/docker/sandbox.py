"""One sandbox in a container, as its caller sees it: native's, over the container's process 1."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from intercode.sandbox.base import Change, Limits
from intercode.sandbox.docker.container import Container
from intercode.sandbox.docker.images import EngineImage
from intercode.sandbox.docker.snapshot import DockerSnapshot, Saved
from intercode.sandbox.images import Image
from intercode.sandbox.native.sandbox import NativeSandbox

_FILES_SECONDS = 60.0


@dataclass(frozen=True)
class Origin:
    """What a sandbox began as."""

    image: EngineImage
    saved: Saved | None
    """The snapshot over the image: it must be there for as long as the sandbox is."""
    pristine: Callable[[Saved | None], Container]
    """Gives a container of the image, or of the snapshot over it, that nobody uses."""


class DockerSandbox(NativeSandbox):
    """See `sandbox.base.Sandbox`.

    Args:
        container: Its own, for as long as it is.
        image: How programs start.
        limits: Its limits.
        origin: What it began as.
        done: Is told, at its end, whether the container can be used again.
    """

    def __init__(
        self,
        container: Container,
        image: Image,
        limits: Limits,
        origin: Origin,
        done: Callable[[DockerSandbox, bool], None],
    ) -> None:
        super().__init__(container.control, None, image, limits, lambda _: None, lambda _: None)
        self.container = container
        self.origin = origin
        self._done = done
        self._ended = False

    def changes(self) -> list[Change]:
        """All that differs from the image, sorted by path."""
        request = {"op": "changes", "timeout": _FILES_SECONDS}
        reply = self._compared(request, self.origin.saved)
        return [Change(*entry) for entry in reply["changes"]]

    def snapshot(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the file system as it is now."""
        return DockerSnapshot(self.origin.image, Saved(self.archive))

    def archive(self, out: int) -> None:
        """Stream what differs from the image into a descriptor, as native's `archive.write`."""
        self._compared({"op": "archive", "timeout": _FILES_SECONDS}, None, out)

    def _compared(self, request: dict[str, Any], saved: Saved | None, *fds: int) -> dict[str, Any]:
        """A request that needs the root of a pristine container to compare with."""
        if self._dead:
            self._request({"op": "processes"})  # which says so
        root = self.origin.pristine(saved).root()
        try:
            reply, _ = self._request(request, [root, *fds], seconds=2 * _FILES_SECONDS)
        finally:
            os.close(root)
        return reply

    def disown(self) -> None:
        """See `ownership.Owned`."""
        super().disown()
        self._ended = True  # and the parent's to use again

    def close(self) -> None:
        """End everything in it and free it."""
        usable = not self._dead and self._lock.acquire(blocking=False)
        self._dead = True
        if usable:
            self._lock.release()
        if not self._ended:
            self._ended = True
            self.origin = replace(self.origin, saved=None)
            with suppress(OSError):
                self._done(self, usable)
