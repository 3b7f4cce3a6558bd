"""The spawner: a small single-threaded process that has sandboxes forked for a large threaded one.

Forking the caller would copy its memory map and its locks, and a sandbox would die with the thread
that started it. The spawner owns a private mount namespace with the images' layers, makes each
sandbox's process 1, hands out identities, keeps the cgroups, and goes, with all of its sandboxes,
when the caller's socket closes: that is what kill -9 of the caller leaves behind — nothing.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from intercode.rights import STAND_IN, has_machines_id, lacking
from intercode.sandbox.native import cgroup, wire
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.channels import close_all, exit_pipe, open_channels
from intercode.sandbox.native.identity import OWN_THREADS, Identities, Identity, write_maps
from intercode.sandbox.native.syscalls import hide_arguments
from intercode.sandbox.native.vault import Vault
from intercode.sandbox.native.zygote import NotLoadedError, Zygote, look_around, plan

STAGE = "/dev/pts"
"""The folder of the spawner's mounts, in its own mount namespace. Every machine has this folder,
and neither the spawner nor an image needs what is in it."""
_FOLDERS = ("x", "o", "e", "d", "p", "m")
"""The mount points of each sandbox there: its files, the same with its own ids, what is empty,
/dev, /proc, and a folder of the machine's programs on its way into an image."""
_QUIET_MS = 1, 5
"""Milliseconds without a request, after which something is done ahead of one: while there is a
processor for each sandbox that runs, and where there is none to spare."""
_ENDS_KEPT = 4096


