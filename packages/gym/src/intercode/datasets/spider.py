"""Spider (Yu et al. 2018): questions over databases of many domains, from a copy the user has.

Two layouts are read:

- the authors': ``dev.json``, ``tables.json`` and ``database/NAME/NAME.sqlite``; gold is in
  SQLite's dialect, and hardness is computed by the authors' rule (`hardness`). The folder
  ``database`` of their distilled test suites has the same layout, with more files for each name;
- that of the 2023 release of InterCode: ``ic_spider_dev.json`` and ``ic_spider_dbs.sql``; gold is
  in MySQL's, and hardness is stored. 19 of its 1,034 golds fail on MySQL 8: `REVIEW` has others.

``metadata`` holds ``dialect``, ``hardness`` and ``db_tables`` (table → columns), and
``permute_columns``: as in the authors' own evaluation, an answer's columns may come in another
order than gold's, unless the question says in which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp

from intercode.datasets.dataset_cache import cached_loader
from intercode.datasets.files import apply, load_file, locate, read_tables, read_tasks, reviews
from intercode.errors import TaskError
from intercode.task import Dataset, Task

SPLITS = {
    "dev": (("dev.json",), "tables.json", "database"),
    "train": (("train_spider.json", "train_others.json"), "tables.json", "database"),
    "test": (("test.json",), "test_tables.json", "test_database"),
}
"""Split → the authors' files of tasks, of tables, and the folder of databases."""
REVIEW = Path(__file__).with_name("spider_reviewed.jsonl")
"""The release's golds that are known to be wrong, by `row` (`intercode.datasets.files.apply`)."""

LEVELS = ("easy", "medium", "hard", "extra")
"""The levels of hardness."""

_FIXED_ORDER = re.compile(
    r"\bin (?:this|that|the following|the given|exactly this) order\b|\bfollowed by\b"
    r"|\b(?:first|second|third|last|left|right)most? column\b|\border of (?:the )?columns\b",
    re.IGNORECASE,
)
_Node = Any  # of sqlglot's tree; its base class has another name in each of its versions
_RELEASE = ("ic_spider_dev.json", "ic_spider_dbs.sql")


@cached_loader
def load(
    root: str | Path | None = None,
    split: str = "dev",
    databases: str | Path | None = None,
    reviewed: bool = False,
) -> Dataset:
    """Load one split; a task's id is its row number.

    Args:
        root: A folder with one of the layouts in it or a little below; None: where
            ``intercode datasets fetch spider`` puts it.
        split: One of `SPLITS`; the 2023 release has only ``dev``.
        databases: Other databases of the same names, for instance a test suite's.
        reviewed: Whether golds of the 2023 release that are known to be wrong are replaced, and
            an answer may have a further column that explains it.

    Raises:
        TaskError: It is not there, or malformed; or a review of the authors' golds is asked for.
    """
    if split not in SPLITS:
        raise TaskError(f"Spider has no split {split!r}; known: {', '.join(SPLITS)}")
    files, tables, folder = SPLITS[split]
    layouts = [(*files, tables, folder)] + ([_RELEASE] if split == "dev" else [])
    place, layout = locate(root, "spider", layouts)
    name = "spider" if split == "dev" else f"spider-{split}"
    if layout == 1:
        source, database_path = place / _RELEASE[0], place / _RELEASE[1]
        tasks = [_released_task(task) for task in load_file(source)]
        if reviewed:
            tasks = [apply(task, reviews(REVIEW).get(task.task_id)) for task in tasks]
            tasks = [_allow_explained_answer(task) for task in tasks]
            name = f"{name} (reviewed)"
        return Dataset(tasks, name, str(source), str(databases or database_path))
    if reviewed:
        raise TaskError(f"{place}: only the golds of the 2023 release ({_RELEASE[0]}) are reviewed")
    schemas = read_tables(place / tables)
    tasks = []
    for file in files:
        file_offset = len(tasks)

        def convert(
            row: Mapping[str, Any], index: int, first_id: int = file_offset
        ) -> dict[str, Any]:
            return {**_authored_fields(row, schemas), "task_id": first_id + index}

        tasks += read_tasks(place / file, convert)
    return Dataset(tasks, name, str(place / files[0]), str(databases or place / folder))


