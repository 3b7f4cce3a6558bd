from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercode import datasets
from intercode.datasets import nl2bash
from intercode.errors import TaskError, UsageError
from intercode.registry import DATASETS, Registry
from intercode.task import Dataset, Task


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
    registry = Registry("thing", {"late": "json:dumps"})
    assert registry.get("late") is json.dumps
    registry.register("here", len)
    assert registry.get("here") is len
    assert registry.names() == ["here", "late"]
    assert "late" in registry
    with pytest.raises(UsageError, match="there already is a thing named 'late'"):
        registry.register("late", len)
    registry.register("late", len, replace=True)
    assert registry.get("late") is len
    with pytest.raises(UsageError, match="no thing named 'x'; known: here, late"):
        registry.get("x")
    assert "bash" in DATASETS
