"""What every engine does alike: results, errors, limits, state."""

from __future__ import annotations

import threading
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from intercode.databases import DatabaseEngine, DatabaseSession, DatabaseSource, SqlActionOutcome
from intercode.errors import ActionError, OutputLimitError, SandboxError

from .conftest import TABLES, Open

_TEN = "(SELECT 0 AS d UNION ALL " + " UNION ALL ".join(f"SELECT {n}" for n in range(1, 10)) + ")"
MANY = "SELECT a.d FROM " + ", ".join(f"{_TEN} {name}" for name in ("a", "b", "c", "e", "f"))
"""A result of 100,000 rows."""

_ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
_CROSS = "SELECT count(*) FROM " + ", ".join(f"{_TEN} {name}" for name in "abcdefghijklmno")


def endless(engine: DatabaseEngine) -> str:
    return _CROSS if engine.name == "mysql" else _ENDLESS


def long_value(engine: DatabaseEngine, size: int) -> str:
    if engine.name == "sqlite":
        return f"SELECT replace(hex(zeroblob({size // 2})), '0', 'x')"
    return f"SELECT repeat('x', {size})"


def rows(outcome: SqlActionOutcome) -> list[tuple[Any, ...]]:
    """The rows of an action's only result."""
    assert outcome.failure is None, outcome.failure
    (result,) = outcome.results
    assert result.total == len(result.rows)
    return list(result.rows)


def value(session: DatabaseSession, sql: str) -> Any:
    ((found,),) = rows(session.execute(sql))
    return found


# -- results -------------------------------------------------------------------------------------


def test_rows_and_columns(session: DatabaseSession) -> None:
    outcome = session.execute("SELECT id, name AS who FROM artist ORDER BY id")
    (result,) = outcome.results
    assert result.columns == ("id", "who")
    assert list(result.rows) == [
        (1, "Björk"),
        (2, "中島みゆき"),
        (3, 'O\'Malley; "the" -- 🎸'),
        (4, "Nobody"),
    ]
    assert result.total == 4
    assert result.complete
    assert not outcome.timed_out
    assert not outcome.restarted


def test_values_keep_their_type(engine: DatabaseEngine, session: DatabaseSession) -> None:
    row = rows(session.execute("SELECT * FROM song WHERE id = 1"))[0]
    if engine.name == "sqlite":
        assert row == (1, "Jóga", 1.5, 305, "1997-09-15 10:30:00", b"\x00\xff\x10")
    else:
        moment = datetime(1997, 9, 15, 10, 30)
        assert row == (1, "Jóga", Decimal("1.50"), 305, moment, b"\x00\xff\x10")
        assert isinstance(row[2], Decimal)
    born = value(session, "SELECT born FROM artist WHERE id = 1")
    assert born == ("1965-11-21" if engine.name == "sqlite" else date(1965, 11, 21))


def test_null_zero_and_empty_differ(session: DatabaseSession) -> None:
    assert rows(session.execute("SELECT country FROM artist WHERE id > 2 ORDER BY id")) == [
        ("",),
        (None,),
    ]
    assert rows(session.execute("SELECT seconds, price FROM song WHERE id = 4")) == [(None, 0)]
    assert value(session, "SELECT count(*) FROM artist WHERE country IS NULL") == 1


def test_ties_and_a_many_to_many(session: DatabaseSession) -> None:
    sql = """
        SELECT s.title, count(*) AS n FROM song s JOIN artist_song x ON x.song_id = s.id
        GROUP BY s.title ORDER BY n DESC, s.title"""
    assert rows(session.execute(sql))[0] == ("Tie", 2)


def test_columns_of_one_name(session: DatabaseSession) -> None:
    (result,) = session.execute("SELECT 1 AS x, 2 AS x, 3 AS x").results
    assert result.columns == ("x", "x", "x")
    assert list(result.rows) == [(1, 2, 3)]


