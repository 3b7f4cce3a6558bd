"""The native provider: starts sandboxes on this machine's kernel, with no daemon and no image
registry.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.errors import ImageError
from intercode.sandbox.base import Limits, Snapshot
from intercode.sandbox.images import Command, Image, Progress, hidden_places, resolve
from intercode.sandbox.limits import check_limits
from intercode.sandbox.native.build import build_script
from intercode.sandbox.native.client import Spawner
from intercode.sandbox.native.sandbox import NativeSandbox
from intercode.sandbox.native.snapshot import NativeSnapshot
from intercode.sandbox.native.sweep import sweep
from intercode.sandbox.ownership import close_at_exit, disown_in_forks


class NativeProvider:
    """See `sandbox.base.Provider`. Thread-safe; a forked copy of it makes its own spawner.

    Args:
        progress: Is told what takes long.
        preload: The modules that `Sandbox.worker` can start: importable with the standard library
            and `path` alone.
        path: Folders in which their imports are looked for after the standard library.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self._preload = tuple(preload)
        self._path = tuple(path)
        self._lock = threading.Lock()
        self._spawner: Spawner | None = None
        self._live: weakref.WeakSet[NativeSandbox] = weakref.WeakSet()
        close_at_exit(self)
        disown_in_forks(self)

    def start(
        self,
        image: str | Snapshot | Image = "host",
        limits: Limits | None = None,
        network: bool = False,
    ) -> NativeSandbox:
        """A fresh sandbox."""
        limits = limits or Limits()
        check_limits(limits)
        resolved = self.image(image)
        held = image.layers if isinstance(image, NativeSnapshot) else ()
        spawner = self._running()
        control, process = spawner.launch(
            {
                "layers": [str(layer) for layer in resolved.layers],
                "host": resolved.host,
                "hide": hidden_places() if resolved.host else [],
                "network": network,
                "special": [(str(each.path), each.special) for each in held if each.special],
                "limits": _as_spec(limits),
                "user": resolved.user,
            }
        )
        sandbox = NativeSandbox(control, process, resolved, limits, self._forget, spawner.forget)
        sandbox.held = held
        with self._lock:
            self._live.add(sandbox)
        return sandbox

    def image(self, image: str | Snapshot | Image) -> Image:
        """The image by that name, built if need be."""
        if isinstance(image, Image):
            return image
        if isinstance(image, str):
            return resolve(image, build_script=self.build_script, progress=self.progress)
        if isinstance(image, NativeSnapshot):
            return image.image
        raise ImageError(f"a snapshot of another provider cannot be started here: {image!r}")

    def digest(self, image: str | Snapshot | Image) -> str:
        """What identifies the image's content."""
        return self.image(image).digest

    def facts(self) -> dict[str, Any]:
        """What holds on this machine, for a run's record."""
        return dict(self._running().facts)

    def build_script(self, base: Image, script: bytes | Command, layer: Path) -> None:
        """Run a script or command in a sandbox of `base`; leave what it changed in `layer`."""
        build_script(self.start, base, script, layer)

    def close(self) -> None:
        """Close all of its sandboxes and its spawner. Idempotent."""
        with self._lock:
            live, spawner = list(self._live), self._spawner
            self._spawner = None
        for sandbox in live:
            sandbox.kill_all()
        for sandbox in live:
            sandbox.close()
        if spawner is not None:
            spawner.close()

    def _running(self) -> Spawner:
        with self._lock:
            if self._spawner is not None and not self._spawner.alive:
                self._spawner.close()
                self._spawner = None
            if self._spawner is None:
                sweep()
                self._spawner = Spawner(self._preload, self._path)
            return self._spawner

    def disown(self) -> None:
        """See `ownership.Owned`. A fork makes a spawner of its own."""
        self._lock = threading.Lock()
        self._spawner = None
        self._live = weakref.WeakSet()

    def _forget(self, sandbox: NativeSandbox) -> None:
        with self._lock:
            self._live.discard(sandbox)


def _as_spec(limits: Limits) -> dict[str, Any]:
    return asdict(limits)
