"""A sandbox's identity on the machine: a user namespace and, as root, a range of user ids.

As root, process 1 has an id that is not mapped in the namespace. No program in the sandbox can
become its user, whatever capability the program has. So programs can neither signal, limit, trace
nor read process 1.

The kernel counts many resources for each user of the machine: descriptors in flight, inotify,
pipes, processes, locks. As root, every sandbox therefore has unique ids. An ordinary user has one
id, and shares these counts with all of their sandboxes.
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
"""Number of user and group ids in a sandbox, as root."""

_FIRST_ID, _END_ID = 0x7000_0000, 0x7FFE_0000
"""Bounds of ids without accounts: systemd's ranges for containers end before the first id, and its
range for foreign ids begins after the last."""
_RANGES = (_END_ID - _FIRST_ID) // ID_COUNT - 1
"""Number of usable ranges. The first range is reserved: it holds the ids of all process 1s."""
OWN_THREADS = 2
"""Process 1, and a program during its start (in a container, the thread that starts one)."""
_REGISTRY = "/run/intercode"
_LOCK_FILES = 64
"""Files of the registry that share the locks. The kernel examines all locks of a file at each close
of a descriptor of it, and a spawner's fork closes those of all sandboxes."""
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_SUBORDINATE = ("/etc/subuid", "/etc/subgid")
_MAX_IDLE_IDENTITIES = 32
"""Identities that a spawner retains for its next sandboxes."""


@dataclass(frozen=True)
class Identity:
    """One sandbox's identity. The descriptors stay open as long as a sandbox uses it."""

    namespace: int
    """The user namespace."""
    lock: int
    """Lock of the range of ids, held by the spawner and by process 1; -1 for an ordinary user."""
    first_id: int
    """User 0 of the sandbox, in its spawner's namespace."""
    init_id: int
    """The user of process 1, in its spawner's namespace."""
    processes: int
    """Maximum of processes, of all users together."""

    @property
    def fds(self) -> list[int]:
        """The descriptors of the identity."""
        return [self.namespace] if self.lock < 0 else [self.namespace, self.lock]

    def close(self) -> None:
        """Release the namespace and the range."""
        for fd in self.fds:
            os.close(fd)


class Identities:
    """The identities of one spawner's sandboxes: created on demand, and reused.

    Args:
        root: Whether the spawner allocates ranges of ids.
    """

    def __init__(self, root: bool) -> None:
        self.root = root
        self.idle_identities: deque[Identity] = deque()

    def take(self, processes: int) -> Identity:
        """Allocate an identity that no living sandbox has, nor any other process of the machine.

        Raises:
            OSError: The kernel refused a user namespace, or no range is free.
        """
        for identity in self.idle_identities:
            if identity.processes == processes:
                # The longest idle identity: the resources of its last sandbox are surely free.
                self.idle_identities.remove(identity)
                return identity
        lock, index = _free_range() if self.root else (-1, 0)
        try:
            return _make(lock, index, processes)
        except BaseException:
            if lock >= 0:
                os.close(lock)
            raise

    def give_back(self, identity: Identity) -> None:
        """Retain an identity for another sandbox: all processes of its last sandbox have ended."""
        self.idle_identities.append(identity)
        if len(self.idle_identities) > _MAX_IDLE_IDENTITIES:
            self.idle_identities.popleft().close()


def _free_range() -> tuple[int, int]:
    """Lock a free range of ids; return the lock's descriptor, and the number of the range.

    The search starts at random: two containers share the kernel's ids but not the registry, and
    thus rarely collide.
    """
    taken_indices = set(_taken_ranges())
    start = int.from_bytes(os.urandom(4), "little") % _RANGES
    os.makedirs(_REGISTRY, 0o700, exist_ok=True)
    if os.stat(_REGISTRY).st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"{_REGISTRY} belongs to another user")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    for offset in range(_RANGES):
        index = (start + offset) % _RANGES
        if index in taken_indices:
            continue
        lock = os.open(f"{_REGISTRY}/ids-{index % _LOCK_FILES}", flags, 0o600)
        try:
            # struct flock; l_pid must be 0 for a lock that belongs to the open file.
            byte = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, byte)
            return lock, index
        except BaseException as error:
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
    raise OSError(errno.EAGAIN, f"all {_RANGES} ranges of user ids are in use by sandboxes")


