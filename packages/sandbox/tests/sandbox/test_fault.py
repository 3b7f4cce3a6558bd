"""Whose fault the end of a sandbox is: the table, and each line that can be brought about."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from intercode_sandbox import Provider, SandboxBackend
from intercode_sandbox.base import FailureEvidence, was_caused_inside
from intercode_sandbox.docker import sandbox as docker_sandbox
from intercode_sandbox.docker.engine import DockerEngine
from intercode_sandbox.docker.sandbox import DockerSandbox
from intercode_sandbox.errors import (
    CausedInsideError,
    OutputLimitError,
    SandboxClosedError,
    SandboxEndedError,
    SandboxError,
    SandboxTimeoutError,
)
from intercode_sandbox.native import sandbox as native_sandbox
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from waiting import PATIENCE, eventually

from . import Start
from .test_limits import whole_sandbox_limited

pytestmark = pytest.mark.ordinary

STARVE = ["bash", "-c", "for n in {1..12}; do perl -e '$x = q(x) x 2e7; sleep' & done; wait -n"]
"""The kernel kills one of its programs, for want of memory."""


def process_1(sandbox: SandboxBackend) -> int:
    assert isinstance(sandbox, NativeSandbox) and sandbox._process is not None
    return sandbox._process.pid


def why(sandbox: SandboxBackend) -> SandboxError:
    """The error of a request to a sandbox that has ended: every later one gets the same."""
    with pytest.raises(SandboxError) as first:
        sandbox.processes()
    with pytest.raises(SandboxError) as later:
        sandbox.exec(["true"])
    assert (type(first.value), str(first.value)) == (type(later.value), str(later.value))
    return first.value


@pytest.mark.parametrize(
    ("evidence", "inside"),
    [
        (FailureEvidence(is_keeper_alive=False, running=True), False),
        (FailureEvidence(is_keeper_alive=False, exit_code=1, starved=True), False),
        (FailureEvidence(is_keeper_alive=True, was_killed_outside=True, running=True), False),
        (
            FailureEvidence(
                is_keeper_alive=True, was_killed_outside=True, exit_code=-9, starved=True
            ),
            False,
        ),
        (FailureEvidence(is_keeper_alive=True, running=True), True),
        (FailureEvidence(is_keeper_alive=True), False),
        (FailureEvidence(is_keeper_alive=True, exit_code=1), True),
        (FailureEvidence(is_keeper_alive=True, exit_code=-11), True),
        (FailureEvidence(is_keeper_alive=True, exit_code=-9), False),
        (FailureEvidence(is_keeper_alive=True, exit_code=-9, starved=True), True),
    ],
)
def test_the_table(evidence: FailureEvidence, inside: bool) -> None:
    assert was_caused_inside(evidence) is inside


def test_killed_from_outside(sandbox: SandboxBackend) -> None:
    sandbox.exec(["true"])  # one that was made ready with a program would be left for another
    os.kill(process_1(sandbox), signal.SIGKILL)
    error = why(sandbox)
    assert isinstance(error, SandboxClosedError) and not isinstance(error, CausedInsideError)


@pytest.mark.attack(11)
def test_killed_for_want_of_memory(start: Start, provider: Provider) -> None:
    if not whole_sandbox_limited(provider):
        pytest.skip("without a cgroup nobody counts")
    sandbox = start(memory=64 << 20, disk=16 << 20)
    peer = start(memory=64 << 20, disk=16 << 20)
    assert sandbox.exec(STARVE, timeout=PATIENCE).exit_code == 128 + signal.SIGKILL
    # The kernel prefers the programs, always: we stand in for it.
    os.kill(process_1(sandbox), signal.SIGKILL)
    assert isinstance(why(sandbox), SandboxEndedError)
    os.kill(process_1(peer), signal.SIGKILL)
    assert not isinstance(why(peer), CausedInsideError)


def test_stopped_from_outside(sandbox: SandboxBackend) -> None:
    assert isinstance(sandbox, NativeSandbox)
    sandbox._control.settimeout(0.1)  # allow limit: it stands still
    pid = process_1(sandbox)
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: ") T" in Path(f"/proc/{pid}/stat").read_text())
    error = why(sandbox)
    assert isinstance(error, SandboxTimeoutError) and not isinstance(error, CausedInsideError)


def test_it_runs_and_does_not_answer(
    sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(sandbox, NativeSandbox)
    sandbox.exec(["bash", "-c", "touch /tmp/{1..20000}"])
    for module in (native_sandbox, docker_sandbox):
        monkeypatch.setattr(module, "_FILES_SECONDS", 1e-4)  # allow limit: there is too much
    with pytest.raises((OutputLimitError, SandboxEndedError)):
        sandbox.changes()


def test_process_1_fails(sandbox: SandboxBackend) -> None:
    assert isinstance(sandbox, NativeSandbox)
    sandbox._control.send(b"no request")
    assert isinstance(why(sandbox), SandboxEndedError)


def test_its_keeper_is_gone(sandbox: SandboxBackend, provider: Provider) -> None:
    if isinstance(sandbox, DockerSandbox):
        sandbox.container.engine = DockerEngine("unix:///nowhere")
        os.kill(process_1(sandbox), signal.SIGKILL)
    else:
        assert isinstance(sandbox, NativeSandbox) and isinstance(provider, NativeProvider)
        assert provider._spawner is not None
        provider._spawner.process.kill()
        assert sandbox._process is not None and sandbox._process.wait(PATIENCE)
    assert not isinstance(why(sandbox), CausedInsideError)


def test_it_was_closed(sandbox: SandboxBackend) -> None:
    sandbox.close()
    error = why(sandbox)
    assert str(error) == "the sandbox is closed" and not isinstance(error, CausedInsideError)
