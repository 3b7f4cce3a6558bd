"""What is limited for a sandbox as a whole, of memory, processes and CPU: by cgroups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from groups import groups_of, told
from intercode_sandbox import Limits, SandboxBackend
from intercode_sandbox.native.cgroup import SandboxCgroups, SpawnerCgroup
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from waiting import eventually

MIB = 1 << 20
THREADS = 2
"""Of process 1."""


@pytest.fixture
def native() -> Iterator[NativeProvider]:
    provider = NativeProvider()
    yield provider
    provider.close()


@pytest.fixture
def limited(native: NativeProvider) -> NativeProvider:
    """One whose sandboxes have cgroups."""
    if native.facts()["cgroup"] == 0:
        pytest.skip("needs cgroup v1 or v2, writable")
    return native


@pytest.mark.attack(5, 16, 17, 41)
@pytest.mark.defends("host DoS", "peer DoS")
def test_what_the_kernel_was_told(limited: NativeProvider) -> None:
    sandbox = limited.start("host", Limits(memory=64 * MIB, disk=16 * MIB, processes=40))
    groups = groups_of(sandbox)
    assert [*groups] == limited.facts()["controllers"]
    if limited.facts()["cgroup"] == 1:
        assert told(groups["memory"], "memory.limit_in_bytes") == 80 * MIB
        assert told(groups["memory"], "memory.kmem.tcp.limit_in_bytes") == 10 * MIB
    else:
        assert told(groups["memory"], "memory.max") == 80 * MIB
        assert told(groups["memory"], "memory.swap.max") == 0
    if "pids" in groups:
        assert told(groups["pids"], "pids.max") == 40 + THREADS
    sandbox.close()
    limited.close()
    assert not any(group.exists() for group in groups.values())


def start_in(provider: NativeProvider, groups: dict[str, Path], limits: Limits) -> NativeSandbox:
    """Start sandboxes, one after the other, until one has these cgroups."""
    matches: list[NativeSandbox] = []

    def is_there() -> bool:
        sandbox = provider.start("host", limits)
        if groups_of(sandbox) == groups:
            matches.append(sandbox)
        else:
            sandbox.close()
        return bool(matches)

    assert eventually(is_there)
    return matches[0]


def has_peak_of_its_own(groups: dict[str, Path]) -> bool:
    names = "memory.max_usage_in_bytes", "memory.peak"
    paths = [groups["memory"] / name for name in names]
    return any(path.exists() and path.stat().st_mode & 0o200 for path in paths)


@pytest.mark.defends("host DoS", "peer DoS")
def test_cgroups_that_are_used_again_have_limits_and_figures_of_the_next(
    limited: NativeProvider,
) -> None:
    """Removing one costs the kernel time that grows with all sandboxes of the machine."""
    small, large = (Limits(memory=n * MIB, disk=64 * MIB, processes=n) for n in (64, 256))
    sandbox = limited.start("host", small)
    groups = groups_of(sandbox)
    if not has_peak_of_its_own(groups):
        pytest.skip("needs cgroup v1, or v2 of Linux 6.12")
    assert sandbox.exec(["dd", "if=/dev/zero", "of=/root/f", "bs=1M", "count=48"]).ok
    assert (sandbox.memory_peak() or 0) > 48 * MIB
    version = limited.facts()["cgroup"]
    for limits in large, small, small:
        sandbox.close()
        sandbox = start_in(limited, groups, limits)
        most = "memory.limit_in_bytes" if version == 1 else "memory.max"
        assert told(groups["memory"], most) == limits.memory + limits.disk
        assert (sandbox.memory_peak() or 0) < 48 * MIB
        if "pids" in groups:
            assert told(groups["pids"], "pids.max") == limits.processes + THREADS
        swap = groups["memory"] / "memory.memsw.limit_in_bytes"
        if swap.exists():
            assert int(swap.read_text()) == limits.memory + limits.disk


def test_of_cgroups_that_are_refused_none_is_left(tmp_path: Path) -> None:
    cgroups = SandboxCgroups("lease", os.getpid())
    for hierarchy in cgroups.hierarchies:
        os.rmdir(hierarchy.folder)
    (tmp_path / "first").mkdir()
    folders = (tmp_path / "first", tmp_path / "second")
    cgroups.hierarchies = [SpawnerCgroup(1, str(folder), ()) for folder in folders]
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="second"):
            cgroups.take("1")
    assert not any((tmp_path / "first").iterdir())


@pytest.mark.attack(9, 10)
@pytest.mark.defends("peer DoS")
def test_cgroups_that_still_hold_memory_are_nobody_elses(limited: NativeProvider) -> None:
    limits = Limits(memory=64 * MIB, disk=64 * MIB)
    sandbox = limited.start("host", limits)
    assert sandbox.exec(["dd", "if=/dev/zero", "of=/root/f", "bs=1M", "count=32"]).ok
    groups = groups_of(sandbox)
    snapshot = sandbox.freeze()
    sandbox.close()
    for _ in range(6):
        with closing(limited.start("host", limits)) as peer:
            assert groups_of(peer) != groups
    assert limited.start(snapshot, limits).read_file("/root/f")


@pytest.mark.attack(16)
def test_what_this_machine_has_is_used(native: NativeProvider) -> None:
    """Of the virtual machines of packages/sandbox/tests/cgroup2 it is known."""
    if (wanted := os.environ.get("INTERCODE_CONTROLLERS")) is None:
        pytest.skip("needs cgroup v2, in a layout that is known")
    assert native.facts()["controllers"] == wanted.split()


@pytest.mark.attack(41)
@pytest.mark.defends("peer DoS")
def test_a_sandbox_weighs_the_same_however_many_processes_it_has(limited: NativeProvider) -> None:
    """Grading's attack A4: one with 240 busy processes made others run into their time limits."""
    if "cpu" not in limited.facts()["controllers"]:
        pytest.skip("needs cgroup v1 or v2, writable, with its controller of CPU")
    other = NativeProvider()  # another environment's, with one sandbox
    try:
        greedy, modest = limited.start(), other.start()
        one = sorted(os.sched_getaffinity(0))[0]
        busy = f"taskset -c {one} bash -c 'while :; do :; done'"
        many = f"for i in {{1..12}}; do {busy} & done; wait"
        greedy.popen(["bash", "-c", many], channels={})
        modest.popen(["bash", "-c", busy], channels={})
        assert eventually(lambda: ticks(greedy) > 0 and ticks(modest) > 0)
        before = ticks(greedy), ticks(modest)
        assert eventually(lambda: ticks(greedy) + ticks(modest) > sum(before) + 150)
        spent = ticks(greedy) - before[0], ticks(modest) - before[1]
        # 1 is fair, and 12 without.
        assert spent[0] < 4 * spent[1], spent
    finally:
        other.close()


