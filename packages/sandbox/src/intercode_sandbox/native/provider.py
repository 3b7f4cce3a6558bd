"""The native provider: starts sandboxes on this machine's kernel, by way of a spawner process.

There is no daemon and no image registry. The spawner is asked for sandboxes, and started again when
it was killed.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from intercode_sandbox.base import Evidence, Limits, Snapshot
from intercode_sandbox.capabilities import MULTI_USER_CAPABILITIES
from intercode_sandbox.errors import ImageError, SandboxError, SandboxUnavailableError
from intercode_sandbox.extensions import bare_packages
from intercode_sandbox.files import cache_root
from intercode_sandbox.images import Command, Image, Progress, hidden_places, resolve
from intercode_sandbox.images.tree import find_entry
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.native import cgroup, frozen_layers, wire
from intercode_sandbox.native.exit_ledger import LEDGERS, open_ledger
from intercode_sandbox.native.frozen_layers import FrozenLayer
from intercode_sandbox.native.identity import ID_COUNT
from intercode_sandbox.native.pipes import close_all
from intercode_sandbox.native.preflight import (
    active_rules_text,
    caller_error,
    load_error,
    missing_folder_error,
    missing_program_error,
    open_files_command,
    unavailable_error,
)
from intercode_sandbox.native.process import END_SECONDS, InitProcess, PreparedProgram, SandboxSlot
from intercode_sandbox.native.process_start import PROGRAM, Workers, command
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.native.snapshot import Files, NativeSnapshot, build_script, sweep
from intercode_sandbox.native.zygote import describe_failure
from intercode_sandbox.network import Network, Policy
from intercode_sandbox.ownership import (
    close_at_exit,
    disown_in_forks,
    new_lease,
    register_release,
)
from intercode_sandbox.privileges import has_single_user, is_root


class NativeProvider:
    """See `sandbox.base.Provider`. Thread-safe; a forked copy of it makes its own spawner.

    Args:
        progress: Is told what takes long.
        preload: The modules that `SandboxBackend.worker` can start: importable with the standard
            library and `path` alone.
        path: Folders in which their imports are looked for after the standard library.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self._workers = Workers([*preload], [*path], bare_packages(preload))
        self._lock = threading.Lock()
        self._spawner: SpawnerProcess | None = None
        self._live: weakref.WeakSet[NativeSandbox] = weakref.WeakSet()
        self._first_program: dict[str, Any] | None = None
        close_at_exit(self)
        disown_in_forks(self)

    def start(
        self,
        image: str | Snapshot | Image = "host",
        limits: Limits | None = None,
        network: Network = False,
    ) -> NativeSandbox:
        """Start a fresh sandbox."""
        limits, policy = limits or Limits(), Policy.of(network)
        self._running()  # says what is not permitted here, before an image is built
        begin = partial(self._begin, limits=limits, network=policy.shared)
        files = image.files if isinstance(image, NativeSnapshot) else Files(self.image(image))
        sandbox = NativeSandbox(begin(files, False), files.image, limits, self._forget)
        sandbox.files, sandbox.begin, sandbox.on_first_program = (
            files,
            begin,
            self._remember_program,
        )
        sandbox.start_sibling = partial(self.start, limits=limits, network=network)
        with self._lock:
            self._live.add(sandbox)
        sandbox.admit(policy)
        return sandbox

    def _begin(self, files: Files, alone: bool, limits: Limits, network: bool) -> SandboxSlot:
        """Start a place for a sandbox; `alone`: without a program ahead of requests."""
        spawner = self._running()
        if any(layer.owner != spawner.name for layer in files.frozen_layers):
            raise SandboxError("these files were frozen in the memory of a spawner that has ended")
        return spawner.launch(
            {
                "layers": files.layers,
                "image": len(files.image.layers),
                "frozen": [layer.name for layer in files.frozen_layers],
                "used": files.usage,
                "host": files.image.host,
                "hide": hidden_places() if files.image.host else [],
                "network": network,
                "special": files.special,
                "limits": limits.to_dict(),
                "user": files.image.user,
                "first": None if alone else self._first_program,
            }
        )

    def _remember_program(self, program: dict[str, Any] | None) -> None:
        """Remember the first program that a sandbox was asked for: the next may want it, too."""
        self._first_program = program

    def image(self, image: str | Snapshot | Image) -> Image:
        """Return the image by that name, built if need be."""
        if isinstance(image, NativeSnapshot):
            return image.image
        if isinstance(image, str):
            image = resolve(image, build_script=self.build_script, progress=self.progress)
        if isinstance(image, Image):
            _check_places(image.layers)
            return image
        raise ImageError(f"a snapshot of another provider cannot be started here: {image!r}")

    def digest(self, image: str | Snapshot | Image) -> str:
        """Return a digest of the image's content."""
        return image.files.digest if isinstance(image, NativeSnapshot) else self.image(image).digest

    def facts(self) -> dict[str, Any]:
        """Return the facts of this machine, for a run's record."""
        return dict(self._running().facts)

    def capability_problem(self, capabilities: Sequence[str], network: Network) -> str:
        """Tell why sandboxes cannot have some of these capabilities: see `base.GrantsSome`."""
        names = ", ".join(name for name in capabilities if name in MULTI_USER_CAPABILITIES)
        if names and has_single_user():
            return (
                f"several users are needed for {names}, and a native sandbox has a single one "
                "unless root of the machine starts it. Run this as root, or in Docker's containers "
                "from an image that Docker has built: --sandbox docker --image docker-daemon:NAME"
            )
        if network is True and "net_bind_service" in capabilities:
            return (
                "with --network the native sandbox shares this machine's ports, of which those "
                "below 1024 stay the machine's. Leave one of the two out, or take --sandbox docker"
            )
        return ""

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

    def _running(self) -> SpawnerProcess:
        with self._lock:
            if self._spawner is not None and not self._spawner.alive:
                self._spawner.close()
                self._spawner = None
            if self._spawner is None:
                sweep()
                self._spawner = SpawnerProcess(self._workers)
            return self._spawner

    def disown(self) -> None:
        """See `ownership.Owned`. A fork makes a spawner of its own."""
        self._lock = threading.Lock()
        self._spawner = None
        self._live = weakref.WeakSet()

    def _forget(self, sandbox: NativeSandbox) -> None:
        with self._lock:
            self._live.discard(sandbox)


