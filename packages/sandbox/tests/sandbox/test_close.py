"""What `close()` means: all that ran has ended, and nobody else's end, or fork, matters."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode_sandbox import Provider, SandboxBackend
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.native import cgroup, wire
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.ownership import register_finalizer
from intercode_sandbox.privileges import is_root
from waiting import eventually, new_marker, sleepers

from . import Run, Start

pytestmark = pytest.mark.ordinary

VFORK = """
my ($clone, $getpid, $kill) = `uname -m` =~ /aarch64/ ? (220, 172, 129) : (56, 39, 62);
if (syscall($clone, 0x4111 + %d, 0, 0, 0, 0) == 0) { syscall($kill, syscall($getpid), 19) }
"""
"""A child that has its parent's memory stops: CLONE_VFORK, CLONE_VM, SIGCHLD, SIGSTOP."""
CLONE_PARENT = 0x8000


def stopped_pair(sandbox: SandboxBackend, flags: int = 0) -> None:
    sandbox.popen(["perl", "-e", VFORK % flags], channels={})
    look = ["bash", "-c", "cat /proc/[0-9]*/stat"]
    assert eventually(lambda: b"(perl) T" in sandbox.exec(look).stdout)


def process_1(marker: str) -> int:
    """The parent of the only sleeper, as the machine sees it."""
    stat = Path(f"/proc/{sleepers(marker)[0]}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


# -- everything has ended ------------------------------------------------------------------------


@pytest.mark.attack(8)
@pytest.mark.defends("host DoS")
@pytest.mark.parametrize("hold", ["nothing", "process 1 stands still", "vfork", "many"])
def test_when_it_returns_all_has_ended(start: Start, provider: Provider, hold: str) -> None:
    sandbox, marker = start(), new_marker()
    sandbox.popen(["sleep", marker], channels={})
    assert eventually(lambda: sleepers(marker))
    if hold == "process 1 stands still":
        os.kill(process_1(marker), signal.SIGSTOP)
    elif hold == "vfork":
        stopped_pair(sandbox)
    elif hold == "many":
        sandbox.exec(["bash", "-c", "for i in {1..100}; do setsid -f sleep $0; done", marker])
    sandbox.close()
    assert sleepers(marker) == []


def test_a_provider_that_is_closed_has_ended_all(provider: Provider) -> None:
    marker = new_marker()
    with closing(type(provider)()) as own:
        boxes = [own.start() for _ in range(5)]
        for box in boxes:
            box.popen(["sleep", marker], channels={})
        assert eventually(lambda: len(sleepers(marker)) == 5)
    assert sleepers(marker) == []


@pytest.mark.attack(33)
@pytest.mark.defends("host DoS")
def test_shared_memory_goes_with_its_processes(sandbox: SandboxBackend, sh: Run) -> None:
    other = is_root()
    for user in ("0", "1000") if other else ("0",):
        made = sandbox.exec(["ipcmk", "-M", "1000000", "-S", "2", "-Q"], user=user)
        assert made.ok, made
    count = "cat /proc/sysvipc/{shm,sem,msg} | grep -vc key"
    assert int(sh(count).stdout) == (6 if other else 3)
    sandbox.kill()
    assert int(sh(count).stdout) == 0


@pytest.mark.attack(34)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize("flags", [0, CLONE_PARENT])
@pytest.mark.timeout(12)  # less than the patience of a process 1 that does wait
def test_who_waits_for_a_stopped_child_is_not_waited_for(flags: int) -> None:
    with closing(NativeProvider()) as provider:
        sandbox = provider.start()
        stopped_pair(sandbox, flags)
        assert sandbox.changes() == []
        sandbox.snapshot().delete()


def test_a_program_that_is_stopped_before_it_begins(sandbox: SandboxBackend) -> None:
    """It has its user by then, whom other programs may signal."""
    stop = "while (1) { kill STOP => grep { $_ > 1 && $_ != $$ } map { m{(\\d+)} } </proc/[0-9]*> }"
    stopper = sandbox.popen(["perl", "-e", stop], channels={})
    for _ in range(20):
        started = sandbox.popen(["true"], channels={})
        sandbox.kill(keep=[stopper.pid])
        assert eventually(lambda started=started: started.poll() is not None)
        started.close()
    stopper.close()
    assert sandbox.exec(["true"]).ok


@pytest.mark.attack(39)
@pytest.mark.defends("host DoS")
def test_no_cgroup_outlives_a_spawner_that_was_killed() -> None:
    with closing(NativeProvider()) as provider:
        sandboxes = [provider.start() for _ in range(3)]
        spawner = provider._running_spawner()
        folders = [Path(parent, cgroup.PREFIX + spawner.name) for parent in cgroup.parents()]
        assert not is_root() or any(folder.is_dir() for folder in folders)
        spawner.process.kill()
        spawner.process.wait()
        provider.start().close()
        assert not any(folder.exists() for folder in folders)
        for sandbox in sandboxes:
            sandbox.close()


# -- forks of the caller, and what it does with signals ------------------------------------------

CALLER = """
import ctypes, os, signal, sys, time
from intercode_sandbox.errors import InterCodeError, SandboxClosedError
from intercode_sandbox import get_provider
marker = sys.argv[1]
def begin():
    global provider, box
    provider = get_provider()
    box = provider.start()
    box.exec(["bash", "-c", "setsid -f sleep $0", marker])
def fork(raw):
    return ctypes.CDLL(None).fork() if raw else os.fork()
"""


def run(program: str, marker: str = "0", **options: object) -> subprocess.CompletedProcess[str]:
    """A program after CALLER's lines. It ends well, and in time."""
    return subprocess.run(
        [sys.executable, "-c", CALLER + program, marker],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        **options,  # type: ignore[call-overload]
    )


@pytest.fixture
def marker() -> Iterator[str]:
    name = new_marker()
    yield name
    for pid in sleepers(name):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.attack(18)
@pytest.mark.defends("host DoS")
@pytest.mark.parametrize("raw", [False, True], ids=["fork", "a fork that runs no Python"])
def test_a_fork_of_the_caller_does_not_delay_it(raw: bool, marker: str) -> None:
    program = f"""
begin()
child = fork({raw})
if child == 0:
    os.read(0, 1)
    os._exit(0)
def late(*_):
    print("late"); os.kill(child, 9); os._exit(1)
signal.signal(signal.SIGALRM, late)
import intercode_sandbox.native.provider as client
client._START_SECONDS = client.END_SECONDS = 10_000
signal.alarm(60)
provider.close()
signal.alarm(0)
os.kill(child, 9)
print("closed")
"""
    read, write = os.pipe()
    try:
        done = run(program, marker, stdin=read)
    finally:
        os.close(read)
        os.close(write)
    assert done.stdout == "closed\n", done
    assert sleepers(marker) == []


@pytest.mark.attack(18)
@pytest.mark.defends("host DoS")
@pytest.mark.parametrize("raw", [False, True], ids=["fork", "a fork that runs no Python"])
def test_a_fork_of_the_caller_does_not_keep_it_alive(raw: bool, marker: str) -> None:
    """The caller is killed, and its child lives on."""
    program = f"""
begin()
child = fork({raw})
if child == 0:
    os.read(0, 1)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    read, write = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", CALLER + program, marker], stdin=read, stdout=subprocess.PIPE
        ) as caller:
            assert caller.stdout is not None
            child = int(caller.stdout.readline())
            caller.wait()
            assert eventually(lambda: not sleepers(marker))
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.attack(19)
@pytest.mark.defends("peer DoS")
def test_a_fork_leaves_its_parents_things_alone(marker: str) -> None:
    program = """
begin()
box.write_file("/x", b"y")
saved = box.snapshot()
shell = box.popen(["bash"], channels={0: "r"})
if (child := os.fork()) == 0:
    for use in (box.changes, lambda: box.exec(["true"]), lambda: box.read_file("/x")):
        try:
            use()
        except SandboxClosedError:
            continue
        os._exit(3)
    os.write(shell.fds[0], b"rm /x\\n")
    shell.close()
    box.close()
    del box, shell
    own = provider.start("host")
    ok = own.exec(["true"]).ok
    own.close()
    sys.exit(0 if ok else 4)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os.write(shell.fds[0], b"echo parent; exit 7\\n")
said = os.read(shell.fds[1], 100)
print(code, box.read_file("/x"), box.processes() != [], said)
print(provider.start(saved).read_file("/x"), len(saved.image.layers))
provider.close()
"""
    done = run(program, marker)
    assert done.stdout == "0 b'y' True b'parent\\n'\nb'y' 2\n", done


@pytest.mark.attack(20)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize("how", ["blocked", "ignored"])
def test_a_caller_that_does_not_hear_of_its_children(how: str) -> None:
    mute = {
        "blocked": "signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())",
        "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    }[how]
    program = f"""
{mute}
begin()
done = box.exec(["grep", "^Sig[BI]", "/proc/self/status"])
own = 3 << 31  # the C library's, of what it starts
masks = [int(line.split()[1], 16) & ~own for line in done.stdout.splitlines()]
print(done.exit_code, done.timed_out, masks)
provider.close()
"""
    assert run(program).stdout == "0 False [0, 0]\n"


@pytest.mark.attack(21)
@pytest.mark.defends("self DoS")
def test_few_descriptors_are_told_of_or_suffice() -> None:
    program = """
import resource
def limited(most):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
limited(1024)
begin()
programs = [box.popen(["cat"], channels={0: "r"}) for _ in range(60)]
print(box.exec(["echo", "x"]).stdout, all(p.poll() is None for p in programs))
provider.close()
limited(256)
from intercode_sandbox.native.provider import NativeProvider
try:
    NativeProvider().start()
except InterCodeError as error:
    print(type(error).__name__, "may open only 256" in str(error))
"""
    done = run(program)
    assert done.stdout == "b'x\\n' True\nSandboxUnavailableError True\n", done


def test_work_is_done_by_its_owner_alone() -> None:
    class Thing:
        pass

    done: list[int] = []
    thing = Thing()
    register_finalizer(thing, done.append, 1)
    child = os.fork()
    if child == 0:
        del thing
        os._exit(len(done))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del thing
    assert done == [1]


def test_a_spawner_that_is_refused_a_descriptor_keeps_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs: list[socket.socket] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        pairs.extend(made := make_pair())
        monkeypatch.setattr(os, "pidfd_open", refused)
        return made

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor is left")

    make_pair = wire.pair
    monkeypatch.setattr(wire, "pair", pair)
    with pytest.raises(SandboxError, match="descriptor"):
        NativeProvider().start()
    assert pairs and {end.fileno() for end in pairs} == {-1}
