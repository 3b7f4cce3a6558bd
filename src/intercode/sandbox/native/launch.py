"""From a fresh fork of the spawner to process 1 of a sandbox: the order of steps is the security.

The mounts are made while this process still has rights over its mount namespace; then it enters a
user namespace that owns none of what was set up before, and can never undo any of it.
"""

from __future__ import annotations

import errno
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

from intercode.capabilities import mask
from intercode.rights import permitted
from intercode.sandbox.native import diff, seccomp, wire
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.identity import ID_COUNT, OWN_THREADS, Identity, limit_processes
from intercode.sandbox.native.inside import Inside, User

STAGE = "/dev/pts"
"""The folder of the spawner's mounts, in its own mount namespace. Every machine has this folder,
and neither the spawner nor an image needs what is in it."""

FOLDERS = ("x", "o", "e", "d", "p")
"""The mount points of each sandbox there: its files, the same with its own ids, what is empty, /dev
and /proc."""

HOSTNAME = "intercode"
NAMESPACES = sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS
ALL_CAPABILITIES = (1 << 41) - 1

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9),
            "tty": (5, 0)}  # fmt: skip
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_DEV_OWNED = ["d", *(f"d/{name}" for name in (*_DEVICES, *_DEVICE_LINKS))]
_DEV_FLAGS = sc.MS_NOSUID | sc.MS_NOEXEC
_RESOLVER_BYTES = 65_536
_QUIET = sc.MS_NOSUID | sc.MS_NODEV
MASKED = (
    *("acpi", "asound", "cmdline", "config.gz", "interrupts", "kcore", "keys", "latency_stats"),
    *("locks", "modules", "sched_debug", "scsi", "timer_list", "timer_stats"),
)
"""The files that Docker masks in /proc, and those on the machine's start and load."""
_PTS_OPTIONS = "newinstance,ptmxmode=0666,mode=620,max=16"
"""The machine has some 3,000 terminals for all sandboxes together."""
IPC_LIMITS = {
    "kernel/msgmni": "64",
    "kernel/shmmni": "128",
    "kernel/sem": "32000 8192 500 128",
    "fs/mqueue/queues_max": "16",
}
"""Of a sandbox. What its programs leave there outlives them: it must leave room for others, and be
few enough to be removed at once."""
SHARED_PART = 2
"""Of its memory, one byte of so many may be System V shared memory."""
_SPECIAL_BYTES = 16 << 20
_FILE_BYTES = 4096
"""More than what the kernel keeps of an empty file with a long name."""
_FILES_OF_A_WALK = 1536
"""Three for each of `diff.MAX_DEPTH` folders, and those of programs."""
_LEAST = 1 << 18, 64
"""Bytes and files that there is room for also where those of frozen layers are all that there may
be: what is mounted, and what a program needs in order to remove some."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass(frozen=True)
class Machine:
    """Facts of this machine that the spawner found out, once."""

    root: bool
    """Real root: ids are a range, layers are id-mapped, device nodes can be made."""
    masks: list[tuple[str, str]]
    """Names to be masked in this machine's /proc, each a ``file`` or a ``folder``."""
    rights: int
    """The capabilities that there are."""
    filters: dict[tuple[bool, bool], bytes]
    """The seccomp filters: with or without what debuggers need, and `chroot`."""


def look_around(root: bool) -> Machine:
    """Find out about this machine."""
    there = [name for name in MASKED if os.path.exists(f"/proc/{name}")]
    masks = [(name, "folder" if os.path.isdir(f"/proc/{name}") else "file") for name in there]
    either = False, True
    filters = {(one, other): seccomp.build(one, other) for one in either for other in either}
    return Machine(root, masks, permitted(), filters)


def clone(network: bool) -> int:
    """Fork into the namespaces that a sandbox has from its start.

    Args:
        network: Share the machine's network; else it has an empty one of its own.
    """
    return sc.clone(NAMESPACES if network else NAMESPACES | sc.CLONE_NEWNET)


