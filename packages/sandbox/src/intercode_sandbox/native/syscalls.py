"""Linux system calls that Python lacks, as thin typed functions.

This module imports only fast modules of the standard library, because the spawner and workers load
it. If a system call fails, its function raises an `OSError` that names the call. ``intercode
doctor`` reports the failed step by this name.
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

# glibc may lack functions for these system calls. Since Linux 5.1 a new call has the same number on
# x86-64 and aarch64.
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
    """Return an error whose message contains the source line that raised the error.

    An error that names its system call, as the errors of this module do, is returned unchanged.
    """
    if error.errno is None or error.strerror != os.strerror(error.errno):
        return error
    import traceback  # an import at the top would slow down every start of a spawner

    line = traceback.extract_tb(error.__traceback__)[-1].line
    return OSError(error.errno, f"{error.strerror} ({line})", error.filename)


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move this process into a namespace.

    Args:
        fd: A descriptor of the namespace.
        kind: The kind of the namespace, such as ``CLONE_NEWNS``.
    """
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
    """Return a descriptor of a detached copy of the mount at `path`.

    Args:
        path: The path.
        recursive: Whether to copy the mounts below the path, too.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _check(_syscall(_NR_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags), "open_tree", path)


def move_mount(mount_fd: int, target: str) -> None:
    """Attach the detached mount `mount_fd` at `target`."""
    _check(
        _syscall(
            _NR_MOVE_MOUNT, mount_fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH
        ),
        "move_mount",
        target,
    )


def mount_setattr(
    mount_fd: int, attributes: int, userns_fd: int = 0, recursive: bool = False
) -> None:
    """Set attributes of a mount.

    Args:
        mount_fd: A descriptor of the mount.
        attributes: The attributes, such as ``MOUNT_ATTR_RDONLY``.
        userns_fd: With ``MOUNT_ATTR_IDMAP``, a descriptor of the user namespace whose id mapping
            the mount gets.
        recursive: Whether to set the attributes of mounts below, too.
    """
    attr = struct.pack("=QQQQ", attributes, 0, 0, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _check(_syscall(_NR_MOUNT_SETATTR, mount_fd, b"", flags, attr, len(attr)), "mount_setattr")


def make_read_only(mount_fd: int) -> None:
    """Make a whole file system read-only, and thereby all of its mounts.

    Args:
        mount_fd: A descriptor of a mount of the file system.

    Raises:
        OSError: The kernel refused. EBUSY: a file is open for writing, or mapped for writing.
    """
    context_fd = _check(
        _syscall(_NR_FSPICK, mount_fd, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH), "fspick"
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
    """Install a seccomp filter for this process and its children.

    Args:
        program: A classic BPF program, of 8 bytes for each instruction.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    # The kernel's struct sock_fprog has an unsigned short, padding, and a pointer.
    fprog = ctypes.create_string_buffer(
        struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    )
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0), "seccomp")


def capset(effective_mask: int, permitted_mask: int, inheritable_mask: int) -> None:
    """Set the effective, permitted and inheritable capabilities of this thread, as bit masks."""
    header = struct.pack("=Ii", 0x20080522, 0)
    low_word_mask, word_bits = 0xFFFFFFFF, 32
    data = struct.pack(
        "=IIIIII",
        effective_mask & low_word_mask, permitted_mask & low_word_mask, inheritable_mask &
        low_word_mask, effective_mask >> word_bits, permitted_mask >> word_bits, inheritable_mask >>
        word_bits,
    )  # fmt: skip
    _check(_libc.capset(header, data), "capset")


def hide_arguments(title: bytes) -> None:
    """Replace the arguments of this process that ``ps`` shows, because they contain host paths.

    Args:
        title: The text that ``ps`` then shows, and the kernel's new name of this process.
    """
    start, end = _own_memory(45)
    if end > start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, min(len(title), end - start - 1))
    _check(_libc.prctl(PR_SET_NAME, title, 0, 0, 0), "prctl PR_SET_NAME")


def hide_variables(names: Collection[str]) -> None:
    """Hide environment variables of this process, such as secrets, from other processes.

    The call overwrites the variables in /proc/PID/environ, and denies that file to processes of the
    same user. `os.environ` keeps the variables. A child process inherits them only if `os.environ`
    is explicitly passed as its environment.

    Args:
        names: The names of the variables.
    """
    for name in names:
        os.unsetenv(name)  # otherwise C libraries of this process would read overwritten bytes
    start, end = _own_memory(47)
    entries = ctypes.string_at(start, end - start).split(b"\0")
    for entry in entries:
        if os.fsdecode(entry.partition(b"=")[0]) in names:
            ctypes.memset(start, 0, len(entry))
        start += len(entry) + 1
    prctl(PR_SET_DUMPABLE, 0)


def _own_memory(field_index: int) -> tuple[int, int]:
    """Return the start and end addresses of this process's arguments or environment in memory.

    The kernel shows the bytes between these addresses to other processes.

    Args:
        field_index: The position of the start address in /proc/self/stat, counted from 0 after the
            program's name.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[field_index]), int(fields[field_index + 1])
