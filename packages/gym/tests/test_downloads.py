"""Downloads by HTTP, from servers that do what real ones do."""

from __future__ import annotations

import hashlib
import random
import socket
from pathlib import Path

import pytest

from file_server import Place, serve
from intercode.downloads import download
from intercode.errors import FetchError, UsageError

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
    assert place.asked == 1


def test_a_broken_connection_is_continued(target: Path) -> None:
    with serve(Place(CONTENT, breaks=[400_000, 100_000])) as place:
        download(place.url, target, sha256=DIGEST, pause=0)
        assert place.ranges == ["bytes=400000-", "bytes=500000-"]
        assert place.asked == 3
        place.breaks = [400_000]
        with pytest.raises(FetchError, match="broke off at 400000 of 1000000 bytes"):
            download(place.url, target.with_name("other"), attempts=1)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["archive"]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_the_next_call_continues(target: Path, has_ranges: bool) -> None:
    with serve(Place(CONTENT, has_ranges=has_ranges, breaks=[400_000])) as place:
        with pytest.raises(FetchError, match="broke off"):
            download(place.url, target, sha256=DIGEST, resumable=True, attempts=1)
        told: list[int] = []
        download(
            place.url,
            target,
            sha256=DIGEST,
            resumable=True,
            progress=lambda done, total: told.append(done),
        )
        assert place.ranges == ["bytes=400000-"]
        assert told[0] == (400_000 if has_ranges else 0)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["archive"]


def test_a_whole_part_needs_no_more_bytes(target: Path) -> None:
    target.with_name(".archive.new").write_bytes(CONTENT)
    with serve(Place(CONTENT)) as place:
        download(place.url, target, sha256=DIGEST, resumable=True)
        assert place.asked == 1
    assert target.read_bytes() == CONTENT


def test_a_part_of_something_else_is_thrown_away(target: Path) -> None:
    target.with_name(".archive.new").write_bytes(b"x" * 1000)
    with serve(Place(CONTENT)) as place:
        with pytest.raises(FetchError, match="has changed"):
            download(place.url, target, sha256=DIGEST, resumable=True)
        download(place.url, target, sha256=DIGEST, resumable=True)
    assert target.read_bytes() == CONTENT


def test_without_a_digest_nothing_is_continued(target: Path) -> None:
    with serve(Place(CONTENT, breaks=[400_000])) as place:
        download(place.url, target, resumable=True, pause=0)
        assert place.ranges == []
    assert target.read_bytes() == CONTENT


def test_a_full_disk_is_told_at_once(target: Path) -> None:
    target.with_name(f".{target.name}.new").symlink_to("/dev/full")
    with serve(Place(CONTENT)) as place:
        with pytest.raises(FetchError, match=r"cannot write .*: No space left on device"):
            download(place.url, target, pause=0)
        assert place.asked == 1
    assert list(target.parent.iterdir()) == []


def test_size_unknown(target: Path) -> None:
    with serve(Place(CONTENT, length=False)) as place:
        download(place.url, target, sha256=DIGEST)
    assert target.read_bytes() == CONTENT


def test_truncated_and_size_unknown(target: Path) -> None:
    wrong = pytest.raises(FetchError, match="has changed")
    with serve(Place(CONTENT, length=False, breaks=[1000])) as place, wrong:
        download(place.url, target, sha256=DIGEST)
    assert list(target.parent.iterdir()) == []


def test_wrong_checksum(target: Path) -> None:
    with serve(Place(CONTENT)) as place:
        with pytest.raises(FetchError, match=f"{DIGEST}, not 00"):
            download(place.url, target, sha256="00" * 32)
        assert list(target.parent.iterdir()) == []
        download(place.url, target, sha256=DIGEST)


def test_not_found_is_final(target: Path) -> None:
    with serve(Place(CONTENT, answers=[404])) as place:
        with pytest.raises(FetchError, match="404 Not Found"):
            download(place.url, target, pause=0)
        assert place.asked == 1
    assert list(target.parent.iterdir()) == []


def test_a_server_in_trouble_is_asked_again(target: Path) -> None:
    with serve(Place(CONTENT, answers=[503, 429])) as place:
        download(place.url, target, sha256=DIGEST, pause=0)
        place.answers = [500] * 9
        with pytest.raises(FetchError, match="500"):
            download(f"{place.url}?2", target.with_name("other"), attempts=3, pause=0)
        assert place.asked == 6


def test_a_web_page_is_no_archive(target: Path) -> None:
    with serve(Place(b"<html>too many people", kind="text/html; charset=utf-8")) as place:
        with pytest.raises(FetchError, match="is a web page"):
            download(place.url, target, pause=0)
        assert place.asked == 1
    assert list(target.parent.iterdir()) == []


def test_a_server_that_does_not_answer(target: Path) -> None:
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
