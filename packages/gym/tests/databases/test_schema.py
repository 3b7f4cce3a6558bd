"""The schema of an SQLite file, with types by what it holds, and the same in every engine."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intercode.databases import DatabaseEngine, DatabaseSource, find
from intercode.databases.convert.build import as_sqlite
from intercode.databases.convert.schema import (
    DatabaseSchema,
    ForeignKey,
    TableSchema,
    read_schema,
    rows,
)
from intercode.databases.convert.schema_ddl import (
    create_statements,
    identifier,
    view_statements,
)
from intercode.databases.convert.schema_types import ColumnType, fit
from intercode.databases.source import names
from intercode.errors import TaskError
from intercode_sandbox.base import Limits
from waiting import PATIENCE

from .upstream import SPIDER, WIKISQL, needs_upstream

SCRIPT = r"""
CREATE TABLE "Child Of" (parent TEXT REFERENCES "odd parent", missing INT REFERENCES nowhere (x),
  label TEXT REFERENCES "Odd Parent" ("Näme"), at DATE, PRIMARY KEY (parent, label));
INSERT INTO "Child Of" VALUES ('1', NULL, 'É', '2020-02-30'), ('2', NULL, NULL, 'soon');
CREATE TABLE "Odd Parent" (Id INTEGER PRIMARY KEY, "Näme" TEXT UNIQUE, code VARCHAR(3) DEFAULT
  'x''y\z', moment DATETIME DEFAULT CURRENT_TIMESTAMP, day DATE DEFAULT (date('now')),
  noted TEXT DEFAULT CURRENT_TIMESTAMP, clock TIME, price NUMERIC(10, 2) DEFAULT 0,
  flag BOOLEAN DEFAULT '', data BLOB, real_ REAL DEFAULT (1.5), any_, big BIGINT, mixed INTEGER,
  ci TEXT COLLATE NOCASE DEFAULT "quoted", odd TEXT DEFAULT (hex(1)), "100%" VARCHAR(4));
INSERT INTO "Odd Parent" VALUES
  (1, 'É', 'toolong', '2020-01-02 03:04:05.123456', '2020-02-28', 'q', '10:11:12', 12.25, 1,
   x'00ff', 1.5, 3, 9999999999, 'word', 'A', 'b', 'all'),
  (2, '🎸 ', 'b', '2020-01-02 03:04', '2020-02-29', NULL, '23:59:59', -1, 0,
   NULL, 2, 4, 1, 7, 'b', 'it''s \ back' || char(0), NULL),
  (10, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   '');
CREATE TABLE orphan (p INT REFERENCES "Odd Parent" (Id), q INT REFERENCES "Odd Parent" (Id)
  ON DELETE CASCADE, r TEXT UNIQUE);
INSERT INTO orphan VALUES (99, 1, 'a'), (NULL, NULL, 'a ');
CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (id));
INSERT INTO tree VALUES (0, 2), (2, NULL);
CREATE TABLE empty (a DATE, b DECIMAL, c VARCHAR(10), d BIGINT, e FLOAT, f, g TIMESTAMP, h BLOB);
CREATE TABLE latin (v TEXT); INSERT INTO latin VALUES (CAST(x'e9' AS TEXT));
CREATE INDEX plain ON "Odd Parent" (code, day);
CREATE INDEX partial_ ON latin (v) WHERE v > 'a';
CREATE VIRTUAL TABLE IF NOT EXISTS words USING rtree (id, low, high);
DROP TABLE words;
CREATE VIEW "Vi" AS SELECT Id, "Näme" || '!' AS Shout FROM "Odd Parent" WHERE Id > 1;
CREATE VIEW counted AS SELECT COUNT(*) AS N FROM "Vi";
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> DatabaseSource:
    path = tmp_path_factory.mktemp("odd") / "odd.sql"
    path.write_text(SCRIPT, encoding="utf-8")
    return find(path)


@pytest.fixture(scope="module")
def schema(odd: DatabaseSource) -> DatabaseSchema:
    return read_schema(as_sqlite(odd))


def table(schema: DatabaseSchema, name: str) -> TableSchema:
    return next(table for table in schema.tables if table.name == name)


