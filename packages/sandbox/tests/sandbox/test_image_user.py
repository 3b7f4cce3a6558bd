"""An image whose programs are not root's: all that runs there has its user's rights, no more."""

from __future__ import annotations

import os
import socket
import time
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.errors import SandboxClosedError
from intercode_sandbox.images import Image, resolve
from intercode_sandbox.linux_capabilities import CAPABILITIES
from intercode_sandbox.native.provider import NativeProvider

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for an ordinary user: there is no other user"
)
MODULE = "worker_probe"
RIGHTS = tuple(CAPABILITIES)


@pytest.fixture(scope="module")
def image() -> Image:
    """As whom a sandbox is started is no part of the image's files."""
    return replace(resolve("host"), user="7:8,9", cwd="/tmp", digest="0" * 31 + "7")


@pytest.fixture(scope="module")
def probes(provider: Provider) -> Iterator[Provider]:
    kind = cast("type[NativeProvider]", type(provider))
    found = kind(preload=(MODULE,), path=(str(Path(__file__).parent),))
    yield found
    found.close()


@pytest.fixture(params=[(), RIGHTS], ids=["no rights", "an installation's rights"])
def sandbox(
    request: pytest.FixtureRequest, probes: NativeProvider, image: Image
) -> Iterator[SandboxBackend]:
    started = probes.start(image, Limits(capabilities=request.param))
    yield started
    started.close()


def ask(sandbox: SandboxBackend, expression: str) -> Any:
    worker = sandbox.worker(MODULE)
    try:
        socket.send_fds(worker.socket, [expression.encode()], [])
        return literal_eval(worker.socket.recv(65536).decode())
    finally:
        worker.close()


STATUS = "grep -E '^(Cap(Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status"
NONE = "0000000000000000"


def test_programs(sandbox: SandboxBackend) -> None:
    done = sandbox.exec(["sh", "-c", f"id -u; id -G; {STATUS}"])
    uid, groups, *rest = done.stdout.decode().splitlines()
    assert (uid, groups) == ("7", "8 9")
    assert [line.split()[1] for line in rest] == [NONE, NONE, NONE, "1"]
    assert not sandbox.exec(["touch", "/etc/new"]).ok
    assert not sandbox.exec(["chown", "7", "/etc"]).ok


def test_workers(sandbox: SandboxBackend) -> None:
    found = ask(sandbox, "(os.getresuid(), os.getresgid(), os.getgroups())")
    assert found == ((7, 7, 7), (8, 8, 8), [9])
    lines = ask(sandbox, "open('/proc/thread-self/status').read()").splitlines()
    rights = dict(line.split(":\t") for line in lines if line.startswith("Cap"))
    assert [rights[name] for name in ("CapPrm", "CapEff", "CapAmb")] == [NONE] * 3


def test_files(sandbox: SandboxBackend) -> None:
    sandbox.write_file("own/file", b"x", 0o600)
    assert sandbox.read_file("own/file") == b"x"
    assert {(c.uid, c.gid) for c in sandbox.changes()} == {(7, 8)}
    sandbox.exec(["sh", "-c", "echo secret > /root/x; chmod 600 /root/x"], user="root")
    for attempt in (
        lambda: sandbox.write_file("/etc/new", b""),
        lambda: sandbox.write_file("/root/new", b""),
        lambda: sandbox.read_file("/root/x"),
    ):
        with pytest.raises(PermissionError):
            attempt()
    # Process 1 has its own rights again.
    assert any(change.path == "/root/x" for change in sandbox.changes())
    assert sandbox.exec(["id", "-u"], user="root").stdout == b"0\n"
    assert sandbox.kill() == 0


def test_it_ends_with_its_spawner(image: Image) -> None:
    """Also after process 1 was another user for a moment: then the kernel unties it."""
    provider = NativeProvider()
    try:
        sandbox = provider.start(image)
        sandbox.write_file("x", b"")
        spawner = provider._spawner
        assert spawner is not None
        spawner.process.kill()
        spawner.process.wait()
        deadline = time.monotonic() + 60
        with pytest.raises(SandboxClosedError):
            while time.monotonic() < deadline:
                sandbox.exec(["true"])
    finally:
        provider.close()
