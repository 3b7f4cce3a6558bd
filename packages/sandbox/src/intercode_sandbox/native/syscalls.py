"""Linux system calls that Python lacks, as thin typed functions.

This module imports the standard library only, and fast, because the spawner and workers load it.
Each function raises `OSError` with the call's name: `doctor` reports the failed step by it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x00100000

PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

# System calls newer than glibc's wrappers have the same number on every architecture (since 5.1).
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_FSCONFIG = 431
_NR_FSPICK = 433
_NR_MOUNT_SETATTR = 442
_FSPICK_CLOEXEC, _FSPICK_EMPTY_PATH = 1, 8
_FSCONFIG_SET_FLAG, _FSCONFIG_RECONFIGURE = 0, 7

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _check(result: int, call: str, path: str | bytes | None = None) -> int:
    if result < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"{call}: {os.strerror(error_number)}", path)
    return result


def with_line(error: OSError) -> OSError:
    """Return a call's error with the source line that raised it, unless it names the call."""
    if error.errno is None or error.strerror != os.strerror(error.errno):
        return error
    import traceback  # only on errors: every start of a spawner would pay for the import

    line = traceback.extract_tb(error.__traceback__)[-1].line
    return OSError(error.errno, f"{error.strerror} ({line})", error.filename)


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move this process into the namespace of the descriptor `fd`, which has this kind."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """Call ``mount(2)``."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {kind or 'bind'}",
        target,
    )


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Call ``umount2(2)``."""
    _check(_libc.umount2(os.fsencode(target), flags), "umount", target)


def open_tree(path: str, recursive: bool = False) -> int:
    """Return a descriptor of a detached copy of the mount at `path`."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _check(_syscall(_NR_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags), "open_tree", path)


def move_mount(fd: int, target: str) -> None:
    """Attach the detached mount `fd` at `target`."""
    _check(
        _syscall(_NR_MOVE_MOUNT, fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH),
        "move_mount",
        target,
    )


def mount_setattr(fd: int, attributes: int, userns_fd: int = 0, recursive: bool = False) -> None:
    """Set a mount's attributes; with ``MOUNT_ATTR_IDMAP``, its id mapping."""
    attr = struct.pack("=QQQQ", attributes, 0, 0, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _check(_syscall(_NR_MOUNT_SETATTR, fd, b"", flags, attr, len(attr)), "mount_setattr")


def make_read_only(fd: int) -> None:
    """Make the file system of the mount `fd` read-only, for all its mounts and permanently.

    Raises:
        OSError: EBUSY: a file of it is open for writing or mapped.
    """
    context_fd = _check(
        _syscall(_NR_FSPICK, fd, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH), "fspick"
    )
    try:
        _check(_syscall(_NR_FSCONFIG, context_fd, _FSCONFIG_SET_FLAG, b"ro", None, 0), "fsconfig")
        _check(_syscall(_NR_FSCONFIG, context_fd, _FSCONFIG_RECONFIGURE, None, None, 0), "fsconfig")
    finally:
        os.close(context_fd)


def prctl(option: int, *args: int) -> int:
    """Call ``prctl(2)`` with integer arguments."""
    arguments = [ctypes.c_ulong(argument) for argument in (*args, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(option, *arguments), f"prctl {option}")


def set_seccomp(program: bytes) -> None:
    """Install a classic BPF filter, a multiple of 8 bytes, for this process and its children."""
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: an unsigned short, padding, a pointer.
    fprog = ctypes.create_string_buffer(
        struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    )
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0), "seccomp")


def capset(effective_mask: int, permitted_mask: int, inheritable_mask: int) -> None:
    """Set this thread's capability sets, as bit masks."""
    header = struct.pack("=Ii", 0x20080522, 0)
    low_word_mask, high = 0xFFFFFFFF, 32
    data = struct.pack(
        "=IIIIII",
        effective_mask & low_word_mask, permitted_mask & low_word_mask, inheritable_mask &
        low_word_mask, effective_mask >> high, permitted_mask >> high, inheritable_mask >> high,
    )  # fmt: skip
    _check(_libc.capset(header, data), "capset")


def hide_arguments(title: bytes) -> None:
    """Overwrite this process's arguments in the output of ``ps``: they contain host paths."""
    start, end = _own_memory(45)
    if end > start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, min(len(title), end - start - 1))
    _check(_libc.prctl(PR_SET_NAME, title, 0, 0, 0), "prctl PR_SET_NAME")


def hide_variables(names: Collection[str]) -> None:
    """Overwrite variables in /proc/PID/environ, and deny the file to processes of the same user.

    `os.environ` keeps the variables, and child processes with that environment inherit them.
    """
    for name in names:
        os.unsetenv(name)  # otherwise a C library would read the overwritten bytes
    start, end = _own_memory(47)
    entries = ctypes.string_at(start, end - start).split(b"\0")
    for entry in entries:
        if os.fsdecode(entry.partition(b"=")[0]) in names:
            ctypes.memset(start, 0, len(entry))
        start += len(entry) + 1
    prctl(PR_SET_DUMPABLE, 0)


def _own_memory(field: int) -> tuple[int, int]:
    """Return the first and the last address of the kernel's copy of arguments or environment.

    Args:
        field: The number of the first address in /proc/self/stat, after the program's name.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[field]), int(fields[field + 1])
