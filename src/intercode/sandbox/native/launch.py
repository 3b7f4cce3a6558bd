"""From a fresh fork of the spawner to process 1 of a sandbox: the order of steps is the security.

The mounts are made while this process still has rights over its mount namespace; then it enters a
new user namespace, which owns none of what was set up before, and can never undo any of it.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from intercode.sandbox.native import seccomp
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.init import Init

STAGE = "/dev/pts"
"""Where the spawner keeps its mounts, in its own mount namespace. Every machine has this folder,
and neither the spawner nor an image needs what is in it."""

ID_BASE = 1_878_982_656
ID_COUNT = 65_536
"""As root, user 0 in a sandbox is user `ID_BASE` outside: the last range that systemd reserves for
containers, which no account has."""

HOSTNAME = "intercode"
NAMESPACES = sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS
ALL_CAPABILITIES = (1 << 41) - 1
CAPABILITY_BITS = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "setgid": 6,
    "setuid": 7,
}

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9),
            "tty": (5, 0)}  # fmt: skip
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_DEV_SIZE = "64m"
_PTS_OPTIONS = "newinstance,ptmxmode=0666,mode=620,max=64"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass(frozen=True)
class Machine:
    """What the spawner found out about this machine, once."""

    root: bool
    """Real root: ids are a range, layers are id-mapped, device nodes can be made."""
    seccomp_program: bytes


@dataclass(frozen=True)
class Inside:
    """What process 1 has of its sandbox."""

    upper: int
    """A descriptor of the layer with all that is changed."""
    lower: int
    """One of the image."""
    kept: int
    """The capabilities that programs have."""
    user: tuple[int, ...]
    """User and group ids of programs, unless another user is asked for."""


def clone(network: bool) -> int:
    """Fork into the namespaces that a sandbox has from its start.

    Args:
        network: Share the machine's network; else it has one of its own, in which there is nobody.
    """
    return sc.clone(NAMESPACES if network else NAMESPACES | sc.CLONE_NEWNET)


def keep_only(link: socket.socket) -> socket.socket:
    """Close every descriptor of the spawner's but this one."""
    os.dup2(os.dup2(link.detach(), 250), 3, inheritable=False)
    os.closerange(4, 65536)
    return socket.socket(fileno=3)


def prepare(network: bool, root: bool) -> None:
    """What can be done before it is known what for."""
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.umask(0)
    socket.sethostname(HOSTNAME)
    if not network:
        _loopback_up()
        # So that `ping` needs no capability, as on most machines today.
        with suppress(OSError), open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
            file.write("0 2147483647" if root else "0 0")


def enter(spec: dict[str, Any], link: socket.socket, machine: Machine) -> Inside:
    """Become process 1 of a sandbox, for good.

    Args:
        spec: A caller's request, with its layers as names on the stage.
        link: The spawner's socket.
        machine: This machine.
    """
    upper, lower = _file_system(spec, machine)
    _enter_user_namespace(link)
    _limit(spec["limits"])
    kept = sum(1 << CAPABILITY_BITS[name] for name in spec["limits"]["capabilities"])
    _drop_rights(kept)
    sc.set_seccomp(machine.seccomp_program)
    os.umask(0o022)
    user = spec["user"].replace(":", ",") or "0,0"
    return Inside(upper, lower, kept, tuple(map(int, user.split(","))))


