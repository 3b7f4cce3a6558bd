"""Probes of what a caller is told, of what is left to it, and of its own forks and signals."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from intercode.errors import (
    EnvironmentStateError,
    OutputLimitError,
    SandboxError,
    SandboxUnavailableError,
)
from intercode_sandbox import SandboxBackend, get_provider
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native import cgroup, frozen_layers, process, wire
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.native.snapshot import NativeSnapshot, endings
from intercode_sandbox.ownership import CallGuard
from intercode_sandbox.units import MIB
from sources import path_of
from waiting import eventually, new_marker

from .tools import ProbeError, ends, host_pid, one_of, run, say, start, wait_for

SANDBOX_TESTS = str(path_of("sandbox"))

# -- the host's disk ---------------------------------------------------------------------------


@contextmanager
def _saved() -> Iterator[tuple[NativeSnapshot, Path]]:
    sandbox = start()
    say("cp /bin/true /x; chmod 4755 /x", sandbox)
    snapshot = sandbox.snapshot()
    assert isinstance(snapshot, NativeSnapshot)
    yield snapshot, snapshot.image.layers[-1]
    snapshot.delete()


def private_layers() -> bool:
    with _saved() as (_, layer):
        (cache_root() / "snapshots").chmod(0o755)  # as it was left by an earlier version
        with _saved():
            modes = [path.stat().st_mode & 0o077 for path in (layer.parent, layer.parents[1])]
        return one_of(str(any(modes)), holds="False", gone="True")


def frozen_for_good() -> bool:
    """Whether a file that can still be written is not frozen, but copied."""
    sandbox = start()
    assert isinstance(sandbox, NativeSandbox)
    _, [fd] = sandbox._request({"op": "create", "path": "/file", "mode": 0o644})
    with open(fd, "wb", buffering=0) as file, closing(get_provider()) as provider:
        fork = provider.start(sandbox.freeze())
        with suppress(OSError):
            file.write(b"late")
        return one_of(fork.read_file("/file").decode(), holds="", gone="late")


def frozen_counts() -> bool:
    sandbox = start(disk=8 * MIB)
    assert isinstance(sandbox, NativeSandbox)
    sandbox.exec(["bash", "-c", "head -c 6M /dev/zero > /a"])
    sandbox.freeze()
    filled = sandbox.exec(["bash", "-c", "head -c 6M /dev/zero > /b"])
    return one_of(str(filled.ok), holds="False", gone="True")


def frozen_bound() -> bool:
    sandbox = start()
    assert isinstance(sandbox, NativeSandbox)
    sandbox.write_file("/x", bytes(MIB))
    os.environ[frozen_layers.MAX_BYTES_VARIABLE] = "1"
    try:
        sandbox.freeze()
    except SandboxError:
        return True
    finally:
        del os.environ[frozen_layers.MAX_BYTES_VARIABLE]
    return False


def no_setuid_on_disk() -> bool:
    with _saved() as (_, layer):
        return one_of(f"{(layer / 'x').stat().st_mode & 0o7777:o}", holds="755", gone="4755")


def read_only_cache() -> bool:
    start()
    program = (
        "from intercode.errors import InterCodeError\n"
        "from intercode_sandbox import get_provider\n"
        "try:\n    get_provider().start()\n"
        "except InterCodeError as error: print('told')\nexcept OSError: print('raw')"
    )
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", script, "-", str(cache_root()), sys.executable, program],
        stdout=subprocess.PIPE,
    )
    return one_of(done.stdout.decode().strip(), holds="told", gone="raw")


def bounded_paths() -> bool:
    sandbox = start()
    deep = 'for (1 .. 290) { mkdir "x" x 250; chdir "x" x 250 or die }'
    files = 'for (1 .. 600) { open my $f, ">", $_ or die }'
    if not sandbox.exec(["perl", "-e", deep + files], cwd="/tmp").ok:
        raise ProbeError("it could not be made")
    try:
        sandbox.changes()
    except SandboxError as error:
        if "MiB" not in str(error):
            raise
        return True
    return False


def sockets_are_saved() -> bool:
    sandbox = start()
    script = "socket S, AF_UNIX, SOCK_STREAM, 0; bind S, sockaddr_un('s') or die"
    if not sandbox.exec(["perl", "-MSocket", "-e", script], cwd="/root").ok:
        raise ProbeError("it could not be made")
    with closing(get_provider().start(sandbox.snapshot())) as again:
        return again.exec(["test", "-S", "/root/s"]).ok


def nothing_is_left_out() -> bool:
    sandbox = start()
    if not sandbox.exec(["perl", "-e", "for (1 .. 305) { mkdir 1; chdir 1 }"], cwd="/root").ok:
        raise ProbeError("it could not be made")
    try:
        sandbox.snapshot().delete()
    except OutputLimitError:
        return True
    return False


def read_once() -> bool:
    sandbox = start()
    assert isinstance(sandbox, NativeSandbox) and sandbox._process is not None
    say("head -c 1M /dev/urandom > /a; for i in {1..50}; do ln /a /a$i; done", sandbox)
    before = _bytes_read(sandbox._process.pid)
    if len(found := [change for change in sandbox.changes() if change.type == "file"]) != 51:
        raise ProbeError(f"not 51 alike: {found}")
    return _bytes_read(sandbox._process.pid) - before < 10 * MIB


def _bytes_read(pid: int) -> int:
    """Return the bytes that a process has read so far."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def holes_stay_holes() -> bool:
    sandbox = start()
    say("for i in {1..40}; do echo x | dd of=/x bs=1M seek=$i status=none; done", sandbox)
    snapshot = sandbox.snapshot()
    assert isinstance(snapshot, NativeSnapshot)
    return (snapshot.image.layers[-1] / "x").stat().st_blocks * 512 < 1 << 20


