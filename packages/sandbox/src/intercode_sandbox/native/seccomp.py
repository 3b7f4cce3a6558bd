"""The seccomp filter of sandboxes, which denies system calls that no program of a task needs.

Namespaces, an unprivileged user id and dropped capabilities isolate a sandbox. The filter adds a
denylist of system calls that reach deep into the kernel and are useless to tasks. This module
builds the filter's BPF program in pure Python.

Some denied calls return ENOSYS. Programs have a fallback for them, because some kernels lack them
(glibc's ``clone3`` → ``clone``). Numbers without a known call return ENOSYS, too. All other calls
that are always denied return EPERM. A call that is denied only with certain arguments returns an
error that suits them, or has no effect and returns 0.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence

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
    "fanotify_init": 300, "memfd_secret": 447, "mincore": 27,
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
    "fanotify_init": 262, "memfd_secret": 447, "mincore": 232,
}  # fmt: skip
# These calls return ENOSYS. Since Linux 5.1 a new call has the same number on x86-64 and aarch64.
_ENOSYS = {
    "clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "statmount": 457, "listmount": 458,
    "open_tree_attr": 467, "cachestat": 451, "setxattrat": 463,
}  # fmt: skip
_DEBUGGER_X86_64 = {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311}
_DEBUGGER_AARCH64 = {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271}
# These calls return ENOSYS, too. All programs of the machine share one limit of asynchronous
# requests, which a single sandbox could exhaust.
_ENOSYS_X86_64 = {"io_setup": 206}
_ENOSYS_AARCH64 = {"io_setup": 0}
_ARGUMENT_RULES = {
    "x86_64": {
        "clone": 56, "ioctl": 16, "personality": 135, "socket": 41, "socketpair": 53,
        "setsockopt": 54, "fcntl": 72, "prlimit64": 302, "setrlimit": 160, "seccomp": 317,
        "prctl": 157, "sync": 162, "syncfs": 306, "mmap": 9,
        "memfd_create": 319, "sched_setscheduler": 144, "sched_setattr": 314,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "madvise": 28, "process_madvise": 440, "fadvise64": 221, "ptrace": 101,
    },
    "aarch64": {
        "clone": 220, "ioctl": 29, "personality": 92, "socket": 198, "socketpair": 199,
        "setsockopt": 208, "fcntl": 25, "prlimit64": 261, "setrlimit": 164, "seccomp": 277,
        "prctl": 167, "sync": 81, "syncfs": 267, "mmap": 222,
        "memfd_create": 279, "sched_setscheduler": 119, "sched_setattr": 274,
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "madvise": 233, "process_madvise": 440, "fadvise64": 223, "ptrace": 117,
    },
}  # fmt: skip
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Ranges of the system call numbers of Linux 6.18, each with its first and last number. Calls with
# other numbers were not reviewed. Such calls belong to newer kernels, to the x32 ABI, or to a
# distribution that uses the gaps between the ranges.
_KNOWN_CALLS = {
    "x86_64": ((0, 336), (424, 469)),
    "aarch64": ((0, 243), (260, 294), (424, 469)),
}

_CLONE_NEW_FLAGS = 0x7E020000
_IOCTLS = (
    # TIOCSTI and TIOCLINUX inject or read the terminal input of another user.
    *(0x5412, 0x541C),
    # TIOCSETD, and the requests that set up bridges, DLCI and VLAN devices, make the kernel load a
    # module before it checks privileges.
    *(0x5423, 0x8940, 0x8941, 0x8980, 0x8981, 0x8982, 0x8983, 0x89A0, 0x89A1),
)
# The permitted arguments of personality(2): the default, uname26, 32-bit, both together, a query,
# and no address randomisation (for debuggers).
_PERSONALITIES = (0x0, 0x20000, 0x8, 0x20008, 0xFFFFFFFF, 0x40000)
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
# The permitted protocols: the default, ICMP, TCP, UDP and ICMPv6. For other protocols the kernel
# would load a module.
_PROTOCOLS = (0, 1, 6, 17, 58)
# The permitted netlink protocols: ROUTE and SOCK_DIAG, which ``ip`` and ``ss`` use. Several other
# protocols report events of the machine.
_NETLINKS = (0, 4)
# The permitted types of sockets, STREAM, DGRAM and RAW, and the mask that removes flags. For other
# types the kernel would load a module.
_TYPES, _TYPE_BITS = (1, 2, 3), 0xF
_SOL_SOCKET = 1
# The refused options: ATTACH_FILTER, ATTACH_BPF, and both for a group of sockets. The kernel counts
# the compiled code of filters for the machine, not for the sandbox.
_SOCKET_FILTERS = (26, 50, 51, 52)
_SO_LINGER = 13
# Memberships in multicast groups are refused. At a sandbox's end the kernel leaves the groups one
# by one, each under a machine-wide lock, which is also taken to create networks. A sandbox
# with hundreds of thousands of memberships would take minutes to end, and delay the starts of other
# sandboxes. The options are IP_ADD_MEMBERSHIP to IP_MSFILTER, and, for IPv4 and IPv6,
# MCAST_JOIN_GROUP to MCAST_MSFILTER. The options that leave a group or unblock a source are
# permitted.
_SOL_IP = 0
_IPV4_GROUPS = (35, 38, 39, 41)
_GROUPS = (42, 43, 46, 48)
# The refused options IPV6_JOIN_GROUP and IPV6_JOIN_ANYCAST.
_IPV6_GROUPS = 20, 27
# The refused option IPV6_FLOWLABEL_MGR. The machine has only 4,096 flow labels for all sandboxes.
_SOL_IPV6, _FLOW_LABELS = 41, 32
# The refused options MD5SIG, MD5SIG_EXT and those of TCP-AO. They store keys of connections, whose
# memory counts for no cgroup.
_SOL_TCP, _TCP_KEYS = 6, (14, 32, 38, 39, 40, 41)
_F_SETLEASE = 1024
# F_NOTIFY is refused: whenever a descriptor of a folder is closed, the kernel searches all watches
# of the folder.
_F_NOTIFY = 1026
# F_OFD_SETLK and F_OFD_SETLKW are refused, because many such locks delay the end of a sandbox. A
# lock remains until the last copy of its descriptor is closed. Until then, whenever any descriptor
# of the file is closed, the kernel searches all locks of the file. Programs fall back to the other
# locks of fcntl(2), or to flock(2), as on older kernels. Both are permitted.
_OFD_LOCKS = 37, 38
_PTRACE_OTHERS = (16, 0x4206)  # PTRACE_ATTACH, PTRACE_SEIZE
# `_PR_OF_THE_MACHINE` has MEMORY_MERGE and SCHED_CORE, which affect other programs of the machine.
_PR_SET_SECCOMP, _PR_OF_THE_MACHINE = 22, (67, 62)
# Huge pages are refused: they belong to a reserve of the whole machine, and count for no sandbox.
_MAP_HUGETLB, _MFD_HUGETLB = 0x40000, 0x4
_RLIMIT_CORE = 4
# Maximum bytes of an extended attribute. An access list is an attribute, too. On a file in memory
# its bytes count for no cgroup.
_LONGEST_ATTRIBUTE = 256
_MADV_MERGEABLE = 12
# MADV_COLD, MADV_PAGEOUT and POSIX_FADV_DONTNEED have no effect in a sandbox. They would remove a
# file from the machine's page cache. Later reads would then reveal, by their speed, whether another
# program has read the file meanwhile.
_MADV_OUT, _POSIX_FADV_DONTNEED = (20, 21), 4

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_LOAD, _AND_OPCODE, _JUMP, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
# Offsets in the kernel's struct seccomp_data. The low word of an argument comes first on both
# architectures.
_NR, _ARCH, _ARG0, _ARG1, _ARG2, _ARG2_HIGH, _ARG3, _ARG3_HIGH = 0, 4, 16, 24, 32, 36, 40, 44


def _op(opcode: int, operand: int, true_offset: int = 0, false_offset: int = 0) -> bytes:
    return struct.pack("=HBBI", opcode, true_offset, false_offset, operand)


def _deny(error_number: int) -> bytes:
    return _op(_RET, _ERRNO | error_number)


_NO_EFFECT = _deny(0)
"""The instruction by which a system call has no effect, and returns 0 (success)."""


_PERMISSION, _REFUSAL = [_op(_RET, _ALLOW)], [_deny(errno.EPERM)]
"""The instructions that permit a system call, and that refuse it with EPERM."""


def _test(*values: int, on_match: list[bytes], on_mismatch: list[bytes]) -> list[bytes]:
    """Return code that continues with `on_match` if the loaded word is one of the values.

    Args:
        *values: The values.
        on_match: Code that ends in a return.
        on_mismatch: Code for all other words, which ends in a return, too.
    """
    jumps = [
        _op(_JEQ, value, true_offset=len(values) - 1 - i) for i, value in enumerate(values[:-1])
    ]
    return [*jumps, _op(_JEQ, values[-1], false_offset=len(on_match)), *on_match, *on_mismatch]


def _test_word(
    word_offset: int, *values: int, on_match: list[bytes], on_mismatch: list[bytes]
) -> list[bytes]:
    """Return code that loads a word of the system call's data, and tests it: see `_test`.

    Args:
        word_offset: The offset of the word in struct seccomp_data.
        *values: See `_test`.
        on_match: See `_test`.
        on_mismatch: See `_test`.
    """
    return [_op(_LOAD, word_offset), *_test(*values, on_match=on_match, on_mismatch=on_mismatch)]


def _refuse_bits(word_offset: int, bits: int, on_match: list[bytes]) -> list[bytes]:
    """Return code that continues with `on_match` if an argument has one of these bits set.

    Otherwise the code permits the system call.

    Args:
        word_offset: The offset of the argument's word in struct seccomp_data.
        bits: A mask of the bits.
        on_match: Code that ends in a return.
    """
    return [_op(_LOAD, word_offset), _op(_JSET, bits, false_offset=1), *on_match, *_PERMISSION]


def _argument_rules() -> dict[str, list[bytes]]:
    """Return the rules that depend on the arguments of a system call.

    Returns:
        Name of the system call → its code, which ends in a return.
    """
    return {**_process_rules(), **_socket_rules(), **_limit_rules(), **_memory_and_file_rules()}


def _process_rules() -> dict[str, list[bytes]]:
    allow_code, deny_code = _PERMISSION, _REFUSAL
    einval_code = [_deny(errno.EINVAL)]
    return {
        "clone": _refuse_bits(_ARG0, _CLONE_NEW_FLAGS, deny_code),
        "personality": _test_word(
            _ARG0, *_PERSONALITIES, on_match=allow_code, on_mismatch=deny_code
        ),
        # The first argument is the process. Only 0, the calling process itself, is permitted. A
        # program that process 1 is starting already has the user of other programs, but does not
        # run yet. Another program could otherwise keep it from running.
        "sched_setscheduler": _test_word(_ARG0, 0, on_match=allow_code, on_mismatch=deny_code),
        "sched_setattr": _test_word(_ARG0, 0, on_match=allow_code, on_mismatch=deny_code),
        # The result is that of a kernel without seccomp filters. Programs that install a filter
        # usually continue without it.
        "seccomp": [*einval_code],
        "prctl": _test_word(
            _ARG0,
            _PR_SET_SECCOMP,
            *_PR_OF_THE_MACHINE,
            on_match=einval_code,
            on_mismatch=allow_code,
        ),
        # Two processes that trace each other can wait for each other's end forever, even after
        # SIGKILL. So only the parent of a process, or the parent's tracer, may trace the process.
        "ptrace": _test_word(_ARG0, *_PTRACE_OTHERS, on_match=deny_code, on_mismatch=allow_code),
    }


def _socket_rules() -> dict[str, list[bytes]]:
    allow_code, deny_code, eafnosupport_code = _PERMISSION, _REFUSAL, [_deny(errno.EAFNOSUPPORT)]
    eprotonosupport_code = [_deny(errno.EPROTONOSUPPORT)]
    internet_rule = [
        *(_op(_LOAD, _ARG1), _op(_AND_OPCODE, _TYPE_BITS)),
        *_test(
            *_TYPES,
            on_match=_test_word(
                _ARG2, *_PROTOCOLS, on_match=allow_code, on_mismatch=eprotonosupport_code
            ),
            on_mismatch=[_deny(errno.ESOCKTNOSUPPORT)],
        ),
    ]
    netlink_rule = _test_word(
        _ARG2, *_NETLINKS, on_match=allow_code, on_mismatch=eprotonosupport_code
    )
    filter_rule = _test(*_SOCKET_FILTERS, on_match=deny_code, on_mismatch=allow_code)
    # The filter ignores SO_LINGER, and the call succeeds. With this option, the closing of a socket
    # blocks the process that closes it. The blocked process may be another program that has
    # received the descriptor, or a worker of the kernel.
    socket_rule = _test_word(_ARG2, _SO_LINGER, on_match=[_NO_EFFECT], on_mismatch=filter_rule)
    ipv4_rule = _test_word(
        _ARG2, *_IPV4_GROUPS, *_GROUPS, on_match=deny_code, on_mismatch=allow_code
    )
    ipv6_rule = _test_word(
        _ARG2, *_IPV6_GROUPS, *_GROUPS, _FLOW_LABELS, on_match=deny_code, on_mismatch=allow_code
    )
    tcp_rule = _test_word(_ARG2, *_TCP_KEYS, on_match=deny_code, on_mismatch=allow_code)
    family_rule = _test(_NETLINK, on_match=netlink_rule, on_mismatch=eafnosupport_code)
    family_rule = _test(_INET, _INET6, on_match=internet_rule, on_mismatch=family_rule)
    level_rule = _test(_SOL_TCP, on_match=tcp_rule, on_mismatch=allow_code)
    level_rule = _test(_SOL_IPV6, on_match=ipv6_rule, on_mismatch=level_rule)
    level_rule = _test(_SOL_IP, on_match=ipv4_rule, on_mismatch=level_rule)
    return {
        "socket": _test_word(_ARG0, _UNIX, on_match=allow_code, on_mismatch=family_rule),
        "socketpair": _test_word(_ARG0, _UNIX, on_match=allow_code, on_mismatch=eafnosupport_code),
        "setsockopt": _test_word(_ARG1, _SOL_SOCKET, on_match=socket_rule, on_mismatch=level_rule),
    }


def _limit_rules() -> dict[str, list[bytes]]:
    allow_code, deny_code, noop_code = _PERMISSION, _REFUSAL, [_NO_EFFECT]
    # Process 1 sets the limit of core dumps to 1 byte, and no program may change this limit. At any
    # other limit the kernel writes core dumps to a pipe, if the machine has configured a pipe.
    # A query of the limit is permitted: its pointer to a new limit is null.
    null_rule = _test_word(_ARG2_HIGH, 0, on_match=allow_code, on_mismatch=noop_code)
    query_rule = _test_word(_ARG2, 0, on_match=null_rule, on_mismatch=noop_code)
    core_limit_rule = _test_word(_ARG1, _RLIMIT_CORE, on_match=query_rule, on_mismatch=allow_code)
    return {
        # The first argument is the process. Only 0, the calling process itself, is permitted.
        "prlimit64": _test_word(_ARG0, 0, on_match=core_limit_rule, on_mismatch=deny_code),
        "setrlimit": _test_word(_ARG0, _RLIMIT_CORE, on_match=noop_code, on_mismatch=allow_code),
    }


def _memory_and_file_rules() -> dict[str, list[bytes]]:
    allow_code, deny_code, noop_code = _PERMISSION, _REFUSAL, [_NO_EFFECT]
    enomem_code, e2big_op = [_deny(errno.ENOMEM)], _deny(errno.E2BIG)
    attribute_rule = [
        *(_op(_LOAD, _ARG3_HIGH), _op(_JEQ, 0, true_offset=1), e2big_op),
        *(_op(_LOAD, _ARG3), _op(_JGE, _LONGEST_ATTRIBUTE + 1, false_offset=1), e2big_op),
        *allow_code,
    ]
    einval_code = [_deny(errno.EINVAL)]
    watch_rule = _test(_F_SETLEASE, _F_NOTIFY, on_match=deny_code, on_mismatch=allow_code)
    eviction_rule = _test(*_MADV_OUT, on_match=noop_code, on_mismatch=allow_code)
    advice_rule = _test(_MADV_MERGEABLE, on_match=einval_code, on_mismatch=eviction_rule)
    return {
        "ioctl": _test_word(_ARG1, *_IOCTLS, on_match=deny_code, on_mismatch=allow_code),
        "fcntl": [
            _op(_LOAD, _ARG1),
            *_test(*_OFD_LOCKS, on_match=einval_code, on_mismatch=watch_rule),
        ],
        **dict.fromkeys(("setxattr", "lsetxattr", "fsetxattr"), attribute_rule),
        # sync and syncfs have no effect. They would wait for disks of the whole machine, but no
        # file of a sandbox needs to survive a crash of the machine.
        "sync": noop_code,
        "syncfs": noop_code,
        "fadvise64": _test_word(
            _ARG3, _POSIX_FADV_DONTNEED, on_match=noop_code, on_mismatch=allow_code
        ),
        "madvise": [_op(_LOAD, _ARG2), *advice_rule],
        "process_madvise": [_op(_LOAD, _ARG3), *advice_rule],
        "mmap": _refuse_bits(_ARG3, _MAP_HUGETLB, enomem_code),
        "memfd_create": _refuse_bits(_ARG1, _MFD_HUGETLB, enomem_code),
    }


def build(debugger: bool = False, chroot: bool = False, machine: str | None = None) -> bytes:
    """Return the filter's BPF program, 8 bytes for each instruction.

    Args:
        debugger: Whether a program may trace another program, and read or change its memory.
        chroot: Whether root may change the root folder of a process. A process that escapes from a
            changed root reaches only the sandbox's files.
        machine: The architecture; None: this machine's.

    Raises:
        OSError: ENOTSUP: the architecture has no table.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOTSUP, f"seccomp: no system call table for {machine}")
    is_x86 = machine == "x86_64"
    eperm_calls = dict(_EPERM_X86_64 if is_x86 else _EPERM_AARCH64)
    if not debugger:
        eperm_calls |= _DEBUGGER_X86_64 if is_x86 else _DEBUGGER_AARCH64
    if chroot:
        del eperm_calls["chroot"]
    enosys_calls = _ENOSYS | (_ENOSYS_X86_64 if is_x86 else _ENOSYS_AARCH64)
    code_by_call = {call_number: [_deny(errno.EPERM)] for call_number in eperm_calls.values()}
    code_by_call |= {call_number: [_deny(errno.ENOSYS)] for call_number in enosys_calls.values()}
    for call_name, rule in _argument_rules().items():
        code_by_call.setdefault(_ARGUMENT_RULES[machine][call_name], rule)
    instructions = [
        _op(_LOAD, _ARCH),
        _op(_JEQ, _AUDIT_ARCH[machine], true_offset=1),
        _deny(errno.ENOSYS),  # another ABI, such as i386, has other numbers of system calls
        _op(_LOAD, _NR),
        *_search(_intervals(code_by_call, _KNOWN_CALLS[machine])),
    ]
    return b"".join(instructions)