@lru_cache(maxsize=256)
def _check_places(layers: tuple[Path, ...]) -> None:
    """Refuse an image before any episode if process 1 would, which looks each time."""
    for name in _PLACES:
        entry = find_entry(layers, (name,))
        if entry is None or not entry.is_dir:
            raise missing_folder_error(f"/{name}")


_PLACES = ("dev", "proc")
"""The folders of an image that a sandbox's own are mounted over."""
_START_SECONDS = 30.0
_EVIDENCE_SECONDS = 5.0
_OPEN_FILES = 65_536
_FEWEST_OPEN_FILES = 1024
_lingering_spawners: list[subprocess.Popen[bytes]] = []
"""Spawners that were closed, and that wait for the kernel to end their sandboxes."""


class SpawnerProcess:
    """A running spawner process. It ends when this is closed, or this process does.

    Args:
        workers: The modules that it loads for its sandboxes' workers.

    Raises:
        UsageError: A module cannot be imported.
        SandboxUnavailableError: The machine does not permit sandboxes, or the program that they
            run is not there.
        SandboxError: It does not start.
    """

    def __init__(self, workers: Workers) -> None:
        _try_calls()
        _raise_open_files()
        _lingering_spawners[:] = [
            process for process in _lingering_spawners if process.poll() is None
        ]
        if not os.access(PROGRAM, os.X_OK):
            raise missing_program_error()
        self.name = new_lease()
        self.preload = tuple(workers.modules)
        caller_socket, spawner_socket = wire.pair()
        owner = os.pidfd_open(os.getpid())
        ledger = self._open_ledger()
        try:
            fds = [spawner_socket.fileno(), owner, ledger]
            identity_options = {"name": self.name, "root": is_root()}
            spawner_options = {
                "caller": fds[0],
                "owner": owner,
                "ledger": ledger,
                **identity_options,
            }
            self.process = subprocess.Popen(
                command("spawner", {**spawner_options, "workers": workers}),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            caller_socket.close()
            raise caller_error(error, "starting a program") from error
        finally:
            spawner_socket.close()
            close_all(owner, ledger)
        self.socket = caller_socket
        disown_in_forks(self)
        caller_socket.settimeout(_START_SECONDS)
        try:
            self.facts, _ = wire.receive(caller_socket)
        except (EOFError, OSError) as error:
            self.close()
            message = (
                f"the sandbox spawner did not start: {error or 'it died'}{active_rules_text()}"
            )
            raise SandboxError(message) from error
        if "unloaded" in self.facts:
            self.close()
            raise load_error(self.facts)
        if "failed" in self.facts:
            self.close()
            raise unavailable_error(self.facts)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def launch(self, spec: dict[str, Any]) -> SandboxSlot:
        """Start a place for a sandbox; return it once it is ready.

        Raises:
            SandboxUnavailableError: The machine does not permit it.
            SandboxError: The spawner died.
        """
        caller_socket, init_socket = wire.pair()
        caller_socket.settimeout(_START_SECONDS)
        process, name = None, ""
        program_fds: list[int] = []
        try:
            with init_socket:
                wire.send(self.socket, spec, [init_socket.fileno()])
            reply: dict[str, Any] = {}
            while "ready" not in reply:
                reply, fds = wire.receive(caller_socket)
                if "call" in reply:
                    raise unavailable_error(describe_failure(reply))
                if "failed" in reply:
                    raise unavailable_error(reply)
                # The spawner says who it will be; where that has died, there comes another.
                if fds:
                    close_all(*program_fds)
                    if process is not None:
                        process.disown()
                    program_fds = fds[1:]
                    name = reply["name"]
                    process = InitProcess(fds[0], partial(self.evidence, name))
            if process is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except BaseException as error:
            caller_socket.close()
            close_all(*program_fds)
            if process is not None:
                process.disown()
            if not isinstance(error, (EOFError, OSError)) or is_callers(error):
                raise
            message = f"a sandbox did not start: {error or 'its process died'}{active_rules_text()}"
            raise SandboxError(message) from error
        prepared_program = (
            PreparedProgram(spec["first"], reply["first"], program_fds) if program_fds else None
        )
        freeze = partial(self.freeze, name)
        users = ID_COUNT if self.facts["root"] else 1
        on_slow_end = partial(self.hand_over, name)
        slot = SandboxSlot(
            caller_socket,
            process,
            self.forget,
            freeze,
            on_slow_end,
            prepared_program,
            users,
            self.preload,
        )
        register_release(slot, caller_socket.close)
        return slot

    def _open_ledger(self) -> int:
        """Open the spawner's ledger; without a writable cache, a file without a name."""
        try:
            return open_ledger(cache_root() / LEDGERS, self.name)
        except OSError:
            return os.memfd_create("ledger", os.MFD_CLOEXEC)

    def hand_over(self, name: str) -> None:
        """Leave the end of a killed sandbox to the spawner, where the kernel takes long for it."""
        with suppress(OSError):  # the spawner has ended, and all of its sandboxes with it
            wire.send(self.socket, {"ending": name})

    def evidence(self, name: str) -> Evidence:
        """Evidence of the end of a sandbox, by the name that the spawner gave it."""
        try:
            return Evidence(is_keeper_alive=True, **self._ask({"end_of": name}, _EVIDENCE_SECONDS))
        except (EOFError, OSError):
            return Evidence(is_keeper_alive=False)

    def freeze(self, name: str) -> FrozenLayer | None:
        """Keep a sandbox's files as a layer; None: the kernel does not permit it.

        Raises:
            SandboxError: They are too large, or the spawner has ended.
        """
        try:
            reply = self._ask({"freeze": name, "room": frozen_layers.room()}, _START_SECONDS)
        except (EOFError, OSError) as error:
            raise SandboxError(f"the files could not be frozen: {error}") from error
        if "failed" in reply:
            raise SandboxError(f"the files could not be frozen: {reply['failed']}")
        if "name" in reply:
            usage = reply["bytes"], reply["files"]
            return FrozenLayer(reply["name"], self.name, usage, self.thaw)
        if reply.get("bytes", 0) > frozen_layers.room():
            raise frozen_layers.no_room_error(reply["bytes"])
        return None

    def thaw(self, name: str) -> None:
        """Ask the spawner to let go of a frozen layer."""
        with suppress(OSError):  # it has ended, and its mounts with it
            wire.send(self.socket, {"thaw": name})

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        caller_socket, spawner_socket = wire.pair()
        caller_socket.settimeout(seconds)
        with caller_socket:
            with spawner_socket:
                wire.send(self.socket, message, [spawner_socket.fileno()])
            return wire.receive(caller_socket)[0]

    def forget(self, layer: Path) -> None:
        """Ask the spawner to unmount a layer that is about to be deleted."""
        with suppress(OSError):  # it has ended, and its mounts with it
            wire.send(self.socket, {"forget": str(layer)})

    def close(self) -> None:
        """End it and all of its sandboxes. Idempotent.

        Wait until they are gone, or leave it to wait for the kernel, which takes long for some.
        """
        with suppress(OSError):  # it is closed, or the other end has gone first
            # Heard also where a fork that has run no code of ours holds this end, too.
            self.socket.shutdown(socket.SHUT_WR)
        try:
            wire.receive(self.socket)  # it has heard, and waits for the kernel
        except TimeoutError:
            self.process.kill()  # somebody has stopped it
        except (EOFError, OSError):
            pass  # it has ended
        self.socket.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            _lingering_spawners.append(self.process)
            return
        with suppress(OSError):
            (cache_root() / LEDGERS / self.name).unlink(missing_ok=True)
        if self.process.returncode:  # it was killed
            cgroup.remove_all(self.name)

    def disown(self) -> None:
        """See `ownership.Owned`."""
        self.socket.close()
        self.process.returncode = 0  # not this process's child


def _try_calls() -> None:
    """Make each call once that this process needs for a sandbox: a filter may refuse any.

    Raises:
        SandboxError: One is refused; the message names the rule.
    """
    with ExitStack() as exit_stack:

        def keep(fd: int) -> int:
            exit_stack.callback(os.close, fd)
            return fd

        def wait() -> None:
            with suppress(ChildProcessError):  # no process is a child of its own
                os.waitid(os.P_PIDFD, keep(os.pidfd_open(os.getpid())), os.WEXITED | os.WNOHANG)

        calls: dict[str, Callable[[], object]] = {
            "pidfd_open": lambda: keep(os.pidfd_open(os.getpid())),
            "pidfd_send_signal": lambda: signal.pidfd_send_signal(
                keep(os.pidfd_open(os.getpid())), 0
            ),
            "waitid": wait,
            "memfd_create": lambda: keep(os.memfd_create("trial", os.MFD_CLOEXEC)),
            "prlimit64": lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
            "pipe2": lambda: [keep(fd) for fd in os.pipe2(os.O_CLOEXEC)],
            "socketpair": lambda: [keep(part.detach()) for part in wire.pair()],
        }
        for call, make in calls.items():
            try:
                make()
            except OSError as error:
                raise caller_error(error, call) from error


def _raise_open_files() -> None:
    """Use what the administrator allows: the usual soft limit of 1024 is 140 sandboxes.

    Raises:
        SandboxUnavailableError: That is too little for a single one.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = (
        min(hard_limit, _OPEN_FILES) if hard_limit != resource.RLIM_INFINITY else _OPEN_FILES
    )
    if new_limit < _FEWEST_OPEN_FILES:
        raise SandboxUnavailableError(
            f"this process may open only {new_limit} descriptors, and sandboxes need "
            f"{_FEWEST_OPEN_FILES}",
            open_files_command(),
        )
    if soft_limit != resource.RLIM_INFINITY and soft_limit < new_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))