# -- process 1's own things ----------------------------------------------------------------------


def magic_links() -> bool:
    sandbox = start()
    entered = 0
    for number in range(32):
        with suppress(OSError):
            entered += sandbox.exec(["true"], cwd=f"/proc/self/fd/{number}").ok
    return one_of(str(entered > 0), holds="False", gone="True")


def files_of_process_1() -> bool:
    sandbox = start()
    say("ln -s /proc/self/maps /x", sandbox)
    try:
        return not sandbox.read_file("/x")
    except PermissionError:
        return True


# -- the end -------------------------------------------------------------------------------------


def _sleeper(sandbox: SandboxBackend) -> tuple[int, int]:
    """A program in it, and process 1, as seen from outside."""
    marker = new_marker()
    sandbox.popen(["sleep", marker], channels={})
    pid = wait_for(marker)
    return pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def close_kills() -> bool:
    sandbox = start()
    program, process_1 = _sleeper(sandbox)
    os.kill(process_1, signal.SIGSTOP)
    sandbox.close()
    held = not Path(f"/proc/{program}").exists()
    if not held:
        os.kill(process_1, signal.SIGKILL)
    return held


def slow_ends_are_kept() -> bool:
    process.END_SECONDS = 0.1  # allow limit: it does not end before it is let go
    sandbox = start()
    program, _ = _sleeper(sandbox)
    over, begun = threading.Event(), threading.Event()

    def trace() -> None:  # what is traced stays until its tracer, this thread, has ended
        ctypes.CDLL(None).ptrace(0x4206, program, 0, 0)
        begun.set()
        over.wait()

    tracer = threading.Thread(target=trace)
    tracer.start()
    begun.wait()
    sandbox.close()
    spawner = get_provider()._running_spawner()  # type: ignore[attr-defined]
    spawner.evidence("")  # the answer comes after what was told before
    held = spawner.name in [ending.lease for ending in endings()]
    over.set()
    tracer.join()
    return held


def forks_do_not_delay() -> bool:
    provider = NativeProvider()
    provider.start()
    child = ctypes.CDLL(None).fork()
    if child == 0:
        signal.pause()
    process = provider._running_spawner().process
    provider.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return one_of(str(process.returncode), holds="0", gone="-9")


