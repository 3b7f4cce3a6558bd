"""The identity of a sandbox: a user namespace, and a range of the machine's user ids.

Only a spawner with root's privileges can allocate ranges of ids. Process 1 of its sandboxes has a
further id, which is not mapped in the namespace. No program in the sandbox can become that user,
whatever capability the program has. So programs can neither signal, limit, trace nor read process
1.

The kernel counts many resources for each user of the machine: descriptors in flight, inotify,
pipes, processes, locks. A spawner with root's privileges therefore gives unique ids to each
sandbox. An ordinary user has only one id, and all sandboxes of that user share the counts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from intercode_sandbox.native import syscalls as sc, wire
from intercode_sandbox.privileges import read_permitted_capabilities

ID_COUNT = 65_536
"""Number of user and group ids in a sandbox of a spawner with root's privileges."""

_FIRST_ID, _END_ID = 0x7000_0000, 0x7FFE_0000
"""The first id of all ranges, and the first id after them. Accounts rarely have ids between them.
Systemd's ranges for containers lie below, and systemd's range for foreign ids lies above."""
_RANGES = (_END_ID - _FIRST_ID) // ID_COUNT - 1
"""Number of usable ranges. The first range is reserved for the ids of process 1 of all sandboxes.
"""
OWN_THREADS = 2
"""Number of processes of InterCode in a sandbox: process 1, and a program during its start. In a
container the second is the thread that starts a program."""
_REGISTRY = "/run/intercode"
"""The folder with the lock files of the ranges of ids."""
_LOCK_FILES = 64
"""Number of lock files. Each file has the locks of several ranges. The kernel examines all locks of
a file whenever a descriptor of the file is closed. A fork of a spawner closes the descriptors of
all sandboxes. So the locks are distributed over several files."""
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_SUBORDINATE = ("/etc/subuid", "/etc/subgid")
_MAX_IDLE_IDENTITIES = 32
"""Maximum number of idle identities that a spawner retains for its next sandboxes."""


@dataclass(frozen=True)
class SandboxUserIds:
    """The identity of one sandbox. Its descriptors stay open as long as the sandbox uses it."""

    namespace: int
    """A descriptor of the user namespace."""
    lock: int
    """A descriptor with the lock of the range of ids, which the spawner and process 1 hold; -1 for
    an ordinary user."""
    first_id: int
    """The id that user 0 of the sandbox has in the spawner's namespace."""
    init_id: int
    """The user id of process 1 in the spawner's namespace."""
    processes: int
    """Maximum of processes in the sandbox, of all its users together."""

    @property
    def fds(self) -> list[int]:
        """The descriptors of the identity."""
        return [self.namespace] if self.lock < 0 else [self.namespace, self.lock]

    def close(self) -> None:
        """Release the user namespace and the range of ids."""
        for fd in self.fds:
            os.close(fd)


class SandboxUserIdPool:
    """The identities of one spawner's sandboxes. They are created on demand, and reused.

    Args:
        root: Whether the spawner has the privileges of `privileges.is_root`, and so allocates
            ranges of ids.
    """

    def __init__(self, root: bool) -> None:
        self.root = root
        self.idle_identities: deque[SandboxUserIds] = deque()

    def take(self, max_processes: int) -> SandboxUserIds:
        """Return an idle identity, or a new one.

        With root's privileges, its ids belong to no other sandbox and to no account of this
        machine. An ordinary user's identities all have the id of that user.

        Args:
            max_processes: Maximum of processes in the sandbox.

        Raises:
            OSError: The kernel refused a user namespace, or no range is free.
        """
        for identity in self.idle_identities:
            if identity.processes == max_processes:
                # The longest idle identity comes first. The kernel has most probably freed all
                # resources of its last sandbox.
                self.idle_identities.remove(identity)
                return identity
        lock_fd, range_index = _free_range() if self.root else (-1, 0)
        try:
            return _make(lock_fd, range_index, max_processes)
        except BaseException:
            if lock_fd >= 0:
                os.close(lock_fd)
            raise

    def give_back(self, identity: SandboxUserIds) -> None:
        """Retain the identity of a sandbox for another one.

        The caller ensures that all processes of the sandbox have ended.
        """
        self.idle_identities.append(identity)
        if len(self.idle_identities) > _MAX_IDLE_IDENTITIES:
            self.idle_identities.popleft().close()


def _free_range() -> tuple[int, int]:
    """Lock a free range of ids; return the lock's descriptor, and the number of the range.

    The search starts at a random range. Two containers on one machine share the kernel's ids, but
    not the lock files. Because of the random start they rarely choose the same range.
    """
    taken_indices = set(_taken_ranges())
    start_index = int.from_bytes(os.urandom(4), "little") % _RANGES
    os.makedirs(_REGISTRY, 0o700, exist_ok=True)
    if os.stat(_REGISTRY).st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"{_REGISTRY} belongs to another user")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    for offset in range(_RANGES):
        range_index = (start_index + offset) % _RANGES
        if range_index in taken_indices:
            continue
        lock_fd = os.open(f"{_REGISTRY}/ids-{range_index % _LOCK_FILES}", flags, 0o600)
        try:
            # The bytes are the kernel's struct flock. An open file description lock (OFD) requires
            # that l_pid is 0.
            flock_struct = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, range_index, 1, 0)
            fcntl.fcntl(lock_fd, fcntl.F_OFD_SETLK, flock_struct)
            return lock_fd, range_index
        except BaseException as error:
            os.close(lock_fd)
            if not isinstance(error, BlockingIOError):
                raise
    raise OSError(errno.EAGAIN, f"all {_RANGES} ranges of user ids are in use by sandboxes")


