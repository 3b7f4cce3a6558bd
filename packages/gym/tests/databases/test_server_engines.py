"""Engines on a server: what is given back, what is thrown away, and what outlives a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlencode

import pytest

from intercode.databases import DatabaseEngine, DatabaseSession, DatabaseSource, get_engine
from intercode.databases.base import SqlActionOutcome
from intercode.databases.servers.database_names import is_leftover, new_name
from intercode.databases.servers.private_server import start_mariadb, start_postgresql
from intercode.errors import DatabaseError, SandboxClosedError, UsageError
from waiting import eventually

from .conftest import TABLES, there_is
from .test_engines import value

NAMES = ["mysql", "postgresql"]
KILLS_ITSELF = {
    "mysql": "KILL CONNECTION_ID()",
    "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
}
SLEEPS = {"mysql": "SELECT SLEEP(3600)", "postgresql": "SELECT pg_sleep(3600)"}


@pytest.fixture(scope="module", params=NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An engine that these tests may do with as they like."""
    if not there_is(request.param):
        pytest.skip(f"{request.param} is not installed here")
    engine = get_engine(request.param)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=NAMES)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server that somebody else runs. Each of the tests leaves nothing there."""
    if not there_is(request.param):
        pytest.skip(f"{request.param} is not installed here")
    running = (start_mariadb if request.param == "mysql" else start_postgresql)()
    found = running.connect_args
    if request.param == "mysql":
        socket = urlencode({"unix_socket": found["unix_socket"]})
        yield f"mysql://root:{found['password']}@localhost?{socket}"
    else:
        yield f"postgresql://{found['user']}@/postgres?{urlencode({'host': found['host']})}"
    running.close()


def databases(engine: Any) -> set[str]:
    """Those of ours that are on a server."""
    asks = "SHOW DATABASES" if engine.name == "mysql" else "SELECT datname::text FROM pg_database"
    with engine.admin() as admin:
        return {name for (name,) in admin.query(asks) if name.startswith("ic")}


def test_who_only_reads_leaves_a_clone_for_the_next(server: Any, source: DatabaseSource) -> None:
    first = server.open(source)
    assert value(first, "SELECT count(*) FROM artist") == 4
    assert first.execute("SELECT nope").failure is not None
    assert first.execute("SELECT 1; SELECT name FROM artist").failure is None
    assert not first.is_written
    first.close()
    second = server.open(source)
    assert second.name == first.name
    assert second.execute("DELETE FROM artist_song").failure is None
    assert second.is_written
    second.close()
    third = server.open(source)
    assert third.name != first.name
    third.close()


def test_a_grader_never_gets_an_agents_clone(server: Any, source: DatabaseSource) -> None:
    agent = server.open(source)
    agent.close()
    grader = server.open(source, role="grader")
    assert grader.name != agent.name
    grader.close()


def test_to_kill_ones_own_connection_is_an_observation(server: Any, source: DatabaseSource) -> None:
    session = server.open(source)
    session.execute("INSERT INTO artist VALUES (5, 'kept', NULL, NULL)")
    outcome = session.execute(KILLS_ITSELF[server.name])
    assert outcome.restarted
    assert outcome.failure is not None
    assert session.name not in outcome.failure.message
    assert value(session, "SELECT count(*) FROM artist") == 5
    assert session.execute("DELETE FROM artist WHERE id = 5").failure is None
    session.close()


def test_the_time_limit_cannot_be_set_away(server: Any, source: DatabaseSource) -> None:
    session = server.open(source)
    setting = "max_statement_time" if server.name == "mysql" else "statement_timeout"
    assert session.execute(f"SET {setting} = 0").failure is None
    # Else the server would be told of another limit, and so of one again.
    session._seconds = 0.3  # allow limit: it sleeps for an hour
    outcome = session.execute(SLEEPS[server.name], timeout=0.3)  # allow limit: the same
    assert outcome.timed_out
    assert outcome.failure is not None
    assert "0.3 s" in outcome.failure.message
    assert value(session, "SELECT 1") == 1, "the interrupt does not strike what comes next"
    session.close()


def test_a_statement_that_ends_as_its_connection_is_cut_is_an_observation(
    server: Any, source: DatabaseSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second interrupt cuts it, and may come when all has been answered."""
    session = server.open(source)
    run = session._run

    def cut(*given: Any) -> SqlActionOutcome:
        outcome: SqlActionOutcome = run(*given)
        session._limit.strike_count = 2
        session._interrupt(2)
        return outcome

    monkeypatch.setattr(session, "_run", cut)
    outcome = session.execute("SELECT 1")
    assert outcome.timed_out and outcome.restarted
    monkeypatch.undo()
    assert value(session, "SELECT 1") == 1
    session.close()


