"""The run's folder: whole lines or none, one writer, shared commits."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from intercode import records
from intercode.episode import Episode, Fork, Score, Turn, decode
from intercode.errors import RecordError, RunLockedError
from intercode.records import (
    EPISODES,
    Outcome,
    RunRecordWriter,
    read_episodes,
    read_latest,
    read_manifest,
)
from waiting import eventually


def episode(n: int, text: str = "") -> Episode:
    turn = Turn(f"echo {n}", text, info={"n": n})
    return Episode(f"t{n}", "query", "fake", turns=[turn], status="submitted", score=Score(1.0))


def write(folder: Path, *episodes: Episode) -> None:
    with RunRecordWriter(folder) as log:
        for one in episodes:
            log.append(one)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=4))
def test_whatever_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, outputs: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("log") / "run"
    episodes = [episode(n, decode(output)) for n, output in enumerate(outputs)]
    write(folder, *episodes)
    assert list(read_episodes(folder / EPISODES)) == episodes


@pytest.mark.parametrize("tail", [b"", b"\0" * 10, b'{"task_id":"x'])
def test_torn_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes) -> None:
    for sync in ("fsync", "fdatasync"):  # more than a thousand times, for a busy disk
        monkeypatch.setattr(os, sync, lambda fd: None)
    whole = tmp_path / "whole"
    write(whole, episode(0), episode(1, "é\n\udcff"), episode(2))
    data = (whole / EPISODES).read_bytes()
    folder = tmp_path / "torn"
    folder.mkdir()
    path = folder / EPISODES
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut] + tail)
        complete = data[:cut].count(b"\n")
        assert [e.task_id for e in read_episodes(path)] == [f"t{n}" for n in range(complete)]
        write(folder, episode(9))
        assert [task for _, task, _ in read_latest(folder, Outcome.from_episode)] == [
            f"t{n}" for n in range(complete)
        ] + ["t9"]


def test_a_torn_line_longer_than_a_block(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, episode(0), episode(1, "x" * 300_000))
    path = folder / EPISODES
    os.truncate(path, path.stat().st_size - 1)
    write(folder, episode(2))
    assert [e.task_id for e in read_episodes(path)] == ["t0", "t2"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """A stranger's file may be sparse, and cost nothing where it is made."""
    monkeypatch.setattr(records, "_LONGEST_LINE", 100_000)
    write(tmp_path / "run", episode(0))
    path = tmp_path / "run" / EPISODES
    os.truncate(path, 1 << 43)
    with path.open("ab") as file:
        file.write(end)
    with pytest.raises(RecordError, match="longer than 100,000 bytes"):
        list(read_episodes(path))
    manifest = tmp_path / "run" / "run.json"
    manifest.touch()
    os.truncate(manifest, 1 << 43)
    with pytest.raises(RecordError, match=r"run\.json is larger than 64 MiB"):
        read_manifest(tmp_path / "run")


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    write(tmp_path / "run", episode(0), episode(1))
    path = tmp_path / "run" / EPISODES
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"garbage\n" + second)
    with pytest.raises(RecordError, match=r"episodes\.jsonl:2: episode is not JSON"):
        list(read_episodes(path))


@pytest.mark.parametrize("content", [b"garbage", b"garbage\n", b"\x89PNG\r\n\x1a"])
def test_a_file_of_something_else_is_no_log(tmp_path: Path, content: bytes) -> None:
    """It is neither read as a run without episodes, nor cut as a torn end."""
    write(tmp_path / "run")
    path = tmp_path / "run" / EPISODES
    path.write_bytes(content)
    with pytest.raises(RecordError, match="episode"):
        list(read_episodes(path))
    if not content.endswith(b"\n"):
        with pytest.raises(RecordError, match=r"at byte \d+: not an episode"):
            RunRecordWriter(tmp_path / "run")
        assert path.read_bytes() == content


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        list(read_episodes(tmp_path / "none.jsonl"))
    with pytest.raises(RecordError, match="not the folder of a run"):
        read_manifest(tmp_path)
    (tmp_path / "run.json").write_text("[")
    with pytest.raises(RecordError, match="not JSON"):
        read_manifest(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RecordError, match="not a JSON object"):
        read_manifest(tmp_path)


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    with RunRecordWriter(tmp_path / "run"), pytest.raises(RunLockedError, match="another process"):
        RunRecordWriter(tmp_path / "run")
    RunRecordWriter(tmp_path / "run").close()
    code = (
        "import sys, time; from pathlib import Path; from intercode.records import "
        "RunRecordWriter\n"
        "log = RunRecordWriter(Path(sys.argv[1])); print('ready', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RunLockedError):
            RunRecordWriter(tmp_path / "run")
        holder.kill()
        holder.wait()
    RunRecordWriter(tmp_path / "run").close()


def test_workers_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    real = os.fdatasync
    first = threading.Event()
    rest = threading.Event()

    def counted(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 1:
            first.set()
            rest.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", counted)
    with RunRecordWriter(tmp_path / "run") as log:
        threads = [threading.Thread(target=log.append, args=(episode(n),)) for n in range(8)]
        threads[0].start()
        assert first.wait(60)
        for thread in threads[1:]:
            thread.start()
        assert eventually(lambda: log._queued_count == 8)
        rest.set()
        for thread in threads:
            thread.join()
    assert syncs == 2
    assert len(list(read_episodes(tmp_path / "run" / EPISODES))) == 8


def test_several_are_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    with RunRecordWriter(tmp_path / "run") as log:
        log.append(*map(episode, range(5)))
    assert len(syncs) == 1
    found = read_episodes(tmp_path / "run" / EPISODES)
    assert [one.task_id for one in found] == [f"t{n}" for n in range(5)]


def test_a_full_disk_is_told_to_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunRecordWriter(tmp_path / "run") as log:
        log.append(episode(0))
        monkeypatch.setattr(os, "fdatasync", full)
        for n in (1, 2):
            with pytest.raises(RecordError, match="No space left"):
                log.append(episode(n))
    with pytest.raises(RecordError):
        log.append(episode(3))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write to"):
        RunRecordWriter(tmp_path / "file" / "run")


def test_forks_of_an_episode_are_kept_apart(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second, other = episode(1), episode(1), episode(1)
    first.fork, second.fork = Fork("t1#0", 2, (0,)), Fork("t1#0", 2, (1,))
    write(folder, other, first, second, first)
    assert [*read_latest(folder, Outcome.from_episode)] == [
        (0, "t1", ()),
        (0, "t1", (1,)),
        (0, "t1", (0,)),
    ]


DEEP = f"{'[' * 300}{']' * 300}"


@pytest.mark.parametrize("value", [f'{{"a": {DEEP}}}', "[" * 100_000, '"\\ud800"'])
@pytest.mark.parametrize("name", ["metadata", "seconds"])
def test_a_strangers_episode_is_refused(name: str, value: str) -> None:
    """The reader refuses it: later steps recurse, and encode texts."""
    line = json.dumps({**episode(1).to_dict(), name: "here"}).replace('"here"', value)
    with pytest.raises(RecordError):
        Episode.from_json(line)


@pytest.mark.parametrize("value", [DEEP, "[" * 100_000, '"\\ud800"'])
def test_a_strangers_manifest_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.json").write_text(f'{{"format": 1, "seed": {value}}}')
    with pytest.raises(RecordError, match=r"run\.json"):
        read_manifest(tmp_path)


def test_brackets_in_texts_are_no_levels() -> None:
    text = "[{" * 1000
    assert Episode.from_json(episode(1, text).to_json()).turns[0].observation == text
