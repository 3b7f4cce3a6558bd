"""One function for each defence: does it hold? Run in a process of its own::

    python -m mutation.probes MODULE NAME SRC

with MODULE, the one that has the function, and SRC, the folders of the sources to probe, first on
the path. The exit code is 0 if the defence holds, 1 if it is gone, 77 if that cannot be told on
this machine, and 2 for anything else that goes wrong.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import importlib
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import intercode
import intercode_sandbox.base
from intercode.errors import ImageError, SandboxError, SandboxUnavailableError
from intercode_sandbox import get_provider
from intercode_sandbox.images import host
from intercode_sandbox.native import syscalls as sc
from intercode_sandbox.privileges import read_permitted_capabilities
from intercode_sandbox.units import MIB
from waiting import new_marker

from .defences import DOCKER
from .tools import (
    ProbeError,
    SkippedError,
    ends,
    mount_options,
    one_of,
    perl,
    run,
    say,
    start,
    status,
    wait_for,
)

HOLDS, GONE, BROKEN, SKIPPED = 0, 1, 2, 77
_X86 = platform.machine() == "x86_64"
_CLOSE_RANGE, _PR_SET_NO_NEW_PRIVS = 436, 38
_SECRET = "INTERCODE_PROBE_SECRET"

# -- escape ------------------------------------------------------------------------------------


def seccomp() -> bool:
    number = 272 if _X86 else 97  # unshare(CLONE_NEWUSER)
    script = f"print syscall({number}, 0x10000000) == 0 ? 'done' : $!+0"
    return one_of(perl(script), holds="1", gone="done")


def seccomp_clone_flags() -> bool:
    number = 56 if _X86 else 220  # clone(CLONE_NEWUSER | SIGCHLD)
    script = f"my $p = syscall({number}, 0x10000011, 0, 0, 0, 0); my $e = $! + 0;"
    script += "require POSIX; POSIX::_exit(0) if $p == 0; print $p > 0 ? 'done' : $e"
    return one_of(perl(script), holds="1", gone="done")


namespaces_of_ones_own = seccomp_clone_flags


def _call(x86: int, arm: int, arguments: str, **limits: object) -> int:
    """The error number of a system call; 0 if there is none."""
    script = f"my $b = 'x' x 64; my @a = ({arguments}); my $r = syscall({x86 if _X86 else arm}, @a)"
    return int(perl(f"{script}; print $r < 0 ? $! + 0 : 0", **limits))


def seccomp_socket_pairs() -> bool:
    return _call(53, 199, "2, 1, 0, $b") == errno.EAFNOSUPPORT  # else EOPNOTSUPP


def seccomp_socket_protocols() -> bool:
    return _call(41, 198, "2, 1, 262") == errno.EPROTONOSUPPORT


def seccomp_socket_types() -> bool:
    return _call(41, 198, "2, 6, 262") == errno.ESOCKTNOSUPPORT  # else EPROTONOSUPPORT


def seccomp_modules() -> bool:
    return _call(16, 29, "0, 0x8940, $b") == errno.EPERM  # else ENOTTY


def seccomp_huge_pages() -> bool:
    return _call(319, 279, "$b, 4") == errno.ENOMEM


def seccomp_other_programs_treatment() -> bool:
    if not os.path.exists("/sys/kernel/mm/ksm"):
        raise SkippedError("needs a kernel that merges memory")
    return _call(157, 167, "67, 1, 0, 0, 0") == errno.EINVAL


def seccomp_lingering_sockets() -> bool:
    script = (
        "socket(S, 2, 1, 0); setsockopt(S, 1, 13, pack('ii', 1, 5)) or die; "
        "print unpack('i', getsockopt(S, 1, 13))"
    )
    return one_of(perl(script), holds="0", gone="1")


def seccomp_scheduling_of_others() -> bool:
    return _call(144, 119, "$$, 0, pack('i', 0)") == errno.EPERM


def seccomp_page_cache() -> bool:
    if not _X86:
        raise SkippedError("the mutant is of x86-64")
    return _call(27, 232, "0, 0, $b") == errno.EPERM


def seccomp_emptied_page_cache() -> bool:
    return _call(221, 223, "99, 0, 0, 4") == 0  # else EBADF


def seccomp_paged_out() -> bool:
    return _call(28, 233, "1, 1, 21") == 0  # else EINVAL


def seccomp_keys_of_sockets() -> bool:
    return _call(54, 208, "0, 6, 14, 0, 0") == errno.EPERM  # else ENOTSOCK


def seccomp_merged_memory() -> bool:
    if not os.path.exists("/sys/kernel/mm/ksm"):
        raise SkippedError("needs a kernel that merges memory")
    return _call(28, 233, "0, 0, 12") == errno.EINVAL


def seccomp_flow_labels() -> bool:
    return _call(54, 208, "0, 41, 32, 0, 0") == errno.EPERM  # else ENOTSOCK


def seccomp_access_lists() -> bool:
    return _call(190, 7, "99, 'user.x', $b, 257, 0") == errno.E2BIG  # else EBADF


def seccomp_kernel_events() -> bool:
    return _call(41, 198, "16, 3, 15") == errno.EPROTONOSUPPORT


def seccomp_socket_filters() -> bool:
    return _call(54, 208, "0, 1, 26, 0, 0") == errno.EPERM  # else ENOTSOCK


def seccomp_filters_of_ones_own() -> bool:
    return _call(317, 277, "1, 0, 0") == errno.EINVAL  # else EFAULT


def seccomp_leases() -> bool:
    return _call(72, 25, "0, 1024, 0") == errno.EPERM


def seccomp_watched_folders() -> bool:
    return _call(72, 25, "0, 1026, 0") == errno.EPERM  # else ENOTDIR


def seccomp_locks_of_open_files() -> bool:
    return _call(72, 25, "99, 37, $b") == errno.EINVAL  # else EBADF


def seccomp_groups() -> bool:
    return _call(54, 208, "99, 0, 35, $b, 8") == errno.EPERM  # else EBADF


def seccomp_groups_of_ipv6() -> bool:
    return _call(54, 208, "99, 41, 20, $b, 20") == errno.EPERM


def seccomp_groups_of_both() -> bool:
    calls = [_call(54, 208, f"99, {level}, 42, $b, 64") for level in (0, 41)]
    return calls == [errno.EPERM] * 2


def memberships() -> bool:
    return one_of(say("cat /proc/sys/net/ipv4/igmp_max_memberships"), holds="0", gone="20")


def seccomp_asynchronous_io() -> bool:
    return _call(206, 0, "1, 0") == errno.ENOSYS  # else EFAULT


def seccomp_limits_of_others() -> bool:
    return _call(302, 261, "$$, 7, 0, $b") == errno.EPERM


def seccomp_tracing() -> bool:
    return _call(101, 117, "0, 0, 0, 0") == errno.EPERM


def seccomp_socket_families() -> bool:
    # AF_PACKET: refused by the filter, or only for want of a capability.
    script = "print socket(my $s, 17, 2, 0) ? 'done' : $! + 0"
    return one_of(perl(script), holds="97", gone="1")


def no_new_privileges() -> bool:
    return one_of(status("NoNewPrivs"), holds="1", gone="0")


def capabilities() -> bool:
    return int(status("CapEff"), 16) == 0


def bounding_set() -> bool:
    return int(status("CapBnd"), 16) == 0


def _outer_ids() -> tuple[set[str], str]:
    """User and group ids of a program as this machine sees them, and its user namespace."""
    marker = new_marker()
    sandbox = start()
    sandbox.popen(["sleep", marker], channels={}, cwd="/")
    pid = wait_for(marker)
    lines = Path(f"/proc/{pid}/status").read_text().split("\n")
    ids = {i for line in lines if line.startswith(("Uid:", "Gid:")) for i in line.split()[1:]}
    return ids, os.readlink(f"/proc/{pid}/ns/user")


def user_namespace() -> bool:
    try:
        ids, namespace = _outer_ids()
    except SandboxUnavailableError:  # without one, a sandbox is refused its own settings
        return False
    return namespace != os.readlink("/proc/self/ns/user") and "0" not in ids


def unprivileged_ids() -> bool:
    return "0" not in _outer_ids()[0]


def ids_of_its_own() -> bool:
    one, two = start(), start()
    return say("cat /proc/self/uid_map", one) != say("cat /proc/self/uid_map", two)


def process_1_is_nobody() -> bool:
    return one_of(say("grep ^Uid: /proc/1/status").split()[1], holds="65534", gone="0")


def never_the_machines_root() -> bool:
    # The sandboxes' user must be able to go there.
    os.environ["INTERCODE_CACHE"] = folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder).chmod(0o755)
    sys_admin = 21
    sc.prctl(sc.PR_CAPBSET_DROP, sys_admin)  # whom it starts has not the right, either
    rights = read_permitted_capabilities() & ~(1 << sys_admin)
    sc.capset(rights, rights, 0)
    return "0" not in _outer_ids()[0]


def watchers() -> bool:
    number = 294 if _X86 else 26
    return int(perl(f"$n++ while $n < 99 and syscall({number}, 0) >= 0; print $n")) <= 16


def programs_inodes_of_its_own() -> bool:
    one, two = start(), start()
    holder = one.popen(["flock", "/usr/bin/env", "bash", "-c", "echo y; exec sleep 60"],
                       channels={})  # fmt: skip
    if os.read(holder.fds[1], 1) != b"y":
        raise ProbeError("no lock")
    return one_of(str(run("flock -n /usr/bin/env true", two).exit_code), holds="0", gone="1")


def private_folders() -> bool:
    start()  # what is hidden is not to be decided by the first
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="intercode-probe-") as name:
        Path(name).chmod(0o755)
        Path(name, "secret").touch()
        before = os.getcwd()
        os.chdir(name)
        try:
            return one_of(say(f"ls {name}"), holds="", gone="secret")
        finally:
            os.chdir(before)


def the_same_host_for_gold() -> bool:
    from intercode.envs.bash import BashEnv
    from intercode.task import Dataset, Task

    with tempfile.TemporaryDirectory() as name:
        host.SEARCH_PATH = f"{host.SEARCH_PATH}:{name}"
        with closing(BashEnv(Dataset([Task("t", "?", gold=["echo x"])]))) as env:
            env.reset()
            env.step("echo x")
            Path(name, "new").touch()  # as a package's installation would make one
            try:
                env.step("submit")
            except SandboxError:
                return True
    return False


def read_only_programs() -> bool:
    # Nothing is written: without the defence, that would be this machine's own folder.
    return one_of(say("[ -w /usr/bin ] && echo yes || echo no"), holds="no", gone="yes")


def no_setuid_or_devices() -> bool:
    return {"nosuid", "nodev"} <= mount_options("/")


def read_only_proc() -> bool:
    return "ro" in mount_options("/proc")


def read_only_proc_of_the_private() -> bool:
    return "ro" in mount_options("/proc", private=True)


def masked_proc() -> bool:
    return say("cat /proc/cmdline") == ""


# -- leaks and neighbours ----------------------------------------------------------------------


def network_namespace() -> bool:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=server.accept, daemon=True).start()
        return run(f"exec 3<>/dev/tcp/127.0.0.1/{port}").exit_code != 0


def proc_of_its_own() -> bool:
    marker = new_marker()
    with subprocess.Popen(["sleep", marker]) as host:
        try:
            wait_for(marker)
            # In brackets, so that the search does not find itself.
            pattern = f"[{marker[0]}]{marker[1:]}"
            found = say(f"cat /proc/[0-9]*/cmdline 2>/dev/null | grep -ac '{pattern}' || :")
        finally:
            host.kill()
    return found == "0"


def old_root_unmounted() -> bool:
    return one_of(say("[ -e /old/proc/1 ] && echo yes || echo no"), holds="no", gone="yes")


def ipc_namespace() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 12345, 0o1600)  # IPC_PRIVATE, IPC_CREAT
    if segment < 0:
        raise SkippedError("no System V shared memory")
    try:
        return " 12345 " not in say("cat /proc/sysvipc/shm")
    finally:
        libc.shmctl(segment, 0, None)  # IPC_RMID


def hidden_arguments() -> bool:
    return one_of(
        say("grep -aq intercode /proc/1/cmdline && echo yes || echo no"), holds="no", gone="yes"
    )


def inherited_descriptors() -> bool:
    marker = new_marker()
    sandbox = start()
    sandbox.popen(["sleep", marker], channels={})
    stat = Path(f"/proc/{wait_for(marker)}/stat").read_text()
    init = stat.rpartition(")")[2].split()[1]
    # Its caller's, and no other: above all not the one by which sandboxes are asked for.
    links = [os.readlink(link) for link in Path(f"/proc/{init}/fd").iterdir()]
    return sum(link.startswith("socket:") for link in links) == 1


def inherited_descriptors_one_by_one() -> bool:
    load, equal, answer, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    program = [(load, 0, 0), (equal, 1, _CLOSE_RANGE), (answer, 0, 0x50000 | errno.ENOSYS)]
    filter_ = [struct.pack("=HBBI", code, 0, skipped, k) for code, skipped, k in program]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    sc.set_seccomp(b"".join([*filter_, struct.pack("=HBBI", answer, 0, 0, allow)]))
    if libc.syscall(_CLOSE_RANGE, 900, 900, 0) == 0:
        raise ProbeError("the call is not refused")
    return inherited_descriptors()


def links_of_images() -> bool:
    base = get_provider().image("host")  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        (victim := Path(folder, "victim")).mkdir()
        (layer := Path(folder, "layer")).mkdir(mode=0o755)
        (layer / "dev").symlink_to(victim)
        image = replace(base, layers=(*base.layers, layer), digest=folder)
        with suppress(ImageError, SandboxError):
            get_provider().start(image).close()
        return [*victim.iterdir()] == []


# -- denial of service -------------------------------------------------------------------------


def a_stack_for_walks() -> bool:
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 19, 1 << 19))
    sandbox = start()
    run("for n in {1..290}; do mkdir d; cd d; done", sandbox)
    try:
        return len(sandbox.changes()) == 290
    except SandboxError:
        return False


def process_limit() -> bool:
    script = "for (1..60) { my $p = fork; last unless defined $p; if (!$p) { sleep 9; exit } $n++ }"
    count = int(perl(script + "print $n;", processes=20))
    if not 10 <= count <= 60:
        raise ProbeError(f"{count} processes")
    return count < 20


def processes_of_all_users() -> bool:
    number = 117 if _X86 else 147
    script = "for (1 .. 60) { my $p = fork; last unless defined $p; $n++;"
    script += f"if (!$p) {{ syscall({number}, $_, $_, $_); sleep 9; exit }} }} print $n"
    return int(perl(script, processes=20, capabilities=("setuid",))) <= 20


def disk_size() -> bool:
    # Several files: one alone meets the limit of a file's size.
    script = "cd /tmp; for i in 1 2 3 4; do head -c 4M /dev/zero >f$i || exit 3; done"
    return one_of(str(run(script, disk=8 * MIB).exit_code), holds="3", gone="0")


def file_count() -> bool:
    script = "for (1..400) { open(my $f, '>', \"/tmp/$_\") or last; $n++ } print $n >= 400 ? 1 : 0"
    return one_of(perl(script, files=200), holds="0", gone="1")


def file_size() -> bool:
    # A memory file: no file system's size limits it.
    number = 319 if _X86 else 279
    script = f"$SIG{{XFSZ}} = 'IGNORE'; my $n = 'm'; my $fd = syscall({number}, $n, 0);"
    script += "open(my $f, '>&=', $fd) or die; sysseek($f, 9 << 20, 0);"
    script += "print syswrite($f, 'x') ? 'done' : $! + 0"
    return one_of(perl(script, disk=8 * MIB), holds="27", gone="done")


def read_only_dev() -> bool:
    return one_of(str(run("rm /dev/fd && mkdir /dev/fd || exit 3").exit_code), holds="3", gone="0")


def memory_of_a_process() -> bool:
    script = "perl -e 'my $x = \"x\" x (200 << 20); print length $x' || :"
    found = say(script, memory=64 * MIB, disk=512 * MIB)
    return one_of(found, holds="", gone=str(200 << 20))


def memory_of_a_sandbox() -> bool:
    if get_provider().facts()["cgroup"] == 0:  # type: ignore[attr-defined]
        raise SkippedError("needs cgroup v1 or v2, writable")
    # Six children, each within the limit of a process, that hold their memory until all are there.
    script = """
        for (1..6) {
            pipe(my $r, my $w); my $p = fork;
            if (!$p) { my $x = "x" x ((20 << 20) + $$ - $$); syswrite($w, "y"); sleep 30; exit }
            close $w; push @r, $r; push @p, $p;
        }
        sysread($_, my $y, 1) for @r;
        $n += waitpid($_, 1) == 0 for @p;
        kill 9, @p; print $n + 0;
    """
    done = start(memory=64 * MIB, disk=16 * MIB).exec(["perl", "-e", script])
    if not done.ok and done.exit_code != 128 + signal.SIGKILL:
        raise ProbeError(f"{done}")
    return done.stdout != b"6"


def _peak() -> int:
    """This process's, in KiB. `getrusage` would count what started it, too."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])


