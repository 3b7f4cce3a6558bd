"""Probes of the SQL rewards: whether another change, or a guess, is taken for gold's."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from intercode.databases import find, get_engine
from intercode.errors import TaskError
from intercode.rewards.database_mutator import mutate
from intercode.rewards.sql_conditions import (
    ColumnCondition,
    ConstantComparison,
    QueryConditions,
    RowLookup,
)
from intercode.rewards.sql_explain import find_uses
from intercode.rewards.sql_gold import read_facts
from rewards.sql_store import SCRIPT, Store

_DEAR = "CREATE VIEW dear AS SELECT id FROM purchase WHERE amount > 5"
_LOG = (
    "CREATE TRIGGER log AFTER DELETE ON purchase BEGIN "
    "INSERT INTO voucher (code, used) VALUES ('gone ' || OLD.id, 0); END"
)
_KEYED = "CREATE TABLE note (id INTEGER, words TEXT UNIQUE, CHECK (id > 0))"


def _is_refused(gold: str, action: str) -> bool:
    with tempfile.TemporaryDirectory() as folder, closing(get_engine("sqlite")) as engine:
        store = Store(engine, Path(folder))
        assert store.value(gold, gold) == 1.0
        return store.value(gold, action) < 1.0


def looked_up_once() -> bool:
    """Whether a name that gold looks up stands at most once in each mutated copy."""
    asked = QueryConditions(
        (ColumnCondition("customer", "name", ("Ann",)),),
        3,
        (RowLookup("customer", (ConstantComparison("name", "=", "Ann"),)),),
    )
    with tempfile.TemporaryDirectory() as folder:
        origin = Path(folder, "origin")
        with closing(sqlite3.connect(origin)) as connection:
            connection.executescript(SCRIPT)
        for seed in range(20):
            copy = Path(folder, str(seed))
            mutate(origin, copy, asked, seed, is_gentle=seed % 2 == 0)
            with closing(sqlite3.connect(copy)) as connection:
                sql = "SELECT COUNT(*) FROM customer WHERE name = 'Ann' COLLATE NOCASE"
                [(count,)] = connection.execute(sql)
            if count > 1:
                return False
    return True


def constraints_are_compared() -> bool:
    return _is_refused(_KEYED, _KEYED.replace(" UNIQUE", ""))


def checks_are_compared() -> bool:
    return _is_refused(_KEYED, _KEYED.replace("id > 0", "id > 1"))


def triggers_are_run() -> bool:
    return _is_refused(_LOG, _LOG.replace("'gone '", "'lost '"))


def views_are_asked_on_copies() -> bool:
    return _is_refused(_DEAR, _DEAR.replace("> 5", "> 4"))


def explained_by_one_column() -> bool:
    """Whether a column that the answer does not use explains nothing."""
    query = read_facts("SELECT name, id FROM customer ORDER BY name", "sqlite").query
    return [use.column for use in find_uses(query, "sqlite")] == [0]


def no_star_explains() -> bool:
    query = read_facts("SELECT *, id FROM customer ORDER BY id", "sqlite").query
    return not find_uses(query, "sqlite")


def file_has_one_database() -> bool:
    """Whether a task is refused whose database is another one than the file that is given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.sql")
        path.write_text(SCRIPT)
        assert find(path, "shop") == find(path)
        try:
            find(path, "other")
        except TaskError:
            return True
    return False
