"""MBPP, on small files of its authors' and of the 2023 release's layout."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import intercode
from databases.upstream import UPSTREAM
from intercode.datasets import load, mbpp
from intercode.errors import TaskError
from intercode.evaluate import evaluate
from intercode.task import Dataset

from . import layouts

SAMPLE = int(os.environ.get("INTERCODE_SOAK_EPISODES", "16"))
RELEASED = UPSTREAM / "data" / "python" / "mbpp"
ROW = {
    "task_id": 11,
    "text": "Write a function to double the value of a node.",
    "code": "class Node:\r\n  def __init__(self, v):\r\n    self.v = v\r\n"
    "def double(n): \r\n\treturn 2 * n.v",
    "test_list": ["assert double(node) == 6", "assert double(Node(2)) == 4"],
    "test_setup_code": "node = Node(3)",
    "challenge_test_list": ["assert double(Node('a')) == 'aa'"],
}  # fmt: skip
PLAIN = {**ROW, "task_id": 700, "test_setup_code": "", "challenge_test_list": [],
         "test_list": ["assert double(Node(2)) == 4"]}  # fmt: skip


def authored(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    layouts.write_lines(folder / "mbpp.jsonl", [ROW, PLAIN])
    return folder


def released(folder: Path) -> Path:
    names = {"text": "query", "code": "gold", "test_list": "tests"}
    kept = {**names, "task_id": "task_id", "test_setup_code": "test_setup_code"}
    rows = [{kept[key]: row[key] for key in row if key in kept} for row in (ROW, PLAIN)]
    layouts.write(folder / "data" / "python" / "mbpp" / "ic_mbpp.json", rows)
    return folder


@pytest.mark.parametrize("layout", [authored, released])
def test_both_layouts(tmp_path: Path, layout: Any) -> None:
    dataset = mbpp.load(layout(tmp_path))
    assert [task.task_id for task in dataset] == ["11", "700"]
    assert dataset.name == "mbpp"
    assert dataset[0].query == ROW["text"]
    assert dataset[0].gold == (ROW["code"],)
    assert dataset[0].tests == tuple(ROW["test_list"])
    assert dataset[0].metadata["test_setup_code"] == "node = Node(3)"
    assert dict(dataset[1].metadata) == {}


def test_the_authors_further_tests(tmp_path: Path) -> None:
    found = mbpp.load(authored(tmp_path))[0].metadata["challenge_tests"]
    assert found == ["assert double(Node('a')) == 'aa'"]


def test_splits(tmp_path: Path) -> None:
    root = authored(tmp_path)
    found = {split: [task.task_id for task in mbpp.load(root, split)] for split in mbpp.SPLITS}
    assert found == {
        "all": ["11", "700"], "prompt": [], "test": ["11"], "validation": [], "train": ["700"],
    }  # fmt: skip
    assert mbpp.load(root, "test").name == "mbpp-test"
    with pytest.raises(TaskError, match="no split 'dev'"):
        mbpp.load(root, "dev")


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"mbpp\.jsonl; or ic_mbpp\.json"):
        load("mbpp", root=tmp_path)


def test_a_row_without_tests(tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key != "test_list"}
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskError, match=r"row 1 .*field 'test_list' is missing"):
        mbpp.load(tmp_path)


def unsolved(dataset: Dataset, ids: Sequence[str] | None = None) -> dict[str, float | None]:
    """The tasks whose gold does not get 1.0."""

    def make() -> Any:
        return intercode.make("python", data=dataset)

    run = evaluate(dataset, "oracle", make, workers=2, tasks=ids)
    return {done.task_id: done.reward for done in run.episodes() if done.reward != 1.0}


def test_gold_solves_them(tmp_path: Path) -> None:
    assert unsolved(mbpp.load(authored(tmp_path))) == {}


@pytest.mark.skipif(not RELEASED.is_dir(), reason=f"no recorded runs in {UPSTREAM}")
def test_gold_solves_a_sample_of_the_real_ones() -> None:
    dataset = mbpp.load(RELEASED)
    assert len(dataset) == 974
    # These define a builtin's name, use classes, a setup, a module that only gold imports.
    hard = ["126", "367", "486", "533", "596", "601", "912", "927"]
    assert unsolved(dataset, [*hard, *(task.task_id for task in dataset.sample(SAMPLE))]) == {}
