"""Sandboxes that the kernel does not end in time: nobody waits for them, and they are counted."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from intercode_sandbox import SandboxBackend
from intercode_sandbox.doctor import check_native
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native import cgroup, process
from intercode_sandbox.native.exit_ledger import (
    LEDGERS,
    EndingSandbox,
    open_ledger,
    read_ledgers,
    write_ledger,
)
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.snapshot import endings, sweep
from waiting import eventually, new_marker, sleepers

pytestmark = pytest.mark.ordinary

SEIZE = 0x4206


@contextmanager
def kept_from_ending(sandbox: SandboxBackend) -> Iterator[None]:
    """Keep a sandbox from its end, whoever kills it."""
    marker = new_marker()
    sandbox.popen(["sleep", marker], channels={})
    with traced_sleeper(marker):
        yield


@contextmanager
def traced_sleeper(marker: str) -> Iterator[None]:
    """Trace a sleeper: a traced process that was killed stays until its tracer goes."""
    assert eventually(lambda: sleepers(marker))
    traced: list[int] = []
    begun, over = threading.Event(), threading.Event()

    def trace() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        traced.append(libc.ptrace(SEIZE, sleepers(marker)[0], 0, 0))
        begun.set()
        over.wait()  # the end of this thread ends what it traces

    tracer = threading.Thread(target=trace)
    tracer.start()
    begun.wait()
    try:
        assert traced == [0]
        yield
    finally:
        over.set()
        tracer.join()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeProvider]:
    """A provider of its own, whose sandboxes are not waited for long."""
    seconds = 0.1  # allow limit: what is traced does not end before it is let go
    monkeypatch.setattr(process, "END_SECONDS", seconds)
    monkeypatch.setattr("intercode_sandbox.native.provider.END_SECONDS", seconds)
    with closing(NativeProvider()) as own:
        yield own


def of(provider: NativeProvider) -> list[EndingSandbox]:
    lease = provider._running_spawner().name
    return [ending for ending in endings() if ending.lease == lease]


def cgroups_of(ending: EndingSandbox) -> list[Path]:
    folders = (Path(p, cgroup.PREFIX + ending.lease, ending.name) for p in cgroup.parents())
    return [folder for folder in folders if folder.is_dir()]


@pytest.mark.defends("host DoS", "peer DoS")
def test_a_sandbox_that_does_not_end_is_its_spawners(provider: NativeProvider) -> None:
    sandbox = provider.start()
    with kept_from_ending(sandbox):
        sandbox.close()
        assert eventually(lambda: of(provider))
        (ending,) = of(provider)
        assert Path(f"/proc/{ending.pid}").exists()
        held = cgroups_of(ending)
        with closing(provider.start()) as peer:
            assert peer.exec(["true"]).ok
        assert [entry.pid for entry in of(provider)] == [ending.pid]
        assert cgroups_of(ending) == held
    assert eventually(lambda: not of(provider))
    assert not Path(f"/proc/{ending.pid}").exists()
    assert eventually(lambda: not cgroups_of(ending))


@pytest.mark.defends("host DoS")
def test_its_ids_are_nobody_elses(provider: NativeProvider) -> None:
    def ids(sandbox: SandboxBackend) -> bytes:
        return sandbox.exec(["cat", "/proc/self/uid_map"]).stdout + os.fsencode(
            os.readlink(f"/proc/{sandbox._process.pid}/ns/user")  # type: ignore[attr-defined]
        )

    sandbox = provider.start()
    before = ids(sandbox)
    with kept_from_ending(sandbox):
        sandbox.close()
        for _ in range(3):
            with closing(provider.start()) as peer:
                assert ids(peer) != before


def test_a_provider_does_not_wait(provider: NativeProvider) -> None:
    """Its spawner stays until the end, with the sandboxes' cgroups, which no sweep removes."""
    sandbox = provider.start()
    spawner = provider._running_spawner()
    with kept_from_ending(sandbox):
        provider.close()
        assert spawner.process.poll() is None
        (ending,) = (entry for entry in endings() if entry.lease == spawner.name)
        held = cgroups_of(ending)
        assert not [path for path in sweep(dry_run=True) if spawner.name in path]
        with closing(NativeProvider()) as peer, closing(peer.start()) as other:
            assert other.exec(["true"]).ok
        assert cgroups_of(ending) == held
    assert eventually(lambda: spawner.process.poll() == 0)
    assert not cgroups_of(ending)
    assert not [entry for entry in endings() if entry.lease == spawner.name]


KILLED = """
import os, sys
from intercode_sandbox.native.provider import NativeProvider
provider = NativeProvider()
sandbox = provider.start()
sandbox.popen(["sleep", sys.argv[1]], channels={})
print(provider._running_spawner().name, flush=True)
sys.stdin.read()
"""


def test_a_caller_that_is_killed_leaves_a_spawner_that_waits() -> None:
    marker = new_marker()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, marker], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as caller:
        assert caller.stdout is not None
        lease = caller.stdout.readline().decode().strip()
        with traced_sleeper(marker):
            caller.kill()
            assert eventually(lambda: any(entry.lease == lease for entry in endings()))
    assert eventually(lambda: not any(entry.lease == lease for entry in endings()))


def test_doctor_counts_it(provider: NativeProvider) -> None:
    sandbox = provider.start()
    with kept_from_ending(sandbox):
        sandbox.close()
        assert eventually(lambda: of(provider))
        (ending,) = of(provider)
        (check,) = (check for check in check_native() if check.name == "endings")
        assert check.ok is None
        assert str(ending.pid) in check.detail


def test_a_ledger_goes_with_its_spawner(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, "7-1-1-a")
    write_ledger(ledger, {"3": 70, "12": 71})
    assert read_ledgers(tmp_path) == [
        EndingSandbox("7-1-1-a", "3", 70),
        EndingSandbox("7-1-1-a", "12", 71),
    ]
    write_ledger(ledger, {"12": 71})
    assert read_ledgers(tmp_path) == [EndingSandbox("7-1-1-a", "12", 71)]
    copy = os.dup(ledger)
    os.close(ledger)
    assert read_ledgers(tmp_path) == [EndingSandbox("7-1-1-a", "12", 71)]
    os.close(copy)
    assert read_ledgers(tmp_path) == []
    assert not [*tmp_path.iterdir()]


def test_no_ledger_is_left(provider: NativeProvider) -> None:
    name = provider._running_spawner().name
    assert (cache_root() / LEDGERS / name).exists()
    provider.start().close()
    provider.close()
    assert not (cache_root() / LEDGERS / name).exists()
