"""A worker: a module of ours, forked from process 1, has what a program has, and no more."""

from __future__ import annotations

import os
import select
import signal
import socket
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from intercode_sandbox import Limits, Provider, SandboxBackend, Worker, get_provider
from intercode_sandbox.errors import SandboxClosedError, UsageError
from intercode_sandbox.native.provider import NativeProvider
from sources import path_of
from waiting import eventually

pytestmark = pytest.mark.ordinary

MODULE = "worker_probe"


@pytest.fixture(scope="module")
def probes(provider: Provider) -> Iterator[Provider]:
    """Of the same kind, with a worker that we can ask."""
    kind = cast("type[NativeProvider]", type(provider))
    found = kind(preload=(MODULE,), path=(str(Path(__file__).parent),))
    yield found
    found.close()


@pytest.fixture(params=["scratch", "host"])
def inside(request: pytest.FixtureRequest, probes: Provider) -> Iterator[SandboxBackend]:
    sandbox = probes.start(request.param)
    yield sandbox
    sandbox.close()


@pytest.fixture
def host(probes: Provider) -> Iterator[SandboxBackend]:
    sandbox = probes.start()
    yield sandbox
    sandbox.close()


class Probe:
    """Asks a worker."""

    def __init__(self, sandbox: SandboxBackend) -> None:
        self.worker: Worker = sandbox.worker(MODULE)
        self.worker.socket.settimeout(60)

    def send(self, expression: str, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.worker.socket, [expression.encode()], fds)

    def text(self, expression: str, fds: Sequence[int] = ()) -> str:
        self.send(expression, fds)
        return self.worker.socket.recv(65536).decode()

    def __call__(self, expression: str, fds: Sequence[int] = ()) -> Any:
        return literal_eval(self.text(expression, fds))


