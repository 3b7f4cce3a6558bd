"""Process 1 of a container: starts programs, reaps the dead, and looks after the files.

It answers its caller's requests one by one over one socket, and ends — and with it everything in
the container — when that socket closes. A native sandbox's, in C, has the same requests.

Programs get none of its capabilities: `SECBIT_NOROOT` makes `execve` give user 0 nothing.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

from intercode.sandbox.accounts import User, account_of, look_up_user
from intercode.sandbox.docker.inside import means
from intercode.sandbox.docker.inside.compare import (
    MountedFiles,
    Tree,
    apply_stream,
    compare,
    write_stream,
)
from intercode.sandbox.docker.inside.means import Frozen, Inside
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native import wire
from intercode.sandbox.native.bootstrap import SOCKET
from intercode.sandbox.native.worker import run

_KILL_SECONDS = 5.0


class ExecError(OSError):
    """The kernel does not execute what was asked for: for a shell, exit code 127 or 126."""


def _failure(error: Exception) -> dict[str, Any]:
    """Return an error as a reply."""
    if isinstance(error, MemoryError):
        error = OSError(errno.EOVERFLOW, "it is more than the sandbox has memory for")
    reply = {"errno": 0, "error": str(error), "kind": type(error).__name__}
    if isinstance(error, OSError):
        # A descriptor, in place of a path, means nothing to the caller.
        path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
        said = error.strerror or str(error)
        reply |= {"errno": error.errno or errno.EIO, "error": said, "path": path}
    return reply


def _spawn_first(
    programs: list[bytes], arguments: list[bytes], variables: list[bytes], given: dict[int, int]
) -> int:
    """Start the first of these files that can be executed: its pid."""
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for program in programs:
        try:
            return sc.spawn(program, arguments, variables, given)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EMFILE, errno.ENFILE):
                raise  # it is for want of something of ours
            if failure.errno == errno.ENOENT:
                failure = error
    raise ExecError(failure.errno, failure.strerror)


class Init:
    """The event loop of process 1.

    Args:
        control: The caller's socket, at whose end this process ends.
        rights: The capabilities that this process has.
        kept: Those that programs get.
        hello: What the caller says of the container: its `user`, its `volumes`, and the content of
            the `files` that the engine mounts.
        owner: A descriptor of the caller's process, at whose end this one ends, too. Its socket
            does not tell where a fork that has run no code of ours holds it.
    """

    def __init__(
        self, control: socket.socket, rights: int, kept: int, hello: dict[str, Any], owner: int
    ) -> None:
        self.control = control
        self.owner = owner
        self.account = account_of(hello["user"], means.read_text)
        self.inside = Inside(
            score=os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC),
            proc=os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            rights=rights,
            kept=kept,
            user=User(self.account.uid, self.account.gid, self.account.groups),
            ids=means.id_count(),
        )
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.tree = Tree(self.root, hello["volumes"])
        self.mounted = MountedFiles(hello["files"])
        self.exit_pipes: dict[int, int] = {}
        self.alive_before: dict[int, set[int]] = {}
        self.stopped: Frozen | None = None
        self.wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the caller goes away."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        poll.register(self.owner, select.POLLIN)
        wire.send(self.control, {"ready": True})
        while True:
            for fd, _ in poll.poll():
                if fd == self.owner:
                    return
                if fd == self.wake_read:
                    with suppress(BlockingIOError):
                        os.read(self.wake_read, 4096)
                    self.reap()
                    continue
                try:
                    message, fds = wire.receive(self.control)
                except wire.TruncatedError as error:
                    wire.send(self.control, _failure(error))
                    continue
                except (EOFError, OSError):
                    return
                self.answer(message, fds)

    def answer(self, message: dict[str, Any], fds: list[int]) -> None:
        """Do one request, and reply with its result or the error that it met."""
        reply: dict[str, Any]
        to_send: list[int] = []
        try:
            operation = getattr(self, "do_" + message.pop("op"))
            reply = operation(fds=fds, **message) or {}
            to_send = reply.pop("fds", [])
        except Exception as error:  # noqa: BLE001 - an agent may have brought about any of them
            reply = _failure(error)
        finally:
            for fd in fds:
                with suppress(OSError):
                    os.close(fd)
        try:
            wire.send(self.control, reply, to_send)
        except (OSError, MemoryError) as error:
            # For instance too many descriptors in flight. If the caller has gone, the loop sees it.
            with suppress(OSError):
                wire.send(self.control, _failure(error))
        finally:
            for fd in to_send:
                os.close(fd)

    def do_memory(self, fds: list[int]) -> dict[str, Any]:
        """Return that the most memory that was used is not counted here."""
        return {"peak": None}

    # -- processes -------------------------------------------------------------------------------

    def do_spawn(
        self,
        argv: list[str],
        cwd: str,
        env: dict[str, str],
        numbers: list[int],
        user: str | None,
        fds: list[int],
        track: bool,
    ) -> dict[str, Any]:
        """Start a program. `fds` are its channels, numbered by `numbers`, then its exit pipe."""
        exit_pipe = fds.pop()
        given = dict(zip(numbers, fds, strict=True))
        try:
            if track:
                before = means.alive()
            with means.first_to_go(self.inside.score):
                pid = self.execute(argv, cwd, env, self.user(user), given)
            means.before_all(self.inside, pid)
            # Out of the way of the numbers that a caller asks for.
            self.exit_pipes[pid] = means.move_up(exit_pipe)
            if track:
                self.alive_before[pid] = before
        finally:
            os.chdir("/")
            os.close(exit_pipe)
        return {"pid": pid}

    def execute(
        self, argv: list[str], cwd: str, env: dict[str, str], user: User, given: dict[int, int]
    ) -> int:
        """Start a program in a session of its own: its pid.

        Raises:
            ExecError: It cannot be executed.
            OSError: It cannot have that folder.
        """
        arguments = [os.fsencode(a) for a in argv]
        variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
        given = {0: self.null, 1: self.null, 2: given.get(1, self.null), **given}
        # What is to have a number that another comes from must not replace that one first.
        moved = {fd: means.move_up(fd) for fd in given.values() if fd in given}
        given = {number: moved.get(fd, fd) for number, fd in given.items()}

        def enter() -> None:
            folder = sc.open_plainly(cwd, os.O_PATH | os.O_DIRECTORY)
            try:
                os.fchdir(folder)
            finally:
                os.close(folder)

        def start() -> int:
            if user == self.inside.user:
                enter()
            return _spawn_first(means.candidates(arguments[0], env), arguments, variables, given)

        try:
            if user != self.inside.user:
                # The image's user enters the folder, whichever user the program runs as.
                means.as_user(self.inside, self.inside.user, enter)
            return means.as_user(self.inside, user, start)
        except BlockingIOError as error:  # the programs leave room for no thread
            raise ExecError(error.errno, error.strerror) from error
        finally:
            for fd in moved.values():
                os.close(fd)

    def do_worker(self, module: str, fds: list[int]) -> dict[str, Any]:
        """Fork a preloaded module; `fds` are its socket, its error output and its exit pipe."""
        channel, errors, exit_pipe = fds
        check_preloaded(module)
        with means.first_to_go(self.inside.score):
            pid = os.fork()
        if pid == 0:
            become_worker(module, channel, errors, self.null, self.inside)
        means.before_all(self.inside, pid)
        self.exit_pipes[pid] = means.move_up(exit_pipe)
        return {"pid": pid}

    def do_socket(self, fds: list[int]) -> dict[str, Any]:
        """Return a new TCP socket of the sandbox's network, for a forward."""
        return {"fds": [socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()]}

    def do_terminal(self, fds: list[int]) -> dict[str, Any]:
        """Return the master's end of a new terminal, which the sandbox's user owns."""
        flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK
        opened = partial(sc.open_plainly, "/dev/pts/ptmx", flags)
        return {"fds": [means.as_user(self.inside, self.inside.user, opened)]}

    def user(self, user: str | None) -> User:
        """Return the user that a program runs as: of the sandbox's own names, or ``uid[:gid]``.

        None is the image's own user.
        """
        if user is None:
            return self.inside.user
        return look_up_user(user, self.inside.ids, partial(means.read_text, "/etc/passwd"))

    def do_signal(self, pid: int, number: int, fds: list[int]) -> None:
        """Send a signal to one process; nothing happens if it has ended."""
        if pid > 1:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def do_kill(self, keep: list[int], fds: list[int]) -> dict[str, Any]:
        """Kill everything except the pids in `keep`, and this process."""
        killed = self.kill_except(set(keep))
        if not keep:
            means.remove_shared_memory(self.inside)
        return {"killed": killed}

    def do_processes(self, fds: list[int]) -> dict[str, Any]:
        """List the processes that run."""
        return {"pids": sorted(means.alive())}

    def do_programs(self, fds: list[int]) -> dict[str, Any]:
        """List the processes that run, with their names and descriptors."""
        return {"programs": [(pid, *means.program(pid)) for pid in sorted(means.alive())]}

    def do_kill_started(self, pid: int, fds: list[int]) -> None:
        """Kill a tracked program that still runs, and all that has been started since it was."""
        if pid in self.alive_before:
            self.kill_except(self.alive_before.pop(pid))

    def kill_except(self, keep: set[int]) -> int:
        """Kill until nothing else is left; how many were found to be killed."""
        killed = means.alive()
        if not keep & killed:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all at once: not even a fork bomb outruns it
            self.reap(wait=True)
            return len(killed)
        deadline = time.monotonic() + _KILL_SECONDS
        for attempt in itertools.count():
            doomed = means.alive() - keep
            killed |= doomed
            if not doomed or time.monotonic() > deadline:
                break
            # What forks faster than it is killed is stopped first. Not at once: a shell reports
            # children that stop.
            number = signal.SIGSTOP if 5 < attempt < 50 else signal.SIGKILL
            for pid in doomed:
                self.do_signal(pid, number, [])
            self.reap()
            time.sleep(0.0002)
        return len(killed - keep)

    def reap(self, wait: bool = False) -> None:
        """Collect the dead, and report the exit of those that the caller started.

        Args:
            wait: Until there is no other process: orphans, too, become this one's children.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.alive_before.pop(pid, None)
            pipe = self.exit_pipes.pop(pid, None)
            if pipe is not None:
                with suppress(OSError):
                    os.write(pipe, struct.pack("=i", os.waitstatus_to_exitcode(status)))
                os.close(pipe)

    # -- files -----------------------------------------------------------------------------------

    def do_open(self, path: str, fds: list[int]) -> dict[str, Any]:
        """Return a descriptor of a regular file, opened with the rights of the sandbox's user."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        fd = means.as_user(self.inside, self.inside.user, lambda: sc.open_plainly(path, flags))
        number = means.why_not_to_read(fd)
        if number:
            os.close(fd)
            raise OSError(number, os.strerror(number), path)
        return {"fds": [fd]}

    def do_create(self, path: str, mode: int, fds: list[int]) -> dict[str, Any]:
        """Return a descriptor of a regular file, new or emptied; its folders are made."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY

        def create() -> int:
            means.make_folders(os.path.dirname(path))
            return sc.open_plainly(path, flags, mode)

        fd = means.as_user(self.inside, self.inside.user, create)
        if means.why_not_to_read(fd):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        os.ftruncate(fd, 0)
        return {"fds": [fd]}

    def do_root(self, fds: list[int]) -> dict[str, Any]:
        """Return a descriptor of the root, for others to be compared with."""
        return {"fds": [os.dup(self.root)]}

    def do_home(self, fds: list[int]) -> dict[str, Any]:
        """Return the home folder and the name of the image's user."""
        return {"home": self.account.home, "name": self.account.name}

    def do_changes(self, timeout: float, fds: list[int]) -> dict[str, Any]:
        """List what differs from the root `fds[0]`; everything else stands still meanwhile."""
        with self.frozen():
            found = compare(self.tree, fds[0], timeout)
            return {"changes": sorted([*found.entries, *self.mounted.changes()])}

    def do_archive(self, timeout: float, fds: list[int]) -> None:
        """Stream what differs from the root `fds[0]` into `fds[1]`."""
        with self.frozen():
            found = compare(self.tree, fds[0], timeout)
            found.touched += [path for path, *_ in self.mounted.changes()]
            write_stream(found, self.root, fds[1], timeout)

    def do_apply(self, fds: list[int]) -> None:
        """Unpack such a stream, from `fds[0]`: what changes are told from is now with it."""
        apply_stream(fds[0], self.root)
        self.mounted.before = self.mounted.look()

    def do_stop(self, fds: list[int]) -> None:
        """Stop all other processes until `do_go_on`."""
        self.stopped = Frozen()
        self.stopped.__enter__()

    def do_go_on(self, fds: list[int]) -> None:
        """Let them go on."""
        stopped, self.stopped = self.stopped, None
        if stopped is not None:
            stopped.__exit__(None)

    def frozen(self) -> AbstractContextManager[None]:
        """For its duration, all other processes are stopped."""
        return nullcontext() if self.stopped else Frozen()


