"""Tasks that ask for a change, on real SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from intercode.databases import DatabaseEngine, get_engine

from .sql_store import Store

MOVE = "UPDATE customer SET city = 'Köln' WHERE id = 3"
ADD = "INSERT INTO voucher VALUES ('X1', 0)"
MAKE = "CREATE TABLE note (id INTEGER, words TEXT)"
VIEW = "CREATE VIEW oslo AS SELECT name FROM customer WHERE city = 'Oslo'"

KEYED = (
    "CREATE TABLE note (id INTEGER PRIMARY KEY, words TEXT NOT NULL UNIQUE, city TEXT, "
    "CHECK (id > 0))"
)
LOG = (
    "CREATE TRIGGER log AFTER DELETE ON purchase BEGIN "
    "INSERT INTO voucher (code, used) VALUES ('gone ' || OLD.id, 0); END"
)
DEAR = "CREATE VIEW dear AS SELECT id FROM purchase WHERE amount > 5"
INDEX = "CREATE UNIQUE INDEX one ON customer (name)"
EMPTIED = "CREATE TRIGGER t AFTER {} ON {} BEGIN DELETE FROM {}; END"


@pytest.mark.parametrize(
    ("gold", "action"),
    [
        (MOVE, "UPDATE customer SET city = 'Köln' WHERE name = 'Bo'"),
        (ADD, "INSERT INTO voucher (used, code) SELECT 0, 'X1'"),
        (MAKE, "CREATE TABLE Note (WORDS VARCHAR(20), id BIGINT)"),
        (VIEW, "CREATE VIEW oslo AS SELECT c.name FROM customer c JOIN city "
         "ON city.name = c.city WHERE c.city LIKE 'OSLO'"),
        ("DELETE FROM purchase", "DELETE FROM purchase WHERE id > 0"),
        ("DROP VIEW spent", "DROP VIEW IF EXISTS spent"),
        (f"{ADD}; {MOVE}", f"{MOVE}; {ADD}"),
        ("ALTER TABLE city ADD COLUMN size INTEGER", "ALTER TABLE city ADD COLUMN size INT"),
        ("WITH n(c) AS (SELECT 'X1') INSERT INTO voucher SELECT c, 0 FROM n", ADD),
        (KEYED, "CREATE TABLE note (id INT NOT NULL, words TEXT NOT NULL DEFAULT '', "
                "city TEXT REFERENCES city, CONSTRAINT k PRIMARY KEY (id), "
                "CONSTRAINT u UNIQUE (words), CHECK (0 < id))"),
        (KEYED, "CREATE TABLE note (id INTEGER PRIMARY KEY CHECK (NOT id <= 0), words TEXT "
                "NOT NULL, city TEXT); CREATE UNIQUE INDEX w ON note (words)"),
        (LOG, LOG.replace("log AFTER", "other BEFORE").replace(" (code, used)", "")),
        (INDEX, f"{INDEX.replace('one', 'other')}; CREATE INDEX more ON city (country)"),
        (f"{VIEW}; CREATE VIEW two AS SELECT * FROM oslo",
         f"CREATE VIEW oslo AS SELECT * FROM two; {VIEW.replace('oslo', 'two')}"),
    ],
)  # fmt: skip
def test_the_same_change_by_other_words(store: Store, gold: str, action: str) -> None:
    score = store.score(gold, action)
    assert (score.value, score.parts) == (1.0, {"tables": 1.0, "overlap": 1.0})


@pytest.mark.parametrize("gold", [MOVE, ADD, MAKE, VIEW, "DELETE FROM purchase"])
def test_doing_nothing_is_worth_nothing(store: Store, gold: str) -> None:
    for actions in [(), ("SELECT 1",), ("BEGIN", gold, "ROLLBACK")]:
        assert store.value(gold, *actions) == 0.0


def test_an_open_transaction_counts(store: Store) -> None:
    assert store.value(ADD, "BEGIN", ADD) == 1.0


@pytest.mark.parametrize(
    ("gold", "action", "value", "reason"),
    [
        (MOVE, "UPDATE customer SET city = 'Oslo' WHERE id = 3", 1 / 2, "customer differs"),
        (MOVE, f"{MOVE}; {ADD}", 4 / 5, "voucher differs from gold's"),
        (ADD, "INSERT INTO voucher VALUES ('X1', 1)", 0.0, "voucher differs from gold's"),
        (f"{ADD}; {MOVE}", ADD, 1 / 2, "customer is unchanged"),
        (MAKE, "CREATE TABLE note (id TEXT, words TEXT)", 0.0, "note differs from gold's"),
        (MAKE, "CREATE VIEW note AS SELECT 1 AS id, '' AS words", 0.0, "note differs from gold's"),
        (MAKE, "CREATE TABLE notes (id INTEGER, words TEXT)", 0.0, "note is missing, notes is"),
        (MAKE, f"{MAKE}; CREATE TABLE more (id INTEGER)", 2 / 3, "more is extra"),
        ("DELETE FROM voucher; DROP VIEW spent", "DELETE FROM city", 0.0, "city differs from"),
    ],
)
def test_a_part_of_the_change(
    store: Store, gold: str, action: str, value: float, reason: str
) -> None:
    score = store.score(gold, action)
    assert score.value == pytest.approx(value)
    assert score.detail["reason"].startswith(reason)


def test_a_change_of_what_a_view_shows(store: Store) -> None:
    gold = "UPDATE purchase SET amount = 1 WHERE id = 2"
    assert store.value(gold, gold) == 1.0
    # The row is wrong, and so is what the view sums up.
    score = store.score(gold, "UPDATE purchase SET amount = 2 WHERE id = 2")
    assert 0.0 < score.value < 1.0
    assert score.parts["tables"] == 0.0


def test_an_answer_does_not_replace_a_change_nor_the_reverse(store: Store) -> None:
    assert store.value(ADD, "SELECT 'X1', 0") == 0.0
    assert store.value("SELECT code FROM voucher", ADD) == 0.0
    either = store.task(ADD, "SELECT COUNT(*) FROM customer")
    assert store.value(either, ADD) == 1.0
    assert store.value(either, "SELECT COUNT(*) FROM customer") == 1.0


@pytest.mark.parametrize(
    ("gold", "action", "reason"),
    [
        (KEYED, KEYED.replace("PRIMARY KEY", "NOT NULL"), "note differs from gold's"),
        (KEYED, KEYED.replace("PRIMARY KEY", "NOT NULL UNIQUE"), "note differs from gold's"),
        (KEYED, KEYED.replace(" UNIQUE", ""), "note differs from gold's"),
        (KEYED, KEYED.replace(" NOT NULL", ""), "note differs from gold's"),
        (KEYED, KEYED.replace("city TEXT", "city TEXT UNIQUE"), "note differs from gold's"),
        (KEYED, KEYED.replace(", CHECK (id > 0)", ""), "note does not check what it should"),
        (KEYED, KEYED.replace("id > 0", "id > 1"), "note does not check what it should"),
        (KEYED, KEYED.replace("id > 0", "id > 0 AND city > ''"), "note does not check what"),
        (KEYED, KEYED.replace("city TEXT", "city TEXT CHECK (city IS NULL)"), "note does not"),
        ("CREATE TABLE note (city TEXT REFERENCES city (name) ON DELETE CASCADE)",
         "CREATE TABLE note (city TEXT REFERENCES city (name))", "note differs from gold's"),
        ("CREATE TABLE note (a INT, b INT, PRIMARY KEY (a, b))",
         "CREATE TABLE note (a INT PRIMARY KEY, b INT)", "note differs from gold's"),
        (INDEX, "CREATE INDEX one ON customer (name)", "customer is unchanged"),
        (INDEX, f"{INDEX} WHERE city > ''", "customer differs from gold's"),
        (VIEW, "CREATE VIEW oslo AS SELECT 'Ann' AS name UNION SELECT '李'", "oslo differs"),
        (VIEW, "CREATE VIEW oslo AS SELECT name FROM customer WHERE id IN (1, 4)", "oslo differs"),
        (VIEW, "CREATE TABLE keep AS SELECT 1 AS x; "
               "CREATE VIEW oslo AS SELECT name FROM customer WHERE city = 'Oslo'", "keep is"),
        (MOVE, f"{MOVE}; {EMPTIED.format('INSERT', 'customer', 'customer')}", "customer differs"),
        (MOVE, f"{MOVE}; {EMPTIED.format('UPDATE', 'city', 'city')}", "city differs from gold's"),
        (MOVE, f"{MOVE}; {EMPTIED.format('DELETE', 'voucher', 'voucher')}", "voucher differs"),
        (MOVE, f"{MOVE}; {INDEX}", "customer differs from gold's"),
        (MOVE, f"{MOVE}; DROP VIEW spent; CREATE VIEW spent AS SELECT 1 AS customer_id, 10.5 AS "
               "total UNION SELECT 2, 13.75 UNION SELECT 4, 0.0", "spent differs from gold's"),
        (LOG, LOG.replace("DELETE", "UPDATE"), "purchase differs from gold's"),
        (KEYED, KEYED.replace("UNIQUE", "UNIQUE ON CONFLICT REPLACE"), "note "),
        (KEYED, KEYED.replace("TEXT NOT", "TEXT COLLATE NOCASE NOT"), "note differs from gold's"),
        (DEAR, DEAR.replace("> 5", "> 4"), "dear differs from gold's on a copy"),
        (DEAR, DEAR.replace("> 5", ">= 5"), "dear differs from gold's on a copy"),
        (LOG, LOG.replace("INSERT INTO", "INSERT OR REPLACE INTO"), "the triggers of purchase do"),
        (LOG, LOG.replace("END", "DELETE FROM voucher WHERE used > 5; END"), "the triggers of"),
        (LOG, LOG.replace("'gone '", "'lost '"), "the triggers of purchase do not do what"),
        (LOG, LOG.replace("BEGIN", "WHEN OLD.amount > 5 BEGIN"), "the triggers of purchase do not"),
        (LOG, LOG.replace("END", "DELETE FROM city WHERE OLD.customer_id = 977; END"),
         "the triggers of purchase do not do what"),
    ],
)  # fmt: skip
def test_constraints_and_programs_are_part_of_the_change(
    store: Store, gold: str, action: str, reason: str
) -> None:
    score = store.score(gold, action)
    assert score.value < 1.0
    assert score.detail["reason"].startswith(reason)
    assert store.value(gold, gold) == 1.0


@pytest.mark.parametrize(
    ("gold", "action", "right"),
    [
        (KEYED, KEYED.replace("id > 0", "0 < id").replace("city TEXT", "city TEXT NOT NULL"), True),
        (KEYED, KEYED.replace("INTEGER PRIMARY KEY", "INTEGER NOT NULL"), False),
        (KEYED, KEYED.replace("id > 0", "id > 1"), False),
        (INDEX, INDEX.replace("one", "two"), True),
        (INDEX, INDEX.replace(" UNIQUE", ""), False),
        (VIEW, VIEW.replace("=", "IN (") + ")", True),
        (VIEW, "CREATE VIEW oslo AS SELECT unnest(['Ann', '李']) AS name", False),
    ],
)
def test_on_duckdb(tmp_path: Path, gold: str, action: str, right: bool) -> None:
    pytest.importorskip("duckdb")
    with closing(get_engine("duckdb")) as engine:
        assert (Store(engine, tmp_path).value(gold, action) == 1.0) is right


VIRTUAL = """
CREATE VIRTUAL TABLE page USING fts5(words);
INSERT INTO page VALUES ('one two');
CREATE VIRTUAL TABLE old USING fts4(words);
CREATE VIRTUAL TABLE area USING rtree(id, low, high);
INSERT INTO area VALUES (1, 0, 5);
CREATE VIRTUAL TABLE terms USING fts5vocab('page', 'row');
CREATE TABLE note (id INTEGER PRIMARY KEY, words TEXT);
CREATE VIRTUAL TABLE found USING fts5(words, content = 'note', content_rowid = 'id');
CREATE TRIGGER more AFTER INSERT ON note BEGIN
    INSERT INTO found (rowid, words) VALUES (NEW.id, NEW.words); END;
