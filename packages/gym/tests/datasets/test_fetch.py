"""A fetched dataset is where its loader looks, whole, or is not there; nothing lies elsewhere."""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from file_server import Place, serve
from intercode.datasets import catalog, load
from intercode.datasets.fetch import fetch, unpack
from intercode.datasets.files import home
from intercode.errors import FetchError, UsageError
from intercode.registry import DATASETS
from waiting import eventually

from . import layouts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spider's, as its authors pack it."""
    folder = tmp_path_factory.mktemp("spider")
    layouts.spider(folder / "in" / "spider_data")
    return Path(shutil.make_archive(str(folder / "spider"), "zip", folder / "in"))


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


@pytest.fixture
def catalogued(archive: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the catalogue's place of Spider another one, with that archive's checksum."""

    def change(url: str) -> None:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        entries = tuple(
            replace(entry, url=url, sha256=digest) if entry.name == "spider" else entry
            for entry in catalog._ENTRIES
        )
        monkeypatch.setattr(catalog, "_ENTRIES", entries)

    return change


def test_fetch(archive: Path, cache: Path, catalogued) -> None:
    assert not home("spider").exists()
    with serve(Place(archive.read_bytes())) as place:
        catalogued(place.url)
        dataset = fetch("spider")
        assert len(fetch("spider")) == 3  # it is there
        assert place.asked == 1
        fetch("spider", force=True)
        assert place.asked == 2
    assert home("spider").exists()
    assert load("spider") == dataset
    assert dataset.databases == str(home("spider") / "spider_data" / "database")
    assert left(cache) == ["spider"]


def test_the_checksum_is_of_the_catalogues_place_only(
    archive: Path, cache: Path, catalogued
) -> None:
    with serve(Place(archive.read_bytes() + b" ")) as place:
        catalogued(place.url)
        with pytest.raises(FetchError, match="has changed"):
            fetch("spider")
        assert not home("spider").exists()
        with pytest.raises(FetchError, match="has changed"):
            fetch("spider", origin=place.url, sha256="00" * 32)
        assert len(fetch("spider", origin=place.url)) == 3


@pytest.mark.parametrize("what", ["truncated", "damaged", "other", "empty"])
def test_what_is_not_whole_is_not_there(
    archive: Path, cache: Path, tmp_path: Path, what: str
) -> None:
    content = archive.read_bytes()
    layouts.write(tmp_path / "in" / "notes.json", ["of something else"])
    other = Path(shutil.make_archive(str(tmp_path / "other"), "zip", tmp_path / "in"))
    content = {
        "truncated": content[: len(content) // 2],
        "damaged": content[:200] + bytes(200) + content[400:],
        "other": other.read_bytes(),
        "empty": b"",
    }[what]
    with serve(Place(content)) as place:
        with pytest.raises(FetchError, match="not 'spider'"):
            fetch("spider", origin=place.url)
        assert left(cache) == []
        place.content = archive.read_bytes()
        assert len(fetch("spider", origin=place.url)) == 3
    assert left(cache) == ["spider"]


def test_what_is_there_outlives_a_failure(archive: Path, cache: Path) -> None:
    with serve(Place(archive.read_bytes())) as place:
        fetch("spider", origin=place.url)
        place.answers = [404]
        with pytest.raises(FetchError, match="404"):
            fetch("spider", origin=place.url, force=True)
    assert len(load("spider")) == 3


def test_a_file_is_unpacked_and_a_folder_linked_to(archive: Path, tmp_path: Path) -> None:
    assert len(fetch("spider", origin=str(archive))) == 3
    assert archive.is_file()
    folder = layouts.spider(tmp_path / "mine" / "spider")
    dataset = fetch("spider", origin=str(folder), force=True)
    assert home("spider").is_symlink()
    assert dataset.databases == str(folder / "database")
    with pytest.raises(FetchError, match="not 'spider'"):
        fetch("spider", origin=str(folder / "database"), force=True)
    with pytest.raises(UsageError, match="contains InterCode's cache"):
        fetch("spider", origin=str(tmp_path), force=True)
    assert len(load("spider")) == 3
    assert len(fetch("spider", origin=str(archive), force=True)) == 3
    assert not home("spider").is_symlink() and folder.is_dir()


def test_the_checksum_is_of_a_local_archive_too(archive: Path, cache: Path) -> None:
    with pytest.raises(FetchError, match=r"SHA-256 is [0-9a-f]{64}, not 0000"):
        fetch("spider", origin=str(archive), sha256="00" * 32)
    assert archive.is_file() and not home("spider").exists()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert len(fetch("spider", origin=str(archive), sha256=digest.upper())) == 3


def test_at_the_same_time(archive: Path, cache: Path) -> None:
    waiting: list[str] = []

    def say(line: str) -> None:
        if line.startswith("waiting"):
            waiting.append(line)
        elif line.startswith("fetching"):  # it goes on when all others wait for it
            assert eventually(lambda: len(waiting) == 3)

    with serve(Place(archive.read_bytes())) as place, ThreadPoolExecutor(4) as pool:
        found = [pool.submit(fetch, "spider", origin=place.url, report_line=say) for _ in range(4)]
        assert [len(one.result()) for one in found] == [3] * 4
        assert place.asked == 1
    assert left(cache) == ["spider"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sql", "comes with InterCode"),
        ("nl2bash", "clone the 2023 release"),
        ("no_such", "there is no dataset 'no_such'; known: apps, "),
    ],
)
def test_nothing_to_fetch(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fetch(name)


def test_a_cache_that_cannot_be_written(archive: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.raises(FetchError, match="cannot store datasets"):
        fetch("spider", origin=str(archive))


def test_every_entry_has_a_loader_and_a_place_or_advice() -> None:
    for entry in catalog.entries():
        assert entry.name in DATASETS
        assert entry.bundled or entry.url or entry.advice
        assert not entry.url or (len(entry.sha256) == 64 and entry.url.startswith("https://"))
    DATASETS.register("mine", lambda: None)
    assert catalog.find("mine").bundled
    DATASETS._entries.pop("mine")


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


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "archive", {"x": b"new"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {"x": b"old"}


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("<html>")
    with pytest.raises(FetchError, match="neither"):
        unpack(tmp_path / "archive", tmp_path / "out")
