"""The bundled puzzles as data: the same for a seed, others for another, nothing left behind."""

from __future__ import annotations

import base64
import gzip
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import intercode
from intercode.datasets import load_seeded, puzzles
from intercode.datasets.puzzles.base import SeededRandom
from intercode.datasets.puzzles.encodings import _FIGURES, _LETTERS, _ita2
from intercode.datasets.puzzles.forensics import SECTOR, archive, disk, gz
from intercode.task import Dataset

LEVELS = {"easy", "medium", "hard"}


@pytest.fixture(scope="module")
def tasks() -> Dataset:
    return puzzles.load(0)


def test_there_are_enough_and_of_all_kinds(tasks: Dataset) -> None:
    assert len(tasks) >= 20
    assert {task.tags[0] for task in tasks} == LEVELS
    assert len({task.tags[1] for task in tasks} - LEVELS) >= 6
    assert sum("subtasks" in task.metadata for task in tasks) >= 2
    assert any(len(task.gold) > 1 for task in tasks)
    for task in tasks:
        assert all(re.fullmatch(r"intercode\{\w+\}", flag) for flag in task.gold)
        assert not set(task.metadata["wrong"]) & set(task.gold)


def test_another_seed_has_other_flags_and_other_surroundings(tasks: Dataset) -> None:
    for task, other in zip(tasks, puzzles.load(1), strict=True):
        assert task.task_id == other.task_id and task.tags == other.tags
        assert not set(task.gold) & set(other.gold)
        assert task.to_dict() != {**other.to_dict(), "gold": list(task.gold)}


def test_another_secret_has_other_flags_in_the_same_puzzles() -> None:
    """Attack C3: the flags of a seed are public, and a model may have learnt them."""
    known, drawn, again = puzzles.load(0, ""), puzzles.load(0), puzzles.load(0)
    assert drawn == again
    for task, other in zip(known, drawn, strict=True):
        assert not set(task.gold) & set(other.gold)
        # Not the query: some draw until the flag fits, and names with it.
        assert (task.task_id, list(task.files)) == (other.task_id, list(other.files))


def test_solutions_do_not_know_the_flag(tasks: Dataset) -> None:
    for task in tasks:
        solution = "\n".join(task.metadata["solution"])
        inner = task.gold[0][10:-1]
        assert inner not in solution and inner not in task.query


def test_a_seed_gives_the_same_in_another_process_and_leaves_nothing(
    tasks: Dataset, tmp_path: Path
) -> None:
    code = "from intercode.datasets.puzzles import load; print(load(0, 'x').digest)"
    source = Path(intercode.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (source, *sys.path))),
            "PYTHONHASHSEED": "7",
            "TZ": "Asia/Tokyo",
            "TMPDIR": str(tmp_path),
            "INTERCODE_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == puzzles.load(0, "x").digest
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tasks: Dataset
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        fewer = puzzles.load(-5)
    assert {task.task_id for task in tasks} - {task.task_id for task in fewer} == {"door"}
    assert "apt-get install gcc" in caplog.text
    assert len(fewer) >= 20


def test_only_what_is_made_from_a_seed_gets_it() -> None:
    assert load_seeded("ctf", 3) == intercode.load_dataset("ctf", seed=3) != puzzles.load(0)
    assert load_seeded("bash", 3) == intercode.load_dataset("bash")
    assert load_seeded(puzzles.load(2), 3) == puzzles.load(2)


def test_flags_are_in_no_file_in_plain_text(tasks: Dataset) -> None:
    for task in tasks:
        binary = task.metadata.get("binary_files", {})
        contents = {path: base64.b64decode(text) for path, text in binary.items()}
        contents |= {path: text.encode() for path, text in task.files.items()}
        for flag in task.gold:
            assert not [path for path, data in contents.items() if flag.encode() in data]
        assert set(task.metadata["flag_in"]) <= set(contents)
        json.dumps(task.to_dict())


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789"))
def test_tape(text: str) -> None:
    read, table = "", _LETTERS
    for code in _ita2(text):
        if code in (27, 31):
            table = _FIGURES if code == 27 else _LETTERS
        else:
            read += table[code]
    assert read == text


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=1500), max_size=8), st.integers(0, 7))
def test_disk(contents: list[bytes], gone: int) -> None:
    """The table's chains lead through every file; a deleted one has none, but its bytes."""
    files = [(f"file{n}.bin", content) for n, content in enumerate(contents)]
    image = disk(files, deleted_files=[f"file{gone}.bin"])
    assert len(image) % SECTOR == 0
    table = int.from_bytes(image[SECTOR : 2 * SECTOR], "little")
    for number, (_, content) in enumerate(files):
        entry = image[3 * SECTOR + 32 * number :][:32]
        cluster, size = (
            int.from_bytes(entry[26:28], "little"),
            int.from_bytes(entry[28:32], "little"),
        )
        start = (4 + cluster - 2) * SECTOR
        assert image[start : start + size] == content
        chain = 1
        while number != gone and (cluster := table >> 12 * cluster & 0xFFF) != 0xFFF:
            chain += 1
        if number == gone:
            assert entry[0] == 0xE5 and not table >> 12 * cluster & 0xFFF
        else:
            assert chain == max(1, -(-size // SECTOR))


def test_formats_do_not_know_the_time() -> None:
    assert gz(b"x" * 99)[4:8] == bytes(4) and gzip.decompress(gz(b"x")) == b"x"
    with zipfile.ZipFile(io.BytesIO(archive({"a/b": b"x"}))) as made:
        assert made.read("a/b") == b"x" and made.getinfo("a/b").date_time[0] == 1980


def test_git_finds_nothing_wrong_with_the_repository(tasks: Dataset) -> None:
    task = tasks["history"]
    with tempfile.TemporaryDirectory() as folder:
        for path, text in task.files.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        for path, text in task.metadata["binary_files"].items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(base64.b64decode(text))
        done = subprocess.run(
            ["git", f"--git-dir={folder}/shop.git", "fsck", "--strict"],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0 and "dangling commit" in done.stdout
    assert "error" not in done.stderr and "warning" not in done.stderr


def test_draws_depend_on_the_seed_and_the_name_only() -> None:
    assert (
        SeededRandom.from_seed(1, "a").flag()
        == SeededRandom.from_seed(1, "a").flag()
        != SeededRandom.from_seed(1, "b").flag()
    )
    # What every version of Python draws: the puzzles' flags are part of what a run records.
    assert SeededRandom.from_seed(0, "layers").flag() == "intercode{falcon_jasmine_6cd94b}"
