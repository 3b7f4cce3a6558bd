"""Loader of Spider (Yu et al. 2018): questions over databases of many domains.

The user's copy has one of two layouts:

- the authors' layout: ``dev.json``, ``tables.json`` and ``database/NAME/NAME.sqlite``. Gold is in
  SQLite's dialect. `compute_difficulty` computes the difficulty by the authors' rule. The folder
  ``database`` of the authors' distilled test suites has the same layout, with several SQLite files
  for each name;
- the 2023 release of InterCode: ``ic_spider_dev.json`` and ``ic_spider_dbs.sql``. Gold is in
  MySQL's dialect, and the data contain the difficulty. 19 of the 1,034 golds fail on MySQL 8; the
  file `REVIEW` has replacements.

The ``metadata`` of a task contain ``dialect``, ``hardness`` (the difficulty), ``db_tables`` (table
→ columns) and ``permute_columns``. As in the authors' evaluation, the columns of an answer may have
another order than gold's, unless the question states the order. ``permute_columns`` is true if
the order is free.
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
"""Name of a split → the authors' files of tasks, file of tables, and folder of databases."""
REVIEW = Path(__file__).with_name("spider_reviewed.jsonl")
"""The file of InterCode's reviews of wrong golds in the 2023 release. The function
`intercode.datasets.files.apply` describes its format."""

LEVELS = ("easy", "medium", "hard", "extra")
"""The levels of difficulty, from the easiest to the hardest."""

_FIXED_ORDER = re.compile(
    r"\bin (?:this|that|the following|the given|exactly this) order\b|\bfollowed by\b"
    r"|\b(?:first|second|third|last|left|right)most? column\b|\border of (?:the )?columns\b",
    re.IGNORECASE,
)
_Node = Any  # a node of sqlglot's syntax tree; versions of sqlglot name its base class differently
_RELEASE = ("ic_spider_dev.json", "ic_spider_dbs.sql")


@cached_loader
def load(
    root: str | Path | None = None,
    split: str = "dev",
    databases: str | Path | None = None,
    reviewed: bool = False,
) -> Dataset:
    """Load a split of Spider. A task's id is the number of its row.

    Args:
        root: A folder that contains one of the layouts, at most three levels deep; None: the folder
            that ``intercode datasets fetch spider`` has written.
        split: One of `SPLITS`; the 2023 release has only ``dev``.
        databases: A folder or file with other databases of the same names, such as those of a test
            suite; None: the databases in the layout.
        reviewed: Whether to replace wrong golds of the 2023 release, and to accept an additional
            column that explains the answer.

    Returns:
        The dataset.

    Raises:
        TaskError: The split is unknown, absent or malformed. Or `reviewed` is true for the authors'
            layout, whose golds are not reviewed.
    """
    if split not in SPLITS:
        raise TaskError(f"Spider has no split {split!r}; known: {', '.join(SPLITS)}")
    files, tables, folder = SPLITS[split]
    layouts = [(*files, tables, folder)] + ([_RELEASE] if split == "dev" else [])
    dataset_folder, layout = locate(root, "spider", layouts)
    name = "spider" if split == "dev" else f"spider-{split}"
    if layout == 1:
        source, database_path = dataset_folder / _RELEASE[0], dataset_folder / _RELEASE[1]
        tasks = [_released_task(task) for task in load_file(source)]
        if reviewed:
            tasks = [apply(task, reviews(REVIEW).get(task.task_id)) for task in tasks]
            tasks = [_allow_explained_answer(task) for task in tasks]
            name = f"{name} (reviewed)"
        return Dataset(tasks, name, str(source), str(databases or database_path))
    if reviewed:
        raise TaskError(
            f"{dataset_folder}: only the golds of the 2023 release ({_RELEASE[0]}) are reviewed"
        )
    schemas = read_tables(dataset_folder / tables)
    tasks = []
    for file in files:
        file_offset = len(tasks)

        def convert(
            row: Mapping[str, Any], index: int, first_id: int = file_offset
        ) -> dict[str, Any]:
            return {**_authored_fields(row, schemas), "task_id": first_id + index}

        tasks += read_tasks(dataset_folder / file, convert)
    return Dataset(
        tasks, name, str(dataset_folder / files[0]), str(databases or dataset_folder / folder)
    )


def _authored_fields(row: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    difficulty = row.get("hardness") or compute_difficulty(row["query"])
    return {
        "query": row["question"],
        "gold": row["query"],
        "db": row["db_id"],
        "tags": [difficulty] if difficulty else [],
        "hardness": difficulty,
        "dialect": "sqlite",
        "db_tables": schemas.get(row["db_id"]),
        "permute_columns": not has_fixed_order(row["question"]),
    }


def _released_task(task: Task) -> Task:
    difficulty = task.metadata.get("hardness") or compute_difficulty("; ".join(task.gold), "mysql")
    permutes_columns = not has_fixed_order(task.query)
    facts = {"hardness": difficulty, "dialect": "mysql", "permute_columns": permutes_columns}
    return replace(
        task, tags=(difficulty,) if difficulty else (), metadata={**task.metadata, **facts}
    )


def _allow_explained_answer(task: Task) -> Task:
    """Return a task whose reward accepts an additional column that explains the answer.

    The guidelines for the labellers of Spider permit such a column.
    """
    return replace(task, metadata={**task.metadata, "columns": "explained"})


def has_fixed_order(question: str) -> bool:
    """Return whether a question states the order of the columns in its answer."""
    return _FIXED_ORDER.search(question) is not None


def compute_difficulty(sql: str, dialect: str = "sqlite") -> str | None:
    """Return the difficulty of an SQL query as one of `LEVELS`; None if it cannot be parsed.

    The rule is the "hardness" in the authors' ``evaluation.py``. Three numbers are counted in the
    outermost query. For UNION, INTERSECT and EXCEPT, the first of the combined queries counts:

    - *components*: WHERE, GROUP BY, ORDER BY and LIMIT, each once; each join; each OR and each
      LIKE in the conditions of ON, WHERE and HAVING;
    - *nested queries*: conditions with a subquery, plus one for UNION, INTERSECT or EXCEPT;
    - *others*, each at most once: several aggregates in SELECT and ORDER BY, several selected
      columns, several conditions in WHERE, several columns in GROUP BY. As in the authors' program,
      negated conditions, and the ANDs and ORs of HAVING, count as aggregates.

    Args:
        sql: The query.
        dialect: The dialect of the query, by its name in the package sqlglot.
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
    """Yield the single conditions of a clause, which AND and OR connect."""
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
