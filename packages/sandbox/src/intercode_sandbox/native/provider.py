"""The native provider of sandboxes: Linux namespaces on this machine, without a daemon.

A separate process, the spawner, forks the sandboxes: see `intercode_sandbox.native.spawner`. The
provider requests sandboxes from its spawner by messages, and restarts a spawner that was killed.
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

from intercode_sandbox.base import FailureEvidence, Limits, Snapshot
from intercode_sandbox.errors import ImageError, SandboxError, SandboxUnavailableError
from intercode_sandbox.extensions import bare_packages
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.images import Command, Image, Progress, resolve, resolve_hidden_paths
from intercode_sandbox.images.tree import find_entry
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.linux_capabilities import MULTI_USER_CAPABILITIES
from intercode_sandbox.native import cgroup, frozen_layers, wire
from intercode_sandbox.native.exit_ledger import LEDGERS, open_ledger
from intercode_sandbox.native.frozen_layers import FrozenLayer
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
from intercode_sandbox.native.process_start import PROGRAM, WorkerModules, command
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.native.snapshot import NativeSnapshot, SandboxStartFiles, build_script, sweep
from intercode_sandbox.native.user_ids import ID_COUNT
from intercode_sandbox.native.zygote import describe_failure
from intercode_sandbox.network import Network, NetworkPolicy
from intercode_sandbox.ownership import (
    close_at_exit,
    disown_in_forks,
    new_lease,
    register_release,
)
from intercode_sandbox.privileges import has_single_user, is_root


class NativeProvider:
    """The native implementation of `Provider`. Thread-safe.

    A fork of this process cannot use the parent's spawner, and starts another one.

    Args:
        progress: A function that is called with the name of each slow step.
        preload: The modules that `SandboxBackend.worker` can start. They may import the standard
            library, and modules in `path`, only.
        path: Folders that imports of these modules search after the standard library.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self._workers = WorkerModules([*preload], [*path], bare_packages(preload))
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
        """Start a fresh sandbox: see `Provider.start`."""
        limits, policy = limits or Limits(), NetworkPolicy.parse(network)
        # A missing permission raises an error here, before an image is built in vain.
        self._running_spawner()
        begin_slot = partial(self._begin, limits=limits, network=policy.shared)
        files = (
            image.files
            if isinstance(image, NativeSnapshot)
            else SandboxStartFiles(self.image(image))
        )
        sandbox = NativeSandbox(begin_slot(files, False), files.image, limits, self._forget)
        sandbox.files, sandbox.begin, sandbox.on_first_program = (
            files,
            begin_slot,
            self._remember_program,
        )
        sandbox.start_sibling = partial(self.start, limits=limits, network=network)
        with self._lock:
            self._live.add(sandbox)
        sandbox.admit(policy)
        return sandbox

    def _begin(
        self, files: SandboxStartFiles, skip_program: bool, limits: Limits, network: bool
    ) -> SandboxSlot:
        """Start a sandbox slot: the namespaces of a sandbox.

        Args:
            files: The files at the start of the slot.
            skip_program: Whether to start the slot without a prepared program.
            limits: The sandbox's limits.
            network: Whether the slot shares this machine's network.
        """
        spawner = self._running_spawner()
        if any(frozen_layer.owner != spawner.name for frozen_layer in files.frozen_layers):
            raise SandboxError("these files were frozen in the memory of a spawner that has ended")
        return spawner.launch(
            {
                "layers": files.layers,
                "image": len(files.image.layers),
                "frozen": [frozen_layer.name for frozen_layer in files.frozen_layers],
                "used": files.usage,
                "host": files.image.host,
                "hide": resolve_hidden_paths() if files.image.host else [],
                "network": network,
                "special": files.special,
                "limits": limits.to_dict(),
                "user": files.image.user,
                "first": None if skip_program else self._first_program,
            }
        )

    def _remember_program(self, program: dict[str, Any] | None) -> None:
        """Remember the program that a sandbox requested first; None: it first requested no program.

        If the spawner prepares a later slot in advance, the slot starts this program. The reason:
        sandboxes often request the same program first.
        """
        self._first_program = program

    def image(self, image: str | Snapshot | Image) -> Image:
        """Return the image of a name or a snapshot; build the image if necessary.

        Raises:
            ImageError: The image cannot be found or built, or lacks a folder of `_MOUNT_POINTS`. Or
                the snapshot is another provider's.
        """
        if isinstance(image, NativeSnapshot):
            return image.image
        if isinstance(image, str):
            image = resolve(image, build_script=self.build_script, progress=self.progress)
        if isinstance(image, Image):
            _check_mount_points(image.layers)
            return image
        raise ImageError(f"a snapshot of another provider cannot be started here: {image!r}")

    def digest(self, image: str | Snapshot | Image) -> str:
        """Return a digest of the image's content."""
        return image.files.digest if isinstance(image, NativeSnapshot) else self.image(image).digest

    def facts(self) -> dict[str, Any]:
        """Return the facts of this machine, for a run's record."""
        return dict(self._running_spawner().facts)

    def capability_problem(self, capabilities: Sequence[str], network: Network) -> str:
        """Return the reason why sandboxes cannot have some of these capabilities, and the fix.

        `SupportsCapabilityCheck` describes the arguments and the result.
        """
        names_text = ", ".join(
            capability for capability in capabilities if capability in MULTI_USER_CAPABILITIES
        )
        if names_text and has_single_user():
            return (
                f"several users are needed for {names_text}, and a native sandbox has a single one "
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
        """Run a script or command in a sandbox of `base`; write its changes into `layer`."""
        build_script(self.start, base, script, layer)

    def close(self) -> None:
        """Close all sandboxes of this provider, and its spawner. Idempotent."""
        with self._lock:
            live_sandboxes, spawner = list(self._live), self._spawner
            self._spawner = None
        for sandbox in live_sandboxes:
            sandbox.kill_all()
        for sandbox in live_sandboxes:
            sandbox.close()
        if spawner is not None:
            spawner.close()

    def _running_spawner(self) -> SpawnerProcess:
        with self._lock:
            if self._spawner is not None and not self._spawner.alive:
                self._spawner.close()
                self._spawner = None
            if self._spawner is None:
                sweep()
                self._spawner = SpawnerProcess(self._workers)
            return self._spawner

    def disown(self) -> None:
        """Forget the spawner and the sandboxes in a fork of this process: see `SupportsDisown`."""
        self._lock = threading.Lock()
        self._spawner = None
        self._live = weakref.WeakSet()

    def _forget(self, sandbox: NativeSandbox) -> None:
        with self._lock:
            self._live.discard(sandbox)


@lru_cache(maxsize=256)
def _check_mount_points(layers: tuple[Path, ...]) -> None:
    """Refuse an image that lacks a folder of `_MOUNT_POINTS`.

    Process 1 makes the same test at each start of a sandbox. This test refuses the image before a
    run has played any episode.
    """
    for mount_point in _MOUNT_POINTS:
        entry = find_entry(layers, (mount_point,))
        if entry is None or not entry.is_dir:
            raise missing_folder_error(f"/{mount_point}")


_MOUNT_POINTS = ("dev", "proc")
"""The folders of an image on which a sandbox mounts its own file systems."""
_START_SECONDS = 30.0
_EVIDENCE_SECONDS = 5.0
_OPEN_FILES = 65_536
"""Soft limit of open descriptors that the provider sets, if the hard limit permits."""
_FEWEST_OPEN_FILES = 1024
"""Hard limit of open descriptors below which no spawner is started."""
_lingering_spawners: list[subprocess.Popen[bytes]] = []
"""Spawners that were closed, and still run because the kernel has not yet ended their sandboxes.
Python must wait for each of these child processes some time, or they stay zombies."""


class SpawnerProcess:
    """A running spawner process. The spawner ends by `close`, or with this process.

    Args:
        workers: The modules that can run as workers in sandboxes. The spawner's zygote imports the
            modules at its start.

    Raises:
        UsageError: A module cannot be imported.
        SandboxUnavailableError: The machine does not permit sandboxes, or this installation lacks
            the program that runs as their process 1.
        SandboxError: The spawner does not start.
    """

    def __init__(self, workers: WorkerModules) -> None:
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
        owner_fd = ledger_fd = -1
        try:
            owner_fd = os.pidfd_open(os.getpid())
            ledger_fd = self._open_ledger()
            inherited_fds = [spawner_socket.fileno(), owner_fd, ledger_fd]
            identity_options = {"name": self.name, "root": is_root()}
            spawner_options = {
                "caller": inherited_fds[0],
                "owner": owner_fd,
                "ledger": ledger_fd,
                **identity_options,
            }
            self.process = subprocess.Popen(
                command("spawner", {**spawner_options, "workers": workers}),
                pass_fds=inherited_fds,
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
            close_all(*{owner_fd, ledger_fd} - {-1})
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
        """Whether the spawner still runs."""
        return self.process.poll() is None

    def launch(self, spec: dict[str, Any]) -> SandboxSlot:
        """Start a sandbox slot, and return it as soon as it is ready.

        Args:
            spec: The request for the spawner, from `NativeProvider`.

        Raises:
            ImageError: The image lacks a folder on which the sandbox mounts a file system.
            SandboxUnavailableError: The machine does not permit the sandbox.
            SandboxError: The sandbox did not start, for instance because the spawner died.
        """
        caller_socket, init_socket = wire.pair()
        caller_socket.settimeout(_START_SECONDS)
        init_process, sandbox_name = None, ""
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
                # The spawner announces the slot's process 1 by a descriptor. If a prepared process
                # has died, the spawner announces another one.
                if fds:
                    close_all(*program_fds)
                    if init_process is not None:
                        init_process.disown()
                    program_fds = fds[1:]
                    sandbox_name = reply["name"]
                    init_process = InitProcess(fds[0], partial(self.evidence, sandbox_name))
            if init_process is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except BaseException as error:
            caller_socket.close()
            close_all(*program_fds)
            if init_process is not None:
                init_process.disown()
            if not isinstance(error, (EOFError, OSError)) or is_callers(error):
                raise
            message = f"a sandbox did not start: {error or 'its process died'}{active_rules_text()}"
            raise SandboxError(message) from error
        prepared_program = (
            PreparedProgram(spec["first"], reply["first"], program_fds) if program_fds else None
        )
        freeze = partial(self.freeze, sandbox_name)
        id_count = ID_COUNT if self.facts["root"] else 1
        on_slow_end = partial(self.announce_ending, sandbox_name)
        slot = SandboxSlot(
            caller_socket,
            init_process,
            self.forget,
            freeze,
            on_slow_end,
            prepared_program,
            id_count,
            self.preload,
        )
        register_release(slot, caller_socket.close)
        return slot

    def _open_ledger(self) -> int:
        """Return a descriptor of the list of the spawner's ending sandboxes: see `exit_ledger`.

        If the cache is not writable, a memory file takes the ledger's place.
        """
        try:
            return open_ledger(cache_root() / LEDGERS, self.name)
        except OSError:
            return os.memfd_create("ledger", os.MFD_CLOEXEC)

    def announce_ending(self, sandbox_name: str) -> None:
        """Report to the spawner that the kernel takes long to end a killed sandbox.

        The spawner then lists the sandbox in its ledger. The caller no longer waits.

        Args:
            sandbox_name: The spawner's name for the sandbox.
        """
        with suppress(OSError):  # the spawner has ended, with all its sandboxes
            wire.send(self.socket, {"ending": sandbox_name})

    def evidence(self, sandbox_name: str) -> FailureEvidence:
        """Request the spawner's evidence about a sandbox that has ended or does not answer.

        Args:
            sandbox_name: The spawner's name for the sandbox.

        Returns:
            The evidence. If the spawner does not answer, `FailureEvidence.is_keeper_alive` is
            False.
        """
        try:
            return FailureEvidence(
                is_keeper_alive=True, **self._ask({"end_of": sandbox_name}, _EVIDENCE_SECONDS)
            )
        except (EOFError, OSError):
            return FailureEvidence(is_keeper_alive=False)

    def freeze(self, sandbox_name: str) -> FrozenLayer | None:
        """Retain the files of a sandbox, in memory, as a layer for other sandboxes.

        Args:
            sandbox_name: The spawner's name for the sandbox.

        Returns:
            The layer; None: the kernel does not permit it, or a file is open for writing.

        Raises:
            SandboxError: The files exceed the remaining quota of frozen layers. Or the spawner
                failed, or has ended.
        """
        try:
            reply = self._ask(
                {"freeze": sandbox_name, "room": frozen_layers.available_bytes()}, _START_SECONDS
            )
        except (EOFError, OSError) as error:
            raise SandboxError(f"the files could not be frozen: {error}") from error
        if "failed" in reply:
            raise SandboxError(f"the files could not be frozen: {reply['failed']}")
        if "name" in reply:
            usage = reply["bytes"], reply["files"]
            return FrozenLayer(reply["name"], self.name, usage, self.release_layer)
        if reply.get("bytes", 0) > frozen_layers.available_bytes():
            raise frozen_layers.quota_error(reply["bytes"])
        return None

    def release_layer(self, layer_name: str) -> None:
        """Request that the spawner release a frozen layer.

        Args:
            layer_name: The layer's name in the spawner.
        """
        with suppress(OSError):  # the spawner has ended, with its mounts
            wire.send(self.socket, {"thaw": layer_name})

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        caller_socket, spawner_socket = wire.pair()
        caller_socket.settimeout(seconds)
        with caller_socket:
            with spawner_socket:
                wire.send(self.socket, message, [spawner_socket.fileno()])
            return wire.receive(caller_socket)[0]

    def forget(self, layer: Path) -> None:
        """Request that the spawner unmount the folder of a layer, which is about to be deleted."""
        with suppress(OSError):  # the spawner has ended, with its mounts
            wire.send(self.socket, {"forget": str(layer)})

    def close(self) -> None:
        """End the spawner and all its sandboxes. Idempotent.

        A spawner that does not confirm the request within `_START_SECONDS` is killed. The call then
        waits for the end of all processes, but at most `END_SECONDS`. If the kernel takes longer to
        end a sandbox, the spawner continues to wait alone.
        """
        with suppress(OSError):  # the socket is closed already, or the spawner has ended first
            # A forked process that never called `disown` may hold a copy of the socket. So closing
            # the socket would not reach the spawner, but the shutdown does.
            self.socket.shutdown(socket.SHUT_WR)
        try:
            # The spawner confirms that it has noticed the shutdown, and has killed its sandboxes.
            wire.receive(self.socket)
        except TimeoutError:
            self.process.kill()  # the spawner does not answer: it was stopped by a signal
        except (EOFError, OSError):
            pass  # the spawner has ended
        self.socket.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            _lingering_spawners.append(self.process)
            return
        with suppress(OSError):
            (cache_root() / LEDGERS / self.name).unlink(missing_ok=True)
        if self.process.returncode:  # the spawner was killed
            cgroup.remove_all(self.name)

    def disown(self) -> None:
        """Close the inherited socket in a fork of this process: see `SupportsDisown`."""
        self.socket.close()
        # The spawner is not a child of the fork, which must not wait for it. By this value
        # Python considers the process as ended.
        self.process.returncode = 0


def _try_calls() -> None:
    """Try the less common system calls that this process needs for sandboxes.

    A seccomp filter of this process may refuse any of the calls. The trial names the refused call.

    Raises:
        SandboxError: A call is refused; the message names the call and, if known, the rule.
    """
    with ExitStack() as exit_stack:

        def close_later(fd: int) -> int:
            exit_stack.callback(os.close, fd)
            return fd

        def wait() -> None:
            # A process is not its own child. This error shows that waitid itself is permitted.
            with suppress(ChildProcessError):
                os.waitid(
                    os.P_PIDFD, close_later(os.pidfd_open(os.getpid())), os.WEXITED | os.WNOHANG
                )

        trials: dict[str, Callable[[], object]] = {
            "pidfd_open": lambda: close_later(os.pidfd_open(os.getpid())),
            "pidfd_send_signal": lambda: signal.pidfd_send_signal(
                close_later(os.pidfd_open(os.getpid())), 0
            ),
            "waitid": wait,
            "memfd_create": lambda: close_later(os.memfd_create("trial", os.MFD_CLOEXEC)),
            "prlimit64": lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
            "pipe2": lambda: [close_later(fd) for fd in os.pipe2(os.O_CLOEXEC)],
            "socketpair": lambda: [close_later(endpoint.detach()) for endpoint in wire.pair()],
        }
        for call, trial in trials.items():
            try:
                trial()
            except OSError as error:
                raise caller_error(error, call) from error


def _raise_open_files() -> None:
    """Raise this process's soft limit of open descriptors to the hard limit, but at most 65,536.

    The usual soft limit of 1024 suffices for only 140 sandboxes.

    Raises:
        SandboxUnavailableError: The hard limit is too low for a single sandbox.
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
