"""A cluster that `ray start` has begun, with a token, as its operators do it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import ray

from intercode.errors import UsageError
from intercode_integrations.ray.cluster import connect

HERE = "127.0.0.1"
BIN = Path(sys.executable).parent
TOKEN = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "f" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray waits half a minute for the process that serves a client, which a busy machine exceeds.
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "60",
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HERE, 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a head that runs: of the cluster, and of Ray's client."""
    port, client = free_port(), free_port()
    folder = tmp_path_factory.mktemp("ray")
    places = f"--node-ip-address {HERE} --port {port} --ray-client-server-port {client}"
    options = f"--num-cpus 2 --include-dashboard false --temp-dir {folder} --block"
    with (folder / "said").open("w+") as said:
        head = subprocess.Popen(
            [BIN / "ray", "start", "--head", *places.split(), *options.split()],
            env={**os.environ, **TOKEN},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            wanted = [BIN / "ray", "status", "--address", f"{HERE}:{port}"]
            while subprocess.run(
                wanted, env={**os.environ, **TOKEN}, capture_output=True, check=False
            ).returncode:
                assert head.poll() is None, (folder / "said").read_text()
            yield port, client
        finally:
            head.terminate()
            head.wait()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_run_on_it(ports: tuple[int, int], scheme: str, tmp_path: Path) -> None:
    port, client = ports
    address = {"RAY_ADDRESS": f"{HERE}:{port}"} if not scheme else {}
    where = f"ray://{HERE}:{client}" if scheme else "ray"
    words = ["--on", where, "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [BIN / "intercode", "run", "bash", "--agent", "oracle", "--limit", "4", "--quiet", *words],
        env={**os.environ, **TOKEN, **address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4  100.0 %" in done.stdout


def test_where_no_one_listens_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="there is no Ray cluster at"):
        connect(f"ray://{HERE}:{free_port()}")


@pytest.mark.parametrize(("broken", "tried"), [(2, 3), (3, 3)])
def test_a_cluster_that_breaks_off_is_asked_again(
    ports: tuple[int, int], broken: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def begin(address: str, **options: object) -> None:
        asked.append(address)
        if len(asked) <= broken:
            raise ConnectionAbortedError("Starting Ray client server failed.")

    monkeypatch.setattr(ray, "init", begin)
    address = f"ray://{HERE}:{ports[1]}"
    with pytest.raises(UsageError, match="client server") if broken == tried else nullcontext():
        connect(address)
    assert asked == [address] * tried
