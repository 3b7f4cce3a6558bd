"""Start, close, and what is left when something on the way is killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from intercode_sandbox import Limits, Provider, SandboxBackend, get_provider
from intercode_sandbox.errors import SandboxClosedError, SandboxError
from intercode_sandbox.native.provider import NativeProvider
from waiting import PATIENCE, eventually, new_marker, sleepers

from . import Run, Start

pytestmark = pytest.mark.ordinary


def wait_for(marker: str, count: int = 1) -> None:
    """Until so many of them sleep."""
    assert eventually(lambda: len(sleepers(marker)) >= count)


def ended(marker: str) -> bool:
    """Whether all of them end."""
    return eventually(lambda: not sleepers(marker))


def test_close_is_idempotent(start: Start) -> None:
    sandbox = start()
    sandbox.close()
    sandbox.close()
    for use in (sandbox.changes, sandbox.snapshot, sandbox.kill, lambda: sandbox.exec(["true"])):
        with pytest.raises(SandboxClosedError):
            use()


@pytest.mark.case(45)
@pytest.mark.defends("host DoS")
def test_nothing_outlives_the_sandbox(start: Start) -> None:
    marker = new_marker()
    sandbox = start()
    sandbox.exec(
        ["bash", "-c", f"setsid setsid sleep {marker} & (trap '' TERM HUP; sleep {marker}) & :"]
    )
    wait_for(marker, 2)
    sandbox.close()
    assert ended(marker)


def test_close_from_another_thread_ends_a_wait(start: Start) -> None:
    sandbox, marker = start(), new_marker()

    def close() -> None:
        wait_for(marker)
        sandbox.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(SandboxClosedError):
        sandbox.exec(["sleep", marker], timeout=4000)
    closer.join()


def test_each_is_fresh(start: Start) -> None:
    one = start()
    one.exec(["bash", "-c", "echo x > /tmp/x; rm -rf /etc /opt; chmod 0 /root"])
    assert start().changes() == []
    assert start().exec(["ls", "/tmp", "/etc/passwd"]).stdout == b"/etc/passwd\n\n/tmp:\n"


def test_many_at_once(provider: Provider) -> None:
    names = [str(number) for number in range(24)]
    started: dict[str, SandboxBackend] = {}

    def one(name: str) -> None:
        started[name] = provider.start("host")
        started[name].write_file("/tmp/name", name.encode())

    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [started[name].read_file("/tmp/name").decode() for name in names] == names
    for sandbox in started.values():
        sandbox.close()


def test_an_unknown_provider() -> None:
    with pytest.raises(ValueError, match="native"):
        get_provider("nope")


def test_descriptors_are_not_leaked(provider: Provider) -> None:
    def cycle() -> None:
        sandbox = provider.start("host", Limits(timeout=0.1))  # allow limit: they sleep on
        shell = sandbox.popen(["bash"], channels={0: "r"})
        sandbox.exec(["sleep", "999"])
        with pytest.raises(FileNotFoundError):
            sandbox.exec(["true"], cwd="/nope")
        with pytest.raises(FileNotFoundError):
            sandbox.read_file("/nope")
        sandbox.snapshot().delete()
        shell.close()
        sandbox.close()

    for _ in range(6):  # until as many containers and connections wait as are kept
        cycle()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(6):
        cycle()
    before += 3  # of what waits, there may be more or less; what leaks, leaks in every cycle

    def no_more() -> bool:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) <= before

    assert eventually(no_more), "what waits has been made ready by now"


@pytest.mark.case(50)
def test_zombies_are_reaped(sandbox: SandboxBackend, sh: Run) -> None:
    for _ in range(10):
        sh("for i in {1..20}; do (exec setsid -f true) & done")
    listed = "echo /proc/[0-9]*"  # process 1, and the shell that lists them
    assert eventually(lambda: len(sh(listed).stdout.split()) == 2), sh(listed)
    assert len(sandbox.processes()) == 0


@pytest.mark.case(48, 66)
@pytest.mark.defends("self DoS")
def test_a_sandbox_survives_its_programs(sandbox: SandboxBackend, sh: Run) -> None:
    sh("kill -9 -1; kill -9 1; kill -STOP 1; kill -SEGV 1")
    sh("rm -rf --no-preserve-root / 2>/dev/null", timeout=PATIENCE)  # what cannot go, is much
    assert sandbox.exec(["/usr/bin/env", "true"], cwd="/").exit_code in (0, 126, 127)
    assert {change.kind for change in sandbox.changes()} == {"deleted"}
    sandbox.write_file("/tmp/new/file", b"x")
    assert sandbox.read_file("/tmp/new/file") == b"x"


@pytest.mark.case(81)
@pytest.mark.defends("host DoS")
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.02])
def test_the_spawner_is_killed(delay: float) -> None:
    """Whenever it is: nothing is left, the caller is told, and the next start works."""
    provider = NativeProvider()
    marker = new_marker()
    sandbox = provider.start("host")
    sandbox.exec(["bash", "-c", f"setsid sleep {marker} & sleep {marker} & :"])
    wait_for(marker, 2)
    spawner = provider._spawner
    assert spawner is not None
    killer = threading.Timer(delay, spawner.process.kill)
    killer.start()
    more = []
    try:
        for _ in range(200):
            more.append(provider.start("host"))
            more.pop().close()
            if spawner.process.poll() is not None:
                break
    except SandboxError:
        pass
    killer.join()
    assert ended(marker)
    with pytest.raises(SandboxError):
        sandbox.exec(["true"])
    again = provider.start("host")
    assert again.exec(["true"]).ok
    provider.close()
    assert ended(marker)


def opened() -> set[str]:
    """What this process has open, by names like ``pipe:[4711]``."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it has just been closed
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def test_a_program_is_closed_while_its_sandbox_dies() -> None:
    provider, marker = NativeProvider(), new_marker()
    sandbox = provider.start("host")
    program = sandbox.popen(["sleep", marker], channels={})
    wait_for(marker)
    stat = Path(f"/proc/{sleepers(marker)[0]}/stat").read_text()
    process_1 = int(stat.rpartition(")")[2].split()[1])
    os.kill(process_1, signal.SIGSTOP)

    def die() -> None:
        eventually(sandbox._lock.locked)  # it has been asked, and cannot answer
        os.kill(process_1, signal.SIGKILL)

    pipes = {os.readlink(f"/proc/self/fd/{fd}") for fd in (program.fds[1], program.exit_fd)}
    killer = threading.Thread(target=die)
    killer.start()
    program.close()
    killer.join()
    assert len(pipes) == 2 and not pipes & opened()
    provider.close()


@pytest.mark.case(81)
@pytest.mark.defends("host DoS")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_caller_is_killed(number: int) -> None:
    marker = new_marker()
    program = (
        "import sys, time; from intercode_sandbox import get_provider; "
        "box = get_provider().start('host'); "
        f"box.exec(['bash', '-c', 'setsid sleep {marker} & :']); print('up', flush=True)\n"
        "for _ in range(600): time.sleep(0.1)"  # a long one may miss an interrupt
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"up\n"
        wait_for(marker)
        caller.send_signal(number)
    assert ended(marker)
