"""Whatever happens to process 1, or between a question and its answer, is told as what it is."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from intercode_sandbox import Provider, SandboxBackend
from intercode_sandbox.errors import SandboxClosedError, SandboxError
from intercode_sandbox.native import wire
from intercode_sandbox.native.sandbox import NativeSandbox
from waiting import eventually

from . import Run, Start, not_for_docker

pytestmark = pytest.mark.ordinary


@pytest.mark.attack(3)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize(
    "request_",
    [
        {"op": "nonsense"},
        {"op": "create", "path": 7, "mode": 0o644},
        {"op": "open", "path": 7},
        {"op": "archive", "timeout": -1},
        {"op": "spawn"},
    ],
)
def test_every_failure_of_process_1_is_an_answer(
    sandbox: NativeSandbox, request_: dict[str, object]
) -> None:
    with pytest.raises(SandboxError):
        sandbox._request(request_)
    assert sandbox.exec(["echo", "x"]).stdout == b"x\n"


@pytest.mark.attack(3)
@pytest.mark.parametrize(
    "line", ["u:x:1:" + "9" * 30, "u:x:" + "9" * 5000 + ":1", "u:x:²:1", "u:x:-1:-1", "u:x"]
)
def test_accounts_of_the_agents(sandbox: SandboxBackend, line: str) -> None:
    sandbox.write_file("/etc/passwd", line.encode())
    with pytest.raises(LookupError, match="user"):
        sandbox.exec(["true"], user="u")
    with pytest.raises(LookupError, match="user"):
        sandbox.exec(["true"], user="9" * 5000)
    assert sandbox.exec(["true"]).ok


@pytest.mark.attack(3)
@pytest.mark.defends("self DoS")
def test_memory_that_process_1_does_not_have(start: Start, provider: Provider) -> None:
    """6,000 names of 3,800 bytes: it tells one after the other, and holds none."""
    not_for_docker(provider, "there its memory is its own")
    sandbox = start(memory=32 << 20)
    script = 'for (1 .. 15) { mkdir "d" x 240; chdir "d" x 240 }'
    script += 'for (1 .. 6_000) { open my $f, ">", "x" x 200 . $_ or die $! }'
    assert sandbox.exec(["perl", "-e", script], cwd="/tmp").ok
    assert len(sandbox.changes()) == 15 + 6_000
    assert sandbox.exec(["true"]).ok


@pytest.mark.attack(7)
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_question(
    sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    """As by Ctrl-C, or by a handler that raises: nobody gets the answer to another question."""
    sandbox.write_file("/tmp/a", b"a")
    sandbox.write_file("/tmp/b", b"b")

    def interrupted(*_: object) -> None:
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(wire, "receive", interrupted)
        with pytest.raises(interruption):
            sandbox.read_file("/tmp/a")
    with pytest.raises(SandboxClosedError):
        sandbox.read_file("/tmp/b")
    sandbox.close()


@pytest.mark.attack(7)
def test_alarms_that_raise(start: Start) -> None:
    """Whenever they come, what is read is what was asked for."""

    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    wrong, rung = [], 0
    try:
        for attempt in range(12):
            sandbox = start()
            for name in ("a", "b"):
                sandbox.write_file(f"/tmp/{name}", name.encode())
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + attempt * 0.0003)
                while True:
                    wrong += [n for n in "ab" if sandbox.read_file(f"/tmp/{n}") != n.encode()]
            except (AlarmError, SandboxError):
                rung += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            with suppress(SandboxClosedError):
                assert sandbox.read_file("/tmp/b") == b"b"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert wrong == [] and rung == 12


@pytest.mark.attack(21)
def test_what_fails_for_want_of_ours_is_no_exit_code(
    provider: Provider, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here process 1 has no descriptor left."""
    not_for_docker(provider, "it is about the program's start")
    sandbox = start(open_files=512, processes=1000)
    held = []
    try:
        with pytest.raises(SandboxError):
            while len(held) < 5000:
                held += [sandbox.popen(["sleep", "1000"], channels={})]
        assert len(held) > 50
    finally:
        sandbox.close()
        for process in held:
            process.close()