def test_no_rows_and_no_columns(session: DatabaseSession) -> None:
    (result,) = session.execute("SELECT name FROM artist WHERE id > 99").results
    assert result.columns == ("name",)
    assert (list(result.rows), result.total, result.complete) == ([], 0, True)
    (result,) = session.execute("INSERT INTO artist VALUES (5, 'New', NULL, NULL)").results
    assert result.columns == ()
    assert (list(result.rows), result.total, result.affected_rows) == ([], 0, 1)
    (result,) = session.execute("UPDATE song SET price = 2 WHERE seconds = 200").results
    assert result.affected_rows == 2
    (result,) = session.execute("CREATE TABLE another (a INTEGER)").results
    assert result.columns == ()


@pytest.mark.parametrize(
    "nothing", ["", "  \n ", "-- a comment", "/* one; two */", " /* */ -- x\n"]
)
def test_nothing_to_run(session: DatabaseSession, nothing: str) -> None:
    outcome = session.execute(nothing)
    assert outcome.results == ()
    assert outcome.failure is None


def test_several_statements(session: DatabaseSession) -> None:
    outcome = session.execute(
        "INSERT INTO artist VALUES (5, 'a;b', NULL, NULL); -- one; two\n"
        "SELECT name FROM artist WHERE id = 5; /* ; */ SELECT 2;  -- end\n"
    )
    assert outcome.failure is None
    assert [list(result.rows) for result in outcome.results] == [[], [("a;b",)], [(2,)]]
    outcome = session.execute("SELECT 1; SELECT nope FROM artist; SELECT 3")
    assert [list(result.rows) for result in outcome.results] == [[(1,)]]
    assert outcome.failure is not None
    assert "nope" in outcome.failure.message


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("SELECT nope FROM artist", "nope"),
        ("SELECT * FROM no_such_table", "no_such_table"),
        ("SELEC 1", "SELEC"),
        ("SELECT name FROM", ""),
        ("INSERT INTO artist VALUES (1, 'again', NULL, NULL)", ""),
        ("SELECT ('", ""),
    ],
)
def test_what_the_agent_does_wrong_is_told(session: DatabaseSession, sql: str, word: str) -> None:
    failure = session.execute(sql).failure
    assert failure is not None
    assert word.lower() in failure.message.lower()
    assert failure.message
    assert "Traceback" not in failure.message
    if failure.position is not None:
        assert 0 <= failure.position <= len(sql)
    assert value(session, "SELECT count(*) FROM artist") == 4, "the session goes on"


def test_text_that_cannot_be_sql(session: DatabaseSession) -> None:
    for sql in ("SELECT 'a\0b'", "SELECT '\udc80'"):
        with pytest.raises(ActionError):
            session.execute(sql)
    assert value(session, "SELECT 1") == 1


# -- limits --------------------------------------------------------------------------------------


