"""Images from OCI layouts, and from what ``docker save`` writes."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import platform
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import Image, resolve
from intercode_sandbox.images.tree import MergedTree
from intercode_sandbox.native.provider import NativeProvider
from sandbox import rootfs
from sandbox.layouts import Member, entry, layer, layout, saved

pytestmark = pytest.mark.ordinary
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(image: Image) -> dict[str, str]:
    """Path → content, of a link its target, of a directory nothing."""
    found = {}
    for parts, one in MergedTree(image.layers).walk(()):
        path = "/".join(parts)
        found[path] = (
            "" if one.is_dir else one.path.read_text(errors="replace") if not one.is_link else "->"
        )
    return found


BASE = layer(("a", b"1"), ("d", None), ("d/x", b"x"), ("d/e", None), ("d/e/y", b"y"), ("f", b"f"))

LAYERS: dict[str, tuple[list[bytes], dict[str, str]]] = {
    "over one another": (
        [BASE, layer(("a", b"2"), ("d/z", b"z"))],
        {"a": "2", "d": "", "d/e": "", "d/e/y": "y", "d/x": "x", "d/z": "z", "f": "f"},
    ),
    "deleted": (
        [BASE, layer(("d/.wh.e", b""), (".wh.f", b""), (".wh.none", b""))],
        {"a": "1", "d": "", "d/x": "x"},
    ),
    "deleted and made again": (
        [BASE, layer((".wh.d", b""), ("d/new", b"n")), layer((".wh.a", b""))],
        {"d": "", "d/new": "n", "f": "f"},
    ),
    "made before it is deleted": (
        [BASE, layer(("d/new", b"n"), (".wh.d", b""))],
        {"a": "1", "d": "", "d/new": "n", "f": "f"},
    ),
    "opaque": (
        [BASE, layer(("d/new", b"n"), ("d/e/w", b"w"), ("d/.wh..wh..opq", b""))],
        {"a": "1", "d": "", "d/e": "", "d/e/w": "w", "d/new": "n", "f": "f"},
    ),
    "a file for a directory": (
        [BASE, layer(("d", b"file"))],
        {"a": "1", "d": "file", "f": "f"},
    ),
    "a directory for a file": (
        [BASE, layer(("a", None), ("a/b", b"b"), (".wh.d", b""))],
        {"a": "", "a/b": "b", "f": "f"},
    ),
    "a directory for a link": (
        [layer(("x", None), entry("l", tarfile.SYMTYPE, "x")), layer(("l", None), ("l/y", b"y"))],
        {"l": "", "l/y": "y", "x": ""},
    ),
    "through a link": (
        [layer(("x", None), entry("l", tarfile.SYMTYPE, "/x")), layer(("l/y", b"y"))],
        {"l": "->", "x": "", "x/y": "y"},
    ),
    "links to lower layers": ([BASE, layer(entry("h", tarfile.LNKTYPE, "/d/x"))], {"h": "x"}),
    "devices in dev": ([layer(entry("dev/null", tarfile.CHRTYPE), ("a", b""))], {"a": ""}),
}


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("made", [layout, saved])
def test_layers(tmp_path: Path, case: str, made: Callable[..., Path]) -> None:
    layers, expected = LAYERS[case]
    found = files(resolve(f"oci:{made(tmp_path / 'image', layers)}"))
    assert {path: found[path] for path in found if path in expected or "h" not in expected} == (
        expected
    )


HOSTILE: dict[str, Member] = {
    "out of the archive": ("../x", b""),
    "absolute": ("/x", b""),
    "a device": entry("x", tarfile.CHRTYPE),
    "a link to nothing": entry("x", tarfile.LNKTYPE, "nothing"),
    "a link out": entry("x", tarfile.LNKTYPE, "../../x"),
    "deletes the root": (".wh.", b""),
    "deletes what is above": (".wh...", b""),
    "deletes out of the archive": ("../.wh.x", b""),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_layers_are_refused(tmp_path: Path, cache: Path, case: str) -> None:
    beside = tmp_path / "x"
    beside.write_text("")
    image = layout(tmp_path / "image", [BASE, layer(("ok", b""), HOSTILE[case])])
    with pytest.raises(ImageError, match=r"^refused the image .*image: "):
        resolve(f"oci:{image}")
    assert list(tmp_path.iterdir()) and beside.exists()
    assert not list((cache / "images").iterdir())


@pytest.mark.parametrize("part", ["config", "manifest", "layer"])
def test_digests_are_verified(tmp_path: Path, part: str) -> None:
    good, other = [layout(tmp_path / n, [layer(("a", n.encode()))]) for n in ("good", "other")]

    def blob(folder: Path) -> Path:
        index = json.loads((folder / "index.json").read_text())
        manifest = folder / "blobs/sha256" / index["manifests"][0]["digest"][7:]
        found = json.loads(manifest.read_text())
        digests = {"config": found["config"]["digest"], "layer": found["layers"][0]["digest"]}
        return manifest if part == "manifest" else folder / "blobs/sha256" / digests[part][7:]

    shutil.copy(blob(other), blob(good))
    with pytest.raises(ImageError, match="does not match its digest"):
        resolve(f"oci:{good}")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_compressions(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    image = resolve(f"oci:{layout(tmp_path / 'image', [BASE], pack=pack)}")
    assert files(image)["d/e/y"] == "y"


def test_zstd_needs_a_library(tmp_path: Path) -> None:
    image = layout(tmp_path / "image", [BASE], pack=lambda data: b"\x28\xb5\x2f\xfd" + data)
    known = any(map(importlib.util.find_spec, ("zstandard", "pyzstd")))
    message = "." if known else "compressed with zstd: pip install zstandard"
    with pytest.raises(ImageError, match=message):
        resolve(f"oci:{image}")


def test_of_several_images_one_is_named(tmp_path: Path) -> None:
    here = {"os": "linux", "architecture": MACHINE}
    elsewhere = {"os": "linux", "architecture": "m68k"}
    image = layout(tmp_path / "image", [BASE], platform=here, name="both")
    layout(image, [layer(("b", b""))], platform=elsewhere, name="both")
    layout(image, [layer(("c", b"c"))], name="other:1")
    with pytest.raises(ImageError, match=r"several images: write oci:PATH\[NAME\].*both, other:1"):
        resolve(f"oci:{image}")
    with pytest.raises(ImageError, match="no image 'none'"):
        resolve(f"oci:{image}[none]")
    assert files(resolve(f"oci:{image}[other:1]")) == {"c": "c"}


@pytest.mark.parametrize(
    "settings",
    [{"Env": "A=1"}, {"Env": [1]}, {"User": 5}, {"WorkingDir": "x"}, {"User": "70000"}, ["Env"]],
)
def test_settings_that_are_not_well_formed(tmp_path: Path, settings: Any) -> None:
    image = layout(tmp_path / "image", [BASE], settings)
    with pytest.raises(ImageError, match=r"malformed|not absolute|up to 65535|cannot read"):
        resolve(f"oci:{image}")


@pytest.mark.parametrize("content", ["nothing", "text", "tar", "folder"])
def test_what_is_no_image(tmp_path: Path, content: str) -> None:
    path = tmp_path / "image"
    if content == "text":
        path.write_text("text")
    elif content == "tar":
        path.write_bytes(BASE)
    elif content == "folder":
        path.mkdir()
    with pytest.raises(ImageError, match=r"image .*image: "):
        resolve(f"oci:{path}")


def test_is_found_again(tmp_path: Path) -> None:
    first = resolve(f"oci:{layout(tmp_path / 'one', [BASE])}")
    second = resolve(f"oci:{saved(tmp_path / 'two.tar', [BASE])}", progress=pytest.fail)
    assert first.digest == second.digest and first.config == {} and first.cwd == "/"


# --- as a base, in a sandbox -----------------------------------------------------------------


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with a shell."""
    folder = tmp_path_factory.mktemp("system")
    archive = rootfs.write(folder / "rootfs.tar").read_bytes()
    settings = {"Env": ["PATH=/bin", "A=1"], "WorkingDir": "/tmp", "Labels": {"b": "c"}}
    return layout(folder / "image", [archive], settings, pack=bytes)


@pytest.fixture(scope="module")
def archive(system: Path) -> Path:
    """The same in one file."""
    with tarfile.open(system.parent / "image.tar", "w") as tar:
        tar.add(system, "")
    return system.parent / "image.tar"


def test_dockerfile_from_an_archive(tmp_path: Path, archive: Path) -> None:
    shutil.copy(archive, tmp_path / "base.tar")
    (tmp_path / "Dockerfile").write_text("FROM ./base.tar\nRUN echo $A >x; pwd >>x\nLABEL d=e\n")
    provider = NativeProvider()
    try:
        image = provider.image(f"{tmp_path}/Dockerfile")
        assert image.config["Labels"] == {"b": "c", "d": "e"}
        sandbox = provider.start(image)
        done = sandbox.exec(["sh", "-c", "cat x; echo $PATH"])
        sandbox.close()
    finally:
        provider.close()
    assert done.stdout == b"1\n/tmp\n/bin\n"