class Spawner:
    """The event loop of the spawner.

    One child is forked ahead, so that the next start need not wait for the fork and for the
    kernel to make namespaces and to move it into a cgroup; it has nothing of any sandbox's yet.
    A caller that starts one sandbox after the other mostly wants the same: what was asked for twice
    in a row is, when it is quiet, made ready for a third time, with the program that was its first,
    and thrown away if something else comes.
    """

    def __init__(
        self,
        caller: socket.socket,
        owner: int,
        name: str,
        root: bool,
        preload: Sequence[str],
        path: Sequence[str],
    ) -> None:
        self.caller = caller
        self.owner = owner
        """A descriptor of the caller's process. Its socket alone would not tell of its end: a fork
        of it may hold the other end, too."""
        self.poll = select.poll()
        self.starting: dict[int, Child] = {}
        self.spare: Child | None = None
        self.ready: Child | None = None
        self.asked: dict[str, Any] = {}
        self.again = False
        """Whether what was asked for last was asked for before that, too."""
        self.live: dict[int, str] = {}
        """The cgroup's name of each child."""
        self.files: dict[int, int] = {}
        """Detached mounts of the files of those children whose files can be frozen."""
        self.identities: dict[int, Identity] = {}
        """The identities of the children that have been told what to be."""
        self.leaving: list[str] = []
        self.oom_kills: dict[str, int] = {}
        """The value of `Cgroups.oom_kills` when a child was forked, by its cgroup's name."""
        self.ends: dict[str, dict[str, Any]] = {}
        """How the children of late have ended, as `fault.Evidence`."""
        self.count = 0
        self.processors = len(os.sched_getaffinity(0))
        prepare_namespaces(root)
        self.cgroups = cgroup.Cgroups(name, os.getppid())  # with the rights that are left
        self.machine = look_around(root)
        self.zygote = Zygote(self.machine, preload, path)
        self.layers = Layers(root)
        self.vault = Vault(STAGE)
        self.pool = Identities(root)
        self.wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the caller goes away; then end every sandbox and clean up."""
        self.poll.register(self.caller, select.POLLIN)
        self.poll.register(self.owner, select.POLLIN)
        self.poll.register(self.wake_read, select.POLLIN)
        try:
            while True:
                events = self.poll.poll(self.patience())
                if not events and self.may_prepare:
                    self.make_ready()
                # The caller last: it may ask for the files of a child that has just started.
                for fd, _ in sorted(events, key=lambda event: event[0] == self.caller.fileno()):
                    if fd == self.owner:
                        return
                    if fd == self.wake_read:
                        with suppress(BlockingIOError):
                            os.read(self.wake_read, 4096)
                    elif fd == self.caller.fileno():
                        if not self.take_request():
                            return
                    else:
                        self.started(fd)
                self.reap()
        finally:
            self.close()

    def take_request(self) -> bool:
        """Start a sandbox, or say why not on the sandbox's own socket. False: the caller left."""
        try:
            spec, fds = wire.receive(self.caller)
        except wire.TruncatedError:
            return True  # the caller hears the end of the socket that was lost
        except (EOFError, OSError):
            return False
        if not fds:
            if "thaw" in spec:
                self.thaw(spec["thaw"])
            else:
                self.drop_ready()
                self.layers.forget(spec["forget"])
            return True
        with socket.socket(fileno=fds[0]) as control:
            try:
                if "end_of" in spec:
                    wire.send(control, self.evidence(spec["end_of"]))
                elif "freeze" in spec:
                    wire.send(control, self.freeze(spec["freeze"], spec["room"]))
                else:
                    self.start(spec, control)
            except OSError as error:
                report(control, error)
        return True

    def evidence(self, name: str) -> dict[str, Any]:
        """Evidence of a sandbox that does not answer, as `fault.Evidence`."""
        self.reap()
        return {"running": True} if name in self.live.values() else self.ends.get(name, {})

    def freeze(self, name: str, room: int) -> dict[str, Any]:
        """Keep the files of a sandbox in which nothing runs, as a layer.

        Args:
            name: The sandbox's.
            room: The most bytes that they may have.

        Returns:
            The ``bytes`` and ``files`` of the layer. If it was made, its ``name``.
        """
        tree = next((self.files[pid] for pid in self.files if self.live.get(pid) == name), None)
        if tree is None:
            return {}
        space = os.fstatvfs(tree)
        used = (space.f_blocks - space.f_bfree) * space.f_frsize
        found: dict[str, Any] = {"bytes": used, "files": space.f_files - space.f_ffree}
        if used <= room:
            with suppress(OSError):  # the kernel does not permit it, or something is written
                found["name"] = self.vault.add(tree)
        return found

    def thaw(self, name: str) -> None:
        """Let go of a frozen layer."""
        if name in self.asked.get("frozen", ()):
            self.drop_ready()
            self.again, self.asked = False, {}
        self.vault.remove(name)

    def facts(self) -> dict[str, Any]:
        """Return the facts that a run's record and `doctor` tell."""
        return {
            "root": self.machine.root,
            "cgroup": self.cgroups.version,
            "controllers": self.cgroups.controllers,
            **({"fork_flaw": self.zygote.flaw} if self.zygote.flaw else {}),
        }

    def start(self, spec: dict[str, Any], control: socket.socket) -> None:
        """Start one sandbox. It announces itself on its socket when it is ready."""
        self.layers.prepare(spec)
        self.again, self.asked = spec == self.asked, spec
        if self.hand_over(spec, control):
            return
        child = self.take_child(spec["network"])
        self.introduce(child, control)
        self.instruct(child, spec, [control.fileno()])

    def instruct(self, child: Child, spec: dict[str, Any], fds: list[int]) -> None:
        """Tell a child what sandbox to become, and who."""
        try:
            identity = self.identities[child.pid] = self.pool.take(spec["limits"]["processes"])
            limits = spec["limits"]
            # Files in memory count as memory: they have a limit of their own to fill.
            total = limits["memory"] + limits["disk"]
            processes = limits["processes"] + OWN_THREADS
            self.cgroups.limit(self.live[child.pid], total, processes)
            message = plan(spec, identity, self.machine, ahead=child.spec is not None)
            frozen = self.vault.copies(spec["frozen"])
            try:
                given = [*identity.fds, *frozen, *fds]
                wire.send(child.link, message, given, packed=True)
            finally:
                for fd in frozen:
                    os.close(fd)
        except OSError:
            child.link.close()
            os.kill(child.pid, signal.SIGKILL)
            raise
        self.starting[child.link.fileno()] = child
        self.poll.register(child.link, select.POLLIN)

    def hand_over(self, spec: dict[str, Any], control: socket.socket) -> bool:
        """Give the caller the sandbox that is ready, if there is one and it will do."""
        ready = self.ready
        if ready is None or ready.spec != spec:
            self.drop_ready()
            return False
        self.ready = None
        with closing(ready):
            self.introduce(ready, control)
            try:
                wire.send(ready.link, {}, [control.fileno()], packed=True)
            except OSError:  # it has died
                return False
        return True

    def drop_ready(self) -> None:
        """End the sandbox that is ready, in which nothing has run."""
        ready, self.ready = self.ready, None
        if ready is not None:
            ready.close()

    @property
    def may_prepare(self) -> bool:
        """Whether a sandbox should be made ready, once it is quiet."""
        wanted = self.again and not self.asked["network"]
        return wanted and self.ready is None and not self.starting

    def patience(self) -> int | None:
        """Milliseconds after which to look around although nothing has happened."""
        if self.may_prepare:
            running = len(self.live) - (self.spare is not None)
            return _QUIET_MS[running > self.processors]
        return 1000 if self.leaving else None

    def make_ready(self) -> None:
        """Make a sandbox ready for what was asked for last."""
        self.again = False
        with suppress(OSError):  # the next request meets it again, and says so
            child = self.take_child(network=False)
            child.spec = self.asked
            with child.first_program() as theirs:
                self.instruct(child, self.asked, theirs)

    def take_child(self, network: bool) -> Child:
        """Return the child that was forked ahead, if it will do, or a new one."""
        spare = self.spare
        if spare is not None and not network:
            self.spare = None
            if spare.layers_mounted == self.layers.mounted:
                return spare
            spare.link.close()  # which ends it
        return self.fork(network)

    def fork(self, network: bool) -> Child:
        """Return a new child, which enters a cgroup of its own."""
        self.count += 1
        name = str(self.count)
        cgroups = self.cgroups.make(name)
        try:
            child = Child(self.layers.mounted, partial(self.zygote.fork, network, cgroups))
        except OSError:
            self.cgroups.remove(name)
            raise
        self.live[child.pid] = name
        self.oom_kills[name] = self.cgroups.oom_kills(name)
        return child

    def introduce(self, child: Child, control: socket.socket) -> None:
        """Give the caller a descriptor of the process that is its sandbox's process 1."""
        process = os.pidfd_open(child.pid)
        try:
            wire.send(control, {"name": self.live[child.pid]}, [process, *child.first])
        finally:
            os.close(process)

    def started(self, link: int) -> None:
        """A child has a file system, or has failed: what is left it does alone."""
        child = self.starting.pop(link)
        self.poll.unregister(link)
        with suppress(EOFError, OSError):
            for fd in wire.receive(child.link)[1]:
                self.files[child.pid] = fd
        if child.spec is None:
            child.link.close()
        elif child.spec == self.asked:
            self.ready = child
        else:  # something else has come meanwhile, or its frozen layers have gone
            child.close()
        if self.spare is None:
            with suppress(OSError):  # the next start meets it again, and says so
                self.spare = self.fork(network=False)

    def reap(self) -> None:
        """Collect ended sandboxes and remove their cgroups."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                name = self.live.pop(pid, None)
                if pid in self.files:
                    os.close(self.files.pop(pid))
                if name is not None:
                    self.leaving.append(name)
                    self.keep_end(name, os.waitstatus_to_exitcode(status))
                if pid in self.identities:
                    # Process 1 is the last to end of all that had these ids.
                    self.pool.give_back(self.identities.pop(pid))
                if self.spare is not None and self.spare.pid == pid:
                    self.spare = None
                if self.ready is not None and self.ready.pid == pid:
                    self.drop_ready()
        self.leaving = [name for name in self.leaving if not self.cgroups.remove(name)]

    def keep_end(self, name: str, exit_code: int) -> None:
        """Remember how a child has ended, while its cgroup can still tell."""
        starved = self.cgroups.oom_kills(name) > self.oom_kills.pop(name)
        self.ends[name] = {"exit_code": exit_code, "starved": starved}
        if len(self.ends) > _ENDS_KEPT:
            del self.ends[next(iter(self.ends))]

    def close(self) -> None:
        """End every sandbox and leave nothing."""
        for pid in self.live:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.live:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.zygote.close()
        self.cgroups.close()


def main(
    caller: int, owner: int, name: str, root: bool, preload: Sequence[str], path: Sequence[str]
) -> None:
    """Run a spawner.

    Args:
        caller: The descriptor of its caller's socket.
        owner: A descriptor of the caller's process.
        name: See `lease`.
        root: Whether the caller has the rights of `rights.is_root`.
        preload: The modules of sandboxes' workers.
        path: Folders in which these find what is not Python's own.
    """
    with socket.socket(fileno=caller) as sock:
        try:
            hide_arguments(b"init")
            spawner = Spawner(sock, owner, name, root, preload, path)
        except NotLoadedError as error:
            wire.send(sock, error.said)
            return
        except (EOFError, OSError) as error:
            report(sock, error)
            return
        wire.send(sock, spawner.facts())
        spawner.run()


def report(control: socket.socket, error: OSError | EOFError) -> None:
    """Tell the caller why a sandbox, or this spawner, did not start."""
    number = error.errno if isinstance(error, OSError) else None
    met = sc.with_line(error) if isinstance(error, OSError) else error
    with suppress(OSError):
        wire.send(control, {"failed": str(met), "errno": number or 0})


class Child:
    """A forked process that is, or waits to become, a sandbox's process 1."""

    def __init__(self, layers_mounted: int, clone: Callable[[socket.socket], int]) -> None:
        self.layers_mounted = layers_mounted
        """How many layers it sees: its copy of the mounts is as old as itself."""
        self.spec: dict[str, Any] | None = None
        """The request that it is made ready for ahead of."""
        self.first: list[int] = []
        """Our ends of the channels of the program that it starts ahead of a request."""
        self.link, theirs = wire.pair()
        with theirs:
            self.pid = clone(theirs)

    @contextmanager
    def first_program(self) -> Iterator[list[int]]:
        """Yield the other ends of the channels of its first program, if it is to start one."""
        assert self.spec is not None
        if (first := self.spec["first"]) is None:
            yield []
            return
        ours, theirs = open_channels(first["channels"], first["merge_stderr"])
        exit_read, exit_write = exit_pipe()
        self.first = [*ours.values(), exit_read]
        try:
            yield [*theirs.values(), exit_write]
        except OSError:
            self.close()
            raise
        finally:
            close_all(*theirs.values(), exit_write)

    def close(self) -> None:
        """Close what is left of it here: it ends, unless it has a caller. Idempotent."""
        self.link.close()
        first, self.first = self.first, []
        close_all(*first)


