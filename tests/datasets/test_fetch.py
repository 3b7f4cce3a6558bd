"""A fetched dataset is where its loader looks, whole, or is not there."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from intercode.datasets import catalog, load
from intercode.datasets.fetch import fetch
from intercode.datasets.files import home
from intercode.errors import FetchError, UsageError
from intercode.registry import DATASETS
from waiting import eventually

from . import layouts
from .place import Place, serve


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
        with pytest.raises(FetchError, match="is not what it was"):
            fetch("spider")
        assert not home("spider").exists()
        with pytest.raises(FetchError, match="is not what it was"):
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
    with pytest.raises(UsageError, match="holds the cache itself"):
        fetch("spider", origin=str(tmp_path), force=True)
    assert len(load("spider")) == 3
    assert len(fetch("spider", origin=str(archive), force=True)) == 3
    assert not home("spider").is_symlink() and folder.is_dir()


def test_at_the_same_time(archive: Path, cache: Path) -> None:
    waiting: list[str] = []

    def say(line: str) -> None:
        if line.startswith("waiting"):
            waiting.append(line)
        elif line.startswith("fetching"):  # it goes on when all others wait for it
            assert eventually(lambda: len(waiting) == 3)

    with serve(Place(archive.read_bytes())) as place, ThreadPoolExecutor(4) as pool:
        found = [pool.submit(fetch, "spider", origin=place.url, say=say) for _ in range(4)]
        assert [len(one.result()) for one in found] == [3] * 4
        assert place.asked == 1
    assert left(cache) == ["spider"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sql", "comes with InterCode"),
        ("nl2bash", "clone the 2023 release"),
        ("no_such", "there is no dataset named 'no_such'; known: apps, "),
    ],
)
def test_nothing_to_fetch(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fetch(name)


def test_a_cache_that_cannot_be_written(archive: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.raises(FetchError, match="cannot keep datasets"):
        fetch("spider", origin=str(archive))


def test_every_entry_has_a_loader_and_a_place_or_advice() -> None:
    for entry in catalog.entries():
        assert entry.name in DATASETS
        assert entry.bundled or entry.url or entry.advice
        assert not entry.url or (len(entry.sha256) == 64 and entry.url.startswith("https://"))
    DATASETS.register("mine", lambda: None)
    assert catalog.find("mine").bundled
    DATASETS._entries.pop("mine")