"""


@pytest.fixture(scope="module")
def virtual(sqlite_engine: DatabaseEngine, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(sqlite_engine, folder := tmp_path_factory.mktemp("virtual"))
    with (folder / "store.sql").open("a") as script:
        script.write(VIRTUAL)
    return store


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (ADD, ADD, f"{ADD}; DELETE FROM page"),
        ("INSERT INTO page VALUES ('b'), ('a')",  # by another way: other bytes in its own tables
         "INSERT INTO page VALUES ('x'); UPDATE page SET words = 'b' WHERE words = 'x'; "
         "INSERT INTO page VALUES ('a')", "INSERT INTO page VALUES ('b')"),
        ("INSERT INTO area VALUES (2, 1, 2)", "INSERT INTO area VALUES (3, 1, 2); "
         "UPDATE area SET id = 2 WHERE id = 3", "INSERT INTO area VALUES (2, 1, 3)"),
        ("INSERT INTO note VALUES (1, 'a')", "INSERT INTO note (words) VALUES ('a')",
         "INSERT INTO note VALUES (1, 'b')"),
        ("CREATE VIRTUAL TABLE t USING fts5(words, tokenize = porter)",
         "create virtual table if not exists T using FTS5 ( words , tokenize=porter )",
         "CREATE VIRTUAL TABLE t USING fts5(words)"),
        ("CREATE VIRTUAL TABLE t USING fts4(words)", "CREATE VIRTUAL TABLE t USING fts4(words)",
         "CREATE TABLE t (words TEXT)"),
        ("DROP TABLE area", "DROP TABLE area", "DROP TABLE old"),
    ],
)  # fmt: skip
def test_a_database_with_virtual_tables(virtual: Store, gold: str, right: str, wrong: str) -> None:
    assert virtual.value(gold, gold) == virtual.value(gold, right) == 1.0
    assert virtual.value(gold, wrong) < 1.0
    assert virtual.value(gold) == 0.0


def test_a_virtual_table_that_an_agent_breaks_is_a_wrong_change(virtual: Store) -> None:
    assert virtual.value(ADD, ADD, "DROP TABLE area_node") < 1.0


def test_a_virtual_table_without_its_module_is_no_obstacle(
    sqlite_engine: DatabaseEngine, tmp_path: Path
) -> None:
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript("CREATE TABLE voucher (code TEXT, used INTEGER)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "INSERT INTO sqlite_master VALUES ('table', 'far', 'far', 0, "
            "'CREATE VIRTUAL TABLE far USING no_such_module(a)')"
        )
    store = Store(sqlite_engine, tmp_path)
    (tmp_path / "store.sql").unlink()
    assert store.value(ADD, ADD) == 1.0
    assert store.value(ADD) == 0.0
