"""A sandbox that is made ready for a request that is expected is as any, and for no other."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import closing

import pytest

from intercode.interpreters.bash import BashInterpreter
from intercode_sandbox import Limits
from intercode_sandbox.base import Snapshot
from intercode_sandbox.native.process import SandboxSlot
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.native.snapshot import SandboxStartFiles
from intercode_sandbox.units import MIB
from open_resources import children
from waiting import eventually


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["at once", "when one may be ready"])
def test_each_has_what_was_asked_for(pause: float) -> None:
    with closing(NativeProvider()) as provider:
        for mebibytes in (8, 8, 8, 16, 8, 8, 8, 8):
            sandbox = provider.start("host", Limits(disk=mebibytes * MIB))
            try:
                shown = sandbox.exec(["df", "--block-size=1M", "--output=size", "/"]).stdout
                assert int(shown.split()[-1]) == mebibytes
                assert sandbox.changes() == []
                sandbox.write_file("/left", b"behind")
                time.sleep(pause)  # allow sleep: the next may be made ready now, and need not
            finally:
                sandbox.close()


SEEN = """
echo $$ $BASHPID $SECONDS; echo /proc/[0-9]*; cd /proc/$$/fd && stat -Lc '%n %F %a %u' [0-9]*
( : > 198 ) 2>/dev/null || echo 'not mine to write'; set; ulimit -a
cat /proc/$$/status | grep -v ctxt
"""
"""A look at all that a shell that has waited for its caller could show."""


def with_a_shell(provider: NativeProvider, image: str | Snapshot = "host") -> NativeSandbox:
    """A sandbox that was made ready with a shell in it."""
    found: list[NativeSandbox] = []

    def ready() -> bool:
        sandbox = provider.start(image)
        found.append(sandbox)
        if sandbox._slot.prepared_program is not None:
            return True
        with closing(sandbox):
            BashInterpreter(sandbox).close()
        return False

    assert eventually(ready), "none was made ready"
    return found[-1]


def shown(sandbox: NativeSandbox) -> list[str]:
    with closing(BashInterpreter(sandbox)) as shell:
        lines = shell.execute(SEEN).output.decode().splitlines()
    varying = (
        "State:",
        "Vm",
        "Rss",
        "HugetlbPages",
        "NStgid",
        "EPOCH",
        "SRANDOM",
        "RANDOM",
        "SECONDS",
        "BASH_C",
    )
    return [line for line in lines if not line.startswith(varying)]


def test_a_shell_started_ahead_is_as_any() -> None:
    with closing(NativeProvider()) as provider:
        with closing(provider.start()) as first:
            expected = shown(first)
        assert "not mine to write" in expected
        with closing(with_a_shell(provider)) as sandbox:
            assert shown(sandbox) == expected


def test_a_shell_started_ahead_is_for_nothing_else() -> None:
    look = ["/bin/bash", "-c", "echo $$; echo /proc/[0-9]*"]
    with closing(NativeProvider()) as provider:
        with closing(provider.start()) as first:
            expected = first.exec(look).stdout
        with closing(with_a_shell(provider)) as sandbox:
            assert sandbox.exec(look).stdout == expected
            assert sandbox.processes() == []
        with closing(with_a_shell(provider)) as sandbox:
            sandbox.write_file("/root/other", b"")
            assert sandbox.processes() == []


def test_the_place_without_it_is_not_left() -> None:
    """Other threads' shells may make one be started ahead while it is being left for another."""
    with closing(NativeProvider()) as provider, closing(with_a_shell(provider)) as sandbox:
        shell, ready, begin = provider._first_program, with_a_shell(provider), sandbox.begin
        sandbox.on_first_program = lambda _: provider._remember_program(shell)
        sandbox.begin = lambda files, alone: begin(files, alone) if alone else ready._slot
        sandbox.write_file("/root/kept", b"1")
        assert sandbox._slot.prepared_program is None
        assert sandbox.read_file("/root/kept") == b"1"
        ready.close()


@pytest.mark.parametrize("by_shell", [True, False])
def test_a_source_gets_what_was_made_ready_for_its_forks(by_shell: bool) -> None:
    """Its shell is the one that was started ahead, else there is another place; so its forwards."""

    def says_here(connection: socket.socket) -> None:
        connection.sendall(b"here")

    with closing(NativeProvider()) as provider, closing(provider.start()) as source:
        source.forward(4000, says_here)
        ready, begin = with_a_shell(provider, source.freeze())._slot, source.begin

        def ready_once(files: SandboxStartFiles, alone: bool) -> SandboxSlot:
            source.begin = begin
            return ready

        source.begin = ready_once
        look = "cat < /dev/tcp/127.0.0.1/4000"
        if by_shell:
            with closing(BashInterpreter(source)) as shell:
                assert shell.execute(look).output == b"here"
        else:
            assert source.exec(["/bin/bash", "-c", look]).stdout == b"here"
        assert (source._slot is ready) == by_shell


def test_one_that_is_late_is_thrown_away() -> None:
    """What it holds, frozen layers for instance, would stay until yet another is asked for."""
    with closing(NativeProvider()) as provider:
        running = [provider.start()]
        assert provider._spawner is not None
        spawner = provider._spawner.process.pid

        def stopped() -> int | None:
            """The child that is to be made ready, stopped before it is told what to become."""
            running.append(provider.start())  # one more of its kind is expected
            known = {box._process.pid for box in running if box._process}
            os.kill(spawner, signal.SIGSTOP)
            try:
                _zygote, *ahead = [child for child in children(spawner) if child not in known]
                if len(ahead) != 1:  # it has been told, or none is there yet
                    return None
                os.kill(ahead[0], signal.SIGSTOP)
                return ahead[0]
            finally:
                os.kill(spawner, signal.SIGCONT)

        while (late := stopped()) is None:
            continue
        time.sleep(0.1)  # allow sleep: it is told what to become, of which nothing is seen
        with closing(provider.start("host", Limits(disk=8 * MIB))):
            os.kill(late, signal.SIGCONT)
            assert eventually(lambda: late not in children(spawner))