def _authored_fields(row: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    level = row.get("hardness") or hardness(row["query"])
    return {
        "query": row["question"],
        "gold": row["query"],
        "db": row["db_id"],
        "tags": [level] if level else [],
        "hardness": level,
        "dialect": "sqlite",
        "db_tables": schemas.get(row["db_id"]),
        "permute_columns": not has_fixed_order(row["question"]),
    }


def _released_task(task: Task) -> Task:
    level = task.metadata.get("hardness") or hardness("; ".join(task.gold), "mysql")
    free = not has_fixed_order(task.query)
    facts = {"hardness": level, "dialect": "mysql", "permute_columns": free}
    return replace(task, tags=(level,) if level else (), metadata={**task.metadata, **facts})


def _allow_explained_answer(task: Task) -> Task:
    """Let an answer explain itself, as the rule-book of the labellers does."""
    return replace(task, metadata={**task.metadata, "columns": "explained"})


def has_fixed_order(question: str) -> bool:
    """Whether a question states the order of the columns of its answer."""
    return _FIXED_ORDER.search(question) is not None


def hardness(sql: str, dialect: str = "sqlite") -> str | None:
    """Return how hard a query is, as one of `LEVELS`; None if it cannot be parsed.

    That is the rule of Spider's authors (their ``evaluation.py``). Counted, in the outermost query
    (of a set operation, the first):

    - *components*: WHERE, GROUP BY, ORDER BY and LIMIT, each once; each join; each OR and each
      LIKE in the conditions of ON, WHERE and HAVING;
    - *nested queries*: conditions that hold a subquery, and one for UNION, INTERSECT or EXCEPT;
    - *others*, each at most once: several aggregates (in SELECT and ORDER BY; the authors' count
      also takes a negated condition, and the connectors of HAVING, for one), several columns
      selected, several conditions in WHERE, several columns to group by.
    """
    try:
        query: _Node = sqlglot.parse_one(sql, dialect=dialect)
    except sqlglot.errors.SqlglotError:
        return None
    is_set = isinstance(query, exp.SetOperation)
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.this
    return _level(*_count(query, is_set)) if isinstance(query, exp.Select) else None


def _level(components: int, nesting_count: int, other_count: int) -> str:
    if nesting_count == 0:
        if components <= 1 and other_count == 0:
            return "easy"
        if (components <= 1 and other_count <= 2) or (components <= 2 and other_count <= 1):
            return "medium"
        if (components <= 2 and other_count > 2) or (components == 3 and other_count <= 2):
            return "hard"
    elif nesting_count == 1 and components <= 1 and other_count == 0:
        return "hard"
    return "extra"


def _count(query: _Node, is_set: bool) -> tuple[int, int, int]:
    joins = query.args.get("joins") or []
    where_conditions = list(_conditions(query.args.get("where")))
    having = list(_conditions(query.args.get("having")))
    all_conditions = [
        *where_conditions,
        *having,
        *(c for join in joins for c in _conditions(join.args.get("on"))),
    ]
    group, order = query.args.get("group"), query.args.get("order")
    ors = sum(_ors(join.args.get("on")) for join in joins)
    ors += _ors(query.args.get("where")) + _ors(query.args.get("having"))
    likes = sum(isinstance(_positive(condition), exp.Like) for condition in all_conditions)
    clauses = [query.args.get(name) for name in ("where", "group", "order", "limit")]
    components = sum(clause is not None for clause in clauses) + len(joins) + ors + likes
    nesting_count = is_set + sum(
        condition.find(exp.Select) is not None for condition in all_conditions
    )
    aggregates = sum(isinstance(column.unalias(), exp.AggFunc) for column in query.expressions)
    aggregates += len(list(order.find_all(exp.AggFunc))) if order else 0
    aggregates += sum(isinstance(condition, exp.Not) for condition in [*where_conditions, *having])
    aggregates += max(0, len(having) - 1)
    other_components = [
        aggregates > 1,
        len(query.expressions) > 1,
        len(where_conditions) > 1,
        group is not None and len(group.expressions) > 1,
    ]
    return components, nesting_count, sum(other_components)


def _conditions(clause: _Node) -> Iterator[_Node]:
    """Yield the conditions that AND and OR join in a clause."""
    if clause is None:
        return
    body = _body(clause)
    if isinstance(body, exp.Connector):
        yield from _conditions(body.left)
        yield from _conditions(body.right)
    else:
        yield body


def _ors(clause: _Node) -> int:
    if clause is None:
        return 0
    body = _body(clause)
    if not isinstance(body, exp.Connector):
        return 0
    return isinstance(body, exp.Or) + _ors(body.left) + _ors(body.right)


def _body(clause: _Node) -> _Node:
    body = clause.this if isinstance(clause, (exp.Where, exp.Having)) else clause
    return body.unnest()


def _positive(condition: _Node) -> _Node:
    return condition.this if isinstance(condition, exp.Not) else condition