def ticks(sandbox: SandboxBackend) -> int:
    """The CPU time that a sandbox's programs have had."""
    total = 0
    for pid in sandbox.processes():
        try:
            stat = sandbox.read_file(f"/proc/{pid}/stat")
        except OSError:
            continue
        total += sum(map(int, stat.rpartition(b")")[2].split()[11:13]))
    return total


FILL_SOCKETS = """
import socket
server = socket.create_server(("127.0.0.1", 0), backlog=400)
held, total = [], 0
for _ in range(300):
    client = socket.create_connection(server.getsockname(), timeout=5)
    held += [client, server.accept()[0]]
    client.setblocking(False)
    try:
        while True:
            total += client.send(b"x" * 65536)
    except BlockingIOError:
        pass
print(total >> 20)
"""


@pytest.mark.attack(5)
@pytest.mark.defends("host DoS")
def test_what_sockets_hold_is_limited(limited: NativeProvider) -> None:
    sandbox = limited.start("host", Limits(memory=64 * MIB, disk=16 * MIB, timeout=60))
    done = sandbox.exec(["python3", "-c", FILL_SOCKETS], timeout=120)
    # Its end by the kernel is a limit, too, as version 2 has it.
    assert done.exit_code == 137 or int(done.stdout) < 80, done


LASTING = """
use IPC::SysV qw(IPC_PRIVATE S_IRUSR S_IWUSR);
while (defined(my $id = shmget(IPC_PRIVATE, 1 << 20, S_IRUSR | S_IWUSR))) {
    shmwrite($id, "x" x (1 << 20), 0, 1 << 20) or last;
}
open my $file, ">", "/dev/shm/fill"; syswrite $file, "x" x (1 << 20) for 1 .. 200;
"""


@pytest.mark.attack(6)
@pytest.mark.ordinary
@pytest.mark.defends("self DoS", "host DoS")
def test_what_outlives_programs_leaves_room(native: NativeProvider) -> None:
    sandbox = native.start("host", Limits(memory=64 * MIB, disk=16 * MIB, timeout=60))
    sandbox.exec(["perl", "-e", LASTING], timeout=60)
    held = sandbox.exec(["bash", "-c", "awk 'NR > 1 {s += $4} END {print s}' /proc/sysvipc/shm"])
    assert 16 * MIB < int(held.stdout) <= 32 * MIB, held
    assert sandbox.exec(["true"]).ok


@pytest.mark.attack(6)
@pytest.mark.defends("self DoS")
def test_process_1_is_never_ended_for_its_programs(limited: NativeProvider) -> None:
    """Grading's attack A3: memory files count for no process, so that process 1 is the largest."""
    sandbox = limited.start("host", Limits(memory=32 * MIB, disk=16 * MIB, timeout=60))
    fill = (
        "my $n = `uname -m` =~ /x86/ ? 319 : 279;"
        "while (1) { open F, '>&=', syscall($n, 'm', 0); syswrite(F, 'x' x 65536) for 1 .. 2000 }"
    )
    again = f'while :; do perl -e "{fill.replace("$", chr(92) + "$")}"; done'
    for _ in range(3):
        sandbox.popen(["bash", "-c", again.replace("`", "\\`")], channels={})
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:  # programs are started while there is no memory
        sandbox.exec(["true"])
    sandbox.kill()
    assert sandbox.exec(["true"]).ok


HANDLED = """#!/bin/sh
exec cat > {folder}/core
"""
CRASH = """
import resource, subprocess, sys
from intercode_sandbox import get_provider
done = get_provider().start().exec(["bash", "-c", "ulimit -c 0; perl -e 'kill 11, $$'"])
print(done.exit_code)
"""


@pytest.mark.attack(23)
@pytest.mark.defends("host leak", "escape")
def test_a_core_pattern_with_a_pipe_gets_nothing(tmp_path: Path) -> None:
    """What programs are told is in test_limits; a handler is set for all of a machine."""
    if "INTERCODE_CONTROLLERS" not in os.environ or os.geteuid() != 0:
        pytest.skip("not for a machine in use: make test-cgroup2 boots one")
    handler = tmp_path / "handler"
    handler.write_text(HANDLED.format(folder=tmp_path))
    handler.chmod(0o755)
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    pattern.write_text(f"|{handler} %p")
    try:
        subprocess.run(["perl", "-e", "kill 11, $$"], check=False)  # of the machine's own
        assert eventually((tmp_path / "core").exists), "the handler works"
        (tmp_path / "core").unlink()
        done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, check=True)
        assert done.stdout == b"139\n"
        assert not (tmp_path / "core").exists()  # the program is reaped after its core was dumped
    finally:
        pattern.write_text(before)
