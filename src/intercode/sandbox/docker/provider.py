"""The Docker provider: sandboxes in containers of an engine that runs on this machine."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from intercode.errors import ImageError, InterCodeError, SandboxError, UsageError
from intercode.sandbox.base import Limits, Snapshot
from intercode.sandbox.docker import container as containers
from intercode.sandbox.docker.container import Container, Key
from intercode.sandbox.docker.engine import LEASE, Engine
from intercode.sandbox.docker.home import Home
from intercode.sandbox.docker.images import EngineImage, Images
from intercode.sandbox.docker.pool import MOST_AHEAD, Pool
from intercode.sandbox.docker.sandbox import DockerSandbox, Origin
from intercode.sandbox.docker.snapshot import DockerSnapshot, Saved
from intercode.sandbox.docker.sweep import sweep
from intercode.sandbox.images import Command, Image, Progress
from intercode.sandbox.limits import check_limits
from intercode.sandbox.native.build import build_script
from intercode.sandbox.ownership import close_at_exit, disown_in_forks

log = logging.getLogger(__name__)

Reuse = Literal["never", "untouched", "restored"]
_RESET_SECONDS = 5.0
_RESET_ENTRIES = {"untouched": 0, "restored": 5000}
_GONE_SECONDS = 20.0


class DockerProvider:
    """See `sandbox.base.Provider`. Thread-safe.

    Args:
        progress: Is told what takes long.
        preload: The modules that `Sandbox.worker` can start: importable with the standard library,
            each other's packages and `path` alone.
        path: Folders in which single-file modules among them are found.
        url: Where the engine listens; None: ``DOCKER_HOST``, or the usual socket.
        reuse: When a container whose sandbox ended may become another one, which is then begun
            anew in milliseconds. ``"never"``; ``"untouched"``: if nothing was written, which is
            verified; ``"restored"``: also if what was written could be put back, which is verified.
            A folder that was restored shows it, if only in its number of links and the order of
            its entries, so that two runs of an episode may not print the same.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str] = (),
        url: str | None = None,
        reuse: Reuse = "untouched",
    ) -> None:
        self.progress = progress
        if reuse not in get_args(Reuse):
            raise UsageError(f"reuse must be one of {', '.join(get_args(Reuse))}, not {reuse!r}")
        self.reuse = reuse
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
        self._pool = self._new_pool()
        self._live: weakref.WeakSet[DockerSandbox] = weakref.WeakSet()
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
            sandbox = DockerSandbox(container, own, limits, origin, self._done)
        except BaseException:
            self._pool.lost(container)
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
            "reuse": self.reuse,
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
        self._pool = self._new_pool()

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
                driver = self._engine.info()
                self._home = Home(self._preload, self._path, has_quota(driver))
            return self._home

    def _new_pool(self) -> Pool:
        return Pool(
            self._begin,
            None if self.reuse == "never" else self._as_new,
            most_ahead=1 if self.reuse == "restored" else MOST_AHEAD,
        )

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

    def _as_new(self, container: Container) -> bool:
        entries = _RESET_ENTRIES[self.reuse]
        try:
            root = self._pristine_of(container.key.image, None).root()
            try:
                request = {"op": "reset", "timeout": _RESET_SECONDS, "entries": entries}
                reply, _ = container.ask(request, [root])
            finally:
                os.close(root)
        except InterCodeError as error:
            log.info("a container is not used again: %s", error)
            return False
        if not reply["pristine"]:
            log.debug("a container is not used again: %s", reply["why"])
        return bool(reply["pristine"])

    def _done(self, sandbox: DockerSandbox, usable: bool) -> None:
        with self._lock:
            self._live.discard(sandbox)
        (self._pool.give_back if usable else self._pool.lost)(sandbox.container)


def _for_user(found: EngineImage, container: Container) -> Image:
    """The image, with the home of its user where it names none itself."""
    if found.named_home or container.facts["name"] == "root":
        return found.image
    own = {"HOME": container.facts["home"], "USER": container.facts["name"]}
    return replace(found.image, env={**found.image.env, **own})


def has_quota(info: dict[str, Any]) -> bool:
    """Whether a container's size can be limited: overlay2 on xfs with project quotas."""
    status = dict(entry for entry in info.get("DriverStatus") or () if len(entry) == 2)
    return info.get("Driver") in ("btrfs", "zfs") or status.get("Backing Filesystem") == "xfs"