def prepare(network: bool, machine: Machine) -> tuple[int, int]:
    """Do what can be done before it is known what for.

    Returns:
        `Inside.score` and `Inside.proc`.
    """
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.umask(0)
    socket.sethostname(HOSTNAME)
    if not network:
        _loopback_up()
        # So that `ping` needs no capability, as on most machines today.
        with suppress(OSError), open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
            file.write("0 2147483647" if machine.root else "0 0")
    os.chdir(STAGE)
    sc.mount("tmpfs", "x", "tmpfs", _QUIET, "mode=755")
    for name in ("x/u", "x/w", "x/m", "x/e"):
        os.mkdir(name)
    _mount_empty(network)
    _mount_dev(machine)
    proc = _mount_proc(machine)
    for name, value in IPC_LIMITS.items():
        with suppress(OSError):  # older kernels do not let an ordinary user
            _set(proc, name, value)
    # What handlers of cores get in spite of the limit, by a socket since Linux 6.16, is empty.
    with open("/proc/self/coredump_filter", "w") as file:
        file.write("0")
    return os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC), proc


def enter(
    spec: dict[str, Any],
    identity: Identity,
    link: socket.socket,
    machine: Machine,
    prepared: tuple[int, int],
    frozen: list[int],
) -> Inside:
    """Become process 1 of a sandbox, for good.

    Args:
        spec: A caller's request, with its layers as names on the stage.
        identity: Who it is to be.
        link: The spawner's socket; it hears when the file system is ready.
        machine: This machine.
        prepared: What `prepare` returned.
        frozen: Mounts of frozen layers, the lowest first; they are closed.
    """
    limits = spec["limits"]
    pages = limits["memory"] // SHARED_PART // resource.getpagesize()
    with suppress(OSError):  # older kernels do not let an ordinary user
        _set(prepared[1], "kernel/shmall", str(pages))
    if "net_bind_service" in limits["capabilities"] and not spec["network"]:
        # The machine's own network would be changed for all. A capability does nothing there, nor
        # here: the network belongs to the namespace of users that is left now.
        _set(prepared[1], "net/ipv4/ip_unprivileged_port_start", "0")
    uppers, lower, root = _file_system(spec, identity, machine, link, frozen)
    _become(identity)
    _limit(limits, identity.own, len(uppers))
    kept = mask(limits["capabilities"])
    drop_rights(ALL_CAPABILITIES, kept)
    sc.scope()
    sc.set_seccomp(machine.filters[limits["debugger"], "sys_chroot" in limits["capabilities"]])
    os.umask(0o022)
    ids = [int(part) for part in (spec["user"].replace(":", ",") or "0,0").split(",")]
    return Inside(
        uppers=uppers,
        lower=lower,
        root=root,
        score=prepared[0],
        proc=prepared[1],
        rights=ALL_CAPABILITIES,
        kept=kept,
        user=User(ids[0], ids[1], tuple(ids[2:])),
        ids=ID_COUNT if machine.root else 1,
    )


def _set(proc: int, name: str, value: str) -> None:
    """Set a limit of this process's namespaces, by a /proc for writing: a container's is not."""
    fd = os.open(f"sys/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _file_system(
    spec: dict[str, Any],
    identity: Identity,
    machine: Machine,
    link: socket.socket,
    frozen: list[int],
) -> tuple[tuple[int, ...], int, int]:
    """Mount everything and change the root.

    Returns:
        Descriptors of the layers over the image, of the image, and of all as one, with no mount
        in it.
    """
    idmap = identity.namespace if machine.root else None
    _limit_files(spec["limits"], spec["used"])
    over, layers = _layers(spec, idmap)
    for number, tree in enumerate(frozen):
        over.insert(0, _attach(tree, f"x/f{number}", idmap) + "/u")
        os.close(tree)
    image = layers[0]
    if len(layers) > 1:
        image = "x/i"
        os.mkdir(image)
        _overlay(image, layers, machine)
    lower = os.open(image, diff.DIRECTORY)
    status = os.stat(over[0]) if over else os.fstat(lower)
    files = sc.open_tree("x")
    own, whole = _own_files(idmap, identity, machine)
    os.chown(f"{own}/u", status.st_uid, status.st_gid)
    os.chmod(f"{own}/u", stat.S_IMODE(status.st_mode))
    uppers = tuple(os.open(folder, diff.DIRECTORY) for folder in (f"{own}/u", *over))
    _overlay("x/m", [*over, *layers], machine, own)
    for path, name in spec["programs"]:
        _mount_programs(f"x/m/{path}", name, idmap, machine)
    for path in spec["hide"]:
        with suppress(FileNotFoundError):
            empty = "e/folder" if os.path.isdir(f"x/m{path}") else "e/file"
            sc.mount(empty, f"x/m{path}", None, sc.MS_BIND)
    sc.mount("p", "x/m/proc", None, sc.MS_MOVE)
    for path in _DEV_OWNED if machine.root else ():
        os.lchown(path, identity.first, identity.first)
    root = sc.open_tree("x/m")
    _mount_shm(identity, machine)
    wire.send(link, {}, [files] if whole else [])
    os.close(files)
    # What stands there decides what a verification reads, and no comparison looks there.
    sc.mount("", "d", None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | _DEV_FLAGS)
    sc.mount("d", "x/m/dev", None, sc.MS_MOVE)
    servers = sc.open_tree("e/resolv.conf") if os.path.exists("e/resolv.conf") else None
    os.chdir("x/m")
    sc.pivot_root(".", ".")
    sc.umount(".")
    os.chdir("/")
    if servers is not None:
        _bind_resolver(servers)
    return uppers, lower, root