def owner_is_watched() -> bool:
    marker = new_marker()
    code = (
        "import ctypes, os, signal; from mutation import tools; s = tools.start();"
        f"s.popen(['sleep', {marker!r}], channels={{}}); child = ctypes.CDLL(None).fork()\n"
        "if child == 0: signal.pause()\n"
        "print(child, tools.spawner(), flush=True); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        child, spawner = map(int, caller.stdout.readline().split())
    found = host_pid(marker)
    held = found is None or ends(found, looks=100)
    for pid in (child, spawner):
        if not held or pid == child:
            os.kill(pid, signal.SIGKILL)
    return held


def _in_a_fork(work: str, *things: object) -> int:
    child = os.fork()
    if child == 0:
        try:
            getattr(things[0], work)()
            os._exit(0)
        except SandboxError:
            os._exit(1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forks_disown() -> bool:
    sandbox = start()
    _in_a_fork("kill_all", sandbox)
    try:
        return run("true", sandbox).ok
    except SandboxError:
        return False


def finalizers_of_forks() -> bool:
    with _saved() as (snapshot, layer):
        _in_a_fork("delete", snapshot)
        return layer.exists()


def signals_of_the_caller() -> bool:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        blocked = say("grep SigBlk /proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return not int(blocked.split()[-1], 16) >> (signal.SIGTERM - 1) & 1


def few_descriptors() -> bool:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    try:
        start()
    except SandboxError as error:
        return isinstance(error, SandboxUnavailableError)
    raise ProbeError("they suffice")


def shared_memory() -> bool:
    sandbox = start()
    say("ipcmk -M 4096", sandbox)
    sandbox.kill()
    return one_of(say("grep -vc key /proc/sysvipc/shm; :", sandbox), holds="0", gone="1")


def vfork_is_not_awaited() -> bool:
    with closing(NativeProvider()) as provider:
        sandbox = provider.start()
        script = (
            "my ($clone, $getpid, $kill) = `uname -m` =~ /aarch/ ? (220, 172, 129) : (56, 39, 62);"
            "syscall($clone, 0x4111, 0, 0, 0, 0) or syscall($kill, syscall($getpid), 19)"
        )
        sandbox.popen(["perl", "-e", script], channels={})
        if not eventually(lambda: "(perl) T" in say("cat /proc/[0-9]*/stat; :", sandbox)):
            raise ProbeError("it did not stop")
        try:
            return sandbox.changes() == []
        except SandboxError:
            return False


def cgroups_of_the_killed() -> bool:
    with closing(NativeProvider()) as provider:
        provider.start()
        spawner = provider._running_spawner()
        names = [Path(parent, cgroup.PREFIX + spawner.name) for parent in cgroup.parents()]
        if not any(path.is_dir() for path in names):
            raise ProbeError("there is no cgroup")
        spawner.process.kill()
        spawner.process.wait()
        provider.start()
        return not any(path.exists() for path in names)


# -- the wire ------------------------------------------------------------------------------------


def answers_to_one_question() -> bool:
    sandbox = start()
    say("echo a > /a; echo b > /b", sandbox)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    receive, wire.receive = wire.receive, interrupted  # type: ignore[assignment]
    try:
        sandbox.read_file("/a")
    except KeyboardInterrupt:
        pass
    finally:
        wire.receive = receive
    try:
        return one_of(sandbox.read_file("/b").decode(), holds="", gone="a\n")
    except SandboxError:
        return True


def processes_without_a_first_thread() -> bool:
    sandbox = start()
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = sandbox.popen(["/usr/bin/python3", "-c", program], channels={})
    look = f"grep State /proc/{process.pid}/status"
    if not eventually(lambda: "zombie" in say(look, sandbox)):
        raise ProbeError("it did not become one")
    return process.pid in sandbox.processes()


def closed_calls() -> bool:
    """Whether a call under whose hands a thing is closed fails."""
    calls = CallGuard("this thing")
    try:
        with calls:
            calls.cut()
    except EnvironmentStateError:
        return True
    return False
