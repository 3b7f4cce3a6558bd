from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from databases.upstream import UPSTREAM, needs_upstream
from intercode import datasets
from intercode.datasets import nl2bash
from intercode.errors import TaskError, UsageError
from intercode.registry import DATASETS
from intercode.rewards.answer_types import AnswerType
from intercode.task import CANNOT, Dataset, Task
from intercode_sandbox.lazy_imports import LazyRegistry

SIZES = {1: 60, 2: 53, 3: 60, 4: 27}
"""Tasks of the release, by file system."""
REASONS = {"nothing-to-do", "network", "time", "machine", "missing", "unclear"}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder laid out as the 2023 release, with rows of our own."""
    data = tmp_path / "data" / "nl2bash"
    data.mkdir(parents=True)
    rows = [{"query": "List.", "gold": "ls"}, {"query": "Go and list.", "gold": ["cd /", "ls"]}]
    for suite in nl2bash.SUITES:
        (data / f"{suite}.json").write_text(json.dumps(rows))
    scripts = tmp_path / "docker" / "bash_scripts"
    scripts.mkdir(parents=True)
    (scripts / "setup_nl2b_fs_1.sh").write_text("mkdir /testbed\n")
    return tmp_path


def write_suites(release: Path, sizes: Mapping[int, int]) -> None:
    """Fill a folder of the release's layout with so many tasks of our own."""
    for suite, size in sizes.items():
        rows = [{"query": f"Count to {row}.", "gold": f"seq {row}"} for row in range(size)]
        (release / "data" / "nl2bash" / f"nl2bash_fs_{suite}.json").write_text(json.dumps(rows))
        script = release / "docker" / "bash_scripts" / f"setup_nl2b_fs_{suite}.sh"
        script.write_text("mkdir /testbed\n")


def test_nl2bash_from_the_release(release: Path) -> None:
    data = datasets.load("nl2bash", root=release, suite="nl2bash_fs_1")
    script = release / "docker" / "bash_scripts" / "setup_nl2b_fs_1.sh"
    assert [task.task_id for task in data] == ["0", "1"]
    assert data[1].gold == ("cd /;ls",)
    assert data[0].image == f"nl2bash+{script}"
    assert data.name == "nl2bash_fs_1"


def test_nl2bash_prefers_a_ready_file_system(release: Path) -> None:
    tarball = release / "data" / "nl2bash" / "filesystems" / "fs_1.tar.gz"
    tarball.parent.mkdir()
    tarball.touch()
    assert nl2bash.load(release, "nl2bash_fs_1")[0].image == f"nl2bash+{tarball}"


def test_nl2bash_test_queries_have_no_file_system_of_their_own(release: Path) -> None:
    assert nl2bash.load(release, "test_queries")[0].image == "nl2bash"


