"""Sessions that are saved, and others that begin from them: SQLite's and DuckDB's."""

from __future__ import annotations

import gc
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intercode.databases import DatabaseSource, embedded as module
from intercode.databases.base import DatabaseSession
from intercode.databases.embedded import EmbeddedDatabaseEngine, EmbeddedDatabaseSession
from intercode.errors import ForkError, SandboxClosedError
from intercode_sandbox import Limits

ALIKE = (
    "SELECT count(*), max(id) FROM artist",
    "INSERT INTO song (id, title) SELECT max(id) + 1, 'x' FROM song",
    "UPDATE song SET seconds = 7 WHERE id > 2",
    "UPDATE song SET seconds = 8 WHERE id < 0",
    "DELETE FROM artist_song WHERE song_id = 3",
    "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (2), (3)",
    "DROP TABLE t",
    "CREATE TEMP TABLE k (a INTEGER); INSERT INTO k VALUES (1)",
    "DROP TABLE k",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT nope",
)
OWN = {
    "sqlite": (
        "SELECT total_changes(), changes(), last_insert_rowid()",
        "PRAGMA database_list",
        "INSERT INTO song (id, title) VALUES (-9223372036854775808, 'first')",
        "PRAGMA foreign_keys = 1",
        "PRAGMA foreign_keys; PRAGMA journal_mode; PRAGMA query_only; PRAGMA temp_store",
        "PRAGMA journal_mode = WAL",
        "PRAGMA journal_mode = MEMORY",
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA query_only = 1",
        "PRAGMA query_only = 0",
        "PRAGMA temp_store = 2",
        "PRAGMA case_sensitive_like = 1",
        "SELECT 'a' LIKE 'A', rowid FROM song ORDER BY 2",
        "DELETE FROM artist",
        "VACUUM",
    ),
    "duckdb": (
        "SET VARIABLE v = 1",
        "SELECT getvariable('v'), current_schema()",
        "CREATE SCHEMA s; USE s",
        "PREPARE p AS SELECT 1",
        "EXECUTE p",
        "ATTACH ':memory:' AS m",
        "SELECT setseed(0.5)",
        "CREATE SEQUENCE q",
        "SELECT nextval('q')",
    ),
}


def outcome(session: DatabaseSession, sql: str) -> Any:
    found = session.execute(sql)
    failure = found.failure
    if failure is not None:  # DuckDB's hint may name a table that was dropped, if it is from a file
        failure = replace(failure, message=failure.message.partition("\nDid you mean")[0])
    return [(r.columns, list(r.rows), r.total, r.affected_rows) for r in found.results], failure


def rest(session: DatabaseSession, actions: list[str]) -> Any:
    return [outcome(session, action) for action in actions], dict(session.state())


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_what_begins_from_it_goes_on_as_the_source(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource, data: st.DataObject
) -> None:
    actions = st.lists(st.sampled_from(ALIKE + OWN[embedded.name]), max_size=7)
    before, after, other = data.draw(actions), data.draw(actions), data.draw(actions)
    with ExitStack() as opened:
        session, control = (opened.enter_context(closing(embedded.open(source))) for _ in "ab")
        for action in before:
            assert outcome(session, action) == outcome(control, action)
        try:
            saved = session.save()
        except ForkError as error:
            assert str(error)
        else:
            first = opened.enter_context(closing(saved.open()))
            rest(first, other)  # what another one does is not seen
            second = opened.enter_context(closing(saved.open()))
            assert rest(second, after) == rest(control, after)
            control = opened.enter_context(closing(saved.open()))
        # The source has noticed nothing.
        assert rest(session, after) == rest(control, after)


