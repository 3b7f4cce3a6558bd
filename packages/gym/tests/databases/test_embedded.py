"""What is the embedded engines' own: workers, their sandboxes, and the copy that is made late."""

from __future__ import annotations

import os
import re
import select
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from intercode.databases import DatabaseSession, DatabaseSource, find, get_engine
from intercode.databases.embedded import EmbeddedDatabaseEngine, EmbeddedDatabaseSession
from intercode.errors import DatabaseError, OutputLimitError, SandboxError, UsageError
from intercode_sandbox import Limits
from intercode_sandbox.base import SandboxBackend
from waiting import PATIENCE, eventually

from .test_engines import value

INSERT = "INSERT INTO artist VALUES (5, 'New', NULL, NULL)"
HARD = "SELECT length(replace(hex(zeroblob(100000000)), '0', 'ab'))"
"""One step of SQLite's that takes long: it looks at no clock within."""


def sandbox(session: EmbeddedDatabaseSession) -> SandboxBackend:
    return session._worker.sandbox


def files(session: EmbeddedDatabaseSession) -> set[str]:
    return {Path(change.path).suffix for change in sandbox(session).changes()
            if change.type == "file"}  # fmt: skip


def process(session: EmbeddedDatabaseSession) -> int:
    return session._worker.process.pid