def test_nl2bash_says_what_is_missing(release: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nl2bash_fs_2 needs .*fs_2\.tar\.gz or .*fs_2\.sh"):
        nl2bash.load(release, "nl2bash_fs_2")
    with pytest.raises(TaskError, match="no suite 'fs_9'; known: nl2bash_fs_1"):
        nl2bash.load(release, "fs_9")
    with pytest.raises(TaskError, match="cannot be read"):
        nl2bash.load(tmp_path / "elsewhere", "nl2bash_fs_1")


def test_load_takes_a_dataset_a_name_or_a_file(release: Path) -> None:
    own = Dataset([Task("a", "q")])
    assert datasets.load(own) is own
    assert datasets.load("bash").name == "bash"
    assert len(datasets.load(release / "data" / "nl2bash" / "test_queries.json")) == 2
    with pytest.raises(TaskError, match="neither a file nor a dataset's name; known: apps, "):
        datasets.load("no_such")
    with pytest.raises(TaskError, match="cannot be read"):
        datasets.load("no_such.json")
    with pytest.raises(UsageError, match="dataset 'nl2bash': got an unexpected keyword argument"):
        datasets.load("nl2bash", roots=release)


def test_a_registry_imports_when_asked() -> None:
    registry = LazyRegistry("thing", {"late": "json:dumps"})
    assert registry.get("late") is json.dumps
    registry.register("here", len)
    assert registry.get("here") is len
    assert registry.names() == ["here", "late"]
    assert "late" in registry
    with pytest.raises(UsageError, match="a thing named 'late' already exists"):
        registry.register("late", len)
    registry.register("late", len, replace=True)
    assert registry.get("late") is len
    with pytest.raises(UsageError, match="no thing 'x'; known: here, late"):
        registry.get("x")
    assert "bash" in DATASETS


def _rows() -> list[dict[str, Any]]:
    rows = map(json.loads, nl2bash.REVIEW.read_text().splitlines())
    return [row for row in rows if "canary" not in row]


def test_the_review_has_each_task_once() -> None:
    assert "canary" in nl2bash.REVIEW.read_text().partition("\n")[0]
    rows = _rows()
    assert Counter((row["suite"], row["row"]) for row in rows) == {
        (suite, row): 1
        for suite, size in SIZES.items()
        for row in range(size)
    }  # fmt: skip
    for row in rows:
        if "cannot" in row:
            assert row["cannot"].partition(":")[0] in REASONS
        else:
            assert row["golds"] or row["gold"] == "right"
            assert len({*row["golds"]}) == len(row["golds"]) <= 8


def test_a_reviewed_task(release: Path) -> None:
    """Each task has the review's golds and type; one that cannot be graded says why."""
    write_suites(release, SIZES)
    plain, reviewed = nl2bash.load(release), nl2bash.load(release, reviewed=True)
    assert (plain.name, reviewed.name) == ("nl2bash", "nl2bash (reviewed)")
    rows = {f"fs{row['suite']}-{row['row']}": row for row in _rows()}
    assert [task.task_id for task in reviewed] == [task.task_id for task in plain]
    for before, task in zip(plain, reviewed, strict=True):
        row, answer = rows[task.task_id], AnswerType.parse(task)
        assert AnswerType.parse(before) is None and CANNOT not in before.metadata
        if "cannot" in row:
            assert (task.metadata[CANNOT], answer, task.gold) == (row["cannot"], None, before.gold)
            continue
        assert answer is not None and answer.type == row["answer"]
        own = before.gold if row["gold"] == "right" else ()
        assert task.gold == (*own, *row["golds"])
        assert all(map(task.expects, row.get("may_change", ())))
    alone = nl2bash.load(release, "nl2bash_fs_2", reviewed=True)
    assert alone[7].gold == next(task for task in reviewed if task.task_id == "fs2-7").gold


def test_a_task_without_a_review_is_an_error(release: Path) -> None:
    write_suites(release, {suite: size + (suite == 4) for suite, size in SIZES.items()})
    with pytest.raises(TaskError, match="no review of task 'fs4-27'"):
        nl2bash.load(release, "nl2bash_fs_4", reviewed=True)
    with pytest.raises(TaskError, match="no review of task 'testqueries-0'"):
        nl2bash.load(release, "test_queries", reviewed=True)


@needs_upstream
def test_the_review_quotes_no_sentence() -> None:
    text = " ".join(nl2bash.REVIEW.read_text().lower().split())
    tasks = nl2bash.load(UPSTREAM)
    assert Counter(task.tags[0] for task in tasks) == {f"fs{n}": size for n, size in SIZES.items()}
    assert not [task.task_id for task in tasks if " ".join(task.query.lower().split()) in text]
    # Nor the task's own gold, which needs no second one.
    again = {f"fs{row['suite']}-{row['row']}": row.get("golds", ()) for row in _rows()}
    assert not [task.task_id for task in tasks if task.gold[0] in again[task.task_id]]


LOADER = """
from intercode import Dataset, Task

def load(count=1):
    return Dataset([Task(str(n), "Do.") for n in range(count)], "mine")

def fails():
    raise KeyError("x")

def other():
    return [1]
"""


def test_a_loader_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(LOADER)
    assert (
        len(datasets.load(f"{file}:load")) == 1 and len(datasets.load(f"{file}:load:count=3")) == 3
    )
    loader = DATASETS.resolve(f"{file}:load")
    assert DATASETS.resolve(f"{file}:load") is loader, "its file is run once"
    assert not DATASETS.is_trusted(f"{file}:load")
    with pytest.raises(TaskError, match=rf"{file}, line 8: KeyError"):
        datasets.load(f"{file}:fails")
    with pytest.raises(TaskError, match=r"must return a Dataset, not \[1\]"):
        datasets.load(f"{file}:other")
    with pytest.raises(UsageError, match="no option 'size': its options are count"):
        datasets.load(f"{file}:load:size=1")
    with pytest.raises(UsageError, match="no function 'laod'; did you mean 'load'"):
        datasets.load(f"{file}:laod")
    file.write_text(LOADER.replace("count=1", "count=2"))  # of the same size and second
    assert len(datasets.load(f"{file}:load")) == 2