def output_kept() -> bool:
    sandbox = start(output=MIB)
    before = _peak()
    done = sandbox.exec(["head", "-c", "60M", "/dev/zero"])
    if not done.ok or not done.truncated:
        raise ProbeError(f"exit code {done.exit_code}")
    return _peak() - before < 20 * 1024


def endless_output() -> bool:
    # Not without end, so that it ends by itself where nobody stops it.
    done = start(output=1024).exec(["head", "-c", "64M", "/dev/zero"], timeout=60)
    return one_of(str(done.exit_code), holds="137", gone="0")


def device_nodes_of_its_own() -> bool:
    first, second = start(), start()
    holder = first.popen(["bash", "-c", "exec 9>/dev/null; flock 9 && echo y; sleep 60"],
                         channels={})  # fmt: skip
    if os.read(holder.fds[1], 1) != b"y":
        raise ProbeError("no lock")
    found = str(run("exec 9>/dev/null; flock -n 9 || exit 3", second).exit_code)
    return one_of(found, holds="0", gone="3")


def timeout_kills_sessions() -> bool:
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine, it does not run so soon
        sandbox = start()
        done = sandbox.exec(["bash", "-c", "setsid -f sleep 99; echo y; sleep 99"], timeout=seconds)
        if not done.timed_out:
            raise ProbeError(f"it ended: {done}")
        if done.stdout:
            return not sandbox.processes()
    raise ProbeError("it did not run")