def test_a_caller_without_descriptors_is_no_exit_code(sandbox: SandboxBackend) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 50, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        for _ in range(4):
            with pytest.raises(SandboxError, match="descriptors"):
                sandbox.exec(["true"])
            os.close(held.pop())  # enough for one more of those that a program needs
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in held:
            os.close(fd)
    assert sandbox.exec(["true"]).ok


@pytest.mark.attack(22)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize("keep", [False, True])
def test_a_process_without_its_first_thread(sandbox: SandboxBackend, sh: Run, keep: bool) -> None:
    """The kernel calls it a zombie, and it goes on."""
    program = """
import ctypes, threading
def work():
    while True:
        with open("/tmp/count", "a") as file:
            file.write("x")
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    other = sandbox.popen(["sleep", "1000"], channels={})
    hidden = sandbox.popen(["/usr/bin/python3", "-c", program], channels={})
    state = ["grep", "State", f"/proc/{hidden.pid}/status"]
    assert eventually(lambda: b"zombie" in sandbox.exec(state).stdout)
    assert hidden.pid in sandbox.processes()
    sandbox.kill(keep=[other.pid] if keep else [])
    assert hidden.pid not in sandbox.processes()
    assert (other.pid in sandbox.processes()) is keep
    size = sh("stat -c %s /tmp/count").stdout
    assert sh("sync; stat -c %s /tmp/count").stdout == size


def test_all_of_a_kill_is_seen(sandbox: SandboxBackend) -> None:
    """What its first thread has left is frozen, too."""
    sandbox.popen(["sleep", "1000"], channels={})
    assert sandbox.kill() == 1
    assert sandbox.processes() == []
    assert os.getpid() not in sandbox.processes()


def assert_last_end_is_closed(read: int) -> None:
    """Assert that nobody holds the other end of a pipe, and close this one."""
    os.set_blocking(read, False)
    try:
        assert os.read(read, 1) == b""  # else it would block
    finally:
        os.close(read)


def test_an_interrupt_while_it_waits_loses_no_descriptor() -> None:
    """A signal that another thread gets does not end the call: the message comes first."""

    class Interrupt(BaseException):
        pass

    def raises(number: int, frame: object) -> None:
        raise Interrupt

    ours, theirs = wire.pair()
    read, write = os.pipe()
    waiter = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    is_next = threading.Event()

    def strike() -> None:
        is_next.wait()
        assert eventually(lambda: waiter.read_text().rpartition(")")[2].split()[0] == "S")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        wire.send(theirs, {"a": 1}, [write])

    before = signal.signal(signal.SIGUSR1, raises)
    striker = threading.Thread(target=strike)
    try:
        with pytest.raises(Interrupt):
            striker.start()
            is_next.set()
            wire.receive(ours)
    finally:
        striker.join()
        signal.signal(signal.SIGUSR1, before)
        os.close(write)
        ours.close()
        theirs.close()
    assert_last_end_is_closed(read)


def test_descriptors_of_a_malformed_message_are_closed() -> None:
    ours, theirs = wire.pair()
    read, write = os.pipe()
    socket.send_fds(theirs, [b"J{"], [write])
    os.close(write)
    with pytest.raises(ValueError, match="Expecting"):
        wire.receive(ours)
    assert_last_end_is_closed(read)
    for end in (ours, theirs):
        end.close()


@pytest.mark.parametrize(
    "packet",
    [b"M", b"F", b"J{", b"J[]", b"Bs\0", b"BMLEi\0\0\0\0\0\0\0\0E", b"?", b"J" + b"[" * 9000],
)
def test_a_malformed_message_is_an_error_of_the_socket(packet: bytes) -> None:
    receiver, sender = wire.pair()
    with receiver, sender:
        sender.send(packet)
        with pytest.raises(wire.MalformedMessageError, match="a message"):
            wire.receive(receiver)


def test_a_malformed_reply_ends_the_sandbox(
    sandbox: NativeSandbox, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_for_docker(provider, "the same code")

    def receive(*_: object) -> None:
        raise wire.MalformedMessageError("a message is malformed")

    assert sandbox.exec(["true"]).ok, "an ordinary user's sandbox starts with its first request"
    with monkeypatch.context() as patch:
        patch.setattr(wire, "receive", receive)
        for _ in range(2):
            with pytest.raises(SandboxClosedError, match="malformed"):
                sandbox.read_file("/tmp/a")