def test_types_are_of_what_is_declared_and_held(schema: DatabaseSchema) -> None:
    held = {column.name: column.type for column in table(schema, "Odd Parent").columns}
    assert held == {
        "Id": ColumnType("integer"),
        "Näme": ColumnType("text"),
        "code": ColumnType("text"),
        "moment": ColumnType("datetime", 6),
        "day": ColumnType("date"),
        "noted": ColumnType("text"),
        "clock": ColumnType("time"),
        "price": ColumnType("decimal", 10, 2),
        "flag": ColumnType("integer"),
        "data": ColumnType("blob"),
        "real_": ColumnType("double"),
        "any_": ColumnType("integer"),
        "big": ColumnType("bigint"),
        "mixed": ColumnType("text"),
        "ci": ColumnType("text"),
        "odd": ColumnType("text"),
        "100%": ColumnType("varchar", 4),
    }
    empty = [column.type.kind for column in table(schema, "empty").columns]
    assert " ".join(empty) == "date double varchar bigint double text datetime blob"
    child = table(schema, "Child Of")
    assert child.column("parent").type == ColumnType("integer")  # as what it refers to
    assert child.column("at").type == ColumnType("text")  # there is no 30 February
    assert table(schema, "Odd Parent").column("ci").ignores_case


def test_keys(schema: DatabaseSchema) -> None:
    order = [table.name for table in schema.tables]
    assert order.index("Odd Parent") < order.index("Child Of")
    parent = table(schema, "Odd Parent")
    assert (parent.primary_key, parent.uniques) == (("Id",), (("Näme",),))
    assert [index.columns for index in parent.indexes] == [("code", "day")]
    assert parent.column("Id").next_number == 11
    assert set(table(schema, "Child Of").foreign_keys) == {
        ForeignKey(("parent",), "Odd Parent", ("Id",)),
        ForeignKey(("label",), "Odd Parent", ("Näme",)),
    }
    assert table(schema, "orphan").foreign_keys == (
        ForeignKey(("q",), "Odd Parent", ("Id",), on_delete="CASCADE"),
    )
    assert table(schema, "tree").foreign_keys == (ForeignKey(("up",), "tree", ("id",)),)
    assert sorted(schema.omissions) == [
        "a unique key of orphan: values of it differ only in spaces at their end",
        "the foreign key Child Of(missing): there is no table nowhere",
        "the foreign key orphan(p): values of it are not in Odd Parent",
        "the index partial_ of latin: over an expression, or partial",
        "the primary key of Child Of: it holds NULL",
    ]


def test_rows_fit_the_types(odd: DatabaseSource, schema: DatabaseSchema) -> None:
    first, second, third = rows(as_sqlite(odd), table(schema, "Odd Parent"))
    moment = datetime(2020, 1, 2, 3, 4, 5, 123456)
    assert first[2:13] == (
        *("toolong", moment, date(2020, 2, 28), "q", time(10, 11, 12), Decimal("12.25")),
        *(1, b"\0\xff", 1.5, 3, 9999999999),
    )
    assert second[13:16] == ("7", "b", "it's \\ back")
    assert third == (10, *[None] * 15, "")
    assert list(rows(as_sqlite(odd), table(schema, "latin"))) == [("é",)]


def test_a_default_that_has_no_other_words_is_left_out(schema: DatabaseSchema) -> None:
    told: list[str] = []
    made = " ".join(create_statements(schema, "postgres", told.append))
    assert "left out: the default of Odd Parent.odd: hex(1)" in told
    assert any("Odd Parent.flag" in line for line in told)
    assert "DEFAULT 'x''y\\z'" in made and "DEFAULT 'quoted'" in made


def test_view_that_cannot_be_read_is_left_out(schema: DatabaseSchema) -> None:
    views = view_statements(schema, "postgres")
    assert views[0].startswith('CREATE VIEW "vi" AS SELECT "id", "näme"')
    assert len(views) == 2


def test_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"nothing of the kind" * 99)
    with pytest.raises(TaskError, match=r"x\.sqlite"):
        read_schema(path)


