"""The Docker provider: sandboxes in containers of a Docker engine on this machine."""

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
from intercode_sandbox.docker.container import ContainerKey, DockerContainer, start_container
from intercode_sandbox.docker.engine import LABEL, LEASE, DockerEngine
from intercode_sandbox.docker.images import DockerEngineImage, DockerImageFinder
from intercode_sandbox.docker.mounted_runtime import (
    CACHE_FOLDER,
    RUN_PREFIX,
    ContainerRuntimeFolder,
    check_users,
    has_own_users,
)
from intercode_sandbox.docker.sandbox import (
    DockerSandbox,
    DockerSnapshot,
    SandboxOrigin,
    SnapshotFile,
)
from intercode_sandbox.errors import ImageError, InterCodeError, SandboxError
from intercode_sandbox.extensions import bare_packages
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.images import Command, Image, Progress
from intercode_sandbox.native.process_start import WorkerModules
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.native.snapshot import build_script
from intercode_sandbox.network import Network, NetworkPolicy
from intercode_sandbox.ownership import close_at_exit, disown_in_forks, is_gone

_REMOVAL_SECONDS = 20.0
"""Seconds for which `DockerProvider.close` waits until the engine has removed the containers."""


class DockerProvider:
    """The Docker implementation of `Provider`. Thread-safe.

    Args:
        progress: A function that is called with the name of each slow step.
        preload: The modules that `SandboxBackend.worker` can start. They may import the standard
            library, modules of each other's packages, and modules in `path`, only.
        path: Folders with those of the modules that are single files.
        url: The engine's address; None: ``DOCKER_HOST``, or the usual socket.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str] = (),
        url: str | None = None,
    ) -> None:
        self.progress = progress
        self._workers = WorkerModules([*preload], [*path], bare_packages(preload))
        self._reset_to(url)
        close_at_exit(self)
        disown_in_forks(self)

    def disown(self) -> None:
        """Forget all containers in a fork of this process: see `SupportsDisown`.

        The fork starts its own containers.
        """
        self._reset_to(self._engine.url)

    def _reset_to(self, url: str | None) -> None:
        self._lock = threading.Lock()
        self._engine = DockerEngine(url)
        self._images = DockerImageFinder(self._engine, self.build_script, lambda: self.progress)
        self._home: ContainerRuntimeFolder | None = None
        self._pool = ContainerPool(self._start_container)
        self._live: weakref.WeakSet[NativeSandbox] = weakref.WeakSet()
        self._baseline_containers: dict[DockerEngineImage, DockerContainer] = {}
        self._baseline_lock = threading.Lock()

    def start(
        self,
        image: str | Snapshot | Image = "host",
        limits: Limits | None = None,
        network: Network = False,
    ) -> DockerSandbox:
        """Start a fresh sandbox: see `Provider.start`."""
        limits, network_policy = limits or Limits(), NetworkPolicy.parse(network)
        self._prepare_runtime()
        engine_image, snapshot_layer = self._find_image(image)
        base_image = image.base if isinstance(image, DockerSnapshot) else engine_image
        key = ContainerKey.from_limits(base_image, network_policy.shared, limits)
        origin = SandboxOrigin(
            base_image,
            snapshot_layer,
            image.baseline_layer if isinstance(image, DockerSnapshot) else None,
            get_baseline=partial(self._find_baseline, base_image),
            take=partial(self._take, key),
            count_end=partial(self._pool.count_end, key),
        )
        container = origin.take(snapshot_layer)
        image_with_home = _image_with_home(engine_image, container)
        sandbox = DockerSandbox(container, image_with_home, limits, origin, self._release_sandbox)
        sandbox.start_sibling = partial(self.start, limits=limits, network=network)
        with self._lock:
            self._live.add(sandbox)
        sandbox.admit(network_policy)
        return sandbox

    def _take(self, key: ContainerKey, layer: SnapshotFile | None) -> DockerContainer:
        """Take a container from the pool, and apply the changes of a snapshot to it.

        Args:
            key: The properties of the container.
            layer: The changes; None: no changes.
        """
        container = self._pool.take(key)
        try:
            if layer is not None:
                layer.apply(container)
        except BaseException:
            self._pool.count_end(key)
            container.close()
            raise
        return container

    def digest(self, image: str | Snapshot | Image) -> str:
        """Return a digest of the image's content."""
        self._prepare_runtime()
        return self._find_image(image)[0].image.digest

    def facts(self) -> dict[str, Any]:
        """Return facts on the engine, for a run's record."""
        info = self._engine.info()
        return {
            "engine": info.get("ServerVersion", ""),
            "driver": info.get("Driver", ""),
            "cgroup": int(info.get("CgroupVersion") or 1),
            "remapped": has_own_users(info),
        }

    def build_script(self, base: Image, script: bytes | Command, layer: Path) -> None:
        """Run a script or command in a sandbox of `base`; write its changes into `layer`."""
        build_script(self.start, base, script, layer)

    def close(self) -> None:
        """Close all sandboxes, and wait until the engine has removed them. Idempotent.

        After `_REMOVAL_SECONDS` the call requests the removal of the remaining containers, and
        returns.
        """
        with self._lock:
            live_sandboxes, runtime_folder = list(self._live), self._home
            self._home = None
        self._pool.close()
        for sandbox in live_sandboxes:
            sandbox.close()
        with self._baseline_lock:
            for container in self._baseline_containers.values():
                container.close()
            self._baseline_containers.clear()
        self._pool.settle()
        if runtime_folder is not None:
            self._wait_until_gone(runtime_folder)
            runtime_folder.close()
        self._engine.close()
        self._pool = ContainerPool(self._start_container)

    def _wait_until_gone(self, runtime_folder: ContainerRuntimeFolder) -> None:
        deadline = time.monotonic() + _REMOVAL_SECONDS
        filters = {"label": [f"{LEASE}={runtime_folder.lease}"]}
        with suppress(SandboxError):  # without an engine no container exists
            while True:
                with self._engine.errors("listing containers") as api:
                    containers = api.containers(all=True, quiet=True, filters=filters)
                if not containers:
                    return
                is_late = time.monotonic() > deadline
                for container in containers if is_late else ():
                    with suppress(SandboxError), self._engine.errors("removing") as api:
                        api.remove_container(container["Id"], force=True, v=True)
                if is_late:
                    return
                time.sleep(0.02)

    def _prepare_runtime(self) -> ContainerRuntimeFolder:
        with self._lock:
            if self._home is None:
                info = self._engine.info()
                check_users(info, self._engine.url)
                sweep(self._engine)
                self._home = ContainerRuntimeFolder(self._workers, info)
            return self._home

    def _find_image(
        self, image: str | Snapshot | Image
    ) -> tuple[DockerEngineImage, SnapshotFile | None]:
        if isinstance(image, DockerSnapshot):
            return image.engine_image, image.layer
        if isinstance(image, str | Image):
            return self._images.find(image), None
        raise ImageError(f"a snapshot of another provider cannot be started here: {image!r}")

    def _start_container(self, key: ContainerKey) -> DockerContainer:
        return start_container(self._engine, self._prepare_runtime(), key)

    def _find_baseline(
        self, image: DockerEngineImage, layer: SnapshotFile | None
    ) -> DockerContainer:
        """Return the container with whose files the files of sandboxes are compared.

        No sandbox uses the container, which is started at its first use.

        Args:
            image: The image.
            layer: A snapshot over the image; None: the image alone.
        """
        if layer is not None:
            return layer.get_baseline(
                lambda: self._start_container(ContainerKey.from_limits(image, False, Limits()))
            )
        with self._baseline_lock:
            container = self._baseline_containers.get(image)
            if container is None or not container.alive:
                if container is not None:
                    container.close()
                self._baseline_containers[image] = self._start_container(
                    ContainerKey.from_limits(image, False, Limits())
                )
            return self._baseline_containers[image]

    def _release_sandbox(self, sandbox: NativeSandbox) -> None:
        with self._lock:
            is_live = sandbox in self._live
            self._live.discard(sandbox)
        if is_live and not sandbox.resting:
            assert isinstance(sandbox, DockerSandbox)
            sandbox.origin.count_end()


