"""A download comes whole and as it should be, or leaves nothing that looks so."""

from __future__ import annotations

import hashlib
import random
import socket
from pathlib import Path

import pytest

from intercode.datasets.download import download
from intercode.errors import FetchError, UsageError

from .place import Place, serve

CONTENT = random.Random(0).randbytes(1_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def test_whole(target: Path) -> None:
    told: list[tuple[int, int | None]] = []
    with serve(Place(CONTENT)) as place:
        progress = lambda done, total: told.append((done, total))  # noqa: E731
        download(place.url, target, sha256=DIGEST.upper(), progress=progress)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["archive"]
    assert told[0] == (0, len(CONTENT)) and told[-1] == (len(CONTENT), len(CONTENT))
    assert place.asked == [""]


@pytest.mark.parametrize(
    ("ranges", "tag", "resumed"),
    [(True, '"one"', True), (False, '"one"', False), (True, None, False), (True, 'W/"1"', False)],
    ids=["ranges", "no ranges", "no tag", "weak tag"],
)
def test_goes_on_where_it_broke_off(
    target: Path, ranges: bool, tag: str | None, resumed: bool
) -> None:
    with serve(Place(CONTENT, ranges=ranges, tag=tag, breaks=[400_000, 500_000])) as place:
        download(place.url, target, sha256=DIGEST, pause=0)
    assert target.read_bytes() == CONTENT
    assert len(place.asked) == 3
    assert place.sent == (len(CONTENT) if resumed else 400_000 + 500_000 + len(CONTENT))


def test_goes_on_in_another_process_later(target: Path) -> None:
    with serve(Place(CONTENT, breaks=[400_000])) as place:
        with pytest.raises(FetchError, match="400000 of 1000000 bytes; 400000 bytes are kept"):
            download(place.url, target, attempts=1)
        assert not target.exists()
        download(place.url, target, attempts=1)
        assert place.asked == ["", "bytes=400000-"]
    assert target.read_bytes() == CONTENT


def test_another_version_begins_anew(target: Path) -> None:
    with serve(Place(CONTENT, breaks=[400_000])) as place:
        with pytest.raises(FetchError):
            download(place.url, target, attempts=1)
        place.content, place.tag = CONTENT[::-1], '"two"'
        download(place.url, target, attempts=1)
    assert target.read_bytes() == CONTENT[::-1]


def test_another_url_begins_anew(target: Path) -> None:
    with serve(Place(CONTENT, breaks=[400_000])) as place:
        with pytest.raises(FetchError):
            download(place.url, target, attempts=1)
        download(f"{place.url}?other", target, attempts=1)
        assert place.asked == ["", ""]


def test_a_part_that_is_too_long_begins_anew(target: Path) -> None:
    with serve(Place(CONTENT, breaks=[400_000])) as place:
        with pytest.raises(FetchError):
            download(place.url, target, attempts=1)
        target.with_name("archive.part").write_bytes(bytes(len(CONTENT)))
        download(place.url, target, sha256=DIGEST, attempts=2, pause=0)
    assert target.read_bytes() == CONTENT


def test_size_unknown(target: Path) -> None:
    with serve(Place(CONTENT, length=False)) as place:
        download(place.url, target, sha256=DIGEST)
    assert target.read_bytes() == CONTENT


def test_truncated_and_size_unknown(target: Path) -> None:
    wrong = pytest.raises(FetchError, match="is not what it was")
    with serve(Place(CONTENT, length=False, breaks=[1000])) as place, wrong:
        download(place.url, target, sha256=DIGEST)
    assert list(target.parent.glob("archive*")) == [target.with_name("archive.part.json")]


def test_wrong_checksum(target: Path) -> None:
    with serve(Place(CONTENT)) as place:
        with pytest.raises(FetchError, match=f"{DIGEST}, not 00"):
            download(place.url, target, sha256="00" * 32)
        assert not target.exists() and not target.with_name("archive.part").exists()
        download(place.url, target, sha256=DIGEST)


def test_not_found_is_final(target: Path) -> None:
    with serve(Place(CONTENT, answers=[404])) as place:
        with pytest.raises(FetchError, match="404 Not Found"):
            download(place.url, target, pause=0)
        assert len(place.asked) == 1
    assert list(target.parent.iterdir()) == []


def test_a_server_in_trouble_is_asked_again(target: Path) -> None:
    with serve(Place(CONTENT, answers=[503, 429])) as place:
        download(place.url, target, sha256=DIGEST, pause=0)
        place.answers = [500] * 9
        with pytest.raises(FetchError, match="500"):
            download(f"{place.url}?2", target.with_name("other"), attempts=3, pause=0)
        assert len(place.asked) == 6


def test_a_web_page_is_no_archive(target: Path) -> None:
    with serve(Place(b"<html>too many people", kind="text/html; charset=utf-8")) as place:
        with pytest.raises(FetchError, match="is a web page"):
            download(place.url, target, pause=0)
        assert len(place.asked) == 1
    assert list(target.parent.iterdir()) == []


def test_nobody_answers(target: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # does not listen, and keeps the port from those who would
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        with pytest.raises(FetchError, match="refused"):
            download(url, target, attempts=2, pause=0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(FetchError, match="timed out"):
            download(url, target, attempts=1, timeout=0.05)  # allow limit: it never answers


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "data:,x", "/tmp/x"])
def test_only_http(url: str, target: Path) -> None:
    with pytest.raises(UsageError, match="http"):
        download(url, target)
