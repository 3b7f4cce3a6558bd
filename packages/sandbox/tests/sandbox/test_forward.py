"""A port of a sandbox's loopback leads to one place out here, and to nothing else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forks import in_a_fork
from intercode_sandbox import Provider, SandboxBackend, forwarding as forwards, get_provider
from intercode_sandbox.base import SupportsFork
from intercode_sandbox.errors import CausedInsideError, SandboxError, UsageError
from intercode_sandbox.forwarding import Forward, SupportsForwarding, adopt_socket
from waiting import PATIENCE, becomes_readable, eventually

from . import Run, Start, not_for_docker

pytestmark = pytest.mark.ordinary

SAY = "exec 3<>/dev/tcp/127.0.0.1/{} && cat <&3"
HOLD = SAY.format(4000) + " > /dev/null"


def forward(sandbox: SandboxBackend, port: int, to: Any, **limits: Any) -> Forward:
    assert isinstance(sandbox, SupportsForwarding)
    return sandbox.forward(port, to, **limits)


def says(text: str) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(text.encode())


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Echoes what it is sent until that ends, one connection after the other."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.defends("host leak")
def test_it_leads_to_an_address_and_no_further(
    sandbox: SandboxBackend, sh: Run, server: socket.socket
) -> None:
    port = server.getsockname()[1]
    made = forward(sandbox, 4000, f"127.0.0.1:{port}")
    echoed = sh(
        "exec 3<>/dev/tcp/127.0.0.1/4000; head -c 3000000 /dev/zero >&3 &"
        " head -c 3000000 <&3 | wc -c"
    )
    assert echoed.stdout.split() == [b"3000000"]
    # Neither the address itself, nor the forward's port of another address.
    for target in (f"127.0.0.1/{port}", "127.0.0.2/4000", "169.254.169.254/80"):
        assert not sh(f"exec 3<>/dev/tcp/{target}").ok
    assert sandbox.changes() == [] and sandbox.processes() == []
    assert eventually(lambda: made.counts.active == 0)
    assert made.counts.accepted == 1 and made.counts.failed == 0


@pytest.mark.parametrize("end", ["kill", "kill -9 -1"])
def test_it_outlives_what_runs_there(sandbox: SandboxBackend, sh: Run, end: str) -> None:
    forward(sandbox, 4000, says("here"))
    if end == "kill":
        sandbox.kill()
    else:
        sh(end)
    assert sh(SAY.format(4000)).stdout == b"here"
    assert not sh("exec 3<>/dev/tcp/0.0.0.0/4001").ok


def test_a_path_leads_to_a_unix_socket(sandbox: SandboxBackend, sh: Run, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                says("unix")(connection)

        threading.Thread(target=serve, daemon=True).start()
        forward(sandbox, 4000, f"{tmp_path}/s")
        assert sh(SAY.format(4000)).stdout == b"unix"


def test_small_parts_are_not_held_back(
    sandbox: SandboxBackend, sh: Run, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the way in, nor on the way out: a model's next word does not wait 40 ms."""
    sockets: list[socket.socket] = []
    join = forwards.join

    def seen(one: socket.socket, other: socket.socket, idle: float) -> None:
        sockets.extend([one.dup(), other.dup()])
        join(one, other, idle)

    monkeypatch.setattr(forwards, "join", seen)
    forward(sandbox, 4000, f"127.0.0.1:{server.getsockname()[1]}")
    assert sh("exec 3<>/dev/tcp/127.0.0.1/4000; echo here >&3; head -n 1 <&3").stdout == b"here\n"
    assert len(sockets) == 2
    for each in sockets:
        with each:
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_it_follows_a_sandbox_that_was_frozen(sandbox: SandboxBackend, sh: Run) -> None:
    """What is started from the snapshot has no part in it."""
    assert isinstance(sandbox, SupportsFork)
    forward(sandbox, 4000, says("here"))
    forward(sandbox, 4001, says("closed")).close()
    sandbox.freeze().delete()
    assert sh(SAY.format(4000)).stdout == b"here"
    assert not sh(SAY.format(4001)).ok


def test_each_sandbox_has_its_own(start: Start) -> None:
    sandboxes = [start(), start(), start()]
    for number, sandbox in enumerate(sandboxes[:2]):
        forward(sandbox, 4000, says(str(number)))
    done = [one.exec(["bash", "-c", SAY.format(4000)]) for one in sandboxes]
    assert [(one.ok, one.stdout) for one in done] == [(True, b"0"), (True, b"1"), (False, b"")]