_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV

_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ESCAPES = {b"\\040": b" ", b"\\011": b"\t", b"\\012": b"\n", b"\\134": b"\\"}
"""How mountinfo writes what would break its lines; the backslash is the last to be read."""


def prepare_namespaces(root: bool) -> None:
    """Give this process a mount namespace of its own, and the stage."""
    if root:
        sc.unshare(sc.CLONE_NEWNS)
    else:
        if has_machines_id():
            _stand_in()
        uid, gid = os.geteuid(), os.getegid()
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        write_maps("self", f"0 {uid} 1", f"0 {gid} 1")
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", STAGE, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "size=1m,mode=755")
    for name in _FOLDERS:
        os.mkdir(f"{STAGE}/{name}")


def _stand_in() -> None:
    """Be somebody else than the machine's user 0, which no sandbox may ever have.

    Raises:
        OSError: There is no right to, or no other id.
    """
    missing = lacking(stand_in=True)
    try:
        if missing:
            raise PermissionError(errno.EPERM, f"root has no {', '.join(missing)} here")
        os.setgroups([])
        os.setresgid(STAND_IN, STAND_IN, STAND_IN)
        os.setresuid(STAND_IN, STAND_IN, STAND_IN)
    except OSError as error:
        raise OSError(errno.EPERM, f"setuid: {error.strerror}") from error
    sc.prctl(sc.PR_SET_DUMPABLE, 1)  # else its maps are root's files


