"""The tarballs that InterCode makes for images: how long they are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from intercode_sandbox.images import list_images, prune, prune_sources, resolve
from intercode_sandbox.images.tarballs import pack

PACK = """
import sys
from pathlib import Path
from intercode_sandbox.images import resolve
from intercode_sandbox.images.tarballs import pack
from intercode_sandbox.images.git_repository import prepare
place = pack(Path(sys.argv[1]), "/ctf")
if "image" in sys.argv:
    resolve(f"scratch+{place}")
if "repository" in sys.argv:
    place = prepare(sys.argv[1] + ".fi", "main", "/repo")[1]
print(place)
"""
REPOSITORY = """\
commit refs/heads/main
committer Ann <ann@example.org> 1600000000 +0000
data 1
x
M 644 inline f
data 2
1

"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something to pack, and an empty cache."""
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "puzzle").mkdir()
    (tmp_path / "puzzle/note").write_text("x")
    (tmp_path / "puzzle.fi").write_text(REPOSITORY)
    return tmp_path / "puzzle"


def made_by_another(folder: Path, *what: str) -> Path:
    """What a process that has ended since has made."""
    argv = [sys.executable, "-c", PACK, str(folder), *what]
    return Path(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip())


def age(path: Path, seconds: float) -> None:
    info = path.stat()
    os.utime(path, ns=(int((info.st_atime - seconds) * 1e9), info.st_mtime_ns))


@pytest.mark.parametrize("what", ["pack", "repository"])
def test_what_was_not_used_for_long_goes(folder: Path, what: str) -> None:
    place = made_by_another(folder, what)
    assert prune_sources(3600) == []
    age(place, 7200)
    modified = place.stat().st_mtime_ns
    assert made_by_another(folder, what) == place
    assert place.stat().st_mtime_ns == modified, "images need not be looked at anew"
    assert prune_sources(3600) == [], "it was used again"
    age(place, 7200)
    found = prune_sources(3600, dry_run=True)
    assert [source.path for source in found if source.path.parent == place.parent] == [place]
    assert place.exists()
    prune_sources(3600)
    assert not place.exists()


def test_what_a_living_process_uses_stays(folder: Path) -> None:
    place = pack(folder, "/ctf")
    age(place, 1e6)
    assert prune_sources(include_recent=True) == []
    assert place.exists()


def test_what_an_image_is_made_of_goes_with_it(folder: Path) -> None:
    place = made_by_another(folder, "image")
    (before,) = (info for info in list_images() if place.name in info.spec)
    age(place, 1e6)
    assert prune_sources(3600) == []
    removed = {info.digest for info in prune(include_recent=True, dry_run=True)}
    assert before.digest in removed
    found = prune_sources(include_recent=True, dry_run=True, excluded_digests=removed)
    assert [source.path for source in found] == [place]
    prune(include_recent=True)
    assert [source.path for source in prune_sources(include_recent=True)] == [place]
    assert pack(folder, "/ctf") == place
    assert resolve(f"scratch+{place}").digest == before.digest, "it was made again"


def test_what_is_half_made_goes_after_a_day(folder: Path) -> None:
    place = made_by_another(folder)
    torn = [place.parent / ".new", place.parent / ".old"]
    for path in torn:
        path.mkdir()
    os.utime(torn[1], (0, 0))
    prune_sources()
    assert [path.exists() for path in torn] == [True, False]
