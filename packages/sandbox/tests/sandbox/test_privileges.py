"""System calls and rights: what could reach into the kernel or out of the sandbox is refused.

It holds for root with every capability that can be granted, as for root with none.

System calls are made by perl, which every Debian has, with arguments that the kernel would accept
from an ordinary user: only the sandbox can be the one that refuses.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterator

import pytest

from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.linux_capabilities import CAPABILITIES, mask
from sandbox.fixtures import of_both_origins as pytest_generate_tests  # noqa: F401 - a hook
from waiting import PATIENCE

from . import Run

pytestmark = pytest.mark.ordinary

X86 = platform.machine() == "x86_64"
NEWUSER = 0x10000000
# name: number on x86-64, on aarch64, arguments, the error that tells that it was refused.
REFUSED: dict[str, tuple[int, int, str, int]] = {
    "add_key": (248, 217, '"user", "x", "y", 1, -4', errno.EPERM),
    "keyctl": (250, 219, "0, -4, 1", errno.EPERM),
    "request_key": (249, 218, '"user", "x", 0, 0', errno.EPERM),
    "mount": (165, 40, '"x", "/tmp", "tmpfs", 0, 0', errno.EPERM),
    "umount2": (166, 39, '"/proc", 2', errno.EPERM),
    "pivot_root": (155, 41, '"/tmp", "/tmp"', errno.EPERM),
    "chroot": (161, 51, '"/tmp"', errno.EPERM),
    "unshare": (272, 97, str(NEWUSER), errno.EPERM),
    "unshare of nothing": (272, 97, "0", errno.EPERM),
    "setns": (308, 268, "0, 0", errno.EPERM),
    "clone": (56, 220, f"{NEWUSER | 17}, 0, 0, 0, 0", errno.EPERM),
    "clone3": (435, 435, "0, 0", errno.ENOSYS),
    "bpf": (321, 280, "0, 0, 0", errno.EPERM),
    "perf_event_open": (298, 241, "0, 0, -1, -1, 0", errno.EPERM),
    "userfaultfd": (323, 282, "1", errno.EPERM),
    "kcmp": (312, 272, "$$, $$, 0, 0, 0", errno.EPERM),
    "pidfd_getfd": (438, 438, "0, 0, 0", errno.EPERM),
    "name_to_handle_at": (303, 264, '-100, "/", 0, 0, 0', errno.EPERM),
    "open_by_handle_at": (304, 265, "-100, 0, 0", errno.EPERM),
    "init_module": (175, 105, "0, 0, 0", errno.EPERM),
    "finit_module": (313, 273, "0, 0, 0", errno.EPERM),
    "kexec_load": (246, 104, "0, 0, 0, 0", errno.EPERM),
    "reboot": (169, 142, "0, 0, 0, 0", errno.EPERM),
    "swapon": (167, 224, '"/tmp", 0', errno.EPERM),
    "acct": (163, 89, "0", errno.EPERM),
    "quotactl": (179, 60, "0, 0, 0, 0", errno.EPERM),
    "clock_settime": (227, 112, "0, 0", errno.EPERM),
    "settimeofday": (164, 170, "0, 0", errno.EPERM),
    "adjtimex": (159, 171, "0", errno.EPERM),
    "syslog": (103, 116, "3, 0, 0", errno.EPERM),
    "mbind": (237, 235, "0, 0, 0, 0, 0, 0", errno.EPERM),
    "fanotify_init": (300, 262, "0, 0", errno.EPERM),
    "memfd_secret": (447, 447, "0", errno.EPERM),
    "io_uring_setup": (425, 425, "1, 0", errno.ENOSYS),
    "io_uring_enter": (426, 426, "0, 0, 0, 0, 0, 0", errno.ENOSYS),
    "fsopen": (430, 430, '"tmpfs", 0', errno.ENOSYS),
    "open_tree": (428, 428, '-100, "/", 0', errno.ENOSYS),
    "move_mount": (429, 429, "0, 0, 0, 0, 0", errno.ENOSYS),
    "mount_setattr": (442, 442, "0, 0, 0, 0, 0", errno.ENOSYS),
    "statmount": (457, 457, "0, 0, 0, 0", errno.ENOSYS),
    "listmount": (458, 458, "0, 0, 0, 0", errno.ENOSYS),
    "personality of other systems": (135, 92, "0x0006", errno.EPERM),
    "socket AF_VSOCK": (41, 198, "40, 1, 0", errno.EAFNOSUPPORT),
    "socket AF_ALG": (41, 198, "38, 5, 0", errno.EAFNOSUPPORT),
    "socket AF_PACKET": (41, 198, "17, 3, 0", errno.EAFNOSUPPORT),
    "socket AF_TIPC": (41, 198, "30, 5, 0", errno.EAFNOSUPPORT),
    "socket AF_NFC": (41, 198, "39, 5, 0", errno.EAFNOSUPPORT),
    "socket of kernel events": (41, 198, "16, 3, 15", errno.EPROTONOSUPPORT),
    "socket of audit": (41, 198, "16, 3, 9", errno.EPROTONOSUPPORT),
    "socket MPTCP": (41, 198, "2, 1, 262", errno.EPROTONOSUPPORT),
    "socket SCTP": (41, 198, "10, 1, 132", errno.EPROTONOSUPPORT),
    "socket DCCP": (41, 198, "2, 6, 0", errno.ESOCKTNOSUPPORT),
    "socket SCTP by its type": (41, 198, "10, 0x80805, 0", errno.ESOCKTNOSUPPORT),
    "socketpair AF_TIPC": (53, 199, "30, 5, 0, $buffer", errno.EAFNOSUPPORT),
    "setsockopt SO_ATTACH_FILTER": (54, 208, "0, 1, 26, $buffer, 16", errno.EPERM),
    "setsockopt SO_ATTACH_REUSEPORT_CBPF": (54, 208, "0, 1, 51, $buffer, 16", errno.EPERM),
    "setsockopt TCP_MD5SIG_EXT": (54, 208, "0, 6, 32, $buffer, 64", errno.EPERM),
    "setsockopt IPV6_FLOWLABEL_MGR": (54, 208, "0, 41, 32, $buffer, 32", errno.EPERM),
    "madvise MADV_MERGEABLE": (28, 233, "0, 0, 12", errno.EINVAL),
    "setxattr of much": (188, 5, "'/tmp', 'user.x', $buffer, 257, 0", errno.E2BIG),
    "fsetxattr of much": (190, 7, "0, 'system.posix_acl_access', $buffer, 65536, 0", errno.E2BIG),
    "setxattrat": (463, 463, "-100, '/tmp', 0, 'user.x', $buffer, 16", errno.ENOSYS),
    "fcntl F_SETLEASE": (72, 25, "0, 1024, 0", errno.EPERM),
    "io_setup": (206, 0, "1, $buffer", errno.ENOSYS),
    "prlimit64 of another": (302, 261, "1, 7, 0, 0", errno.EPERM),
    "prlimit64 by number": (302, 261, "$$, 7, $buffer, 0", errno.EPERM),
    "ptrace": (101, 117, "0, 0, 0, 0", errno.EPERM),
    "process_vm_readv": (310, 270, "$$, 0, 0, 0, 0, 0", errno.EPERM),
    "process_vm_writev": (311, 271, "$$, 0, 0, 0, 0, 0", errno.EPERM),
    "seccomp": (317, 277, "1, 0, $buffer", errno.EINVAL),
    "prctl PR_SET_SECCOMP": (157, 167, "22, 2, $buffer, 0, 0", errno.EINVAL),
    "ioctl TIOCSTI": (16, 29, '0, 0x5412, "x"', errno.EPERM),
    "ioctl TIOCLINUX": (16, 29, '0, 0x541C, "x"', errno.EPERM),
    "sched_setscheduler of another": (144, 119, "$$, 5, $buffer", errno.EPERM),
    "sched_setattr of another": (314, 274, "$$, $buffer, 0", errno.EPERM),
    "ioctl TIOCSETD": (16, 29, "0, 0x5423, $buffer", errno.EPERM),
    "ioctl SIOCGIFBR": (16, 29, "0, 0x8940, $buffer", errno.EPERM),
    "ioctl SIOCSIFVLAN": (16, 29, "0, 0x8983, $buffer", errno.EPERM),
    "mincore": (27, 232, "0, 0, $buffer", errno.EPERM),
    "cachestat": (451, 451, "0, $buffer, $buffer, 0", errno.ENOSYS),
    "memfd_create of huge pages": (319, 279, "$buffer, 4", errno.ENOMEM),
    "mmap of huge pages": (9, 222, "0, 0, 3, 0x40022, -1, 0", errno.ENOMEM),
    "prctl PR_SCHED_CORE": (157, 167, "62, 1, 0, 0, 0", errno.EINVAL),
    "prctl PR_SET_MEMORY_MERGE": (157, 167, "67, 1, 0, 0, 0", errno.EINVAL),
}
X86_ONLY: dict[str, tuple[str, int]] = {
    "modify_ldt": ("154, 0, 0, 0", errno.EPERM),
    "iopl": ("172, 0", errno.EPERM),
    "ioperm": ("173, 0, 0, 0", errno.EPERM),
    "the x32 ABI": ("0x40000000 + 39", errno.ENOSYS),
}


@pytest.fixture(scope="module")
def mighty(provider: Provider) -> Iterator[SandboxBackend]:
    """One for all tests: what they try is to have no effect."""
    sandbox = provider.start("host", Limits(timeout=PATIENCE, capabilities=tuple(CAPABILITIES)))
    yield sandbox
    sandbox.close()


@pytest.fixture(params=["sandbox", "mighty"])
def sandbox(request: pytest.FixtureRequest, sandbox: SandboxBackend) -> SandboxBackend:
    found: SandboxBackend = (
        request.getfixturevalue("mighty") if request.param == "mighty" else sandbox
    )
    return found


def syscall(sandbox: SandboxBackend, arguments: str) -> tuple[int, int]:
    """(result, errno)"""
    script = f"my $buffer = 'x' x 64; my ($n, @a) = ({arguments}); my $r = syscall($n, @a);"
    script += "print $r, ' ', $! + 0"
    result, number = sandbox.exec(["perl", "-e", script]).stdout.split()
    return int(result), int(number)


@pytest.mark.case(70, 72, 73, 74)
@pytest.mark.attack(9, 14, 24, 25, 26, 37)
@pytest.mark.defends("escape", "host leak", "host DoS")
def test_system_calls(sandbox: SandboxBackend) -> None:
    calls = {
        name: (f"{x86 if X86 else arm}, {arguments}", refusal)
        for name, (x86, arm, arguments, refusal) in REFUSED.items()
    }
    if X86:
        calls.update(X86_ONLY)
    if "sys_chroot" in sandbox.limits.capabilities:
        del calls["chroot"]
    found = {name: syscall(sandbox, arguments) for name, (arguments, _) in calls.items()}
    assert found == {name: (-1, refusal) for name, (_, refusal) in calls.items()}


def test_what_programs_need_is_allowed(sandbox: SandboxBackend, sh: Run) -> None:
    for family in (1, 2, 10, 16):
        assert (
            syscall(sandbox, f"{41 if X86 else 198}, {family}, {3 if family == 16 else 1}, 0")[0]
            > 0
        )
    assert syscall(sandbox, f"{135 if X86 else 92}, 0xffffffff")[0] >= 0
    for arguments in ("0, 7, 0, $buffer", "0, 7, $limit, 0"):  # getrlimit and setrlimit
        script = "my $buffer = 'x' x 64; my $limit = pack 'QQ', 600, 600;"
        script += f"print syscall({302 if X86 else 261}, {arguments})"
        assert sandbox.exec(["perl", "-e", script]).stdout == b"0"
    assert sh("(sleep 0.01 | cat) & wait; timeout 60 true; mkdir -p /tmp/listed").ok
    acl = "pack('L (SSL)4', 2, 1, 6, 0xffffffff, 4, 4, 0xffffffff, 16, 4, 0xffffffff, 32, 4, ~0)"
    attribute = f"my $v = {acl}; my ($p, $n) = ('/tmp/listed', 'system.posix_acl_access'); "
    attribute += f"print syscall({188 if X86 else 5}, $p, $n, $v, length $v, 0)"
    assert sandbox.exec(["perl", "-e", attribute]).stdout == b"0"


@pytest.mark.case(69)
@pytest.mark.defends("escape")
def test_no_rights_but_those_granted_and_none_to_gain(sandbox: SandboxBackend) -> None:
    status = sandbox.exec(["cat", "/proc/self/status"]).stdout.decode()
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(facts[name], 16) == mask(sandbox.limits.capabilities), name
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"


@pytest.mark.case(69)
@pytest.mark.defends("escape")
def test_a_set_user_id_copy(sandbox: SandboxBackend, sh: Run) -> None:
    assert sh("cp /usr/bin/id /tmp/id; chmod 6755 /tmp/id").ok
    try:
        done = sandbox.exec(["/tmp/id", "-u"], user="1234")
    except LookupError as error:
        pytest.skip(f"this provider has one user here: {error}")
    assert done.stdout == b"1234\n"
    assert sandbox.exec(["grep", "Cap[EP]", "/proc/self/status"], user="1234").stdout.count(
        b"0000000000000000"
    ) >= 2  # fmt: skip


@pytest.mark.defends("escape")
def test_root_inside_is_nobody_outside(provider: Provider, sandbox: SandboxBackend) -> None:
    outside = sandbox.exec(["cat", "/proc/self/uid_map"]).stdout.split()
    facts = getattr(provider, "facts", dict)()
    if facts.get("root"):
        assert int(outside[1]) >= 100_000
    assert int(outside[0]) == 0
    assert not sandbox.exec(["bash", "-c", "echo 0 0 1 > /proc/self/uid_map"]).ok


@pytest.mark.case(67)
@pytest.mark.defends("escape", "host DoS")
@pytest.mark.parametrize(
    "path",
    ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
     "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
     "/proc/sys/fs/file-max", "/proc/sys/kernel/pid_max", "/sys/power/state"],
)  # fmt: skip
def test_kernel_settings(sh: Run, path: str) -> None:
    assert not sh(f"echo 1 > {path}").ok


@pytest.mark.defends("host leak")
@pytest.mark.parametrize("path", ["/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/sda"])
def test_kernel_memory_and_log(sh: Run, path: str) -> None:
    assert not sh(f"head -c 10 {path}").stdout
    assert not sh("dmesg").stdout


@pytest.mark.case(68)
@pytest.mark.defends("escape")
def test_devices(sh: Run) -> None:
    for device in ("b 8 0", "b 254 0", "c 1 1", "c 5 1", "c 1 3"):
        assert not sh(f"mknod /tmp/d {device}").ok
        assert not sh(f"mknod /dev/d {device}").ok
    script = "for f in **; do [[ ! -L $f ]] && [[ -b $f || -c $f ]] && echo $f; done"
    script = f"shopt -s globstar; cd /dev; {script}"
    listed = sh(script).stdout.decode().split()
    wanted = {"full", "null", "random", "tty", "urandom", "zero"}
    assert set(listed) - {"ptmx", "pts/ptmx"} == wanted
    assert sh("head -c 3 /dev/zero | od -An -tx1; echo x > /dev/null").stdout == b" 00 00 00\n"
    assert b"No space" in sh("echo x > /dev/full").stderr
    # What stands there decides what others read, such as a verification with `<( … )`.
    for change in ("rm /dev/fd", "rm /dev/stdin", "touch /dev/x", "mv /dev/null /dev/x"):
        assert not sh(change).ok
    assert sh("diff <(echo a) <(echo a) && ! diff <(echo a) <(echo b)").ok


@pytest.mark.case(73, 74)
@pytest.mark.defends("escape")
@pytest.mark.parametrize(
    "command",
    ["unshare -r true", "unshare -m true", "unshare -n true", "unshare -p -f true",
     "nsenter -t 1 -m true", "mount -t tmpfs x /tmp", "mount --bind / /mnt", "umount -l /proc",
     "mount -o remount,rw /usr", "chroot /tmp /bin/true", "date -s 2020-01-01",
     "hwclock -w", "sysctl -w kernel.hostname=x", "hostname other", "swapoff /tmp",
     "insmod /nope", "losetup -f /etc/passwd", "setcap cap_sys_admin+ep /bin/true"],
)  # fmt: skip
def test_tools_of_the_administrator(sh: Run, command: str) -> None:
    assert not sh(command).ok


@pytest.mark.case(75)
@pytest.mark.defends("escape")
def test_overwriting_a_running_program(sh: Run) -> None:
    for target in ("/proc/self/exe", "/proc/1/exe", "/proc/$$/exe", "/usr/bin/bash", "/bin/sh"):
        assert not sh(f"echo x > {target}").ok, target
    assert not sh("rm -f /usr/bin/bash; cp /bin/true /usr/bin/env").ok
    assert sh("env true").ok


@pytest.mark.case(70)
@pytest.mark.defends("escape")
def test_no_terminal_of_the_hosts(sh: Run) -> None:
    assert not sh("echo x > /dev/tty").ok
    assert sh("tty").stdout == b"not a tty\n"
    assert sh("ls /dev/pts").stdout in (b"", b"ptmx\n")
    assert not sh("ls /dev/console /dev/tty0 /dev/tty1 /dev/vcs").stdout