def check_preloaded(module: str) -> None:
    """Check that a worker's module was loaded while there were files to load it from.

    Raises:
        LookupError: It was not.
    """
    if module not in sys.modules:
        raise LookupError(f"the worker {module!r} was not preloaded: give it to the provider")


def become_worker(module: str, channel: int, errors: int, null: int, own: Inside) -> NoReturn:
    """Run, in the child, the module's ``main(socket)``, and end whatever happens.

    Args:
        module: A preloaded module.
        channel: The socket that it talks over.
        errors: What its error output goes to.
        null: ``/dev/null``.
        own: What process 1 has of its sandbox.
    """
    try:
        # First of all: nothing that comes may happen with process 1's rights.
        user = own.user
        if own.ids > 1:
            sc.become(user.uid, user.gid, user.groups)
        kept = 0 if user.uid else own.kept
        sc.capset(kept, kept, kept)
        _leave_process_1(channel, errors, null)
    except BaseException:  # noqa: BLE001 - must not unwind into process 1's loop
        os._exit(1)
    run(module)


def _leave_process_1(channel: int, errors: int, null: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    # Out of the way of the numbers that they are to have.
    sources = [means.move_up(fd) for fd in (null, null, errors, channel)]
    for number, source in enumerate(sources):
        os.dup2(source, number, inheritable=number < SOCKET)
    os.closerange(SOCKET + 1, 65536)