@given(st.lists(st.dates(date(1, 1, 1)) | st.none(), min_size=1))
def test_dates_are_dates(tmp_path_factory: pytest.TempPathFactory, days: list[date | None]) -> None:
    path = tmp_path_factory.mktemp("dates") / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE t (d DATE)")
        texts = [(day and day.isoformat(),) for day in days]
        connection.executemany("INSERT INTO t VALUES (?)", texts)
    found = read_schema(path).tables[0]
    assert found.columns[0].type == ColumnType("date")
    assert [row[0] for row in rows(path, found)] == days


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_text_fits_as_it_is(text: str) -> None:
    assert fit(text, ColumnType("text")) == text
    assert fit(text.encode(), ColumnType("text")) == text


def test_the_same_in_every_engine(
    engine: DatabaseEngine, odd: DatabaseSource, schema: DatabaseSchema
) -> None:
    check(engine, odd, schema)
    session = engine.open(odd)
    try:
        # The row's own number goes on, and a default is there.
        place = (
            identifier("Odd Parent", engine.dialect) if engine.name != "sqlite" else '"Odd Parent"'
        )
        made = session.execute(f"INSERT INTO {place} (code) VALUES ('new')")
        assert made.failure is None
        outcome = session.execute(f"SELECT Id, any_ FROM {place} WHERE code = 'new'")
        assert list(outcome.results[0].rows) == [(11, None)]
        # Names work unquoted, and texts compare with case.
        outcome = session.execute("SELECT N FROM Counted")
        assert list(outcome.results[0].rows) == [(2 + 1,)]
        outcome = session.execute(f"SELECT COUNT(*) FROM {place} WHERE code = 'TOOLONG'")
        assert list(outcome.results[0].rows) == [(0,)]
        outcome = session.execute(f"SELECT COUNT(*) FROM {place} WHERE ci = 'a'")
        assert list(outcome.results[0].rows) == [(0 if engine.name == "postgresql" else 1,)]
    finally:
        session.close()


def test_views_that_read_later_ones_in_every_engine(engine: DatabaseEngine, tmp_path: Path) -> None:
    path = tmp_path / "views.sql"
    path.write_text(
        "CREATE TABLE t (x INTEGER); CREATE VIEW a AS SELECT x FROM b; "
        "CREATE VIEW b AS SELECT x FROM c; CREATE VIEW c AS SELECT x FROM t; "
        "CREATE VIEW total AS SELECT max(x) AS report FROM t; "
        "CREATE VIEW report AS SELECT report FROM total; INSERT INTO t VALUES (7)"
    )
    with closing(engine.open(find(path))) as session:
        for view in ("a", "report"):
            (result,) = session.execute(f"SELECT * FROM {view}").results
            assert list(result.rows) == [(7,)]


@needs_upstream
@pytest.mark.parametrize("dump", [SPIDER, WIKISQL], ids=["spider", "wikisql"])
def test_the_release_in_every_engine(engine: DatabaseEngine, dump: Path) -> None:
    for name in names(dump):
        source = find(dump, name)
        check(engine, source, read_schema(as_sqlite(source)))


def check(engine: DatabaseEngine, source: DatabaseSource, schema: DatabaseSchema) -> None:
    """The engine has all tables, and in them the rows."""
    session = engine.open(source, Limits(timeout=PATIENCE), role="grader")
    try:
        state = {name.lower(): table for name, table in session.state().items()}
    finally:
        session.close()
    wanted = {table.name.lower() for table in schema.tables}
    assert {name for name, table in state.items() if table.kind == "table"} == wanted
    assert {name for name, table in state.items() if table.kind == "view"} == {
        view.name.lower() for view in schema.views
    }
    for table in schema.tables:
        found = state[table.name.lower()]
        assert [name.lower() for name, _ in found.columns] == [
            c.name.lower() for c in table.columns
        ]
        expected = list(rows(as_sqlite(source), table))
        assert len(found.rows) == len(expected), table.name
        if engine.name != "sqlite" and (engine.name, source.kind) != ("mysql", "dump"):
            # Those have what the source has, not what it was fitted to.
            assert Counter(map(plain, found.rows)) == Counter(map(plain, expected)), table.name


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Equal for the values that drivers give in different types."""
    return tuple(str(value) if isinstance(value, (time, timedelta)) else value for value in row)
