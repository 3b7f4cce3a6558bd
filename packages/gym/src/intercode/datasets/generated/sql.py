"""Generated tasks for SQL: queries over two small tables.

The tasks of a seed and a split share 64 databases.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

from intercode.datasets.generated.sampling import (
    OperationFilter,
    SeededChoices,
    TaskDraft,
    TaskNamePool,
)

DATABASES = 64
"""The number of databases for a seed and a split."""

_LOOK = "SELECT word FROM note"
_ORDER = (
    *("look", "town", "kind", "above", "below", "group"),
    *("count", "sum", "most", "least", "up", "down", "first"),
)
"""The operations, in the order of the clauses of an SQL statement."""
_AGGREGATES = {
    "count": ("COUNT(*)", ("How many {s}?", "Count the {s}.")),
    "sum": ("SUM(price)", ("Total price of the {s}?", "Add up the prices of the {s}.")),
    "most": ("MAX(price)", ("Highest price of the {s}?", "What is the top price of the {s}?")),
    "least": ("MIN(price)", ("Lowest price of the {s}?", "What is the least price of the {s}?")),
}
_LISTS = ("Names of the {s}", "List the names of the {s}", "Give the name of all {s}")
_lock = Lock()


@lru_cache(maxsize=256)
def script(seed: int, split: str, database_number: int) -> str:
    """Return the SQL script that creates a database."""
    draw, pool = (
        SeededChoices("sql", seed, split, "database", database_number),
        TaskNamePool.from_split(split),
    )
    words = draw.pick_several(pool.words, 6 + draw.pick((7, 8, 9, 10)))
    kinds, towns, names = words[:3], words[3:6], words[6:]
    prices = draw.pick_several(pool.numbers, len(names))
    product_rows = [
        f"({row}, '{name}', '{draw.pick(kinds)}', {price})"
        for row, (name, price) in enumerate(zip(names, prices, strict=True), 1)
    ]
    pairs = draw.pick_several(
        [(row, town) for row in range(1, len(names) + 1) for town in towns], 12
    )
    sales = [f"({row}, '{town}', {draw.pick(pool.numbers)})" for row, town in pairs]
    return (
        "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, price INTEGER);\n"
        "CREATE TABLE sales (goods_id INTEGER REFERENCES goods (id), town TEXT, pieces INTEGER);\n"
        "CREATE TABLE note (word TEXT);\n"
        f"INSERT INTO goods VALUES {', '.join(product_rows)};\n"
        f"INSERT INTO sales VALUES {', '.join(sales)};\n"
        f"INSERT INTO note VALUES ('{draw.pick(kinds)}');\n"
    )


@lru_cache(maxsize=256)
def _database(seed: int, split: str, database_number: int) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(script(seed, split, database_number))
    return connection


def database_name(database_number: int) -> str:
    """Return the name of a database."""
    return f"shop_{database_number}"


class SqlTaskGenerator:
    """A generator of SQL tasks over the databases of a seed and a split.

    An instance has the type `intercode.datasets.generated.sampling.Family`.
    """

    def __init__(self, seed: int, split: str) -> None:
        self._facts = seed, split

    def __call__(
        self, draw: SeededChoices, pool: TaskNamePool, difficulty: int, is_allowed: OperationFilter
    ) -> TaskDraft | None:
        """Draft a task with `difficulty` operations; None if the choices make no valid task."""
        operations = sorted(draw.pick_several(_ORDER, difficulty), key=_ORDER.index)
        if not _fits(operations) or not is_allowed(operations):
            return None
        database_number, ordered = (
            draw.draw_below(DATABASES),
            bool({"up", "down"} & set(operations)),
        )

        def run(statement: str) -> list[tuple[object, ...]]:
            with _lock:
                rows = _database(*self._facts, database_number).execute(statement).fetchall()
            return rows if ordered else sorted(rows)

        values = {
            "kind": str(draw.pick(run("SELECT DISTINCT kind FROM goods ORDER BY kind"))[0]),
            "town": str(draw.pick(run("SELECT DISTINCT town FROM sales ORDER BY town"))[0]),
            "price": str(draw.pick(pool.numbers)),
            "few": str(draw.pick(pool.counts)),
        }
        if "look" in operations:
            values["kind"] = str(run(_LOOK)[0][0])
        steps = [item for item in operations if item != "look"]
        gold = _statement(steps, values)
        rows = run(gold)
        shorter_statements = [
            _statement(remaining_steps, values)
            for omitted_step in steps
            if _fits(remaining_steps := [item for item in steps if item != omitted_step])
        ]
        if not rows or None in rows[0] or any(run(item) == rows for item in shorter_statements):
            return None
        return TaskDraft(
            query=_words(draw, operations, values),
            gold=gold,
            wrong_solutions=tuple(shorter_statements[:1]),
            operations=tuple(operations),
            looks=(_LOOK,) if "look" in operations else (),
            fields={"db": database_name(database_number)},
        )


def _fits(operations: Sequence[str]) -> bool:
    """Return whether the operations can be combined in a meaningful SQL statement."""
    clauses = set(operations)
    aggregates = len(clauses & _AGGREGATES.keys())
    return (
        aggregates <= 1
        and not {"above", "below"} <= clauses
        and not {"up", "down"} <= clauses
        and ("look" not in clauses or "kind" in clauses)
        and ("first" not in clauses or bool(clauses & {"up", "down"}))
        and ("group" not in clauses or (aggregates == 1 and "kind" not in clauses))
        and (not aggregates or "group" in clauses or not clauses & {"up", "down", "first"})
    )


def _statement(operations: Sequence[str], values: dict[str, str]) -> str:
    aggregate = next(
        (_AGGREGATES[operation][0] for operation in operations if operation in _AGGREGATES), "name"
    )
    group_prefix = "kind, " if "group" in operations else ""
    statement = f"SELECT {group_prefix}{aggregate} FROM goods"
    if "town" in operations:
        statement += " JOIN sales ON id = goods_id"
    conditions = {
        "town": f"town = '{values['town']}'",
        "kind": f"kind = '{values['kind']}'",
        "above": f"price > {values['price']}",
        "below": f"price < {values['price']}",
    }
    if condition_texts := [
        text for direction, text in conditions.items() if direction in operations
    ]:
        statement += f" WHERE {' AND '.join(condition_texts)}"
    if "group" in operations:
        statement += " GROUP BY kind"
    for direction, order_suffix in (("up", ""), ("down", " DESC")):
        if direction in operations:
            statement += f" ORDER BY {'kind' if group_prefix else 'price'}{order_suffix}"
    return statement + (f" LIMIT {values['few']}" if "first" in operations else "")


def _words(draw: SeededChoices, operations: Sequence[str], values: dict[str, str]) -> str:
    kind = "the word in note" if "look" in operations else values["kind"]
    conditions = {
        "kind": (f" of kind {kind}", f" whose kind is {kind}"),
        "town": (f" sold in {values['town']}", f" with sales in {values['town']}"),
        "above": (f" above {values['price']}", f" dearer than {values['price']}"),
        "below": (f" below {values['price']}", f" cheaper than {values['price']}"),
    }
    noun = "goods" + "".join(
        draw.pick(sentence) for name, sentence in conditions.items() if name in operations
    )
    aggregate = next(
        (_AGGREGATES[operation][1] for operation in operations if operation in _AGGREGATES), None
    )
    if aggregate is not None and "group" not in operations:
        return draw.pick(aggregate).format(s=noun)
    if aggregate is not None:
        sentence = draw.pick(aggregate).format(s=noun)
        sentence = draw.pick(("For each kind: ", "Per kind: ")) + sentence[0].lower() + sentence[1:]
        orders = {"up": " Sort by kind.", "down": " Sort by kind, z to a."}
    else:
        sentence = draw.pick(_LISTS).format(s=noun) + "."
        orders = {"up": " Cheapest first.", "down": " Dearest first."}
    sentence += "".join(text for name, text in orders.items() if name in operations)
    return sentence + (f" Only the first {values['few']}." if "first" in operations else "")
