"""Tasks that depend on the clock: ages of files, gold that is not cached, the moved clock."""

from __future__ import annotations

import shutil
import tarfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from intercode.envs.bash import BashEnv
from intercode.envs.stage import SandboxStage
from intercode.errors import TaskError
from intercode.evaluate.clock_checks import find_time_words
from intercode.evaluate.validate import validate
from intercode.task import Dataset, Task
from intercode_sandbox import get_provider

DAY = 86400
RECENT = "find /data -type f -mtime -7 | sort"


def _image(folder: Path, days: int) -> str:
    """Return an image with a layer that was made so long ago."""
    archive = folder / f"{days}.tar"
    with tarfile.open(archive, "w") as tar:
        for name, age in (("new one", 0), ("-dash", 0), ("a week old", 8), ("old", 40)):
            member = tarfile.TarInfo(f"data/{name}")
            member.mtime = time.time() - (days + age) * DAY
            tar.addfile(member)
    return f"base+{archive}"


@pytest.mark.parametrize("days", [0, 6, 300])
def test_files_have_their_ages_whenever_the_layer_was_made(tmp_path: Path, days: int) -> None:
    mark = {"clock": {"/data": 600}}
    task = Task("t", "?", gold=(RECENT,), image=_image(tmp_path, days), metadata=mark)
    with closing(BashEnv(Dataset([task]))) as env:
        env.reset()
        assert env.workspace.changes() == []
        assert env.step(RECENT)[0].splitlines() == ["/data/-dash", "/data/new one"]
        ages = env.step("date +%s; stat -c %Y '/data/new one' '/data/a week old' /data/old")[0]
        now, *times = map(int, ages.split())
        for at, age in zip(times, (600, 8 * DAY + 600, 40 * DAY + 600), strict=True):
            assert age <= now - at < age + 120
        assert env.step(RECENT) and env.step("submit")[1] == 1.0


def test_files_that_the_task_makes_are_new(tmp_path: Path) -> None:
    task = Task(
        "t", "?", gold=("true",), image=_image(tmp_path, 3), files={"/data/mine": "x"},
        setup="touch /data/setup", metadata={"clock": {"/data": 3600}},
    )  # fmt: skip
    with closing(BashEnv(Dataset([task]))) as env:
        env.reset()
        assert env.step("find /data -type f -mmin -30 | sort")[0].split() == [
            "/data/mine",
            "/data/setup",
        ]


@pytest.mark.parametrize(
    "mark", ["2023-06-01", {"data": 1}, {"/data": "1"}, {"/data": -1}, {"/data": True}, None]
)
def test_a_mark_of_another_shape_is_refused_before_any_work(mark: Any) -> None:
    task = Task("t", "?", gold=("true",), metadata={"clock": mark})
    with pytest.raises(TaskError, match="task 't': metadata 'clock' must be an object"):
        SandboxStage(get_provider()).check(task)


def test_a_folder_that_is_not_there_is_told() -> None:
    task = Task("t", "?", gold=("true",), image="base", metadata={"clock": {"/nowhere": 1}})
    with (
        closing(BashEnv(Dataset([task]))) as env,
        pytest.raises(TaskError, match=r"the ages of its files .* /nowhere is not there"),
    ):
        env.reset()


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the moved clock")
def test_validate_moves_the_clock() -> None:
    old = "touch -d '8 days ago' /root/old; touch /root/new"
    golds = {
        "still": "echo still; env | sort",
        "hour": "date +%FT%H > /root/x; echo",
        "day": "python3 -c 'import datetime; print(datetime.date.today())'",
        "age": "find /root/old /root/new -mtime +30 | grep -c .",
        "zone": "ls -l --time-style=full-iso /etc/passwd",
    }
    tasks = [
        Task(name, "?", gold=(gold,), setup=old if name == "age" else None)
        for name, gold in golds.items()
    ]
    tasks += [Task("marked", "?", gold=("date +%F",), metadata={"clock": {}})]
    data = Dataset(tasks)
    began = datetime.now(UTC)
    found = validate(data, lambda: BashEnv(data, image="base"), timeout=60.0, workers=2)
    clock = {p.task_id: p.problem.partition(";")[0] for p in found.problems if p.kind == "clock"}
    # In the last hour of a day the first move, of an hour, leads into the next one.
    moves = {"an hour" if now.hour == 23 else "a day" for now in (began, datetime.now(UTC))}
    assert clock.pop("day") in {f"gold scores 1.00, and {move} later 0.00" for move in moves}
    assert clock == {
        "hour": "gold scores 1.00, and an hour later 0.00",
        "age": "gold scores 1.00, and 40 days later 0.00",
    }
    doubts = {p.task_id for p in found.doubts if p.kind == "clock"}
    assert "zone" in doubts and doubts.isdisjoint({"age", "marked"})


@pytest.mark.parametrize(
    ("language", "gold", "words"),
    [
        ("sql", "SELECT * FROM t WHERE day = CURRENT_DATE", "CURRENT_DATE"),
        ("sql", "SELECT strftime('%Y', 'now')", "('%Y', 'now'"),
        ("sql", "SELECT date('now', '-1 day')", "('now'"),
        ("sql", "SELECT unix_timestamp()", "unix_timestamp()"),
        ("sql", "SELECT strftime('%Y', held_on), date(x) FROM t WHERE name = 'now'", ""),
        ("sql", "SELECT current_dates, known(1) FROM t", ""),
        ("python", "def f():\n    return datetime.now().year", "datetime.now("),
        ("python", "def runtime(time):\n    return time.times(2)", ""),
        ("bash", "date", ""),
    ],
)
def test_words_that_ask_for_the_time(language: str, gold: str, words: str) -> None:
    assert find_time_words(Task("t", "?", gold=(gold,)), language) == words
