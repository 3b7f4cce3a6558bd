"""Every session begins with the pristine database, whatever others did before or do meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from intercode.databases import DatabaseEngine, DatabaseSession, DatabaseSource

from .conftest import TABLES, Open
from .test_engines import MANY, endless, value

SESSIONS = int(os.environ.get("INTERCODE_SOAK_SESSIONS", "16"))
"""How many are open at once."""

WRITES = {
    "insert": "INSERT INTO artist VALUES (5, 'New', NULL, NULL)",
    "insert of many": f"CREATE TABLE many (d INTEGER); INSERT INTO many {MANY}",
    "update": "UPDATE song SET price = 100, title = 'x'",
    "delete": "DELETE FROM artist_song; DELETE FROM artist",
    "create": "CREATE TABLE another AS SELECT * FROM artist",
    "drop": "DROP VIEW long_song; DROP TABLE artist_song; DROP TABLE artist",
    "alter": "ALTER TABLE artist ADD COLUMN more INTEGER",
    "rename": "DROP VIEW long_song; ALTER TABLE song RENAME TO songs",
    "view": "CREATE VIEW names AS SELECT name FROM artist",
    "view in its place": "DROP VIEW long_song; CREATE VIEW long_song AS SELECT 1 AS title",
    "index": "CREATE INDEX by_name ON artist (name)",
    "temporary table": "CREATE TEMPORARY TABLE artist (id INTEGER)",
    "left open": "BEGIN; DELETE FROM artist_song",
    "committed": "BEGIN; DELETE FROM artist_song; COMMIT",
    "rolled back": "BEGIN; DELETE FROM artist_song; ROLLBACK",
}
TRIGGERS = {
    "sqlite": "CREATE TRIGGER t AFTER INSERT ON artist BEGIN DELETE FROM song; "
    "UPDATE artist SET name = ''; END; INSERT INTO artist VALUES (5, '', NULL, NULL)",
    "mysql": "CREATE TRIGGER t AFTER INSERT ON artist FOR EACH ROW DELETE FROM artist_song",
    "postgresql": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN DELETE FROM artist_song; RETURN NULL; END $$; "
    "CREATE TRIGGER t AFTER INSERT ON artist FOR EACH ROW EXECUTE FUNCTION f(); "
    "INSERT INTO artist VALUES (5, '', NULL, NULL)",
}


def described(session: DatabaseSession) -> Any:
    """All that can be seen of a database, to be compared."""
    state = {
        name: (table.kind, table.columns, sorted(map(repr, table.rows)))
        for name, table in session.state().items()
    }
    return state, value(session, "SELECT count(*) FROM artist")


@pytest.fixture(scope="module")
def pristine(engine: DatabaseEngine, source: DatabaseSource) -> Any:
    session = engine.open(source)
    found = described(session)
    session.close()
    assert {name: len(rows) for name, (_, _, rows) in found[0].items()} == TABLES
    return found


@pytest.mark.parametrize("what", WRITES)
def test_nothing_is_left(start: Open, pristine: Any, what: str) -> None:
    session = start()
    assert session.execute("SELECT * FROM artist").failure is None
    failure = session.execute(WRITES[what]).failure
    assert failure is None, failure
    session.close()
    assert described(start()) == pristine
    assert described(start(role="grader")) == pristine


def test_nothing_is_left_of_a_trigger(engine: DatabaseEngine, start: Open, pristine: Any) -> None:
    if engine.name not in TRIGGERS:
        pytest.skip(f"not for {engine.name}: it has no triggers")
    session = start()
    failure = session.execute(TRIGGERS[engine.name]).failure
    assert failure is None, failure
    session.close()
    session = start()
    assert described(session) == pristine
    session.execute("INSERT INTO artist VALUES (5, 'New', NULL, NULL)")
    assert value(session, "SELECT count(*) FROM artist_song") == 4


def test_nothing_is_left_of_what_was_interrupted(
    engine: DatabaseEngine, start: Open, pristine: Any
) -> None:
    session = start()
    session.execute("DELETE FROM artist_song")
    assert session.execute(endless(engine), timeout=0.3).timed_out  # allow limit: it has no end
    session.close()
    assert described(start()) == pristine


def test_nothing_is_left_after_an_error(start: Open, pristine: Any) -> None:
    session = start()
    outcome = session.execute("DELETE FROM artist_song; SELECT nope; DELETE FROM artist")
    assert outcome.failure is not None
    session.close()
    assert described(start()) == pristine


def test_what_was_changed_is_there_until_the_end(start: Open) -> None:
    session = start()
    session.execute("INSERT INTO artist VALUES (5, 'New', NULL, NULL)")
    session.execute("CREATE TEMPORARY TABLE mine (a INTEGER); INSERT INTO mine VALUES (1), (2)")
    assert value(session, "SELECT count(*) FROM artist") == 5
    assert value(session, "SELECT count(*) FROM mine") == 2
    session.execute("BEGIN")
    session.execute("DELETE FROM artist_song")
    assert value(session, "SELECT count(*) FROM artist_song") == 0
    session.execute("ROLLBACK")
    assert value(session, "SELECT count(*) FROM artist_song") == 4


def test_sessions_at_once_never_see_each_other(
    engine: DatabaseEngine, source: DatabaseSource
) -> None:
    """All are open at once, and half of them write."""
    meet = threading.Barrier(SESSIONS)

    def play(number: int) -> list[Any]:
        session = engine.open(source)
        try:
            meet.wait(120)
            write = number % 2 == 0
            if write:
                session.execute(f"INSERT INTO artist VALUES ({100 + number}, 'x', NULL, NULL)")
                session.execute(
                    f"CREATE TABLE mine (a INTEGER); INSERT INTO mine VALUES ({number})"
                )
            meet.wait(120)
            found = [value(session, "SELECT count(*) FROM artist") - (1 if write else 0)]
            if write:
                found.append(value(session, "SELECT max(id) FROM artist") - number)
                found.append(value(session, "SELECT a FROM mine") - number)
            else:
                found.append(session.execute("SELECT a FROM mine").failure is not None)
            return found
        except BaseException:
            meet.abort()
            raise
        finally:
            session.close()

    with ThreadPoolExecutor(SESSIONS) as threads:
        found = list(threads.map(play, range(SESSIONS)))
    assert found == [[4, 100, 0] if n % 2 == 0 else [4, True] for n in range(SESSIONS)]


def test_sessions_one_after_another_in_threads(
    engine: DatabaseEngine, source: DatabaseSource, pristine: Any
) -> None:
    def play(write: bool) -> Callable[[], Any]:
        session = engine.open(source)
        try:
            before = value(session, "SELECT count(*) FROM artist_song")
            if write:
                session.execute("DELETE FROM artist_song")
            return before
        finally:
            session.close()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(play, [n % 2 == 0 for n in range(24)])) == {4}
    session = engine.open(source)
    assert described(session) == pristine
    session.close()