Ask = Callable[[SandboxBackend], Probe]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Starts probes, and closes them when the test ends."""
    started: list[Probe] = []

    def start(sandbox: SandboxBackend) -> Probe:
        started.append(Probe(sandbox))
        return started[-1]

    yield start
    for probe in started:
        probe.worker.close()


def facts(status: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in status.splitlines())


def wait(worker: Worker) -> int | None:
    assert select.select([worker.exit_fd], [], [], 60)[0]
    return worker.poll()


def test_it_runs_in_any_image(inside: SandboxBackend, ask: Ask) -> None:
    probe = ask(inside)
    assert probe("2 + 2") == 4
    assert inside.processes() == [probe.worker.pid] == [probe("os.getpid()")]
    probe("open('/new', 'w').write('kept')")
    assert [change.path for change in inside.changes()] == ["/new"]
    assert probe("open('/new').read()") == "kept"


@pytest.mark.defends("escape")
@pytest.mark.parametrize("kept", [(), ("chown", "dac_override")])
def test_it_has_the_rights_of_a_program(probes: Provider, kept: tuple[str, ...], ask: Ask) -> None:
    sandbox = probes.start("host", Limits(capabilities=kept))
    try:
        probe = ask(sandbox)
        mine = facts(probe("open('/proc/self/status').read()"))
        seen = sandbox.exec(["cat", f"/proc/{probe.worker.pid}/status"]).stdout.decode()
        program = facts(sandbox.exec(["cat", "/proc/self/status"]).stdout.decode())
        names = ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        names += ["NoNewPrivs", "Seccomp", "Seccomp_filters"]
        assert {name: mine[name] for name in names} == {name: program[name] for name in names}
        assert {name: facts(seen)[name] for name in names} == {n: program[n] for n in names}
        if not kept:
            assert {int(mine[name], 16) for name in names if name.startswith("Cap")} == {0}
        limits = sandbox.exec(["cat", "/proc/self/limits"]).stdout.decode()
        assert probe("open('/proc/self/limits').read()") == limits
    finally:
        sandbox.close()


@pytest.mark.defends("escape")
def test_it_has_nothing_of_process_1(inside: SandboxBackend, ask: Ask) -> None:
    probe = ask(inside)
    fds = probe("sorted(int(n) for n in os.listdir('/proc/self/fd'))")
    assert fds == [0, 1, 2, 3, 4], "4 is the listing's own"
    assert [probe(f"os.readlink('/proc/self/fd/{fd}')") for fd in (0, 1)] == ["/dev/null"] * 2
    assert probe("os.getsid(0) == os.getpid() == os.getpgrp()")
    assert probe("signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL")
    assert probe("signal.set_wakeup_fd(-1)") == -1
    assert probe("gc.isenabled()")
    assert probe("os.getcwd()") == "/"
    assert probe("int(open('/proc/self/oom_score_adj').read())") in (500, 1000)
    refused = "PermissionError(1, 'Operation not permitted')"
    assert probe.text("socket.sethostname('x')") == refused
    assert probe.text("os.chroot('/')") == refused


@pytest.mark.defends("escape")
@pytest.mark.parametrize("path", ["/proc/1/mem", "/proc/1/environ", "/proc/1/maps"])
def test_process_1_is_closed_to_it(inside: SandboxBackend, path: str, ask: Ask) -> None:
    assert "PermissionError" in ask(inside).text(f"open({path!r}, 'rb').read(1)")


def test_descriptors_can_be_sent_to_it(inside: SandboxBackend, ask: Ask) -> None:
    probe = ask(inside)
    read, write = os.pipe()
    try:
        assert probe("os.write(received[0], b'hello')", [write]) == 5
        assert os.read(read, 5) == b"hello"
    finally:
        os.close(read)
        os.close(write)


def test_how_it_ends(inside: SandboxBackend, ask: Ask) -> None:
    probe = ask(inside)
    assert probe.worker.poll() is None
    probe.send("end")
    assert wait(probe.worker) == 0
    probe.worker.close()
    probe.worker.close()
    probe = ask(inside)
    probe.worker.signal(signal.SIGTERM)
    assert wait(probe.worker) == 128 + signal.SIGTERM
    probe = ask(inside)
    probe.worker.close()
    probe = ask(inside)
    probe.send("(_ for _ in ()).throw(KeyboardInterrupt)")
    assert wait(probe.worker) == 1
    assert "KeyboardInterrupt" in probe.worker.errors()
    probe = ask(inside)
    # The one that was closed is killed, and may still be dying.
    assert eventually(lambda: len(inside.processes()) == 1)
    assert inside.kill() == 1
    assert wait(probe.worker) == 128 + signal.SIGKILL
    assert ask(inside)("1") == 1, "process 1 goes on"


def test_it_ends_with_its_sandbox(inside: SandboxBackend, ask: Ask) -> None:
    probe = ask(inside)
    inside.close()
    assert wait(probe.worker) == 128 + signal.SIGKILL
    with pytest.raises(SandboxClosedError):
        inside.worker(MODULE)


def test_only_what_was_preloaded(inside: SandboxBackend, ask: Ask) -> None:
    with pytest.raises(LookupError, match="was not preloaded"):
        inside.worker("http.server")
    assert ask(inside)("1") == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import sys\nsys.exit('not here')", "SystemExit: not here"),
        ("raise ValueError('x' * 100_000)", "ValueError: xxx"),
    ],
)
def test_a_module_that_cannot_be_loaded(
    provider: Provider, tmp_path: Path, source: str, said: str
) -> None:
    """The caller is told why, and where."""
    (tmp_path / "broken.py").write_text(source)
    kind = cast("type[NativeProvider]", type(provider))
    with closing(kind(preload=["broken"], path=[str(tmp_path)])) as found:
        with pytest.raises(UsageError, match="'broken' cannot be imported") as failed:
            found.start("scratch")
        assert said in str(failed.value)
        assert said.startswith("ValueError") or 'broken.py", line ' in str(failed.value)
        with pytest.raises(UsageError, match="'broken' cannot be imported"):
            found.start("scratch")


def test_a_worker_of_the_process_wide_provider() -> None:
    """It needs no class: a name, and the folder where it is found."""
    folder = Path(__file__).parent
    found = get_provider(preload=[MODULE], path=[folder])
    assert found is get_provider("native", [MODULE], [str(folder)])
    assert found is not get_provider()
    with closing(found.start("scratch")) as sandbox, closing(sandbox.worker(MODULE)) as worker:
        worker.socket.send(b"6 * 7")
        assert worker.socket.recv(100) == b"42"
    found.close()


@pytest.mark.parametrize("option", ["preload", "path"])
def test_one_text_is_no_list(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} must be a list"):
        get_provider(**{option: "worker"})  # type: ignore[arg-type]


def test_a_fork_of_python_is_fit_for_use(inside: SandboxBackend, ask: Ask) -> None:
    """Locks, threads, hooks and random numbers are as after a fork by Python itself."""
    probe, other = ask(inside), ask(inside)
    assert probe("[_imp.acquire_lock(), _imp.lock_held(), _imp.release_lock()]")[1]
    assert not probe("_imp.lock_held()")
    assert probe("run_thread(lambda: 6 * 7)") == 42
    assert probe("threading.get_native_id()") == probe.worker.pid
    assert probe("forks") == other("forks") == 1
    assert probe("random.random()") != other("random.random()")
    probe.send("signal.raise_signal(signal.SIGTERM)")
    assert wait(probe.worker) == 128 + signal.SIGTERM


def test_a_python_that_keeps_to_no_protocol(provider: Provider) -> None:
    """Workers of one that a C program cannot fork are forked by Python itself."""
    kind = cast("type[NativeProvider]", type(provider))
    if kind is not NativeProvider:
        pytest.skip("not for docker: in a container Python forks in any case")
    folders = [str(Path(__file__).parent), str(path_of("faulty"))]
    assert "fork_flaw" not in provider.facts()  # type: ignore[attr-defined]
    with closing(kind(preload=(MODULE, "without_protocol"), path=folders)) as flawed:
        assert flawed.facts()["fork_flaw"].strip() == "exit code 6"
        with closing(flawed.start("scratch")) as sandbox:
            for _ in range(2):
                probe = Probe(sandbox)
                assert probe("run_thread(lambda: 6 * 7)") == 42
                assert probe("forks") == 1
                probe.worker.close()


@pytest.mark.defends("self DoS")
def test_memory_runs_out(probes: Provider, ask: Ask) -> None:
    sandbox = probes.start("scratch", Limits(memory=64 << 20, disk=16 << 20))
    try:
        probe = ask(sandbox)
        assert "MemoryError" in probe.text("len(bytearray(200 << 20))")
        written = probe.text("open('/big', 'wb').write(bytes(20 << 20))")
        assert "OSError" in written
        assert probe("1") == 1
    finally:
        sandbox.close()
