"""The Docker provider: sandboxes in containers of an engine that runs on this machine."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from intercode.errors import ImageError, SandboxError
from intercode.sandbox.base import Limits, Snapshot
from intercode.sandbox.docker import container as containers
from intercode.sandbox.docker.container import Container, Key
from intercode.sandbox.docker.engine import LEASE, Engine
from intercode.sandbox.docker.home import Home, remapped
from intercode.sandbox.docker.images import EngineImage, Images
from intercode.sandbox.docker.pool import Pool
from intercode.sandbox.docker.sandbox import DockerSandbox, Origin
from intercode.sandbox.docker.snapshot import DockerSnapshot, Saved
from intercode.sandbox.docker.sweep import sweep
from intercode.sandbox.images import Command, Image, Progress
from intercode.sandbox.limits import check_limits
from intercode.sandbox.native.build import build_script
from intercode.sandbox.native.sandbox import NativeSandbox
from intercode.sandbox.ownership import close_at_exit, disown_in_forks

_GONE_SECONDS = 20.0


class DockerProvider:
    """See `sandbox.base.Provider`. Thread-safe.

    Args:
        progress: Is told what takes long.
        preload: The modules that `Sandbox.worker` can start: importable with the standard library,
            each other's packages and `path` alone.
        path: Folders in which single-file modules among them are found.
        url: Where the engine listens; None: ``DOCKER_HOST``, or the usual socket.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str] = (),
        url: str | None = None,
    ) -> None:
        self.progress = progress
        self._preload = tuple(preload)
        self._path = tuple(path)
        self._reset_to(url)
        close_at_exit(self)
        disown_in_forks(self)

    def disown(self) -> None:
        """See `ownership.Owned`. A fork starts containers of its own."""
        self._reset_to(self._engine.url)

    def _reset_to(self, url: str | None) -> None:
        self._lock = threading.Lock()
        self._engine = Engine(url)
        self._images = Images(self._engine, self.build_script, lambda: self.progress)
        self._home: Home | None = None
        self._pool = Pool(self._begin)
        self._live: weakref.WeakSet[NativeSandbox] = weakref.WeakSet()
        self._pristine: dict[EngineImage, Container] = {}
        self._pristine_lock = threading.Lock()

    def start(
        self,
        image: str | Snapshot | Image = "host",
        limits: Limits | None = None,
        network: bool = False,
    ) -> DockerSandbox:
        """A fresh sandbox."""
        limits = limits or Limits()
        check_limits(limits)
        self._prepared()
        found, saved = self._find(image)
        base = image.base if isinstance(image, DockerSnapshot) else found
        container = self._pool.take(Key.of(base, network, limits))
        try:
            if saved is not None:
                saved.apply(container)
            origin = Origin(base, saved, partial(self._pristine_of, base))
            own = _for_user(found, container)
            closed = partial(self._closed, container.key)
            sandbox = DockerSandbox(container, own, limits, origin, closed)
        except BaseException:
            self._pool.ended(container.key)
            container.close()
            raise
        with self._lock:
            self._live.add(sandbox)
        return sandbox

    def digest(self, image: str | Snapshot | Image) -> str:
        """What identifies the image's content."""
        self._prepared()
        return self._find(image)[0].image.digest

    def facts(self) -> dict[str, Any]:
        """What holds on this machine, for a run's record."""
        info = self._engine.info()
        return {
            "engine": info.get("ServerVersion", ""),
            "driver": info.get("Driver", ""),
            "cgroup": int(info.get("CgroupVersion") or 1),
            "remapped": remapped(info) is not None,
        }

    def build_script(self, base: Image, script: bytes | Command, layer: Path) -> None:
        """Run a script or command in a sandbox of `base`; leave what it changed in `layer`."""
        build_script(self.start, base, script, layer)

    def close(self) -> None:
        """Close all of its sandboxes, and wait until the engine has removed them. Idempotent."""
        with self._lock:
            live, home = list(self._live), self._home
            self._home = None
        self._pool.close()
        for sandbox in live:
            sandbox.close()
        with self._pristine_lock:
            for container in self._pristine.values():
                container.close()
            self._pristine.clear()
        self._pool.settle()
        if home is not None:
            self._wait_until_gone(home)
            home.close()
        self._engine.close()
        self._pool = Pool(self._begin)

    def _wait_until_gone(self, home: Home) -> None:
        deadline = time.monotonic() + _GONE_SECONDS
        wanted = {"label": [f"{LEASE}={home.lease}"]}
        with suppress(SandboxError):  # without an engine there are none
            while True:
                with self._engine.errors("listing containers") as api:
                    left = api.containers(all=True, quiet=True, filters=wanted)
                if not left:
                    return
                late = time.monotonic() > deadline
                for one in left if late else ():
                    with suppress(SandboxError), self._engine.errors("removing") as api:
                        api.remove_container(one["Id"], force=True, v=True)
                if late:
                    return
                time.sleep(0.02)

    def _prepared(self) -> Home:
        with self._lock:
            if self._home is None:
                sweep(self._engine)
                self._home = Home(self._preload, self._path, self._engine.info())
            return self._home

    def _find(self, image: str | Snapshot | Image) -> tuple[EngineImage, Saved | None]:
        if isinstance(image, DockerSnapshot):
            return image.below, image.saved
        if isinstance(image, str | Image):
            return self._images.find(image), None
        raise ImageError(f"a snapshot of another provider cannot be started here: {image!r}")

    def _begin(self, key: Key) -> Container:
        return containers.start(self._engine, self._prepared(), key)

    def _pristine_of(self, image: EngineImage, saved: Saved | None) -> Container:
        """What sandboxes of an image are compared with."""
        if saved is not None:
            return saved.pristine(lambda: self._begin(Key.of(image, False, Limits())))
        with self._pristine_lock:
            known = self._pristine.get(image)
            if known is None or not known.alive:
                if known is not None:
                    known.close()
                self._pristine[image] = self._begin(Key.of(image, False, Limits()))
            return self._pristine[image]

    def _closed(self, key: Key, sandbox: NativeSandbox) -> None:
        with self._lock:
            known = sandbox in self._live
            self._live.discard(sandbox)
        if known:
            self._pool.ended(key)


def _for_user(found: EngineImage, container: Container) -> Image:
    """The image, with the home of its user where it names none itself."""
    if found.named_home or container.facts["name"] == "root":
        return found.image
    own = {"HOME": container.facts["home"], "USER": container.facts["name"]}
    return replace(found.image, env={**found.image.env, **own})