def _intervals(
    code_by_call: dict[int, list[bytes]], known_ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, list[bytes]]]:
    """Divide the numbers of system calls into intervals, each with one answer.

    Args:
        code_by_call: Number of a system call → its answer, the code that decides. Other known calls
            are permitted.
        known_ranges: The first and the last numbers of known calls. All other numbers return
            ENOSYS.

    Returns:
        The first number and the answer of each interval, in order.
    """
    code_by_start: dict[int, list[bytes]] = {}
    for first_number, last_number in known_ranges:
        code_by_start |= {first_number: _PERMISSION, last_number + 1: [_deny(errno.ENOSYS)]}
    code_by_start |= {
        call_number + 1: _PERMISSION
        for call_number in code_by_call
        if call_number + 1 not in code_by_start
    } | code_by_call
    intervals: list[tuple[int, list[bytes]]] = []
    for call_number, call_code in sorted(code_by_start.items()):
        if not intervals or intervals[-1][1] != call_code:
            intervals.append((call_number, call_code))
    return intervals


def _search(intervals: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """Return code that finds the answer to the loaded number by a binary search.

    A fast search shortens the start of each sandbox: the kernel runs a new filter once for each
    number of a system call.

    Args:
        intervals: The first number and the answer of each interval, in order.
    """
    if len(intervals) == 1:
        return intervals[0][1]
    middle = len(intervals) // 2
    lower_code, upper_code = _search(intervals[:middle]), _search(intervals[middle:])
    if len(lower_code) < 256:  # a conditional jump skips at most 255 instructions
        return [
            _op(_JGE, intervals[middle][0], true_offset=len(lower_code)),
            *lower_code,
            *upper_code,
        ]
    far_jump = [_op(_JGE, intervals[middle][0], false_offset=1), _op(_JUMP, len(lower_code))]
    return [*far_jump, *lower_code, *upper_code]
