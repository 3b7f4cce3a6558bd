"""One sandbox in a container, as its caller sees it: native's, over the container's process 1."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from intercode.sandbox.base import Change, Limits
from intercode.sandbox.docker.container import Container
from intercode.sandbox.docker.images import EngineImage
from intercode.sandbox.docker.snapshot import DockerSnapshot, Saved
from intercode.sandbox.fault import Evidence
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
        process = container.process
        super().__init__(container.control, process, image, limits, closed, lambda _: None)
        self.container = container
        self.origin = origin

    def changes(self) -> list[Change]:
        """All that differs from the image, sorted by path."""
        request = {"op": "changes", "timeout": _FILES_SECONDS}
        reply = self._until_still(lambda: self._compared(request, self.origin.saved))
        return [Change(*entry) for entry in reply["changes"]]

    def snapshot(self) -> DockerSnapshot:  # type: ignore[override] # as native's, for us
        """Save the file system as it is now."""
        return self._until_still(lambda: DockerSnapshot(self.origin.image, Saved(self.archive)))

    def archive(self, out: int) -> None:
        """Stream what differs from the image into a descriptor, as native's `archive.write`."""
        self._compared({"op": "archive", "timeout": _FILES_SECONDS}, None, out)

    def _compared(self, request: dict[str, Any], saved: Saved | None, *fds: int) -> dict[str, Any]:
        """A request that needs the root of a pristine container to compare with."""
        if self._end is not None:
            raise self._ended()
        root = self.origin.pristine(saved).root()
        try:
            reply, _ = self._request(request, [root, *fds], seconds=2 * _FILES_SECONDS)
        finally:
            os.close(root)
        return reply

    def _known(self, mute: bool) -> Evidence:
        return self.container.evidence(mute)

    def close(self) -> None:
        """End everything in it and free it. When this returns, all that ran has ended."""
        super().close()
        self.container.close()  # where the engine must be asked to
        self.origin = replace(self.origin, saved=None)