def test_the_time_limit_interrupts(
    engine: DatabaseEngine, session: DatabaseSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("embedded", "servers.session"):  # a busy machine must not make it impatient
        monkeypatch.setattr(f"intercode.databases.{module}._GRACE_SECONDS", 60.0)
    session.execute("CREATE TEMPORARY TABLE mine (a INTEGER)")
    outcome = session.execute(endless(engine), timeout=0.3)  # allow limit: it has no end
    assert outcome.timed_out
    assert outcome.results == ()
    assert outcome.failure is not None
    assert not outcome.restarted
    assert value(session, "SELECT count(*) FROM mine") == 0, "the session lives"


def test_the_limits_of_the_session_hold(engine: DatabaseEngine, start: Open) -> None:
    session = start(timeout=0.5)  # allow limit: what is executed has no end
    assert session.limits.timeout == 0.5
    assert session.execute(endless(engine)).timed_out


def test_a_large_result_is_counted_and_cut(session: DatabaseSession) -> None:
    (result,) = session.execute(MANY, max_rows=3, timeout=100).results
    assert len(result.rows) == 3
    assert result.total == 100_000
    assert not result.complete
    assert len(rows(session.execute(MANY, max_rows=200_000, timeout=100))) == 100_000
    (result,) = session.execute("SELECT 1", max_rows=0).results
    assert (len(result.rows), result.total) == (0, 1)


def test_a_value_too_large_is_not_kept(engine: DatabaseEngine, start: Open) -> None:
    session = start(output=4096)
    (result,) = session.execute(long_value(engine, 4_000_000)).results
    assert len(result.rows) == 0
    assert result.total in (1, None)
    found = value(session, long_value(engine, 20_000))
    assert found == "x" * 20_000
    outcome = session.execute(f"{long_value(engine, 60_000)}; {long_value(engine, 60_000)}")
    assert sum(len(result.rows) for result in outcome.results) <= 2
    outcome = session.execute("; ".join([long_value(engine, 30_000)] * 5))
    assert [result.total for result in outcome.results] == [1] * 5
    assert sum(len(result.rows) for result in outcome.results) == 2  # of all results together


# -- state ---------------------------------------------------------------------------------------


def test_the_state_is_all_tables_and_views(
    engine: DatabaseEngine, session: DatabaseSession
) -> None:
    state = session.state()
    assert {name: len(table.rows) for name, table in state.items()} == TABLES
    kinds = {name: table.kind for name, table in state.items()}
    assert kinds == {**dict.fromkeys(TABLES, "table"), "long_song": "view"}
    assert [name for name, _ in state["artist"].columns] == ["id", "name", "born", "country"]
    assert all(type_ for _, type_ in state["song"].columns)
    assert sorted(state["artist_song"].rows) == [(1, 1), (2, 2), (2, 3), (3, 3)]
    assert list(state["long_song"].rows) == [("Jóga",)]


def test_the_state_after_changes(session: DatabaseSession) -> None:
    session.execute("CREATE TABLE another (a INTEGER, b VARCHAR(5))")
    session.execute("CREATE TEMPORARY TABLE passing (a INTEGER)")
    session.execute("DELETE FROM artist_song WHERE artist_id = 2")
    session.execute("BEGIN")
    session.execute("INSERT INTO another VALUES (7, 'open')")
    state = session.state()
    assert list(state["another"].rows) == [(7, "open")], "an open transaction is committed"
    assert "passing" not in state
    assert len(state["artist_song"].rows) == 2
    session.execute("ROLLBACK")
    assert value(session, "SELECT count(*) FROM another") == 1


def test_a_state_beyond_the_limits(engine: DatabaseEngine, start: Open) -> None:
    session = start(output=4096)
    text = "LONGTEXT" if engine.name == "mysql" else "TEXT"
    session.execute(f"CREATE TABLE large (a {text})")
    outcome = session.execute(f"INSERT INTO large {long_value(engine, 4_000_000)}")
    assert outcome.failure is None
    with pytest.raises(OutputLimitError):
        session.state()
    assert session.execute("SELECT 1").failure is None


# -- its end -------------------------------------------------------------------------------------


def test_close_can_be_called_again(start: Open) -> None:
    session = start()
    session.close()
    session.close()
    with pytest.raises(SandboxError):
        session.execute("SELECT 1")
    with pytest.raises(SandboxError):
        session.state()
    session.kill()


@pytest.mark.parametrize("how", ["kill", "close"])
def test_another_thread_ends_what_runs(engine: DatabaseEngine, start: Open, how: str) -> None:
    session = start()
    raised: list[BaseException] = []
    outcomes: list[SqlActionOutcome] = []
    begun = threading.Event()

    def run() -> None:
        begun.set()
        try:
            outcomes.append(session.execute(endless(engine), timeout=100))
        except SandboxError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    while thread.is_alive():  # it may not have come to its statement yet
        getattr(session, how)()
        thread.join(0.3)  # allow limit: then it is ended again
    if how == "close":
        assert raised
    else:
        [outcome] = outcomes
        assert outcome.failure is not None and not outcome.timed_out
        assert outcome.failure.message == "interrupted"
        assert value(session, "SELECT count(*) FROM artist") == 4, "the session goes on"


def test_kill_with_nothing_running(session: DatabaseSession) -> None:
    session.execute("INSERT INTO artist VALUES (5, 'New', NULL, NULL)")
    session.kill()
    assert value(session, "SELECT count(*) FROM artist") == 5


def test_what_an_engine_says_of_itself(engine: DatabaseEngine, source: DatabaseSource) -> None:
    facts = engine.facts()
    assert facts["product"]
    assert facts["version"]
    assert "password" not in str(facts)
    session = engine.open(source)
    assert session.source == source
    session.close()
