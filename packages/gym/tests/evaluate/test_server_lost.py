"""A database server that dies in the middle of a run costs time, and no episode its score."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from intercode.databases import DatabaseEngine, find, get_engine
from intercode.databases.servers import supervisor
from intercode.databases.servers.mysql_client import MySQLConnection
from intercode.databases.servers.private_server import RECIPES, PrivateDatabaseServer, _user
from intercode.databases.servers.session import UnreachableDatabaseServer
from intercode.errors import DatabaseError
from intercode.evaluate import evaluate
from intercode.evaluate.progress import Progress
from intercode.evaluate.runner import RunResult
from intercode.task import Dataset, Task
from intercode_sandbox.host_files import remove_tree
from waiting import PATIENCE, eventually

EPISODES = 60
KILL_AFTER = 20


@pytest.fixture
def tasks(tmp_path: Path) -> Dataset:
    (tmp_path / "count.sql").write_text(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, price REAL);"
        "INSERT INTO item VALUES (1, 2.5), (2, NULL), (3, 4.0);"
    )
    read = Task("read", "Sum?", ("SELECT SUM(price) FROM item",), db="count")
    write = Task("write", "Raise all.", ("UPDATE item SET price = price + 1",), db="count")
    return Dataset([read, write], databases=str(tmp_path))


def server_process(server: PrivateDatabaseServer) -> int:
    """The pid of the server itself, below its supervisor."""
    assert server._process is not None
    pid = server._process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def end(pid: int) -> None:
    """Kill a server; returns when it and the processes of its connections can answer nobody."""
    os.kill(pid, signal.SIGSTOP)  # else it may have another child as soon as these are counted
    assert eventually(lambda: is_stopped(pid))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    dying = [os.pidfd_open(pid)]
    for child in children:
        with suppress(ProcessLookupError):
            dying.append(os.pidfd_open(int(child)))
    os.kill(pid, signal.SIGKILL)
    for fd in dying:
        ended, _, _ = select.select([fd], [], [], PATIENCE)
        os.close(fd)
        assert ended


class Killer(Progress):
    """Kills the server when so many actions were taken, just before the next: that one is lost."""

    def __init__(self, kill: Any) -> None:
        self._kill = kill
        self._lock = threading.Lock()
        self._taken = 0

    def action(self, task: Task, action: str) -> None:
        with self._lock:
            self._taken += action != "submit"
            if self._taken == KILL_AFTER and action != "submit":
                self._kill()


def run(engine: DatabaseEngine, tasks: Dataset, kill: Any, out: Path) -> RunResult:
    from intercode.envs.sql import SqlEnv

    return evaluate(
        tasks,
        "oracle",
        lambda: SqlEnv(tasks, engine=engine),
        workers=4,
        epochs=EPISODES // 2,
        out=out,
        progress=Killer(kill),
    )


def check(result: RunResult) -> None:
    """Every episode has its score; some were begun again for it."""
    assert result.complete, [e.error for e in result.episodes() if e.error]
    failed = [(e.score, e.turns) for e in result.episodes() if e.reward != 1.0]
    assert not failed
    assert len(result.outcomes) == EPISODES
    again = [e for e in result.episodes() if e.metadata.get("attempts", 1) > 1]
    assert again


@pytest.mark.parametrize("name", ["mysql", "postgresql"])
def test_a_private_server_is_started_again(name: str, tasks: Dataset, tmp_path: Path) -> None:
    with closing(get_engine(name)) as engine:
        server: PrivateDatabaseServer = engine._server  # type: ignore[attr-defined]
        check(
            run(
                engine,
                tasks,
                lambda: end(server_process(server)),
                tmp_path / "run",
            )
        )
        assert engine._server is not server  # type: ignore[attr-defined]


class Standing(PrivateDatabaseServer):
    """A server as an administrator has it: nobody watches over it, and its data outlives it.

    It ends with the thread that has started it: so none is left of tests that are killed.
    """

    def _start(self) -> None:
        uid, gid = _user(self._recipe)
        self._process = subprocess.Popen(
            self._recipe.command(self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: supervisor._prepare(0),
            **({"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}),
        )
        with (self.folder / "log").open("a+b") as log:
            self._wait(log.fileno())

    def kill(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            end(self._process.pid)
        self._process.wait()

    def close(self) -> None:
        self.kill()
        remove_tree(self.folder)


@pytest.fixture(params=["mysql", "postgresql"])
def standing(request: pytest.FixtureRequest) -> Iterator[Standing]:
    with closing(Standing(RECIPES[request.param]())) as server:
        yield server


def url_of(server: PrivateDatabaseServer) -> str:
    """How a user would name this server."""
    given = server.connect_args
    if server.product == "postgresql":
        host = quote(str(given["host"]), safe="")
        return f"postgresql://{given['user']}@/postgres?host={host}"
    socket = quote(str(given["unix_socket"]))
    return f"mysql://{given['user']}:{given['password']}@localhost?unix_socket={socket}"


def test_a_server_at_a_url_is_waited_for(
    standing: Standing, tasks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started again when a client has found nobody there."""
    refused = threading.Event()

    def come_back() -> None:
        refused.wait()
        standing._start()
        threading.Event().wait()  # the server ends with this thread

    back = threading.Thread(target=come_back, daemon=True)

    def kill() -> None:
        standing.kill()
        back.start()

    with closing(get_engine(url_of(standing))) as engine:
        connect = engine._connect  # type: ignore[attr-defined]

        def telling(arguments: Any) -> Any:
            try:
                return connect(arguments)
            except UnreachableDatabaseServer:
                refused.set()
                raise

        monkeypatch.setattr(engine, "_connect", telling)
        monkeypatch.setattr("intercode.databases.servers.engine._PATIENCE_SECONDS", PATIENCE)
        check(run(engine, tasks, kill, tmp_path / "run"))