@pytest.mark.parametrize(
    ("engine", "sql", "said"),
    [
        ("sqlite", "BEGIN; DELETE FROM song", "a transaction is open"),
        ("sqlite", "CREATE TEMP TABLE k (a)", "temporary table k"),
        ("sqlite", "CREATE TEMP VIEW w AS SELECT 1", "temporary view w"),
        ("sqlite", "CREATE TABLE t AS SELECT 1; CREATE TEMP TRIGGER g AFTER INSERT ON t "
         "BEGIN SELECT 1; END", "temporary trigger g"),
        ("sqlite", "CREATE TABLE t (a); INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL "
         "SELECT i + 1 FROM n WHERE i < 100001) SELECT i FROM n", "the counts of changed rows"),
        ("duckdb", "BEGIN; DELETE FROM song", "a transaction is open"),
        ("duckdb", "CREATE TEMP TABLE k (a INTEGER)", "temporary table k"),
        ("duckdb", "CREATE TEMP MACRO f(a) AS a", "temporary macro f"),
        ("duckdb", "SET VARIABLE v = 1", "variable v"),
        ("duckdb", "PREPARE p AS SELECT 1", "prepared statement p"),
        ("duckdb", "ATTACH ':memory:' AS m", "attached database m"),
        ("duckdb", "CREATE SCHEMA s; USE s", "schema in use s"),
        ("duckdb", "SELECT setseed(0.5)", "the seed of random"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_or_left_out(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource, engine: str, sql: str, said: str
) -> None:
    if engine != embedded.name:
        return
    with closing(embedded.open(source)) as session:
        assert outcome(session, sql)[1] is None
        with pytest.raises(ForkError, match=said):
            session.save()
        if "transaction" in said:
            with pytest.raises(ForkError, match=said):  # half of one is nothing to go on from
                session.save(lossy=True)
            assert outcome(session, "ROLLBACK")[1] is None
            return
        saved = session.save(lossy=True)
        assert saved.lost and said in saved.lost[0]
        with closing(saved.open()) as fork:
            again = fork.save().lost if engine == "duckdb" else ()
            assert not again and fork.state() == session.state()


def test_a_session_that_has_only_read_costs_nothing(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    with closing(embedded.open(source)) as session:
        outcome(session, ALIKE[0])
        saved = session.save()
        with closing(saved.open()) as fork:
            assert isinstance(fork, EmbeddedDatabaseSession)
            assert fork._pristine_file is session._pristine_file and not fork._written


def test_a_saved_database_outlives_its_session_and_is_freed(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    gc.collect()
    others = set(map(id, module._saved_files))
    with closing(embedded.open(source)) as session:
        outcome(session, "DELETE FROM artist_song")
        saved = session.save()
        counted = outcome(session, "SELECT count(*) FROM song")
    with closing(saved.open()) as fork, closing(saved.open()) as other:
        assert outcome(fork, "SELECT count(*) FROM song") == counted
        outcome(fork, "DELETE FROM song")
        assert outcome(other, "SELECT count(*) FROM song") == counted
        outcome(fork, "SELECT nope")
        deep = fork
        with ExitStack() as opened:
            for number in range(10):
                deep = opened.enter_context(closing(deep.save().open()))  # type: ignore[attr-defined]
                outcome(deep, f"CREATE TABLE t{number} (a INTEGER)")
            assert {f"t{number}" for number in range(10)} < set(deep.state())
        assert "t0" not in fork.state()
    assert not {id(file) for file in module._saved_files} <= others
    del fork, other, deep, opened
    saved.close()
    with pytest.raises(SandboxClosedError, match="the saved session is closed"):
        saved.open()
    gc.collect()
    assert {id(file) for file in module._saved_files} <= others


def test_databases_that_are_saved_have_a_bound(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(embedded.open(source)) as session:
        outcome(session, "DELETE FROM artist_song")
        monkeypatch.setattr(module, "_SAVED_BYTES", 1000)
        with pytest.raises(ForkError, match=r"bytes, above 1,000: close snapshots"):
            session.save()
        assert outcome(session, "SELECT count(*) FROM artist_song")[1] is None


def test_the_copy_of_a_fork_counts_against_its_limits(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    with closing(embedded.open(source, Limits(disk=4 << 20))) as session:
        outcome(session, "CREATE TABLE t (a BLOB)")
        with closing(session.save().open()) as fork:
            for _ in range(10):
                failed = outcome(
                    fork, "INSERT INTO t SELECT repeat('x', 1000000)::BLOB" if embedded.name ==
                    "duckdb" else "INSERT INTO t VALUES (randomblob(1000000))"
                )[1]  # fmt: skip
            assert failed is not None
        assert outcome(session, "INSERT INTO t VALUES (NULL)")[1] is None
