"""Generated tasks for SQL: queries of two small tables, in some databases that tasks share."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

from intercode.datasets.generated.draw import Draft, Draw, Pool, Wanted

DATABASES = 64
"""The number of databases of a seed and split."""

_LOOK = "SELECT word FROM note"
_ORDER = (
    *("look", "town", "kind", "above", "below", "group"),
    *("count", "sum", "most", "least", "up", "down", "first"),
)
"""The operations, in the order of a statement's clauses."""
_AGGREGATES = {
    "count": ("COUNT(*)", ("How many {s}?", "Count the {s}.")),
    "sum": ("SUM(price)", ("Total price of the {s}?", "Add up the prices of the {s}.")),
    "most": ("MAX(price)", ("Highest price of the {s}?", "What is the top price of the {s}?")),
    "least": ("MIN(price)", ("Lowest price of the {s}?", "What is the least price of the {s}?")),
}
_LISTS = ("Names of the {s}", "List the names of the {s}", "Give the name of all {s}")
_lock = Lock()


@lru_cache(maxsize=256)
def script(seed: int, split: str, number: int) -> str:
    """Return the SQL that makes a database."""
    draw, pool = Draw("sql", seed, split, "database", number), Pool.of(split)
    words = draw.some(pool.words, 6 + draw.pick((7, 8, 9, 10)))
    kinds, towns, names = words[:3], words[3:6], words[6:]
    prices = draw.some(pool.numbers, len(names))
    goods = [
        f"({row}, '{name}', '{draw.pick(kinds)}', {price})"
        for row, (name, price) in enumerate(zip(names, prices, strict=True), 1)
    ]
    pairs = draw.some([(row, town) for row in range(1, len(names) + 1) for town in towns], 12)
    sales = [f"({row}, '{town}', {draw.pick(pool.numbers)})" for row, town in pairs]
    return (
        "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, price INTEGER);\n"
        "CREATE TABLE sales (goods_id INTEGER REFERENCES goods (id), town TEXT, pieces INTEGER);\n"
        "CREATE TABLE note (word TEXT);\n"
        f"INSERT INTO goods VALUES {', '.join(goods)};\n"
        f"INSERT INTO sales VALUES {', '.join(sales)};\n"
        f"INSERT INTO note VALUES ('{draw.pick(kinds)}');\n"
    )


@lru_cache(maxsize=256)
def _database(seed: int, split: str, number: int) -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", check_same_thread=False)
    made.executescript(script(seed, split, number))
    return made


def name_of(number: int) -> str:
    """Name a database."""
    return f"shop_{number}"


class Queries:
    """Drafts tasks over the databases of a seed and split."""

    def __init__(self, seed: int, split: str) -> None:
        self._facts = seed, split

    def __call__(self, draw: Draw, pool: Pool, difficulty: int, wanted: Wanted) -> Draft | None:
        """Draft a query of so many clauses."""
        operations = sorted(draw.some(_ORDER, difficulty), key=_ORDER.index)
        if not _fits(operations) or not wanted(operations):
            return None
        number, ordered = draw.below(DATABASES), bool({"up", "down"} & set(operations))

        def run(statement: str) -> list[tuple[object, ...]]:
            with _lock:
                rows = _database(*self._facts, number).execute(statement).fetchall()
            return rows if ordered else sorted(rows)

        values = {
            "kind": str(draw.pick(run("SELECT DISTINCT kind FROM goods ORDER BY kind"))[0]),
            "town": str(draw.pick(run("SELECT DISTINCT town FROM sales ORDER BY town"))[0]),
            "price": str(draw.pick(pool.numbers)),
            "few": str(draw.pick(pool.few)),
        }
        if "look" in operations:
            values["kind"] = str(run(_LOOK)[0][0])
        steps = [one for one in operations if one != "look"]
        gold = _statement(steps, values)
        rows = run(gold)
        less = [
            _statement(rest, values)
            for left in steps
            if _fits(rest := [one for one in steps if one != left])
        ]
        if not rows or None in rows[0] or any(run(one) == rows for one in less):
            return None
        return Draft(
            query=_words(draw, operations, values),
            gold=gold,
            wrong=tuple(less[:1]),
            operations=tuple(operations),
            looks=(_LOOK,) if "look" in operations else (),
            fields={"db": name_of(number)},
        )


def _fits(operations: Sequence[str]) -> bool:
    """Whether the clauses make a statement."""
    has = set(operations)
    aggregates = len(has & _AGGREGATES.keys())
    return (
        aggregates <= 1
        and not {"above", "below"} <= has
        and not {"up", "down"} <= has
        and ("look" not in has or "kind" in has)
        and ("first" not in has or bool(has & {"up", "down"}))
        and ("group" not in has or (aggregates == 1 and "kind" not in has))
        and (not aggregates or "group" in has or not has & {"up", "down", "first"})
    )


def _statement(operations: Sequence[str], values: dict[str, str]) -> str:
    aggregate = next((_AGGREGATES[one][0] for one in operations if one in _AGGREGATES), "name")
    per = "kind, " if "group" in operations else ""
    said = f"SELECT {per}{aggregate} FROM goods"
    if "town" in operations:
        said += " JOIN sales ON id = goods_id"
    conditions = {
        "town": f"town = '{values['town']}'",
        "kind": f"kind = '{values['kind']}'",
        "above": f"price > {values['price']}",
        "below": f"price < {values['price']}",
    }
    if held := [text for name, text in conditions.items() if name in operations]:
        said += f" WHERE {' AND '.join(held)}"
    if "group" in operations:
        said += " GROUP BY kind"
    for name, way in (("up", ""), ("down", " DESC")):
        if name in operations:
            said += f" ORDER BY {'kind' if per else 'price'}{way}"
    return said + (f" LIMIT {values['few']}" if "first" in operations else "")


def _words(draw: Draw, operations: Sequence[str], values: dict[str, str]) -> str:
    kind = "the word in note" if "look" in operations else values["kind"]
    conditions = {
        "kind": (f" of kind {kind}", f" whose kind is {kind}"),
        "town": (f" sold in {values['town']}", f" with sales in {values['town']}"),
        "above": (f" above {values['price']}", f" dearer than {values['price']}"),
        "below": (f" below {values['price']}", f" cheaper than {values['price']}"),
    }
    noun = "goods" + "".join(
        draw.pick(said) for name, said in conditions.items() if name in operations
    )
    aggregate = next((_AGGREGATES[one][1] for one in operations if one in _AGGREGATES), None)
    if aggregate is not None and "group" not in operations:
        return draw.pick(aggregate).format(s=noun)
    if aggregate is not None:
        said = draw.pick(aggregate).format(s=noun)
        said = draw.pick(("For each kind: ", "Per kind: ")) + said[0].lower() + said[1:]
        orders = {"up": " Sort by kind.", "down": " Sort by kind, z to a."}
    else:
        said = draw.pick(_LISTS).format(s=noun) + "."
        orders = {"up": " Cheapest first.", "down": " Dearest first."}
    said += "".join(text for name, text in orders.items() if name in operations)
    return said + (f" Only the first {values['few']}." if "first" in operations else "")
