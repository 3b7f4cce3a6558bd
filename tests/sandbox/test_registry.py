"""Images from a registry: Debian's ``docker-registry``, on this machine's loopback."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from intercode.errors import ImageError
from intercode.sandbox.images import Image, list_images, resolve
from intercode.sandbox.images.tree import Tree
from sandbox import rootfs
from sandbox.layouts import layer, layout
from waiting import eventually

pytestmark = pytest.mark.ordinary


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with a shell."""
    folder = tmp_path_factory.mktemp("system")
    archive = rootfs.write(folder / "rootfs.tar").read_bytes()
    settings = {"Env": ["PATH=/bin", "A=1"], "WorkingDir": "/tmp", "Labels": {"b": "c"}}
    return layout(folder / "image", [archive], settings, pack=bytes)


def names(image: Image) -> set[str]:
    return {"/".join(parts) for parts, _ in Tree(image.layers).walk(())}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    folder = tmp_path_factory.mktemp("registry")
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


def test_from_a_registry(tmp_path: Path, system: Path, registry: str) -> None:
    name = f"{registry}/tests/system:1"
    push(system, name)
    told: list[str] = []
    image = resolve(f"docker://{name}", progress=told.append)
    assert "etc/passwd" in names(image) and image.env["A"] == "1"
    assert any("building" in line for line in told)
    # The name may mean another image by now: what it meant stays until it is asked for anew.
    push(layout(tmp_path / "new", [layer(("new", b"n"))]), name)
    assert resolve(f"docker://{name}", progress=pytest.fail).digest == image.digest
    assert names(resolve(f"docker://{name}", refresh=True)) == {"new"}
    assert [info.name for info in list_images()].count(name) == 2
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\nCOPY Dockerfile /x\n")
    assert names(resolve(f"{tmp_path}/Dockerfile")) == {"new", "x"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "docker://{}/none:1",
            r"^cannot pull \S*/none:1: its registry has no such image; check its name",
        ),
        (
            "docker://127.0.0.1:1/some:2",
            r"^cannot pull 127.0.0.1:1/some:2: its registry cannot be reached from here; "
            r"`docker save` it .* \(connection refused\)$",
        ),
        ("docker://-x", "is not a name of an image in a registry"),
        ("docker:x", "docker://x is pulled"),
    ],
)
def test_what_no_registry_has(registry: str, name: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        resolve(name.format(registry))


def test_without_skopeo_alternatives_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.12-slim\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match=r"Dockerfile:1: there is no image.*docker save.*skopeo"):
        resolve(f"{tmp_path}/Dockerfile")
    with pytest.raises(ImageError, match="apt-get install skopeo"):
        resolve("docker://example.org/x")