def test_a_server_that_was_restarted_is_noticed(standing: Standing, tasks: Dataset) -> None:
    """However many connections it has seen since: what was not committed is gone.

    Of what was, some may be: these servers do not wait for the disk. So nobody is to be told that
    what a session has written is not there.
    """
    with closing(get_engine(url_of(standing))) as engine:
        session, writer = (engine.open(find(Path(str(tasks.databases)), "count")) for _ in "ab")
        assert session.execute("SELECT COUNT(*) FROM item").failure is None
        assert writer.execute("UPDATE item SET price = 0").failure is None
        if standing.product != "postgresql":
            # MySQL tells for how many whole seconds it has been there.
            with closing(MySQLConnection(standing.connect_args)) as admin:
                uptime = "SHOW GLOBAL STATUS LIKE 'Uptime'"
                assert eventually(lambda: int(str(admin.query(uptime)[0][1])) >= 4)
        standing.kill()
        standing._start()
        for _ in range(20):
            standing._recipe.probe(standing.connect_args)
        with pytest.raises(DatabaseError, match="lost"):
            session.execute("SELECT COUNT(*) FROM item")
        with pytest.raises(DatabaseError, match="lost"):
            writer.state()
        session.close()
        writer.close()


@pytest.mark.parametrize("standing", ["mysql"], indirect=True)
def test_who_has_a_lost_connections_number_now_is_left_alone(
    standing: Standing, tasks: Dataset
) -> None:
    with closing(get_engine(url_of(standing))) as engine:
        for _ in range(50):  # so that its number is higher than any of a fresh server's
            standing._recipe.probe(standing.connect_args)
        session = engine.open(find(Path(str(tasks.databases)), "count"))
        session.execute("UPDATE item SET price = 0")
        number = session._connection.thread  # type: ignore[attr-defined]
        standing.kill()
        standing._start()
        heir = MySQLConnection(standing.connect_args)
        assert heir.thread < number
        while heir.thread < number:
            heir.close()
            heir = MySQLConnection(standing.connect_args)
        session.close()
        name = session.name  # type: ignore[attr-defined]
        assert eventually(lambda: not heir.query("SHOW DATABASES LIKE %s", name)), "it is dropped"
        heir.close()