def test_the_library_starts_no_threads(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    """DuckDB has one for each core and eight for I/O; the other thread is the worker's watchdog."""
    expected = 2 if embedded.name == "duckdb" else 1
    with closing(embedded.open(source)) as session:
        assert value(session, "SELECT count(*) FROM artist") == 4
        session.execute(INSERT)
        assert value(session, "SELECT count(*) FROM artist") == 5
        status = sandbox(session).read_file(f"/proc/{process(session)}/status")
        assert re.findall(rb"Threads:\t(\d+)", status) == [b"%d" % expected]


# -- the copy ------------------------------------------------------------------------------------


def test_only_what_writes_makes_a_copy(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    with closing(embedded.open(source)) as session:
        value(session, "WITH x AS (SELECT 1) SELECT count(*) FROM artist, x")
        session.execute("SELECT nope; INSERT")
        session.execute("INSERT INTO no_such_table VALUES (1)")
        session.state()
        if embedded.name == "sqlite":
            session.execute("PRAGMA table_info(artist); EXPLAIN SELECT * FROM artist")
            assert files(session) == set()
        session.execute(INSERT)
        assert files(session) >= {f".{embedded.name}"}
        assert value(session, "SELECT count(*) FROM artist") == 5


def test_a_copy_is_gone_with_its_session(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    session = embedded.open(source)
    session.execute(INSERT)
    used = sandbox(session)
    session.close()
    assert [change.path for change in used.changes() if change.type == "file"] == []
    again = embedded.open(source)
    assert sandbox(again) is used
    assert value(again, "SELECT count(*) FROM artist") == 4
    again.close()


def test_no_room_for_a_copy(embedded: EmbeddedDatabaseEngine, tmp_path: Path) -> None:
    path = tmp_path / "large.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE large (a BLOB)")
        connection.executemany(
            "INSERT INTO large VALUES (?)", [(os.urandom(1 << 20),) for _ in range(8)]
        )
        connection.commit()
    limits = Limits(disk=4 << 20)
    with closing(embedded.open(find(path), limits)) as session:
        for _ in range(2):
            failure = session.execute("DELETE FROM large").failure
            assert failure is not None
            assert "full" in failure.message or "space" in failure.message
            assert value(session, "SELECT count(*) FROM large") == 8, "reading needs none"


# -- workers -------------------------------------------------------------------------------------


def test_a_worker_that_only_read_is_used_again(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    session = embedded.open(source)
    value(session, "SELECT count(*) FROM artist")
    used, pid = sandbox(session), process(session)
    session.close()
    again = embedded.open(source)
    assert (sandbox(again), process(again)) == (used, pid)
    again.execute(INSERT)
    again.close()
    third = embedded.open(source)
    assert sandbox(third) is used
    assert process(third) != pid, "what an agent wrote to is served by a new process"
    third.close()


def test_a_grader_never_gets_an_agents_worker(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    limits = Limits(timeout=70)
    agent = embedded.open(source, limits)
    used = sandbox(agent)
    agent.close()
    grader = embedded.open(source, limits, role="grader")
    assert sandbox(grader) is not used
    other = embedded.open(source, Limits(timeout=80))
    assert sandbox(other) is not used, "it has other limits"
    grader.close()
    other.close()


def test_a_statement_that_costs_the_process_its_life(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    """Killed as the kernel does it when memory runs out: the agent is told and goes on."""
    with closing(embedded.open(source)) as session:
        session.execute(INSERT)

        def kill() -> None:
            eventually(lambda: session._busy)  # it is asked for, and has no end
            sandbox(session).kill()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        endless = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        outcome = session.execute(endless + "SELECT count(*) FROM c", timeout=60)
        killer.join()
        assert outcome.restarted
        assert not outcome.timed_out
        assert outcome.failure is not None
        assert "out of memory" in outcome.failure.message
        assert value(session, "SELECT count(*) FROM artist") == 5, "what was written is there"


def test_a_state_that_costs_the_process_its_life(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    """The database that the agent has left cannot be graded, which is no failure of ours."""
    with closing(embedded.open(source)) as session:
        endless = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        session.execute(f"CREATE VIEW v AS {endless} SELECT count(*) AS n FROM c")

        def kill() -> None:
            eventually(lambda: session._busy)
            sandbox(session).kill()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        with pytest.raises(OutputLimitError, match="out of memory"):
            session.state()
        killer.join()
        assert value(session, "SELECT count(*) FROM artist") == 4, "the session goes on"


def test_a_process_that_is_lost_between_statements(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    """That is no agent's doing, and no observation."""
    with closing(embedded.open(source)) as session:
        sandbox(session).kill()
        with pytest.raises(DatabaseError):
            session.execute("SELECT 1")
    with closing(embedded.open(source)) as session:
        assert value(session, "SELECT count(*) FROM artist") == 4


def test_a_sandbox_that_is_lost(embedded: EmbeddedDatabaseEngine, source: DatabaseSource) -> None:
    session = embedded.open(source)
    sandbox(session).close()
    assert select.select([session._worker.process.exit_fd], [], [], 60)[0]
    with pytest.raises(DatabaseError):
        session.execute("SELECT 1")
    session.close()


def test_what_looks_at_no_clock_is_killed(
    sqlite: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    with closing(sqlite.open(source, Limits(memory=4 << 30))) as session:
        session.execute(INSERT)
        outcome = session.execute(HARD, timeout=0.05)  # allow limit: it takes longer anywhere
        assert outcome.timed_out
        assert outcome.failure is not None
        if outcome.restarted:  # else this machine was quick
            assert outcome.results == ()
        assert value(session, "SELECT count(*) FROM artist") == 5


def test_memory_that_runs_out_is_an_observation(
    sqlite: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    with closing(sqlite.open(source, Limits(memory=64 << 20))) as session:
        outcome = session.execute("SELECT hex(randomblob(60000000)), hex(randomblob(60000000))")
        assert outcome.failure is not None
        assert value(session, "SELECT count(*) FROM artist") == 4


def test_very_many_statements(sqlite: EmbeddedDatabaseEngine, source: DatabaseSource) -> None:
    with closing(sqlite.open(source)) as session:
        outcome = session.execute("SELECT 1;" * 5000)
        assert len(outcome.results) == 5000
        outcome = session.execute(
            "SELECT 1;" * 500_000, timeout=0.2
        )  # allow limit: it takes longer anywhere
        assert outcome.timed_out


def test_threads_that_open_and_close_at_random(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource
) -> None:
    troubles: list[BaseException] = []

    def play(session: DatabaseSession) -> None:
        try:
            session.execute("SELECT count(*) FROM artist a, artist b")
            session.execute(INSERT)
        except SandboxError as error:
            troubles.append(error)

    for _ in range(20):
        session = embedded.open(source)
        thread = threading.Thread(target=play, args=(session,))
        thread.start()
        session.close()
        thread.join()
    with closing(embedded.open(source)) as session:
        assert value(session, "SELECT count(*) FROM artist") == 4


def test_no_statement_of_duckdb_starts_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory has run out, a thread that is started never reports back."""
    duckdb = pytest.importorskip("duckdb")
    from intercode.databases.inside.duckdb import DuckDBDatabase
    from intercode.databases.inside.worker import ResultRowCollector

    database = DuckDBDatabase()
    monkeypatch.delattr(threading.Thread, "start")
    with duckdb.connect() as database.connection:
        results, failure, _, _ = database.execute("SELECT 7", ResultRowCollector(PATIENCE, 1, 1000))
        assert (results, failure) == ([[["7"], [(7,)], 1, None]], None)
        hard = "SELECT count(*) FROM range(200000) a, range(200000) b"
        _, failure, late, _ = database.execute(hard, ResultRowCollector(0.1, 1, 1000))
        assert late and "time limit" in failure[0]


def test_a_process_without_memory_is_replaced(
    embedded: EmbeddedDatabaseEngine, source: DatabaseSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the failure, not at the next statement, which has not caused it."""
    from intercode.databases.inside import worker

    replies = SimpleNamespace(execute=lambda *_: [[], ["full", "", None], False, False])
    request: list[object] = ["SELECT 1", 1.0, 1, 1]
    assert worker._answer(replies, "execute", request, [])[1][-1] is False
    monkeypatch.setattr(worker, "_SPARE_BYTES", 1 << 60)
    answer = worker._answer(replies, "execute", request, [])[1]
    assert answer[-1] is True
    with closing(embedded.open(source)) as session:
        session.execute(INSERT)
        before = process(session)
        with monkeypatch.context() as patch:
            patch.setattr(session._worker, "request", lambda *_: answer)
            assert session.execute("SELECT 1").restarted
        assert value(session, "SELECT count(*) FROM artist") == 5, "what was written is there"
        assert process(session) != before


def test_an_interrupt_of_duckdb_that_comes_before_its_statement_comes_again() -> None:
    duckdb = pytest.importorskip("duckdb")
    from intercode.databases.inside.duckdb import _DuckDBWatchdog
    from intercode.databases.inside.worker import ResultRowCollector

    interrupts: list[float] = []
    with duckdb.connect() as connection:

        def interrupt() -> None:
            interrupts.append(time.monotonic())
            connection.interrupt()

        watched = SimpleNamespace(interrupt=interrupt)
        guard = _DuckDBWatchdog().guard(watched, ResultRowCollector(0, 1, 1))
        with guard, pytest.raises(duckdb.InterruptException):
            assert eventually(lambda: interrupts)
            connection.execute("SELECT count(*) FROM range(200000) a, range(200000) b")
    assert len(interrupts) > 1


def test_duckdb_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'intercode-gym\[duckdb\]'"):
        get_engine("duckdb")
