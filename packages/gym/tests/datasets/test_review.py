"""Reviews of golds: how they are applied, and that what they call right is right."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import intercode
from databases.upstream import SPIDER, UPSTREAM, needs_upstream
from intercode.datasets import mbpp, nl2bash, spider
from intercode.datasets.files import apply, read_rows, reviews
from intercode.errors import TaskError
from intercode.evaluate import evaluate
from intercode.evaluate.validate import validate
from intercode.python_source import parse
from intercode.task import CANNOT, Dataset, Task
from waiting import PATIENCE

from . import layouts

RELEASED = UPSTREAM / "data" / "python" / "mbpp"
TASK = Task("7", "?", gold=("one",), tests=("a test",), db="shop", metadata={"kept": 1})
FAIL_ON_MYSQL = {54, 83, 164, 178, 225, 271, 301, 525, 531, 638, 704, 710, 798, 802, 803, 850, 892,
                 942, 967}  # fmt: skip


@pytest.mark.parametrize(
    ("review", "expected"),
    [
        (None, TASK),
        ({"gold": "wrong", "golds": ["two", "three"]}, replace(TASK, gold=("two", "three"))),
        ({"gold": "right", "golds": ["two"], "db": "shop"}, replace(TASK, gold=("one", "two"))),
        (
            {"gold": "right", "golds": [], "tests": ["another"]},
            replace(TASK, tests=("a test", "another")),
        ),
        ({"cannot": "why"}, replace(TASK, metadata={"kept": 1, CANNOT: "why"})),
    ],
)
def test_what_a_review_does_to_a_task(review: Mapping[str, Any] | None, expected: Task) -> None:
    assert apply(TASK, review) == expected


def test_a_review_of_other_data_is_refused() -> None:
    with pytest.raises(TaskError, match="database 'shop', but its review 'library'"):
        apply(TASK, {"db": "library", "cannot": "why"})


@pytest.mark.parametrize("file", [spider.REVIEW, mbpp.REVIEW, nl2bash.REVIEW], ids=lambda f: f.stem)
def test_a_review_s_file(file: Path) -> None:
    assert file.read_text(encoding="utf-8").startswith('{"canary": "')
    rows = [row for _, row in read_rows(file)]
    places = Counter((row.get("suite"), row["row"]) for row in rows)
    assert places.most_common(1)[0][1] == 1
    for row in rows:
        assert (CANNOT in row) != ("gold" in row and "golds" in row), row
        assert CANNOT in row or row["gold"] == "right" or row["golds"], row
        for test in row.get("tests", ()):
            parse(test)


def test_only_the_golds_of_2023_are_reviewed(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"only the golds of the 2023 release \(ic_spider_dev\.json"
    ):
        spider.load(layouts.spider(tmp_path), reviewed=True)


def changed(reviewed: Dataset, plain: Dataset) -> Dataset:
    """The tasks that a review has changed and a run tries."""
    return reviewed.filter(lambda t: t != plain[t.task_id] and CANNOT not in t.metadata)


@needs_upstream
def test_tasks_whose_words_depend_on_the_clock_are_marked() -> None:
    tasks = nl2bash.load(UPSTREAM, reviewed=True)
    marked = [task for task in tasks if task.depends_on_clock]
    assert len(marked) == 17 and len([t for t in marked if CANNOT not in t.metadata]) == 14
    ages = re.compile(r"(minute|hour|day)s?\b.*\b(ago|old)|older than|last (hour|\d+ days)")
    assert {t.task_id for t in tasks if ages.search(t.query)} <= {t.task_id for t in marked}
    [task] = [t for t in nl2bash.load(UPSTREAM, "nl2bash_fs_3") if t.task_id == "2"]
    assert task.ages == {"/workspace": 600} and not task.caches_gold


@needs_upstream
@pytest.mark.parametrize("engine", ["sqlite", "mysql"])
def test_spider_s_golds_that_fail_on_mysql(engine: str) -> None:
    """Takes a server's start, and makes mutated copies of nine databases."""
    if engine == "mysql" and not (shutil.which("mariadbd") or shutil.which("mysqld")):
        pytest.skip("mysql is not installed")
    tasks = spider.load(SPIDER.parent, reviewed=True)
    assert tasks.name == "spider (reviewed)" and len(tasks) == 1034
    assert set(map(int, reviews(spider.REVIEW))) == FAIL_ON_MYSQL
    plain = spider.load(SPIDER.parent)
    assert {task.metadata["columns"] for task in tasks} == {"explained"}
    found = tasks.filter(lambda t: t.gold != plain[t.task_id].gold and CANNOT not in t.metadata)
    assert {int(task.task_id) for task in found} == FAIL_ON_MYSQL - {271, 704, 967}
    each = [
        replace(task, task_id=f"{task.task_id}-{n}", gold=(gold,))
        for task in found
        for n, gold in enumerate(task.gold)
    ]
    data = Dataset(each, databases=tasks.databases)
    result = evaluate(data, "oracle", lambda: intercode.make("sql", data=data, engine=engine))
    assert [one.task_id for one in result.outcomes if not one.success] == []


@pytest.mark.skipif(not RELEASED.is_dir(), reason=f"no recorded runs in {UPSTREAM}")
def test_mbpp_s_tests_that_a_constant_passes() -> None:
    plain, tasks = mbpp.load(RELEASED), mbpp.load(RELEASED, reviewed=True)
    assert (plain.name, tasks.name) == ("mbpp", "mbpp (reviewed)")
    found = changed(tasks, plain)
    assert len(found) == 5 and {t.task_id for t in tasks if CANNOT in t.metadata} == {"816", "899"}
    before = plain.filter(lambda task: task.task_id in {t.task_id for t in found})
    for data, solved in ((before, 5), (found, 0)):

        def make(data: Dataset = data) -> Any:
            return intercode.make("python", data=data)

        result = validate(data, make, timeout=PATIENCE)
        assert result.valid and result.solved_by_constants == solved
