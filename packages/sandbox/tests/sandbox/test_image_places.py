"""Links of an image lead process 1, which is root when it works there, nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from intercode_sandbox import Limits
from intercode_sandbox.errors import ImageError, SandboxError
from intercode_sandbox.images import Image
from intercode_sandbox.native import provider as native
from intercode_sandbox.native.provider import NativeProvider

pytestmark = pytest.mark.ordinary


@pytest.fixture(scope="module")
def provider() -> Iterator[NativeProvider]:
    with closing(NativeProvider()) as provider:
        yield provider


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the machine's, with what process 1 makes, removes or changes in an image."""
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o711)
    for name in ("dev", "proc", "shm.d"):
        (folder / name).mkdir(mode=0o700)
    for name in ("shm", "null", "resolv.conf", "libc.so"):
        (folder / name).write_text("the machine's\n")
        (folder / name).chmod(0o600)
    return folder


def facts(folder: Path) -> list[tuple[object, ...]]:
    """All that an intruder could have changed."""
    found: list[tuple[object, ...]] = []
    for path in (folder, *sorted(folder.rglob("*"))):
        info = path.lstat()
        text = path.read_text() if stat.S_ISREG(info.st_mode) else ""
        found.append((path, info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, text))
    return found


Layer = Callable[[Path, Path], None]
"""Fills the top layer of an image, given a folder of the machine's."""


def link(name: str, target: str = "") -> Layer:
    def fill(layer: Path, victim: Path) -> None:
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).symlink_to(f"{victim}{target}")

    return fill


def upwards(name: str) -> Layer:
    def fill(layer: Path, victim: Path) -> None:
        (layer / name).symlink_to("../" * 40 + str(victim))

    return fill


def magic(layer: Path, victim: Path) -> None:
    (layer / "dev").symlink_to("/proc/self/cwd")


def file(layer: Path, victim: Path) -> None:
    (layer / "dev").write_text("a file")


def fifo(layer: Path, victim: Path) -> None:
    os.mkfifo(layer / "proc")


REFUSED: dict[str, tuple[str, Layer]] = {
    "dev": ("/dev", link("dev")),
    "dev upwards": ("/dev", upwards("dev")),
    "dev to a mount of the stage": ("/dev", lambda layer, _: (layer / "dev").symlink_to("../../d")),
    "dev in the image": ("/dev", lambda layer, _: (layer / "dev").symlink_to("etc")),
    "dev by magic": ("/dev", magic),
    "dev a file": ("/dev", file),
    "proc": ("/proc", link("proc")),
    "proc upwards": ("/proc", upwards("proc")),
    "proc a pipe": ("/proc", fifo),
}
HARMLESS: dict[str, Layer] = {
    "shm": link("dev/shm"),
    "shm to a file": link("dev/shm", "/shm"),
    "pts": link("dev/pts"),
    "null": link("dev/null", "/null"),
    "etc": link("etc"),
    "resolv.conf": link("etc/resolv.conf", "/resolv.conf"),
    "resolv.conf to a new file": link("etc/resolv.conf", "/new"),
    "resolv.conf to a device": lambda layer, _: link("etc/resolv.conf")(layer, Path("/dev/null")),
    "hosts": link("etc/hosts", "/shm"),
    "tmp": link("tmp"),
    "run": link("run"),
    "sys": link("sys"),
    "var": link("var"),
}


@pytest.fixture
def image(provider: NativeProvider, tmp_path: Path) -> Image:
    """This machine's, with an empty layer on top."""
    base = provider.image("host")
    (layer := tmp_path / "layer").mkdir(mode=0o755)
    return replace(base, layers=(*base.layers, layer), digest=f"{tmp_path}")


def test_a_layer_that_is_gone_stops_no_later_one(
    provider: NativeProvider, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_check_mount_points", lambda layers: None)
    layer = image.layers[-1]
    layer.rmdir()
    for _ in range(2):
        with pytest.raises(SandboxError, match="No such file"):
            provider.start(image)
    layer.mkdir(mode=0o755)
    with closing(provider.start(image)) as sandbox:
        assert sandbox.exec(["true"]).ok


@pytest.mark.defends("escape", "host DoS")
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("looks", [True, False], ids=["ahead", "process 1"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_place_that_is_no_folder_is_refused(
    provider: NativeProvider,
    image: Image,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    looks: bool,
    private: bool,
) -> None:
    path, fill = REFUSED[name]
    fill(image.layers[-1], victim)
    before = facts(victim)
    if not looks:
        monkeypatch.setattr(native, "_check_mount_points", lambda layers: None)
    for _ in range(2):  # also where a child is ready
        with pytest.raises(ImageError, match=f"no folder {path},"):
            provider.start(image, Limits(private=private)).close()
    assert facts(victim) == before
    provider.start("host").close()


@pytest.mark.defends("escape", "host DoS")
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("name", HARMLESS)
def test_a_link_leads_nowhere(
    provider: NativeProvider, image: Image, victim: Path, name: str, network: bool
) -> None:
    HARMLESS[name](image.layers[-1], victim)
    before = facts(victim)
    with closing(provider.start(image, Limits(private=True), network)) as sandbox:
        done = sandbox.exec(["stat", "-c", "%F %a", "/dev/shm", "/dev/null", "/dev"])
        expected = b"directory 1777\ncharacter special file 666\ndirectory 755\n"
        assert done.stdout == expected
        with suppress(OSError):  # a link may lead to what is not there
            sandbox.write_file("/dev/shm/x", b"1")
            sandbox.write_file("/etc/hosts", b"2")
            sandbox.write_file("/tmp/x", b"3")
        sandbox.changes()
    assert facts(victim) == before


def test_an_image_without_the_places_is_refused(provider: NativeProvider, tmp_path: Path) -> None:
    (tmp_path / "root/usr").mkdir(parents=True)
    with pytest.raises(ImageError, match="no folder /dev,"):
        provider.start(str(tmp_path / "root"))
    (tmp_path / "root/dev").mkdir()
    with pytest.raises(ImageError, match="no folder /proc,"):
        provider.start(str(tmp_path / "root"))
