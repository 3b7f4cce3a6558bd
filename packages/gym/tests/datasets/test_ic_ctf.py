"""IC-CTF as the release lays it out: small folders of that layout, and the data if it is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from databases.upstream import UPSTREAM, needs_upstream
from intercode.datasets import ic_ctf
from intercode.envs.ctf import CtfEnv, filter_offline
from intercode.errors import TaskError

ROWS: list[dict[str, Any]] = [
    {"task_id": 0, "query": "Find it.", "gold": "flag{a}", "source": "us", "tags": ["Forensics"]},
    {"task_id": 1, "query": "Get it.", "gold": "flag{b}", "tags": [], "setup": "wget x"},
]


def release(root: Path, rows: Any = ROWS, *, assets: bool = True) -> Path:
    """A folder as the release is laid out, with binary files for task 0."""
    folder = root / "data" / "ctf"
    folder.mkdir(parents=True)
    (folder / "ic_ctf.json").write_text(json.dumps(rows))
    if assets:
        files = folder / "task_assets" / "0"
        (files / "deep").mkdir(parents=True)
        (files / "deep" / "raw.bin").write_bytes(b"\xff\0flag{a}\0\xfe")
        (files / "run").write_text("#!/bin/sh\necho ran\n")
        (files / "run").chmod(0o700)
        for place in (files, files / "deep"):
            (place / "solution").mkdir()
            (place / "solution" / "README.md").write_text("The flag is flag{a}.\n")
    return root


def test_rows(tmp_path: Path) -> None:
    first, second = ic_ctf.load(release(tmp_path))
    assert (first.task_id, first.gold, first.tags) == ("0", ("flag{a}",), ("Forensics",))
    assert first.metadata == {
        "source": "us",
        "directory": "/ctf/0",
        "assets": str(tmp_path / "data" / "ctf" / "task_assets" / "0"),
        "assets_without": ["solution"],
    }
    assert second.tags == ("network",)
    assert second.setup is None  # it needs the network, and would fail in every reset
    assert second.metadata == {"directory": "/ctf/1", "released_setup": "wget x"}


def test_the_folder_of_a_task_is_in_the_sandbox(tmp_path: Path) -> None:
    env = CtfEnv(ic_ctf.load(release(tmp_path)))
    env.reset(options={"task_id": "0"})
    assert env.step("pwd; ./run; grep -ao 'flag{.*}' deep/raw.bin")[0] == "/ctf/0\nran\nflag{a}\n"
    assert env.step("wc -c < deep/raw.bin")[0] == "11\n"
    assert env.workspace.changes() == []  # the files are the image's
    assert env.step("submit flag{a}")[1] == 1.0
    env.close()


def test_the_write_up_is_not(tmp_path: Path) -> None:
    """Attack B2: nine of 78 puzzles were solved by a search through them."""
    env = CtfEnv(ic_ctf.load(release(tmp_path)))
    env.reset(options={"task_id": "0"})
    assert env.step("ls; ls deep")[0] == "deep\nrun\nraw.bin\nsolution\n"
    env.close()


def test_without_assets_a_task_has_an_empty_folder(tmp_path: Path) -> None:
    env = CtfEnv(ic_ctf.load(release(tmp_path, assets=False)))
    env.reset()
    assert env.step("pwd; ls -A")[0] == "/ctf/0\n"
    env.close()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"query": "q", "gold": "g"}], "row 1: field 'task_id' is missing"),
        ([{"task_id": "../0", "query": "q", "gold": "g"}], "must be a number, not '../0'"),
        ([7], "row 1: must be an object"),
    ],
)
def test_malformed(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        ic_ctf.load(release(tmp_path, rows))


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"dataset 'ic-ctf' is not there; looked for ic_ctf\.json"):
        ic_ctf.load(tmp_path)


@needs_upstream
def test_the_release_s_data() -> None:
    tasks = ic_ctf.load(UPSTREAM)
    assert len(tasks) == 100
    assert len(filter_offline(tasks)) == 78
    assert tasks["5"].gold == tasks["90"].gold
