"""An action as SQLite's statements: split where SQLite itself would."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

import intercode
from intercode import databases
from intercode.databases.inside.sqlite import SqliteAuthorizer, position, split
from pythons import program

PIECES = [
    *("SELECT 1", ";", " ", "\n", "'a;b'", '"x;y"', "`p;q`", "[r;s]", "-- c;d\n", "/* e;f */"),
    *("'", '"', "[", "]", "`", "/*", "*/", "--", "-", "/", "x", "''", "SELECT 'it''s'"),
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END",
]


def texts(sql: str) -> list[str]:
    return [statement for _, statement in split(sql)]


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1;"]),
        ("SELECT 1; SELECT 2", ["SELECT 1;", "SELECT 2"]),
        (";;; SELECT 1;;", ["SELECT 1;"]),
        ("SELECT ';' ; -- ;\n/* ; */ SELECT \";\"", ["SELECT ';' ;", 'SELECT ";"']),
        ("-- only\n /* comments */ ;", []),
        ("/* open", []),
        ("SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        ("SELECT 1 /* open ; SELECT 2", ["SELECT 1 /* open ; SELECT 2"]),
        ("SELECT 4/2; SELECT 4-2", ["SELECT 4/2;", "SELECT 4-2"]),
        (
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END; SELECT 3",
            ["CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;", "SELECT 3"],
        ),
        ("SELECT [a;b], `c;d`; SELECT 'it''s; ok'", ["SELECT [a;b], `c;d`;", "SELECT 'it''s; ok'"]),
    ],
)
def test_statements(sql: str, statements: list[str]) -> None:
    assert texts(sql) == statements


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_nothing_is_lost(sql: str) -> None:
    pieces = list(split(sql))
    end = 0
    for begin, statement in pieces:
        assert sql[begin : begin + len(statement)] == statement
        assert begin >= end
        assert not statement[0].isspace()
        end = begin + len(statement)
    for _, statement in pieces[:-1]:
        assert sqlite3.complete_statement(statement)


def test_a_long_literal_takes_no_long_time() -> None:
    sql = f"SELECT '{'; ' * 1_000_000}'; SELECT 2"
    assert len(texts(sql)) == 2


@pytest.mark.parametrize(
    ("message", "statement", "found"),
    [
        ('near "FORM": syntax error', "SELECT a FORM b", 109),
        ('near "a": syntax error', "SELECT a a a", None),
        ("incomplete input", "SELECT", None),
        ('near "": syntax error', "SELECT", None),
    ],
)
def test_position(message: str, statement: str, found: int | None) -> None:
    assert position(message, statement, 100) == found


READS = [
    "SELECT * FROM t",
    "WITH RECURSIVE c (x) AS (SELECT 1 UNION SELECT x + 1 FROM c LIMIT 3) SELECT * FROM c, t",
    "SELECT * FROM v JOIN t USING (a)",
    "PRAGMA table_info(t)",
    "PRAGMA foreign_key_list(t)",
    "PRAGMA user_version",
    "EXPLAIN QUERY PLAN SELECT * FROM t",
    "VALUES (1)",
    "SELECT * FROM sqlite_master",
]
WRITES = [
    "INSERT INTO t VALUES (2)",
    "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
    "UPDATE t SET a = 1",
    "DELETE FROM t",
    "REPLACE INTO t VALUES (1)",
    "CREATE TABLE u (a)",
    "CREATE TEMP TABLE u (a)",
    "DROP TABLE t",
    "BEGIN",
    "SAVEPOINT s",
    "PRAGMA user_version = 3",
    "PRAGMA journal_mode",
    "PRAGMA case_sensitive_like = 1",
    "ANALYZE",
    "EXPLAIN INSERT INTO t VALUES (2)",
    # SQLite makes a table of a table-valued function, as CREATE does: a copy that was not needed.
]


# Tables that are functions entered the schema when they were first read, until SQLite changed that.
(READS if sqlite3.sqlite_version_info >= (3, 46) else WRITES).extend(
    ["SELECT * FROM pragma_table_info('t')", "SELECT * FROM json_each('[1]')"]
)


@pytest.fixture
def guarded() -> tuple[sqlite3.Connection, SqliteAuthorizer]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1);"
                             "CREATE VIEW v AS SELECT a FROM t")  # fmt: skip
    guard = SqliteAuthorizer()
    connection.set_authorizer(guard)
    return connection, guard


@pytest.mark.parametrize("sql", READS)
def test_reading_is_let_through(
    guarded: tuple[sqlite3.Connection, SqliteAuthorizer], sql: str
) -> None:
    connection, guard = guarded
    connection.execute(sql).fetchall()
    assert not guard.is_write_refused
    connection.close()


@pytest.mark.parametrize("sql", WRITES)
def test_writing_waits_for_a_copy(
    guarded: tuple[sqlite3.Connection, SqliteAuthorizer], sql: str
) -> None:
    connection, guard = guarded
    with pytest.raises(sqlite3.DatabaseError):
        connection.execute(sql).fetchall()
    assert guard.is_write_refused
    guard.writable = True
    connection.execute(sql).fetchall()
    connection.close()


MISTAKES = {
    **dict.fromkeys(
        (
            *("SELEC 1", "SELECT", "SELECT * FROM nope", "SELECT nope FROM t", "SELECT nope(1)"),
            *("SELECT sum(1, 2)", "SELECT 'abc", "SELECT * FROM t x, t y WHERE a", "DROP TABLE no"),
            *("SELECT max(a) FROM t WHERE max(a)", "SELECT abs(-9223372036854775808)"),
            *("SELECT json('{')", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"),
            *("SELECT 1 UNION SELECT 1, 2", "ROLLBACK TO x"),
        ),
        "SQLITE_ERROR",
    ),
    "SELECT zeroblob(2000000000)": "SQLITE_TOOBIG",
    "SELECT 1 LIMIT 'a'": "SQLITE_MISMATCH",
    "INSERT INTO t VALUES (1, 2), (1, 3)": "SQLITE_CONSTRAINT_PRIMARYKEY",
    "INSERT INTO t VALUES (1, NULL)": "SQLITE_CONSTRAINT_NOTNULL",
    "INSERT INTO t VALUES (1, -1)": "SQLITE_CONSTRAINT_CHECK",
    "SELECT ?": "",  # Python's own
    "SELECT :a": "",
}
"""Statement that fails → its error's code."""
TELL = """
import json, sqlite3, sys, types

for name, folder in json.loads(sys.argv[1]).items():  # without what these import
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from intercode.databases.inside.sqlite import _failure

connection = sqlite3.connect(":memory:", isolation_level=None)
connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b NOT NULL CHECK (b > 0))")
told = {}
for statement in json.load(sys.stdin):
    try:
        connection.execute(statement).fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        told[statement] = _failure(error, statement, 0)
print(json.dumps([sqlite3.sqlite_version, told]))
"""


def test_errors_read_alike_under_each_python() -> None:
    """An observation depends on the release of SQLite, and not on Python's."""
    pythons = {sys.executable, *filter(None, (program(f"3.{n}") for n in range(11, 15)))}
    packages = json.dumps({one.__name__: one.__path__[0] for one in (intercode, databases)})
    given = json.dumps([*MISTAKES])
    seen: dict[str, dict[str, list[object]]] = {}
    for python in pythons:
        argv = [python, "-c", TELL, packages]
        done = subprocess.run(argv, input=given, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        version, errors = json.loads(done.stdout)
        assert {statement: code for statement, (_, code, _) in errors.items()} == MISTAKES, python
        assert seen.setdefault(version, errors) == errors, python