class Layers:
    """The layers that are mounted on the stage so far."""

    def __init__(self, root: bool) -> None:
        self.root = root
        self.names: dict[str, str] = {}
        self.programs: list[tuple[str, str]] | None = None
        self.mounted = 0
        """How many mounts there are: a process forked before the last lacks it."""

    def prepare(self, spec: dict[str, Any]) -> None:
        """Replace the host's paths in a request by names on the stage, mounting what is new.

        Raises:
            OSError: A layer is missing or cannot be mounted.
        """
        names = [self.layer(path) for path in spec["layers"]]
        names.reverse()  # the request has the lowest first, overlayfs the topmost
        special = {self.layer(path): files for path, files in spec["special"]}
        programs = self.host() if spec["host"] else []
        spec.update(layers=names, special=special, programs=programs)

    def forget(self, path: str) -> None:
        """Unmount a layer. Sandboxes that run keep their own."""
        name = self.names.pop(path, None)
        if name is not None:
            sc.umount(f"{STAGE}/{name}")
            os.rmdir(f"{STAGE}/{name}")

    def layer(self, path: str) -> str:
        """Mount a folder as a layer; return its name on the stage."""
        if path not in self.names:
            # What lies below a mount of its own is part of an ordinary user's view of a folder.
            self.names[path] = self._attach(path, recursive=not self.root)
        return self.names[path]

    def _attach(self, path: str, recursive: bool) -> str:
        """Mount a copy of `path`, read-only: its name on the stage."""
        name = str(self.mounted + 1)
        os.mkdir(f"{STAGE}/{name}")
        tree = sc.open_tree(path, recursive)
        try:
            sc.mount_setattr(tree, _READ_ONLY, 0, recursive)
            sc.move_mount(tree, f"{STAGE}/{name}")
            self.mounted += 1
        finally:
            os.close(tree)
        return name

    def host(self) -> list[tuple[str, str]]:
        """List folders of this machine's programs: their places in a sandbox, and on the stage.

        What is mounted below them comes after what it lies in.
        """
        if self.programs is None:
            tops = [f"/{name}" for name in _PROGRAMS]
            tops = [path for path in tops if os.path.isdir(path) and not os.path.islink(path)]
            below = _mounted_below(tops) if self.root else []
            self.programs = [
                (path[1:], self._attach(path, recursive=not self.root))
                for path in dict.fromkeys([*tops, *below])
            ]
        return self.programs


def _mounted_below(tops: list[str]) -> list[str]:
    """Return the folders below these where something else is mounted, parents first."""
    found = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            field = line.split(b" ")[4]
            for escape, character in _ESCAPES.items():
                field = field.replace(escape, character)
            path = os.fsdecode(field)
            # A single file that is mounted stays out: an overlay is of folders.
            if path.startswith(tuple(f"{top}/" for top in tops)) and os.path.isdir(path):
                found.add(path)
    return sorted(found)
