"""The system calls that nobody in a sandbox needs, as a seccomp filter built in pure Python.

A denylist: namespaces, an unprivileged user id and dropped capabilities carry the isolation; the
filter takes away what reaches deep into the kernel for no use to a task. Calls that a program
probes for and can do without give ENOSYS, so that it falls back (glibc's `clone3` → `clone`); the
others give EPERM.
"""

from __future__ import annotations

import errno
import platform
import struct

_EPERM_X86_64 = {
    "add_key": 248, "request_key": 249, "keyctl": 250,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "unshare": 272, "setns": 308, "sethostname": 170, "setdomainname": 171,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "kcmp": 312, "pidfd_getfd": 438,
    "name_to_handle_at": 303, "open_by_handle_at": 304,
    "create_module": 174, "init_module": 175, "delete_module": 176, "finit_module": 313,
    "get_kernel_syms": 177, "query_module": 178, "kexec_load": 246, "kexec_file_load": 320,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163,
    "quotactl": 179, "quotactl_fd": 443, "nfsservctl": 180,
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
    "syslog": 103, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "vhangup": 153,
    "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156, "lookup_dcookie": 212,
    "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "migrate_pages": 256,
    "move_pages": 279, "set_mempolicy_home_node": 450,
    "fanotify_init": 300, "memfd_secret": 447,
}  # fmt: skip
_EPERM_AARCH64 = {
    "add_key": 217, "request_key": 218, "keyctl": 219,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
    "unshare": 97, "setns": 268, "sethostname": 161, "setdomainname": 162,
    "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "kcmp": 272, "pidfd_getfd": 438,
    "name_to_handle_at": 264, "open_by_handle_at": 265,
    "init_module": 105, "delete_module": 106, "finit_module": 273,
    "kexec_load": 104, "kexec_file_load": 294,
    "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89,
    "quotactl": 60, "quotactl_fd": 443, "nfsservctl": 42,
    "settimeofday": 170, "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266,
    "syslog": 116, "vhangup": 58, "lookup_dcookie": 18,
    "mbind": 235, "set_mempolicy": 237, "get_mempolicy": 236, "migrate_pages": 238,
    "move_pages": 239, "set_mempolicy_home_node": 450,
    "fanotify_init": 262, "memfd_secret": 447,
}  # fmt: skip
# Since Linux 5.1 new calls have the same number everywhere.
_ENOSYS = {
    "clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "statmount": 457, "listmount": 458,
    "open_tree_attr": 467,
}  # fmt: skip
_BY_ARGUMENT = {
    "x86_64": {"clone": 56, "ioctl": 16, "personality": 135, "socket": 41},
    "aarch64": {"clone": 220, "ioctl": 29, "personality": 92, "socket": 198},
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_CLONE_NEW_FLAGS = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# The default, uname26, 32-bit, a query, and no address randomisation (debuggers).
_PERSONALITIES = (0x0, 0x20000, 0x8, 0x20008, 0xFFFFFFFF, 0x40000)
_SOCKET_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data; an argument's low word comes first on both architectures.
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24


def _op(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, k)


def _deny(number: int) -> bytes:
    return _op(_RET, _ERRNO | number)


def _allow_only(offset: int, values: tuple[int, ...], denied: int) -> list[bytes]:
    tests = [_op(_JEQ, v, true=len(values) - i) for i, v in enumerate(values)]
    return [_op(_LOAD, offset), *tests, _deny(denied), _op(_RET, _ALLOW)]


def _argument_rules() -> dict[str, list[bytes]]:
    return {
        "clone": [
            _op(_LOAD, _ARG0),
            _op(_JSET, _CLONE_NEW_FLAGS, false=1),
            _deny(errno.EPERM),
            _op(_RET, _ALLOW),
        ],
        "ioctl": [
            _op(_LOAD, _ARG1),
            _op(_JEQ, _TIOCSTI, true=1),
            _op(_JEQ, _TIOCLINUX, false=1),
            _deny(errno.EPERM),
            _op(_RET, _ALLOW),
        ],
        "personality": _allow_only(_ARG0, _PERSONALITIES, errno.EPERM),
        "socket": _allow_only(_ARG0, _SOCKET_FAMILIES, errno.EAFNOSUPPORT),
    }


def build(machine: str | None = None) -> bytes:
    """The filter's BPF program, for `syscalls.set_seccomp`.

    Raises:
        OSError: There is no table for this machine's architecture.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOTSUP, f"seccomp: no system call table for {machine}")
    denied = _EPERM_X86_64 if machine == "x86_64" else _EPERM_AARCH64
    program = [
        _op(_LOAD, _ARCH),
        _op(_JEQ, _AUDIT_ARCH[machine], true=1),
        _deny(errno.ENOSYS),  # another ABI (i386) would have other numbers
        _op(_LOAD, _NR),
    ]
    if machine == "x86_64":
        program += [_op(_JGE, _X32_BIT, false=1), _deny(errno.ENOSYS)]
    for name, rule in _argument_rules().items():
        program += [_op(_JEQ, _BY_ARGUMENT[machine][name], false=len(rule)), *rule]
    for numbers, code in ((denied.values(), errno.EPERM), (_ENOSYS.values(), errno.ENOSYS)):
        for number in numbers:
            program += [_op(_JEQ, number, false=1), _deny(code)]
    program.append(_op(_RET, _ALLOW))
    return b"".join(program)