def _image_with_home(engine_image: DockerEngineImage, container: DockerContainer) -> Image:
    """Return the image with all environment variables of its programs.

    An image of the engine may set no ``HOME``. Then the variables ``HOME`` and ``USER`` are those
    of the image's user, unless that is root.
    """
    account = container.account
    if engine_image.named_home or account.name == "root":
        return engine_image.image
    variables = {"HOME": account.home, "USER": account.name}
    return replace(engine_image.image, env={**engine_image.image.env, **variables})


log = logging.getLogger(__name__)

MAX_SPARE_CONTAINERS = 4
"""Maximum number of unused containers of one key that are started in advance."""
MAX_IDLE_CONTAINERS = 16
"""Maximum number of unused containers of all keys together."""
_SETTLE_SECONDS = 20.0
"""Seconds for which `ContainerPool.settle` waits."""
_MAX_STARTERS = 2
"""Maximum number of threads that start containers in advance."""


class ContainerPool:
    """A pool that allocates containers, and starts further containers in advance. Thread-safe.

    Each sandbox gets an unused container, which is never given back.

    Args:
        start: A function that starts a container of a key.
    """

    def __init__(self, start: Callable[[ContainerKey], DockerContainer]) -> None:
        self._start = start
        self._condition = threading.Condition()
        self._idle_containers: OrderedDict[ContainerKey, list[DockerContainer]] = OrderedDict()
        self._starting_counts: Counter[ContainerKey] = Counter()
        self._waiter_counts: Counter[ContainerKey] = Counter()
        self._live_counts: Counter[ContainerKey] = Counter()
        self._request_counts: Counter[ContainerKey] = Counter()
        self._jobs: queue.SimpleQueue[ContainerKey | None] = queue.SimpleQueue()
        self._thread_count = 0
        self.closed = False

    def take(self, key: ContainerKey) -> DockerContainer:
        """Return an unused container of a key; start a container if none is ready.

        Raises:
            ImageError, SandboxError: See `start_container`.
        """
        with self._condition:
            self._request_counts[key] += 1
            self._live_counts[key] += 1
            # If a container of the key is being started for no other caller, this caller waits for
            # it. To start another container would not be faster.
            while (container := self._pop(key)) is None and self._starting_counts[
                key
            ] > self._waiter_counts[key]:
                self._waiter_counts[key] += 1
                self._condition.wait()
                self._waiter_counts[key] -= 1
        try:
            return container or self._start(key)
        except BaseException:
            with self._condition:
                self._live_counts[key] -= 1
            raise
        finally:
            self._refill(key)

    def _pop(self, key: ContainerKey) -> DockerContainer | None:
        """Return an idle container of a key, or None; close idle containers that have ended."""
        idle_containers = self._idle_containers.get(key, [])
        while idle_containers:
            container = idle_containers.pop()
            if container.alive:
                return container
            container.close()
        return None

    def count_end(self, key: ContainerKey) -> None:
        """Note that a sandbox no longer uses a container that `take` has returned."""
        with self._condition:
            self._live_counts[key] -= 1

    def close(self) -> None:
        """Close all idle containers.

        A container that is being started is closed after its start.
        """
        with self._condition:
            self.closed = True
            containers = [
                container
                for idle_containers in self._idle_containers.values()
                for container in idle_containers
            ]
            self._idle_containers.clear()
            for _ in range(self._thread_count):
                self._jobs.put(None)
            self._thread_count = 0
        for container in containers:
            container.close()

    def settle(self) -> None:
        """Wait until no container is being started.

        If this process exited during a start, the container would remain.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: not any(self._starting_counts.values()), _SETTLE_SECONDS
            )

    def _refill(self, key: ContainerKey) -> None:
        """Order the start of unused containers of a key: as many as sandboxes use now.

        Nothing is started before the second request for the key. The maximum is
        `MAX_SPARE_CONTAINERS`.
        """
        with self._condition:
            if self.closed or self._request_counts[key] < 2:
                return
            target_count = min(MAX_SPARE_CONTAINERS, max(self._live_counts[key], 1))
            missing_count = (
                target_count - self._starting_counts[key] - len(self._idle_containers.get(key, ()))
            )
            if missing_count <= 0:
                return
            self._starting_counts[key] += missing_count
            for _ in range(missing_count):
                self._jobs.put(key)
            # The number of threads is small, because each thread keeps a connection to the engine.
            while self._thread_count < _MAX_STARTERS:
                self._thread_count += 1
                thread = threading.Thread(target=self._work, name="intercode-docker", daemon=True)
                thread.start()

    def _work(self) -> None:
        while (key := self._jobs.get()) is not None:
            self._start_spare(key)

    def _start_spare(self, key: ContainerKey) -> None:
        container = None
        try:
            container = None if self.closed else self._start(key)
        except InterCodeError as error:
            # If the error persists, the next call of `take` raises it.
            log.info("a container did not start ahead: %s", error)
        finally:
            self._add_started(key, container)

    def _add_started(self, key: ContainerKey, container: DockerContainer | None) -> None:
        surplus_containers: list[DockerContainer] = []
        with self._condition:
            self._starting_counts[key] -= 1
            if container is not None and self.closed:
                surplus_containers.append(container)
            elif container is not None:
                self._idle_containers.setdefault(key, []).append(container)
                self._idle_containers.move_to_end(key)
                surplus_containers += self._pop_surplus()
            self._condition.notify_all()
        for surplus_container in surplus_containers:
            surplus_container.close()

    def _pop_surplus(self) -> list[DockerContainer]:
        """Remove idle containers in excess of `MAX_IDLE_CONTAINERS` from the pool; return them.

        The containers of a key come first if its last start in advance is the oldest.
        """
        idle_count = sum(map(len, self._idle_containers.values()))
        surplus_containers: list[DockerContainer] = []
        while idle_count - len(surplus_containers) > MAX_IDLE_CONTAINERS:
            key, idle_containers = next(iter(self._idle_containers.items()))
            if idle_containers:
                surplus_containers.append(idle_containers.pop(0))
            if not idle_containers:
                del self._idle_containers[key]
        return surplus_containers


def sweep(engine: DockerEngine, dry_run: bool = False) -> list[str]:
    """Remove the containers and folders that ended processes have left; return their names.

    Args:
        engine: The engine.
        dry_run: Whether to return the names without removing anything.

    Raises:
        SandboxError: The engine failed.
    """
    removed_names = []
    with engine.errors("listing containers") as api:
        containers = api.containers(all=True, filters={"label": [f"{LABEL}=1"]})
        for container in containers:
            if not is_gone(container["Labels"].get(LEASE, "")):
                continue
            removed_names.append(f"container {container['Id'][:12]}")
            if not dry_run:
                with suppress(SandboxError), engine.errors("removing a container") as client:
                    client.remove_container(container["Id"], force=True, v=True)
    return removed_names + sweep_folders(dry_run)


def sweep_all(dry_run: bool = False) -> list[str]:
    """Remove the containers and folders like `sweep`; without an engine, only the folders.

    Args:
        dry_run: See `sweep`.
    """
    try:
        with closing(DockerEngine()) as engine:
            return sweep(engine, dry_run)
    except SandboxError:
        return sweep_folders(dry_run)


def sweep_folders(dry_run: bool = False) -> list[str]:
    """Remove the folders for containers that killed processes have left; return their paths.

    This function needs no engine.

    Args:
        dry_run: Whether to return the paths without removing the folders.
    """
    removed_paths = []
    parent = cache_root() / CACHE_FOLDER
    for folder in parent.glob(f"{RUN_PREFIX}*") if os.access(parent, os.R_OK) else ():
        if is_gone(folder.name.removeprefix(RUN_PREFIX)):
            removed_paths.append(str(folder))
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return removed_paths
