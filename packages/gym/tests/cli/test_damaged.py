"""Damaged files and full disks: words and an exit code from every command that reads or writes."""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from intercode import records
from intercode.cli.main import main
from intercode.errors import RecordError
from intercode.records import EPISODES, MANIFEST, RunRecordWriter
from sources import ROOT

from .conftest import command

RECORDED = ROOT / "tests/golden/runs-0.1.0/bash-model"
VALUES: list[Any] = [3, "x", [], {}, None, [3], {"a": 1}, -1.5, True]
GONE = object()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def commands(run: Path) -> Iterator[list[str]]:
    out = run.parent
    yield ["show", str(run), "--full"]
    yield ["report", str(run)]
    yield ["report", str(run), "--html", str(out / "page.html")]
    yield ["resume", "--trust", str(run), "--quiet"]
    yield ["rescore", "--trust", str(run), "--out", str(out / "rescored"), "--quiet"]
    yield ["run", "--trust", "--locked", str(run), "--out", str(out / "again"), "--quiet"]
    for form in ("chat", "csv", "inspect"):
        yield ["export", str(run), "--to", form, "--out", str(out / f"{form}.json")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"env": 3}', "run.json is damaged: field env: Expected object, got int"),
        ("", "run.json is not JSON"),
        ('{"format": 1, "dataset": {"na', "run.json is not JSON"),
        ("[]", "run.json is not a JSON object"),
        ("{}", "run.json is damaged: Object missing required field"),
        ('{"format": 2}', "run.json was written by another version of intercode (format 2, not 1)"),
    ],
)
def test_a_damaged_manifest(
    run: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (run / MANIFEST).write_text(text)
    for arguments in commands(run):
        assert main(arguments) == 2, arguments
        assert f"{run}/{told}" in capsys.readouterr().err


def test_garbage_for_episodes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = random.Random(1).randbytes(3000) + b"\n"
    (run / EPISODES).write_bytes(garbage)
    for arguments in commands(run):
        # A new run of the same reads no episode of the recorded one.
        if arguments[0] != "run":
            assert main(arguments) == 2, arguments
            assert f"{run}/{EPISODES}:1: episode is not JSON" in capsys.readouterr().err
    assert (run / EPISODES).read_bytes() == garbage
    (run / EPISODES).write_bytes(b"garbage")
    with pytest.raises(RecordError, match="not an episode"):
        RunRecordWriter(run)
    (run / EPISODES).write_bytes(b"")  # no lock was kept
    RunRecordWriter(run).close()


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a value of JSON; of lists, the first entry stands for all."""
    yield place
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*place, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*place, 0))


def damaged(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return None if new is GONE else new
    value = inner = copy.deepcopy(value)
    for key in place[:-1]:
        inner = inner[key]
    if new is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return value


@pytest.mark.parametrize("file", [MANIFEST, EPISODES])
def test_any_wrong_type_is_told_in_words(run: Path, file: str) -> None:
    """No command raises, whichever part of a record has another type or is missing."""
    first, _, rest = (run / file).read_text().partition("\n" if file == EPISODES else "\0")
    whole = json.loads(first)
    every = [(place, new) for place in places(whole) for new in (*VALUES, GONE)]
    for place, new in random.Random(7).sample(every, 20):
        (run / file).write_text(json.dumps(damaged(whole, place, new)) + "\n" + rest)
        for arguments in commands(run):
            assert main(arguments) in (0, 1, 2), (place, new, arguments)


@pytest.mark.parametrize(
    "arguments", [["resume", "--trust", "{}", "--epochs", "2"], ["rescore", "--trust", "{}"]]
)
def test_a_full_disk(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    def full(path: Path, content: str, *, sync: bool) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    shutil.rmtree(run)
    data = run.parent / "tasks.json"
    data.write_text(json.dumps([{"task_id": "t", "query": "q", "gold": "echo hi"}]))
    assert main(["run", "bash", "--data", str(data), "--out", str(run), "--quiet"]) == 0
    before = (run / MANIFEST).read_bytes()
    capsys.readouterr()
    monkeypatch.setattr(records, "write_atomically", full)
    assert main([word.format(run) for word in arguments]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("intercode: error: cannot write ")
    assert told.endswith("run.json: No space left on device")
    assert (run / MANIFEST).read_bytes() == before


def test_output_to_a_full_disk() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command("show", RECORDED), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "intercode: error: cannot write: No space left on device\n",
    )
