"""An archive of somebody else's is unpacked below one folder, or not at all."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from intercode.datasets.fetch import unpack
from intercode.errors import FetchError

Members = dict[str, "bytes | None"]
GOOD: Members = {
    "a/": None,
    "a/b.txt": b"text",
    "c/d/e": b"",
    "__MACOSX/x": b"",
    "a/.DS_Store": b"",
}


def zipped(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content or b"")
    return path


def tarred(path: Path, members: Members, mode: str = "w:bz2") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.size = len(content or b"")
            info.mode = 0o4777
            archive.addfile(info, io.BytesIO(content or b""))
    return path


def special(path: Path, kind: bytes) -> Path:
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    return path


def found(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("make", [zipped, tarred], ids=["zip", "tar"])
def test_files_and_folders(tmp_path: Path, make) -> None:
    unpack(make(tmp_path / "archive", GOOD), tmp_path / "out")
    assert found(tmp_path / "out") == {"a/b.txt": b"text", "c/d/e": b""}
    assert not stat.S_IMODE((tmp_path / "out/a/b.txt").stat().st_mode) & 0o6111


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_compressions(tmp_path: Path, mode: str) -> None:
    unpack(tarred(tmp_path / "archive", GOOD, mode), tmp_path / "out")
    assert len(found(tmp_path / "out")) == 2


def test_databases_within(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner", {"dev_databases/x/x.sqlite": b"data"}).read_bytes()
    outer = zipped(tmp_path / "outer", {"dev/dev_databases.zip": inner, "dev/dev.json": b"[]"})
    unpack(outer, tmp_path / "out")
    wanted = {"dev/dev_databases/x/x.sqlite": b"data", "dev/dev.json": b"[]"}
    assert found(tmp_path / "out") == wanted
    with pytest.raises(FetchError, match="more than"):
        unpack(outer, tmp_path / "small", limit=len(inner) + 3)


@pytest.mark.parametrize("make", [zipped, tarred], ids=["zip", "tar"])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "{root}/evil", "a/.."])
def test_nothing_elsewhere(tmp_path: Path, make, name: str) -> None:
    archive = make(tmp_path / "archive", {"good": b"", name.format(root=tmp_path): b"evil"})
    with pytest.raises(FetchError):
        unpack(archive, tmp_path / "in" / "out")
    assert list(tmp_path.rglob("evil*")) == []
    assert not (tmp_path / "in" / "out").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_only_files(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(FetchError, match="is not a file"):
        unpack(special(tmp_path / "archive", kind), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_links_in_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FetchError, match="is not a file"):
        unpack(tmp_path / "archive", tmp_path / "out")


@pytest.mark.parametrize("make", [zipped, tarred], ids=["zip", "tar"])
def test_bomb(tmp_path: Path, make) -> None:
    archive = make(tmp_path / "archive", {"bomb": bytes(10_000_000)})
    assert archive.stat().st_size < 20_000
    with pytest.raises(FetchError, match="more than 1000000 bytes"):
        unpack(archive, tmp_path / "out", limit=1_000_000)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [zipped, tarred], ids=["zip", "tar"])
def test_damaged(tmp_path: Path, make) -> None:
    archive = make(tmp_path / "archive", {"x": bytes(range(256)) * 5000, "y": b"end"})
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(FetchError):
        unpack(archive, tmp_path / "out")
    archive.write_bytes(whole[:60] + bytes(40) + whole[100:])
    with pytest.raises(FetchError):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_encrypted(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "archive", {"x": b"secret"})
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    archive.write_bytes(data)
    with pytest.raises(FetchError, match="encrypted"):
        unpack(archive, tmp_path / "out")


def test_same_name_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("x", "one")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x", "two")
    with pytest.raises(FetchError, match="cannot be unpacked"):
        unpack(tmp_path / "archive", tmp_path / "out")


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("<html>")
    with pytest.raises(FetchError, match="neither"):
        unpack(tmp_path / "archive", tmp_path / "out")
