"""Folders as images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import resolve
from intercode_sandbox.images.cache import ImageCache

from . import make_tar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root" / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "usr" / "bin" / "x").write_text("x")
    return tmp_path / "root"


def test_folder_is_used_where_it_is(folder: Path, cache: Path) -> None:
    image = resolve(str(folder))
    assert image.layers == (folder,) and not image.host
    assert resolve(f"{folder}/") == image
    assert not list(cache.iterdir())


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_folder_digest_changes_with_its_files(folder: Path, change: str) -> None:
    def digest() -> str:
        ImageCache.default()._memory.clear()  # as in another process
        return resolve(str(folder)).digest

    before = digest()
    assert digest() == before
    file = folder / "usr" / "bin" / "x"
    if change == "content":
        file.write_text("y")
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    elif change == "mode":
        file.chmod(0o755)
    elif change == "name":
        info = file.parent.stat()
        file.rename(file.with_name("y"))
        os.utime(file.parent, ns=(info.st_atime_ns, info.st_mtime_ns))
    else:
        file.unlink()
        file.symlink_to("x")
    assert digest() != before


def test_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        resolve(f"{tmp_path}/nope")
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match="not a folder"):
        resolve(f"{tmp_path}/file")
    with pytest.raises(ImageError, match="not a root file system"):
        resolve(str(tmp_path))


def test_layer_over_a_folder(folder: Path, tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", ("usr/bin/y", b"y"), mode="w")
    image = resolve(f"{folder}+{tar}")
    assert image.layers[0] == folder
    assert (image.layers[1] / "usr/bin/y").read_bytes() == b"y"


@pytest.mark.parametrize("name", ["/", "//", "/.", "/usr/..", "/proc/self/root"])
def test_the_machines_root_is_no_image(name: str) -> None:
    """It has what images are kept in, and /proc."""
    with pytest.raises(ImageError, match="programs, use the image 'host'"):
        resolve(name)


def test_a_folder_with_the_cache_is_no_image(cache: Path) -> None:
    for folder in (cache.parent, cache.parent.parent):
        folder.joinpath("usr").mkdir(parents=True)
        with pytest.raises(ImageError, match="InterCode's cache"):
            resolve(str(folder))