def test_a_server_that_dies_is_an_error_and_comes_back(server: Any, source: DatabaseSource) -> None:
    reading, running, idle = (server.open(source) for _ in range(3))
    running.execute("INSERT INTO artist VALUES (5, 'lost', NULL, NULL)")
    raised: list[BaseException] = []

    def run() -> None:
        try:
            running.execute(SLEEPS[server.name], timeout=60)
        except DatabaseError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert eventually(running._use_lock.locked)
    for pid in children(server._server._process.pid):
        os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert raised, "what ran is no observation of the agent's"
    with pytest.raises(DatabaseError):
        reading.execute("SELECT 1")
    with pytest.raises(DatabaseError):
        idle.state()
    for session in (reading, running, idle):
        session.close()
    again = server.open(source)
    assert {name: len(table.rows) for name, table in again.state().items()} == TABLES
    again.close()


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_parallel_opens_fill_a_template_once(server: Any, source: DatabaseSource) -> None:
    sessions: list[DatabaseSession] = []
    threads = [
        threading.Thread(target=lambda: sessions.append(server.open(source))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({session.name for session in sessions}) == 8  # type: ignore[attr-defined]
    assert len(server._templates) == 1
    for session in sessions:
        session.close()


def test_nothing_is_left_on_a_server_by_url(url: str, source: DatabaseSource) -> None:
    engine: Any = get_engine(url)
    watching: Any = get_engine(url)
    session = engine.open(source)
    assert value(session, "SELECT count(*) FROM artist") == 4
    session.execute("DELETE FROM artist_song")
    assert len(databases(watching)) >= 2
    engine.close()
    assert databases(watching) == set()
    with pytest.raises(SandboxClosedError):
        session.execute("SELECT 1")
    with pytest.raises(DatabaseError):
        engine.open(source)
    watching.close()


def test_what_a_killed_run_left_is_swept_by_the_next(url: str, source: DatabaseSource) -> None:
    script = (
        "import sys, time\n"
        "from intercode.databases import find, get_engine\n"
        "session = get_engine(sys.argv[1]).open(find(sys.argv[2]))\n"
        "print(session.name, flush=True)\n"
        "time.sleep(60)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script, url, str(source.path)], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    name = run.stdout.readline().strip()
    living: Any = get_engine(url)
    assert name in databases(living), "of a run that lives nothing is swept"
    living.close()
    run.kill()
    run.wait()
    run.stdout.close()
    after: Any = get_engine(url)
    assert databases(after) == set()
    after.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root@localhost/music", "leave '/music' from the URL"),
        ("mysql://root@localhost:many", "port"),
        ("mysql://root@localhost?colour=red", "colour"),
        ("postgresql://localhost:many", "port"),
        ("postgresql://localhost?colour=red", "colour"),
    ],
)
def test_urls_that_make_no_sense(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        get_engine(url)


def test_a_wrong_password_is_said_at_once(url: str) -> None:
    if url.startswith("postgresql"):
        pytest.skip("not for postgresql: who may enter its folder needs no password")
    with pytest.raises(DatabaseError, match="Access denied") as raised:
        get_engine(url.replace("root:", "root:not-"))
    assert "not-" not in str(raised.value)


def test_a_password_comes_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if url.startswith("postgresql"):
        pytest.skip("not for postgresql: who may enter its folder needs no password")
    password = url.partition("root:")[2].partition("@")[0]
    without = url.replace(f":{password}@", "@")
    with pytest.raises(DatabaseError, match="Access denied"):
        get_engine(without)
    monkeypatch.setenv("MYSQL_PWD", unquote(password))
    get_engine(without).close()


def test_facts_hold_no_secret(url: str) -> None:
    engine: DatabaseEngine = get_engine(url)
    assert set(engine.facts()) == {"engine", "product", "version"}
    engine.close()


def test_names_tell_whose_they_are() -> None:
    mine = new_name()
    assert len(mine) <= 32
    assert mine != new_name()
    assert not is_leftover(mine)
    assert not is_leftover("icicle")
    assert not is_leftover("music")
    place, _, rest = mine.partition("p")
    _, _, started = rest.partition("t")
    assert is_leftover(f"{place}p{2**22 + 1:x}t{started}"), "there is no such process"
    elsewhere = "ic" + "0" * 8
    assert not is_leftover(f"{elsewhere}p{2**22 + 1:x}t{started}"), "another machine's"
