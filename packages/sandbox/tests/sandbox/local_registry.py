"""Debian's ``docker-registry``, on this machine's loopback."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waiting import eventually


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start one that keeps its images in a folder; its address."""
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        "http: {addr: 127.0.0.1:0}\n"
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=log, stderr=log
        )
    try:
        yield _address(process)
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes]) -> str:
    """Where it listens: at a port that the kernel chose."""
    ports: list[int] = []

    def listens() -> bool:
        ports[:] = _ports(process.pid)
        return bool(ports) or process.poll() is not None

    if not eventually(listens) or not ports:
        raise RuntimeError("the registry did not start")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://127.0.0.1:{ports[0]}/v2/"):
        return f"127.0.0.1:{ports[0]}"


def _ports(pid: int) -> list[int]:
    """Where a process listens."""
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it has just been closed
            sockets.add(os.readlink(path))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(local.partition(":")[2], 16)
        for _, local, _, state, *rest in lines
        if state == "0A" and f"socket:[{rest[5]}]" in sockets
    ]


def push(source: Path, name: str) -> None:
    subprocess.run(
        ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{source}", f"docker://{name}"],
        check=True,
    )
