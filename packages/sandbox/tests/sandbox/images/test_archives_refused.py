"""Archives that are hostile or damaged."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from intercode_sandbox import host_files
from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import list_images, resolve

from . import Member, header, make_tar

Make = Callable[[Path], object]
HOSTILE: dict[str, tuple[str, list[Member]]] = {
    "absolute": ("absolute", [("/etc/x", b"")]),
    "absolute of archive": ("absolute", [("//x", b"")]),
    "up": ("points out", [("../x", b"")]),
    "up inside": ("points out", [("a/../../x", b"")]),
    "up alone": ("points out", [("..", None)]),
    "hard link up": ("points out", [header("x", tarfile.LNKTYPE, "../../../etc/passwd")]),
    "hard link absolute": ("absolute", [header("x", tarfile.LNKTYPE, "/etc/passwd")]),
    "hard link to the image": ("hard link", [header("x", tarfile.LNKTYPE, "etc/passwd")]),
    "hard link to nothing": ("hard link", [header("x", tarfile.LNKTYPE, "y")]),
    "hard link to a directory": ("hard link", [("d", None), header("x", tarfile.LNKTYPE, "d")]),
    "hard link to itself": ("hard link", [("x", b""), header("x", tarfile.LNKTYPE, "x")]),
    "hard link through a link": (
        "hard link",
        [header("l", tarfile.SYMTYPE, "/etc"), header("x", tarfile.LNKTYPE, "l/passwd")],
    ),
    "block device": ("device", [header("x", tarfile.BLKTYPE)]),
    "whiteout": ("device", [header("x", tarfile.CHRTYPE)]),
    "unknown type": ("unknown type", [header("x", b"Z")]),
    "link to itself": ("too many", [header("l", tarfile.SYMTYPE, "l"), ("l/x", b"")]),
    "file as a directory": ("both a file", [("x", b""), ("x/y", b"")]),
    "directory as a file": ("both a file", [("x/y", b""), ("x", b"")]),
    "over a directory": ("replace a directory", [("etc", b"")]),
    "hidden": ("read-only", [("usr/local/bin/x", b"")]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, cache: Path, case: str) -> None:
    message, members = HOSTILE[case]
    tar = make_tar(tmp_path / "a.tar", *members, mode="w")
    with pytest.raises(ImageError, match=f"refused the archive .*a.tar: .*{message}"):
        resolve(f"host+{tar}")
    assert [info.name for info in list_images()] == ["host"]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.defends("host DoS")
@pytest.mark.parametrize(
    "members",
    [
        [("zeros", bytes(64 << 20))],
        [(f"zeros-{number}", bytes(1 << 20)) for number in range(3)],
        [(f"empty-{number}", b"") for number in range(1000)],
        [("/".join(["d"] * 600), None)],
        [header(f"link-{number}", tarfile.SYMTYPE, "x") for number in range(600)],
    ],
    ids=["one", "several", "many", "folders", "links"],
)
def test_no_archive_fills_the_disk(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, members: list[Member]
) -> None:
    """A compressed one is small."""
    resolve("host")
    tar = make_tar(tmp_path / "a.tgz", *members)
    monkeypatch.setattr(host_files, "free_space", lambda folder: (4 << 20, 1000))
    with pytest.raises(ImageError, match="more than half of what is free"):
        resolve(f"host+{tar}")
    assert [info.name for info in list_images()] == ["host"]
    assert len(list(cache.iterdir())) == 1


def test_link_out_of_the_archive_stays_inside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    tar = make_tar(
        tmp_path / "a.tgz",
        header("l", tarfile.SYMTYPE, str(victim)),
        ("l/x", b"gotcha"),
        header("m", tarfile.SYMTYPE, "/" + "../" * 30 + str(victim).lstrip("/")),
        ("m/y", b"gotcha"),
        header("f", tarfile.SYMTYPE, str(victim / "f")),
        ("f", b"gotcha"),
    )
    layer = resolve(f"scratch+{tar}").layers[1]
    assert not list(victim.iterdir())
    assert (layer / str(victim).lstrip("/") / "x").is_file()
    assert (layer / str(victim).lstrip("/") / "y").is_file()
    assert (layer / "f").is_file() and not (layer / "f").is_symlink()


@pytest.mark.parametrize("damage", ["cut", "noise", "text", "inner", "empty"])
def test_damaged_archive(tmp_path: Path, cache: Path, damage: str) -> None:
    tar = make_tar(tmp_path / "a.tar.gz", ("x", os.urandom(50_000)))
    data = bytearray(tar.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "noise":
        data[20_000:20_100] = os.urandom(100)
    elif damage == "inner":
        plain = make_tar(tmp_path / "b.tar", ("x", os.urandom(50_000)), mode="w").read_bytes()
        data = bytearray(plain[:30_000])
    else:
        data = bytearray(b"not an archive" if damage == "text" else b"")
    tar.write_bytes(data)
    with pytest.raises(ImageError, match=r"cannot unpack the archive .*a\.tar\.gz"):
        resolve(f"host+{tar}")
    assert len(list(cache.iterdir())) == 1


def test_missing_archive(tmp_path: Path) -> None:
    for name in ("a.tar", "a.sh"):
        with pytest.raises(ImageError, match="does not exist"):
            resolve(f"host+{tmp_path}/{name}")
