"""Images from a registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import Image, list_images, resolve
from intercode_sandbox.images.tree import MergedTree
from sandbox import rootfs
from sandbox.layouts import layer, layout
from sandbox.local_registry import push, serving

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
    return {"/".join(parts) for parts, _ in MergedTree(image.layers).walk(())}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with serving(tmp_path_factory.mktemp("registry")) as address:
        yield address


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
        ("docker://-x", "is not the name of an image in a registry"),
        ("docker:x", "docker://x names an image of a registry"),
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