def _range_start(range_index: int) -> int:
    return _FIRST_ID + (range_index + 1) * ID_COUNT


def _taken_ranges() -> Iterator[int]:
    """Yield the numbers of the ranges in which this machine has accounts or subordinate ids."""
    for path, first_field in [(table_path, 2) for table_path in _ACCOUNTS] + [
        (table_path, 1) for table_path in _SUBORDINATE
    ]:
        with suppress(FileNotFoundError), open(path, errors="replace") as file:
            for line in file:
                id_fields = [
                    field for field in line.rstrip("\n").split(":")[first_field:] if field.isdigit()
                ]
                if not id_fields:
                    continue
                id_count = int(id_fields[1]) if first_field == 1 and len(id_fields) > 1 else 1
                low_id, high_id = int(id_fields[0]), int(id_fields[0]) + id_count - 1
                if high_id < _FIRST_ID or low_id >= _END_ID:
                    continue
                if low_id < _range_start(0):  # the id is among the ids reserved for process 1
                    yield from range(
                        max(0, low_id - _FIRST_ID), min(_RANGES, high_id - _FIRST_ID + 1)
                    )
                first_range = max(0, (low_id - _FIRST_ID) // ID_COUNT - 1)
                yield from range(first_range, min(_RANGES, (high_id - _FIRST_ID) // ID_COUNT))


def _make(lock_fd: int, range_index: int, max_processes: int) -> SandboxUserIds:
    """Create an identity: a helper process enters a new user namespace, which this process opens.

    Args:
        lock_fd: The descriptor of the range's lock; -1 for an ordinary user.
        range_index: The number of the range.
        max_processes: Maximum of processes in the sandbox.
    """
    first_id, init_id = (
        (_range_start(range_index), _FIRST_ID + range_index) if lock_fd >= 0 else (0, 0)
    )
    link, helper_socket = wire.pair()
    with link:
        pid = os.fork()
        if pid == 0:
            _run_helper(helper_socket, init_id, max_processes)
        helper_socket.close()
        try:
            _await_helper(link)
            id_map = f"0 {first_id} {ID_COUNT if init_id else 1}"
            write_maps(pid, id_map, id_map)
            namespace_fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            link.shutdown(socket.SHUT_RDWR)  # the helper notices the shutdown, and exits
            os.waitpid(pid, 0)
    return SandboxUserIds(namespace_fd, lock_fd, first_id, init_id, max_processes)


def _await_helper(link: socket.socket) -> None:
    try:
        message, _ = wire.receive(link)
    except EOFError:
        raise OSError(errno.EIO, "the helper for user namespaces died") from None
    if message:
        raise OSError(message["errno"], message["error"])


def _run_helper(link: socket.socket, init_id: int, max_processes: int) -> None:
    """Enter a new user namespace, in a fork of the spawner, until the spawner has opened it.

    Args:
        link: The helper's socket to the spawner.
        init_id: The user id of process 1, which creates the namespace; 0 for an ordinary user.
        max_processes: Maximum of processes in the sandbox.
    """
    try:
        link = wire.keep_only(link)  # if the spawner ends, this socket reports the end
        if init_id:
            # The kernel charges the namespace's resources to the user that creates the namespace.
            # This user must not be root, because all sandboxes would then share root's resources.
            capabilities = read_permitted_capabilities()
            sc.prctl(sc.PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(init_id, init_id, init_id)
            os.setresuid(init_id, init_id, init_id)
            sc.capset(capabilities, capabilities, 0)
            sc.prctl(sc.PR_SET_DUMPABLE, 1)  # otherwise root owns the files of its id maps
            # The limit applies to all users of the namespace together, and to all namespaces of the
            # same creator. This creator has no other namespace.
            limit_processes(max_processes + OWN_THREADS)
        sc.unshare(sc.CLONE_NEWUSER)
        wire.send(link, {})
        wire.receive(link)
    except EOFError:
        pass  # the spawner has opened the namespace, or has ended
    except OSError as error:
        with suppress(OSError):
            wire.send(link, {"errno": error.errno, "error": sc.with_line(error).strerror})
    finally:
        os._exit(0)


def limit_processes(max_count: int) -> None:
    """Set the maximal number of processes of this process's user (RLIMIT_NPROC).

    Args:
        max_count: The number; the present hard limit if that is lower.
    """
    hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    max_count = max_count if hard_limit == resource.RLIM_INFINITY else min(max_count, hard_limit)
    resource.setrlimit(resource.RLIMIT_NPROC, (max_count, max_count))


def write_maps(pid: int | str, uid_map: str, gid_map: str) -> None:
    """Write the id maps of a process's new user namespace.

    Args:
        pid: The process; or ``self``.
        uid_map: The map of user ids, in the kernel's format.
        gid_map: The map of group ids.
    """
    # An ordinary user may map one id only, and must first give up the change of groups.
    if uid_map.endswith(" 1"):
        write(f"/proc/{pid}/setgroups", "deny")
    write(f"/proc/{pid}/uid_map", uid_map)
    write(f"/proc/{pid}/gid_map", gid_map)


def write(path: str, text: str) -> None:
    """Write a file of /proc.

    Raises:
        OSError: The kernel did not accept the text; the message names the file.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {path.rpartition('/')[2]}: {error.strerror}") from error
    finally:
        os.close(fd)