def _range_start(index: int) -> int:
    return _FIRST_ID + (index + 1) * ID_COUNT


def _taken_ranges() -> Iterator[int]:
    """Yield the ranges in which this machine's administrator has assigned ids."""
    for path, first_field in [(table_path, 2) for table_path in _ACCOUNTS] + [
        (table_path, 1) for table_path in _SUBORDINATE
    ]:
        with suppress(FileNotFoundError), open(path, errors="replace") as file:
            for line in file:
                id_fields = [f for f in line.rstrip("\n").split(":")[first_field:] if f.isdigit()]
                if not id_fields:
                    continue
                count = int(id_fields[1]) if first_field == 1 and len(id_fields) > 1 else 1
                low, high = int(id_fields[0]), int(id_fields[0]) + count - 1
                if high < _FIRST_ID or low >= _END_ID:
                    continue
                if low < _range_start(0):  # among the ids of process 1
                    yield from range(max(0, low - _FIRST_ID), min(_RANGES, high - _FIRST_ID + 1))
                low_range = max(0, (low - _FIRST_ID) // ID_COUNT - 1)
                yield from range(low_range, min(_RANGES, (high - _FIRST_ID) // ID_COUNT))


def _make(lock: int, index: int, processes: int) -> Identity:
    """Create the namespace, by a helper that enters it first."""
    first_id, init_id = (_range_start(index), _FIRST_ID + index) if lock >= 0 else (0, 0)
    link, helper_socket = wire.pair()
    with link:
        pid = os.fork()
        if pid == 0:
            _run_helper(helper_socket, init_id, processes)
        helper_socket.close()
        try:
            _await_helper(link)
            ids = f"0 {first_id} {ID_COUNT if init_id else 1}"
            write_maps(pid, ids, ids)
            namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            link.shutdown(socket.SHUT_RDWR)  # ends the helper
            os.waitpid(pid, 0)
    return Identity(namespace, lock, first_id, init_id, processes)


def _await_helper(link: socket.socket) -> None:
    try:
        message, _ = wire.receive(link)
    except EOFError:
        raise OSError(errno.EIO, "the helper for user namespaces died") from None
    if message:
        raise OSError(message["errno"], message["error"])


def _run_helper(link: socket.socket, init_id: int, processes: int) -> None:
    """Enter a user namespace in a fork of the spawner; stay until the spawner has opened it."""
    try:
        link = wire.keep_only(link)  # the link ends with the spawner
        if init_id:
            # The namespace's owner is charged for all that the kernel counts in it: never root.
            capabilities = read_permitted_capabilities()
            sc.prctl(sc.PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(init_id, init_id, init_id)
            os.setresuid(init_id, init_id, init_id)
            sc.capset(capabilities, capabilities, 0)
            sc.prctl(sc.PR_SET_DUMPABLE, 1)  # otherwise root owns the files of its id maps
            # The limit of a namespace's creator holds for all of its users together, and for all
            # namespaces of the same owner. This owner has no other namespace.
            limit_processes(processes + OWN_THREADS)
        sc.unshare(sc.CLONE_NEWUSER)
        wire.send(link, {})
        wire.receive(link)
    except EOFError:
        pass  # the spawner has opened the namespace, or has died
    except OSError as error:
        with suppress(OSError):
            wire.send(link, {"errno": error.errno, "error": sc.with_line(error).strerror})
    finally:
        os._exit(0)


def limit_processes(max_count: int) -> None:
    """Limit the number of processes of this process's user."""
    hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    max_count = max_count if hard_limit == resource.RLIM_INFINITY else min(max_count, hard_limit)
    resource.setrlimit(resource.RLIMIT_NPROC, (max_count, max_count))


def write_maps(pid: int | str, uids: str, gids: str) -> None:
    """Write the id maps of the new user namespace of a process."""
    if uids.endswith(" 1"):  # unprivileged: only to the own id, and without its groups
        write(f"/proc/{pid}/setgroups", "deny")
    write(f"/proc/{pid}/uid_map", uids)
    write(f"/proc/{pid}/gid_map", gids)


def write(path: str, text: str) -> None:
    """Write a file of /proc.

    Raises:
        OSError: The kernel refused; the message names the file.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {path.rpartition('/')[2]}: {error.strerror}") from error
    finally:
        os.close(fd)