def _mount_empty(network: bool) -> None:
    """Mount ``e``, which cannot be written: what stands for things that are not to be seen.

    It is the sandbox's own, as file locks are of a file and not of its name.
    """
    os.mkdir("x/e/folder")
    os.close(os.open("x/e/file", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    if network:
        with suppress(FileNotFoundError), open("/etc/resolv.conf", "rb") as file:
            servers = file.read(_RESOLVER_BYTES)
            with open("x/e/resolv.conf", "wb") as copy:
                copy.write(servers)
    sc.mount("x/e", "e", None, sc.MS_BIND)
    sc.mount("", "e", None, sc.MS_BIND | sc.MS_REMOUNT | sc.MS_RDONLY | _QUIET)


def _limit_files(limits: dict[str, Any], used: list[int]) -> None:
    # Names and inodes count for the sandbox's memory, of which process 1 must find some left, also
    # when the disk is full.
    files = min(limits["files"], limits["memory"] // _FILE_BYTES)
    if any(used):
        files = max(files - used[1], _LEAST[1])
    size = max(limits["disk"] - used[0], _LEAST[0]) if any(used) else limits["disk"]
    options = f"size={size},nr_inodes={files}"
    sc.mount("", "x", None, sc.MS_REMOUNT | _QUIET, options)


def _layers(spec: dict[str, Any], idmap: int | None) -> tuple[list[str], list[str]]:
    """Mount the layers, with copies of files of special modes over them.

    Returns:
        Those over the image and those of the image, highest first.
    """
    over: list[str] = []
    image: list[str] = []
    for index, name in enumerate(spec["layers"]):
        layers = over if index < len(spec["layers"]) - spec["image"] else image
        copy = _own_copy(name, idmap)
        if name in spec["special"]:
            special = spec["special"][name]
            layers.append(_special_modes(f"x/s{name}", copy, special, spec["limits"]))
        layers.append(copy)
    return over, image


def _own_copy(name: str, idmap: int | None) -> str:
    """Mount a layer once more; as root with its files' ids mapped to the sandbox's own.

    Returns:
        Its relative name, which shows in the sandbox's list of mounts.
    """
    if idmap is None:
        return name
    tree = sc.open_tree(name)
    try:
        return _attach(tree, f"x/{name}", idmap)
    finally:
        os.close(tree)


def _attach(tree: int, folder: str, idmap: int | None) -> str:
    """Mount a detached mount in a new folder; as root with ids mapped to the sandbox's own."""
    if idmap is not None:
        sc.mount_setattr(tree, sc.MOUNT_ATTR_IDMAP, idmap)
    os.mkdir(folder)
    sc.move_mount(tree, folder)
    return folder


def _own_files(idmap: int | None, identity: Identity, machine: Machine) -> tuple[str, bool]:
    """Mount ``o``, as root: the sandbox's files with its own ids. On ``x`` all have the same ones.

    Returns:
        The folder that the sandbox is to write to, and whether another one can have what is in it
        as a layer: not as root before Linux 6.3.
    """
    if idmap is None:
        return "x", True
    tree = sc.open_tree("x")
    try:
        sc.mount_setattr(tree, sc.MOUNT_ATTR_IDMAP, idmap)
        sc.move_mount(tree, "o")
    except OSError:
        return "x", False
    finally:
        os.close(tree)
    # Overlayfs acts as who mounts it, whose id must be one of the sandbox's own.
    sc.make_files_as(identity.first, machine.rights)
    return "o", True


def _special_modes(
    folder: str, layer: str, special: list[tuple[str, int]], limits: dict[str, Any]
) -> str:
    """Make a layer of copies of some files of another one, with modes that no disk is to have.

    The copies take room that the sandbox has: files beyond a quarter of it keep their plain modes.

    Returns:
        Its name.
    """
    os.mkdir(folder)
    room = min(_SPECIAL_BYTES, limits["disk"] // 4)
    above: dict[str, None] = {"": None}
    here = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path, mode in special[: limits["files"] // 4]:
            with open(sc.open_below(here, path), "rb") as file:
                status = os.fstat(file.fileno())
                room -= status.st_size
                if room < 0:
                    break
                parts = path.split("/")
                above |= dict.fromkeys("/".join(parts[:depth]) for depth in range(1, len(parts)))
                os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
                with open(f"{folder}/{path}", "xb") as copy:
                    copy.write(file.read())
            _dress(f"{folder}/{path}", status, mode)
        for path in reversed(above):
            status = os.stat(path or ".", dir_fd=here, follow_symlinks=False)
            _dress(f"{folder}/{path}", status, stat.S_IMODE(status.st_mode))
    finally:
        os.close(here)
    return folder


def _dress(path: str, status: os.stat_result, mode: int) -> None:
    os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _overlay(target: str, layers: list[str], machine: Machine, upper: str = "") -> None:
    options = f"lowerdir={':'.join(layers)}"
    options += ",index=off,metacopy=off,redirect_dir=off" if machine.root else ",userxattr"
    flags = sc.MS_NOSUID | sc.MS_NODEV
    if upper:
        options += f",upperdir={upper}/u,workdir={upper}/w"
    else:
        flags |= sc.MS_RDONLY
    sc.mount("overlay", target, "overlay", flags, options)


def _mount_programs(target: str, name: str, idmap: int | None, machine: Machine) -> None:
    """Mount a folder of the machine's own, with inodes of the sandbox's own.

    A watch, a lock or a lease on the machine's inodes would be felt by the machine, and by other
    sandboxes.
    """
    try:
        copy = _own_copy(name, idmap)
    except OSError:
        # Not every file system can be id-mapped, as a container's root. Root's files then belong
        # to `nobody`, which is all that it changes in a read-only tree.
        copy = name
    try:
        _overlay(target, [copy, "e/folder"], machine)
    except OSError as error:
        if machine.root or error.errno != errno.EINVAL:
            raise
        # The kernel does not let an ordinary user take apart what is mounted below.
        sc.mount(name, target, None, sc.MS_BIND | sc.MS_REC)


def _bind_resolver(servers: int) -> None:
    """Mount the machine's name servers, a detached mount: links lead out of the root no more."""
    target = os.path.realpath("/etc/resolv.conf")
    flags = os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError):  # it has no /etc, or a folder, a loop or a FIFO in its place
        os.close(os.open(target, flags, 0o644))
    with suppress(OSError):
        sc.move_mount(servers, target)
    os.close(servers)


def _mount_shm(identity: Identity, machine: Machine) -> None:
    """Mount ``d/shm``, a folder of the sandbox's files: it is compared and saved as they are."""
    folder = "x/m/dev/shm"
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
    with suppress(FileExistsError):
        os.mkdir(folder)
    if machine.root:
        os.chown(folder, identity.first, identity.first)
    os.chmod(folder, 0o1777)
    sc.mount(folder, "d/shm", None, sc.MS_BIND)
    sc.mount("", "d/shm", None, sc.MS_BIND | sc.MS_REMOUNT | _DEV_FLAGS)


def _mount_proc(machine: Machine) -> int:
    """Mount ``p``, a /proc for reading only, without what tells of the machine.

    Returns:
        A descriptor of one that can be written, and is mounted nowhere.
    """
    flags = _QUIET | sc.MS_NOEXEC
    sc.mount("proc", "p", "proc", flags)
    writable = sc.open_tree("p")
    sc.mount("", "p", None, sc.MS_BIND | sc.MS_REMOUNT | sc.MS_RDONLY | flags)
    for name, kind in machine.masks:
        sc.mount(f"e/{kind}", f"p/{name}", None, sc.MS_BIND)
    return writable


def _mount_dev(machine: Machine) -> None:
    """Mount ``d``, a /dev of the sandbox's own, which will be for reading only.

    As root its nodes are made here: a bind of the machine's would share file locks between
    sandboxes. An ordinary user cannot make nodes and gets the binds.
    """
    sc.mount("tmpfs", "d", "tmpfs", _DEV_FLAGS, "size=1m,nr_inodes=4096,mode=755")
    for name, number in _DEVICES.items():
        if machine.root:
            os.mknod(f"d/{name}", stat.S_IFCHR | 0o666, os.makedev(*number))
        else:
            os.close(os.open(f"d/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            sc.mount(f"/dev/{name}", f"d/{name}", None, sc.MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"d/{name}")
    os.mkdir("d/shm")
    os.mkdir("d/pts")
    sc.mount("devpts", "d/pts", "devpts", _DEV_FLAGS, _PTS_OPTIONS)


def _become(identity: Identity) -> None:
    """Leave the user namespace that owns the mounts, and be process 1's own user."""
    # After this process has entered its cgroup, which becomes the namespace's root.
    sc.unshare(sc.CLONE_NEWCGROUP)
    if identity.own:
        os.setgroups([])
        os.setresgid(identity.own, identity.own, identity.own)
        os.setresuid(identity.own, identity.own, identity.own)
    sc.setns(identity.namespace, sc.CLONE_NEWUSER)
    # A change of credentials clears it.
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(limits: dict[str, Any], own: int, uppers: int) -> None:
    # A core pattern with a pipe hands a dump to the machine's root, unless the limit is 1 byte.
    limit(resource.RLIMIT_CORE, 1)
    limit(resource.RLIMIT_NICE, 0)
    limit(resource.RLIMIT_RTPRIO, 0)
    # An ordinary user's process 1 has the same id as its programs.
    limit_processes(max(limits["processes"], 2) + (0 if own else OWN_THREADS))
    # The hard limit is for this process's own walk over nested folders.
    walk = _FILES_OF_A_WALK + (uppers - 1) * diff.MAX_DEPTH
    limit_each(limits, max(limits["open_files"], walk))


def limit_each(limits: dict[str, Any], open_files: int) -> None:
    """Limit what this process, and each that it starts, may use: in sandboxes of any provider.

    Args:
        limits: The sandbox's.
        open_files: The hard limit of descriptors.
    """
    limit(resource.RLIMIT_DATA, limits["memory"])
    limit(resource.RLIMIT_MEMLOCK, 1 << 20)
    limit(resource.RLIMIT_MSGQUEUE, 1 << 20)
    limit(resource.RLIMIT_SIGPENDING, 4096)
    limit(resource.RLIMIT_FSIZE, limits["disk"])
    hard = _at_most_hard(resource.RLIMIT_NOFILE, open_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits["open_files"], hard), hard))


def limit(which: int, value: int) -> None:
    """Set a resource's soft and hard limit, as far as the hard one permits."""
    value = _at_most_hard(which, value)
    resource.setrlimit(which, (value, value))


def _at_most_hard(which: int, value: int) -> int:
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def drop_rights(rights: int, kept: int) -> None:
    """Give programs started from here no capability but those in `kept`; keep `rights` oneself."""
    sc.drop_bounding_set(kept)
    sc.prctl(sc.PR_SET_SECUREBITS, sc.SECUREBITS_NO_ROOT)
    sc.capset(rights, rights, kept)
    for bit in range(kept.bit_length()):
        if kept >> bit & 1:
            sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_RAISE, bit)
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    sc.prctl(sc.PR_SET_DUMPABLE, 0)  # or programs of the same user id could trace it
