"""Datasets that all environments of a process share."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forks import in_a_fork
from intercode import Dataset, Task, TaskError, load_dataset, make
from intercode.datasets import dataset_cache, splits
from intercode.datasets.files import load_file

ROWS = [{"task_id": str(n), "query": f"Do {n}.", "gold": "true", "of": ["x"]} for n in range(3)]


def write(path: Path, rows: list[dict[str, Any]] = ROWS, old: bool = True) -> Path:
    path.write_text(json.dumps(rows))
    if old:
        os.utime(path, (1, 1))
    return path


def test_environments_share_tasks_by_name_and_by_file(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks.json")
    for data in ("bash", file, str(file)):
        one, other = make("bash", data=data), make("bash", data=data)
        assert one.dataset is not other.dataset  # its attributes are one's own
        assert all(a is b for a, b in zip(one.dataset, other.dataset, strict=True))


def rewritten(path: Path) -> None:
    rows = path.read_text().replace("Do 1.", "Do 9.")  # as long, and within the same moment
    times = path.stat()
    path.write_text(rows)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def replaced(path: Path) -> None:
    write(path.with_name("new"), [{**row, "query": "Do 9."} for row in ROWS]).replace(path)


@pytest.mark.parametrize("change", [rewritten, replaced])
@pytest.mark.parametrize("old", [False, True])
def test_a_changed_file_is_seen(tmp_path: Path, change: Callable[[Path], None], old: bool) -> None:
    file = write(tmp_path / "tasks.json", old=old)
    assert load_dataset(file)[1].query == "Do 1."
    change(file)
    assert load_dataset(file)[1].query == "Do 9."
    file.unlink()
    with pytest.raises(TaskError, match="cannot be read"):
        load_dataset(file)


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks.json")

    @dataset_cache.cached_loader
    def load() -> Dataset:
        data = load_file(file)
        if data[1].query == "Do 1.":
            rewritten(file)
        return data

    assert [load()[1].query, load()[1].query] == ["Do 1.", "Do 9."]


def test_a_benchmark_is_read_again_if_a_file_or_folder_of_it_changes(tmp_path: Path) -> None:
    row = {"question": "q", "query": "SELECT 1", "db_id": "d"}
    inner = tmp_path / "inner"
    (inner / "database").mkdir(parents=True)
    write(inner / "tables.json", [])
    write(inner / "dev.json", [row])
    first = load_dataset("spider", root=tmp_path)
    assert load_dataset("spider", root=tmp_path)[0] is first[0]
    write(inner / "dev.json", [row, row])
    assert len(load_dataset("spider", root=tmp_path)) == 2
    for name in ("dev.json", "tables.json"):  # a copy that is nearer counts first
        write(tmp_path / name, [row] * 3 if name == "dev.json" else [])
    (tmp_path / "database").mkdir()
    assert len(load_dataset("spider", root=tmp_path)) == 3


def test_a_loader_depends_on_the_files_of_a_loader_that_it_calls(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks.json")
    load = dataset_cache.cached_loader(load_file)
    load_both = dataset_cache.cached_loader(lambda path: load(path))
    assert load_both(file)[1].query == "Do 1."
    replaced(file)
    assert load_both(file)[1].query == "Do 9."


def test_the_working_directory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("a", ROWS), ("b", ROWS[:1])):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "tasks.json", rows)
        monkeypatch.chdir(tmp_path / name)
        assert len(load_dataset("tasks.json")) == len(rows)


def test_threads_load_once(tmp_path: Path) -> None:
    loads: list[int] = []

    @dataset_cache.cached_loader
    def load() -> Dataset:
        loads.append(1)
        return load_file(file)

    file = write(tmp_path / "tasks.json")
    with ThreadPoolExecutor(8) as pool:
        found = [future.result() for future in [pool.submit(load) for _ in range(16)]]
    assert len(loads) == 1 and len({id(data[0]) for data in found}) == 1


def test_a_fork_waits_for_no_thread_of_its_parent(tmp_path: Path) -> None:
    @dataset_cache.cached_loader
    def load() -> Dataset:
        if not forked:
            forked.append(True)
            in_a_fork(load)  # the lock of this very dataset is held here
        return load_file(file)

    forked: list[bool] = []
    file = write(tmp_path / "tasks.json")
    assert len(load()) == 3


def test_tasks_cannot_be_changed(tmp_path: Path) -> None:
    task = load_dataset(write(tmp_path / "tasks.json"))[0]
    inner = Task("a", "q", files={"f": "x"}, metadata={"a": {"b": [1, {"c": []}]}})
    for attempt in (
        lambda: task.metadata["of"].append("y"),
        lambda: task.metadata.update(of=1),  # type: ignore[attr-defined]
        lambda: inner.metadata["a"]["b"][1]["c"].extend([1]),
        lambda: inner.metadata["a"].pop("b"),
        lambda: inner.files.setdefault("g", ""),  # type: ignore[attr-defined]
    ):
        with pytest.raises(TypeError, match=r"dataclasses\.replace"):
            attempt()  # type: ignore[no-untyped-call]
    assert pickle.loads(pickle.dumps(inner)) == copy.deepcopy(inner) == inner
    assert replace(inner, query="r").metadata is inner.metadata
    assert json.loads(json.dumps(inner.metadata)) == inner.metadata
    thawed = inner.to_dict()["metadata"]
    thawed["a"]["b"].append(2)
    assert inner.metadata == {"a": {"b": [1, {"c": []}]}}


def test_splits_of_a_benchmark_and_of_one_s_own_tasks(tmp_path: Path) -> None:
    assert splits("spider") == ["dev", "train", "test"]
    assert splits("bash") == []
    rows = [{**row, "split": name} for row, name in zip(ROWS, ("dev", "test", "dev"), strict=True)]
    file = write(tmp_path / "tasks.json", rows)
    data = load_dataset(file)
    assert data.splits() == splits(file) == ["dev", "test"]
    assert [task.task_id for task in load_dataset(file, split="dev")] == ["0", "2"]
    env = make("bash", data=file, split="test")
    assert [task.task_id for task in env.dataset] == ["1"]
    with pytest.raises(TaskError, match=r"no split 'train': its splits are dev, test"):
        make("bash", data=file, split="train")
    with pytest.raises(
        TaskError, match=r"^dataset 'bash': there is no split 'dev': its tasks name"
    ):
        make("bash", split="dev")
    refused = "^dataset 'bash-starter': there is no split 'dev': its splits are train, test$"
    with pytest.raises(TaskError, match=refused):
        load_dataset("bash-starter", split="dev")
    with pytest.raises(TaskError, match="Spider has no split 'no'"):
        load_dataset("spider", root=tmp_path, split="no")
