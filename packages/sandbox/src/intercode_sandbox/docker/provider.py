"""The Docker provider: sandboxes in containers of an engine that runs on this machine."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from intercode_sandbox.base import Limits, Snapshot
from intercode_sandbox.docker.container import Container, Key, start_container
from intercode_sandbox.docker.engine import LABEL, LEASE, Engine
from intercode_sandbox.docker.images import EngineImage, Images
from intercode_sandbox.docker.runtime_mounts import PARENT, RUNS, Home, check_users, has_own_users
from intercode_sandbox.docker.sandbox import DockerSandbox, DockerSnapshot, Origin, Saved
from intercode_sandbox.errors import ImageError, InterCodeError, SandboxError
from intercode_sandbox.extensions import bare_packages
from intercode_sandbox.files import cache_root
from intercode_sandbox.images import Command, Image, Progress
from intercode_sandbox.native.process_start import Workers
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.native.snapshot import build_script
from intercode_sandbox.network import Network, Policy
from intercode_sandbox.ownership import close_at_exit, disown_in_forks, is_gone

_GONE_SECONDS = 20.0


class DockerProvider:
    """See `sandbox.base.Provider`. Thread-safe.

    Args:
        progress: Is told what takes long.
        preload: The modules that `SandboxBackend.worker` can start: importable with the standard
            library, each other's packages and `path` alone.
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
        self._workers = Workers([*preload], [*path], bare_packages(preload))
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
        network: Network = False,
    ) -> DockerSandbox:
        """Start a fresh sandbox."""
        limits, policy = limits or Limits(), Policy.of(network)
        self._prepared()
        found, saved = self._find(image)
        base = image.base if isinstance(image, DockerSnapshot) else found
        key = Key.of(base, policy.shared, limits)
        origin = Origin(
            base,
            saved,
            image.compared if isinstance(image, DockerSnapshot) else None,
            pristine=partial(self._pristine_of, base),
            take=partial(self._take, key),
            ended=partial(self._pool.ended, key),
        )
        container = origin.take(saved)
        own = _for_user(found, container)
        sandbox = DockerSandbox(container, own, limits, origin, self._closed)
        sandbox.another = partial(self.start, limits=limits, network=network)
        with self._lock:
            self._live.add(sandbox)
        sandbox.admit(policy)
        return sandbox

    def _take(self, key: Key, saved: Saved | None) -> Container:
        """Return a container that has no other user, with what was saved."""
        container = self._pool.take(key)
        try:
            if saved is not None:
                saved.apply(container)
        except BaseException:
            self._pool.ended(key)
            container.close()
            raise
        return container

    def digest(self, image: str | Snapshot | Image) -> str:
        """Return a digest of the image's content."""
        self._prepared()
        return self._find(image)[0].image.digest

    def facts(self) -> dict[str, Any]:
        """Return the facts of this machine and its engine, for a run's record."""
        info = self._engine.info()
        return {
            "engine": info.get("ServerVersion", ""),
            "driver": info.get("Driver", ""),
            "cgroup": int(info.get("CgroupVersion") or 1),
            "remapped": has_own_users(info),
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
                info = self._engine.info()
                check_users(info, self._engine.url)
                sweep(self._engine)
                self._home = Home(self._workers, info)
            return self._home

    def _find(self, image: str | Snapshot | Image) -> tuple[EngineImage, Saved | None]:
        if isinstance(image, DockerSnapshot):
            return image.below, image.saved
        if isinstance(image, str | Image):
            return self._images.find(image), None
        raise ImageError(f"a snapshot of another provider cannot be started here: {image!r}")

    def _begin(self, key: Key) -> Container:
        return start_container(self._engine, self._prepared(), key)

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

    def _closed(self, sandbox: NativeSandbox) -> None:
        with self._lock:
            known = sandbox in self._live
            self._live.discard(sandbox)
        if known and not sandbox.resting:
            assert isinstance(sandbox, DockerSandbox)
            sandbox.origin.ended()


def _for_user(found: EngineImage, container: Container) -> Image:
    """Return the image, with the home of its user where it names none itself."""
    account = container.account
    if found.named_home or account.name == "root":
        return found.image
    own = {"HOME": account.home, "USER": account.name}
    return replace(found.image, env={**found.image.env, **own})


log = logging.getLogger(__name__)

MOST_AHEAD = 4
MOST_IDLE = 16
_COMING_SECONDS = 20.0
_AT_ONCE = 2


class Pool:
    """Hands out containers. Thread-safe.

    Args:
        start: Makes a container.
    """

    def __init__(self, start: Callable[[Key], Container]) -> None:
        self._start = start
        self._changed = threading.Condition()
        self._ready: OrderedDict[Key, list[Container]] = OrderedDict()
        self._coming: Counter[Key] = Counter()
        self._waiting: Counter[Key] = Counter()
        self._live: Counter[Key] = Counter()
        self._asked: Counter[Key] = Counter()
        self._jobs: queue.SimpleQueue[Key | None] = queue.SimpleQueue()
        self._threads = 0
        self.closed = False

    def take(self, key: Key) -> Container:
        """Return a container that has no other user.

        Raises:
            ImageError, SandboxError: As `start`.
        """
        with self._changed:
            self._asked[key] += 1
            self._live[key] += 1
            # Waiting for one that is on its way is never slower than beginning another.
            while (container := self._pop(key)) is None and self._coming[key] > self._waiting[key]:
                self._waiting[key] += 1
                self._changed.wait()
                self._waiting[key] -= 1
        try:
            return container or self._start(key)
        except BaseException:
            with self._changed:
                self._live[key] -= 1
            raise
        finally:
            self._refill(key)

    def _pop(self, key: Key) -> Container | None:
        """Return one that waits; those whose engine has died do not count."""
        ready = self._ready.get(key, [])
        while ready:
            container = ready.pop()
            if container.alive:
                return container
            container.close()
        return None

    def ended(self, key: Key) -> None:
        """Count the end of one that was handed out."""
        with self._changed:
            self._live[key] -= 1

    def close(self) -> None:
        """End all that wait. What is on its way ends when it comes."""
        with self._changed:
            self.closed = True
            idle = [container for ready in self._ready.values() for container in ready]
            self._ready.clear()
            for _ in range(self._threads):
                self._jobs.put(None)
            self._threads = 0
        for container in idle:
            container.close()

    def settle(self) -> None:
        """Wait for what is on its way: a process that ended would leave what it had begun."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._coming.values()), _COMING_SECONDS)

    def _refill(self, key: Key) -> None:
        """Begin some ahead: only of a kind that was asked for twice, and as many as are in use."""
        with self._changed:
            if self.closed or self._asked[key] < 2:
                return
            wanted = min(MOST_AHEAD, max(self._live[key], 1))
            missing = wanted - self._coming[key] - len(self._ready.get(key, ()))
            if missing <= 0:
                return
            self._coming[key] += missing
            for _ in range(missing):
                self._jobs.put(key)
            while self._threads < _AT_ONCE:  # each keeps its connection to the engine
                self._threads += 1
                work = threading.Thread(target=self._work, name="intercode-docker", daemon=True)
                work.start()

    def _work(self) -> None:
        while (key := self._jobs.get()) is not None:
            self._arrive(key)

    def _arrive(self, key: Key) -> None:
        container = None
        try:
            container = None if self.closed else self._start(key)
        except InterCodeError as error:
            # The next caller that asks for one meets the error, and is told.
            log.info("a container did not start ahead: %s", error)
        finally:
            self._arrived(key, container)

    def _arrived(self, key: Key, container: Container | None) -> None:
        surplus: list[Container] = []
        with self._changed:
            self._coming[key] -= 1
            if container is not None and self.closed:
                surplus.append(container)
            elif container is not None:
                self._ready.setdefault(key, []).append(container)
                self._ready.move_to_end(key)
                surplus += self._too_many()
            self._changed.notify_all()
        for one in surplus:
            one.close()

    def _too_many(self) -> list[Container]:
        """Those that wait in vain: the ones not asked for longest."""
        idle = sum(map(len, self._ready.values()))
        found: list[Container] = []
        while idle - len(found) > MOST_IDLE:
            key, ready = next(iter(self._ready.items()))
            if ready:
                found.append(ready.pop(0))
            if not ready:
                del self._ready[key]
        return found


def sweep(engine: Engine, dry_run: bool = False) -> list[str]:
    """Remove what belongs to processes that are gone; what was found.

    Raises:
        SandboxError: The engine failed.
    """
    found = []
    with engine.errors("listing containers") as api:
        listed = api.containers(all=True, filters={"label": [f"{LABEL}=1"]})
        for container in listed:
            if not is_gone(container["Labels"].get(LEASE, "")):
                continue
            found.append(f"container {container['Id'][:12]}")
            if not dry_run:
                with suppress(SandboxError), engine.errors("removing a container") as own:
                    own.remove_container(container["Id"], force=True, v=True)
    return found + sweep_folders(dry_run)


def sweep_all(dry_run: bool = False) -> list[str]:
    """Sweep as `sweep` does, where there may be no engine."""
    try:
        with closing(Engine()) as engine:
            return sweep(engine, dry_run)
    except SandboxError:
        return sweep_folders(dry_run)


def sweep_folders(dry_run: bool = False) -> list[str]:
    """Remove what killed processes kept for containers; the paths found. Needs no engine."""
    found = []
    parent = cache_root() / PARENT
    for folder in parent.glob(f"{RUNS}*") if os.access(parent, os.R_OK) else ():
        if is_gone(folder.name.removeprefix(RUNS)):
            found.append(str(folder))
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return found