def serve(control: socket.socket, inside: Inside, peak: int | None) -> None:
    """Serve the caller at the other end of `control` until it goes away. Returns only then.

    Args:
        control: The caller's socket.
        inside: What this process has of its sandbox.
        peak: See `cgroup.open_peak`.
    """
    init = Init(
        control, inside.upper, inside.lower, ALL_CAPABILITIES, inside.kept, inside.user, peak
    )
    init.run()


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _file_system(spec: dict[str, Any], machine: Machine) -> tuple[int, int]:
    """Mount everything and change the root; descriptors of the upper layer and the image."""
    limits = spec["limits"]
    owner = ID_BASE if machine.root else 0
    os.chdir(STAGE)
    options = f"size={limits['disk']},nr_inodes={limits['files']},mode=755"
    sc.mount("tmpfs", "x", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, options)
    for name in ("x/u", "x/w", "x/m"):
        os.mkdir(name)
    image = os.stat(spec["merged"])
    os.chown("x/u", image.st_uid, image.st_gid)
    os.chmod("x/u", stat.S_IMODE(image.st_mode))
    # Relative names: they show in the sandbox's mountinfo.
    layers = ":".join(spec["layers"])
    options = f"lowerdir={layers},upperdir=x/u,workdir=x/w"
    options += ",index=off,metacopy=off,redirect_dir=off" if machine.root else ",userxattr"
    sc.mount("overlay", "x/m", "overlay", sc.MS_NOSUID | sc.MS_NODEV, options)
    upper = os.open("x/u", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lower = os.open(spec["merged"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in spec["binds"]:
        sc.mount(f"h/{name}", f"x/m/{name}", None, sc.MS_BIND | sc.MS_REC)
    _mount_proc()
    _mount_dev(machine, owner)
    if spec["network"]:
        _bind_resolver()
    os.chdir("x/m")
    sc.pivot_root(".", ".")
    sc.umount(".")
    os.chdir("/")
    return upper, lower


def _bind_resolver() -> None:
    """The machine's name servers, for a sandbox that may use its network."""
    target = "x/m/etc/resolv.conf"
    with suppress(FileNotFoundError):  # the machine has none, or the image has no /etc
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        sc.mount("/etc/resolv.conf", target, None, sc.MS_BIND)


def _mount_proc() -> None:
    flags = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC
    sc.mount("proc", "x/m/proc", "proc", flags)
    sc.mount("x/m/proc/sys", "x/m/proc/sys", None, sc.MS_BIND)
    sc.mount("", "x/m/proc/sys", None, sc.MS_BIND | sc.MS_REMOUNT | sc.MS_RDONLY | flags)


def _mount_dev(machine: Machine, owner: int) -> None:
    """A /dev of the sandbox's own.

    As root its nodes are made anew: a bind of the machine's would share file locks between
    sandboxes. An ordinary user cannot make nodes and gets the binds.
    """
    options = f"size={_DEV_SIZE},nr_inodes=4096,mode=755,uid={owner},gid={owner}"
    flags = sc.MS_NOSUID | sc.MS_NOEXEC
    sc.mount("tmpfs", "x/m/dev", "tmpfs", flags, options)
    for name, number in _DEVICES.items():
        path = f"x/m/dev/{name}"
        if machine.root:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
            os.chown(path, owner, owner)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            sc.mount(f"/dev/{name}", path, None, sc.MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"x/m/dev/{name}")
        os.lchown(f"x/m/dev/{name}", owner, owner)
    for name, mode in (("shm", 0o1777), ("pts", 0o755)):
        os.mkdir(f"x/m/dev/{name}", mode)
        os.chown(f"x/m/dev/{name}", owner, owner)
    sc.mount("devpts", "x/m/dev/pts", "devpts", flags, _PTS_OPTIONS)


def _enter_user_namespace(link: socket.socket) -> None:
    """Leave the user namespace that owns the mounts; the spawner writes the id maps."""
    sc.unshare(sc.CLONE_NEWUSER)
    link.send(b"u")
    if link.recv(1) != b"k":
        raise OSError("the spawner did not write the id maps")
    # After this process has entered its cgroup, which becomes the namespace's root.
    sc.unshare(sc.CLONE_NEWCGROUP)
    os.setresgid(0, 0, 0)
    with suppress(PermissionError):  # an ordinary user's map forbids it, and has no groups
        os.setgroups([])
    os.setresuid(0, 0, 0)
    # A change of credentials clears it.
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(limits: dict[str, Any]) -> None:
    def both(which: int, value: int) -> None:
        value = _at_most_hard(which, value)
        resource.setrlimit(which, (value, value))

    both(resource.RLIMIT_CORE, 0)
    both(resource.RLIMIT_DATA, limits["memory"])
    both(resource.RLIMIT_NPROC, limits["processes"] + 1)  # and this process
    both(resource.RLIMIT_MEMLOCK, 1 << 20)
    both(resource.RLIMIT_MSGQUEUE, 1 << 20)
    both(resource.RLIMIT_SIGPENDING, 4096)
    both(resource.RLIMIT_FSIZE, limits["disk"])
    # The hard limit is for this process's own walk over nested folders.
    hard = _at_most_hard(resource.RLIMIT_NOFILE, max(limits["open_files"], 4096))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits["open_files"], hard), hard))


def _at_most_hard(which: int, value: int) -> int:
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _drop_rights(kept: int) -> None:
    """See to it that no program started from here has a capability, but those in `kept`."""
    sc.drop_bounding_set(kept)
    sc.prctl(sc.PR_SET_SECUREBITS, sc.SECUREBITS_NO_ROOT)
    for bit in CAPABILITY_BITS.values():
        if kept >> bit & 1:
            sc.capset(ALL_CAPABILITIES, ALL_CAPABILITIES, kept)
            sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_RAISE, bit)
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    sc.prctl(sc.PR_SET_DUMPABLE, 0)  # an ordinary user's programs have the same user id


def filter_program() -> bytes:
    """The seccomp filter, built once for all sandboxes."""
    return seccomp.build()