@contextmanager
def _caller() -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Another caller with a sandbox, its spawner, and a process in the sandbox."""
    marker = new_marker()
    code = (
        "import sys; from mutation import tools; s = tools.start();"
        f"s.popen(['sleep', {marker!r}], channels={{}}); print(tools.spawner(), flush=True);"
        "sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as caller:
        assert caller.stdout is not None
        line = caller.stdout.readline()
        if not line.strip().isdigit():
            raise ProbeError("the caller did not start")
        spawned = int(line)
        try:
            yield caller, spawned, wait_for(marker)
        finally:
            caller.kill()
            if not ends(spawned, looks=50):
                with suppress(ProcessLookupError):
                    os.kill(spawned, signal.SIGKILL)


def caller_killed() -> bool:
    with _caller() as (caller, spawned, inside):
        caller.kill()
        caller.wait()
        return ends(inside) and ends(spawned)


def spawner_killed() -> bool:
    # The caller lives on, and holds on to the sandbox's socket.
    with _caller() as (_, spawned, inside):
        os.kill(spawned, signal.SIGKILL)
        return ends(inside)


def main(module: str, name: str, src: str) -> int:
    try:
        folders = [Path(folder).resolve() for folder in src.split(os.pathsep)]
        for loaded in (intercode, intercode_sandbox):
            if not any(Path(str(loaded.__file__)).resolve().is_relative_to(f) for f in folders):
                raise ProbeError(f"{loaded.__file__} is not in {src}")
        probe: Callable[[], bool] = getattr(importlib.import_module(module), name)
        return HOLDS if probe() else GONE
    except SkippedError as why:
        print(why)
        return SKIPPED
    except Exception:  # noqa: BLE001 - it must not count as a defence that is gone
        traceback.print_exc()
        return BROKEN
    finally:
        get_provider().close()
        if name.startswith(DOCKER):
            get_provider("docker").close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