def test_a_target_that_is_not_there(sandbox: SandboxBackend, sh: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    made = forward(sandbox, 4000, address)
    assert sh(SAY.format(4000)).stdout == b""
    assert eventually(lambda: made.counts.failed)
    assert isinstance(made.error, ConnectionRefusedError)


@pytest.mark.defends("self DoS")
def test_connections_wait_for_room(sandbox: SandboxBackend, sh: Run) -> None:
    """A flood holds up nothing but itself."""
    let_go, served = threading.Event(), threading.Semaphore(0)

    def hold(connection: socket.socket) -> None:
        served.release()
        let_go.wait(PATIENCE)
        connection.sendall(b"x")

    made = forward(sandbox, 4000, hold, connections=3)
    flood = sandbox.popen(
        ["bash", "-c", f"for i in {{1..20}}; do ({HOLD}) & done; wait; echo all"], channels={}
    )
    for _ in range(3):
        assert served.acquire(timeout=PATIENCE)
    forward(sandbox, 4001, says("another"))
    assert sh(SAY.format(4001)).stdout == b"another"
    assert made.counts.active == 3 and not served.acquire(blocking=False)
    let_go.set()
    assert becomes_readable(flood.fds[1]) and os.read(flood.fds[1], 9) == b"all\n"
    assert made.counts.accepted == 20
    flood.close()


@pytest.mark.defends("self DoS")
def test_an_idle_connection_is_closed(
    sandbox: SandboxBackend, sh: Run, server: socket.socket
) -> None:
    to = f"127.0.0.1:{server.getsockname()[1]}"
    made = forward(sandbox, 4000, to, idle=0.3)  # neither side ever says a word
    assert sh(SAY.format(4000)).ok
    assert eventually(lambda: made.counts.active == 0)


def test_close(start: Start) -> None:
    sandbox = start()
    ended = threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.recv(1)
        ended.set()

    one, other = forward(sandbox, 4000, wait), forward(sandbox, 4001, wait)
    for port in (4000, 4001):
        sandbox.popen(["bash", "-c", SAY.format(port)], channels={})
    assert eventually(lambda: one.counts.active and other.counts.active)
    one.close()
    assert ended.wait(PATIENCE)
    assert not sandbox.exec(["bash", "-c", SAY.format(4000)]).ok
    forward(sandbox, 4000, says("again"))
    assert sandbox.exec(["bash", "-c", SAY.format(4000)]).stdout == b"again"
    sandbox.close()
    assert eventually(lambda: other.counts.active == 0)
    assert not [t for t in threading.enumerate() if t.name.startswith("intercode-forward-400")]


def test_a_fork_has_no_part_in_it(sandbox: SandboxBackend, sh: Run) -> None:
    made = forward(sandbox, 4000, says("here"))

    def in_the_fork() -> None:
        assert made._listener is not None and made._listener.fileno() == -1
        made.close()

    assert in_a_fork(in_the_fork) == "done"
    assert sh(SAY.format(4000)).stdout == b"here"


def test_a_port_that_is_in_use(sandbox: SandboxBackend, sh: Run) -> None:
    listen = "$s = IO::Socket::INET->new(Listen => 1, LocalPort => 4000); syswrite STDOUT, 1; sleep"
    holder = sandbox.popen(["perl", "-MIO::Socket::INET", "-e", listen], channels={})
    assert becomes_readable(holder.fds[1])
    with pytest.raises(CausedInsideError, match="port 4000 of the sandbox is in use there"):
        forward(sandbox, 4000, says(""))
    holder.close()


@pytest.mark.parametrize(
    ("port", "to", "said"),
    [
        (0, "127.0.0.1:80", "from 1 to 65535, not 0"),
        (True, "127.0.0.1:80", "not True"),
        (70_000, "127.0.0.1:80", "not 70000"),
        (4000, "localhost", "not an address such as 127.0.0.1:8000"),
        (4000, "::1:80", "not an address"),
        (4000, "localhost:http", "not an address"),
        (4000, "localhost:0", "from 1 to 65535, not 0"),
    ],
)
def test_bad_input(sandbox: SandboxBackend, port: int, to: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        forward(sandbox, port, to)


def test_not_where_the_machines_network_is_shared(provider: Provider) -> None:
    not_for_docker(provider, "a container with a network has one of its own")
    sandbox = provider.start("host", network=True)
    try:
        with pytest.raises(UsageError, match="shares the machine's network"):
            forward(sandbox, 4000, says(""))
    finally:
        sandbox.close()


@pytest.mark.defends("host leak", "escape")
@pytest.mark.parametrize("kind", ["file", "unix", "udp", "bound", "listening", "machine", "two"])
def test_anything_else_than_a_new_socket_of_its_own_is_refused(kind: str) -> None:
    """Also a process 1 that an agent has taken over could pass nothing of use."""
    sockets: dict[str, Callable[[], socket.socket]] = {
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "bound": lambda: _bound(socket.socket()),
        "listening": lambda: socket.create_server(("127.0.0.1", 0)),
        "machine": socket.socket,
        "two": socket.socket,
    }
    fds = [sockets[kind]().detach()] if kind in sockets else [os.memfd_create("x")]
    fds += [os.dup(fds[0])] if kind == "two" else []
    with pytest.raises(UsageError if kind == "machine" else SandboxError):
        adopt_socket(fds)
    for fd in fds:  # all are closed
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def _bound(sock: socket.socket) -> socket.socket:
    sock.bind(("127.0.0.1", 0))
    return sock


def test_low_ports() -> None:
    sandbox = get_provider().start("host")
    try:
        forward(sandbox, 80, says("web"))
        assert sandbox.exec(["bash", "-c", SAY.format(80)]).stdout == b"web"
    finally:
        sandbox.close()
