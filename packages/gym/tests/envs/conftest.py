from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from typing import TYPE_CHECKING, Any

import pytest

from intercode.databases import DatabaseEngine, get_engine
from intercode.envs.bash import BashEnv
from intercode.task import Dataset, Task
from waiting import becomes_readable

from .sql_tasks import dataset

if TYPE_CHECKING:
    from intercode.envs.sql import SqlEnv

TASKS = Dataset(
    [
        Task(
            "count",
            "How many files are in w?",
            ("ls w | wc -l", "find w -type f | wc -l"),
            setup="mkdir w; touch w/a w/b w/c",
        ),
        Task(
            "sort",
            "Sort in.txt into out.txt.",
            ("sort in.txt > out.txt",),
            files={"in.txt": "b\na\n", "/srv/data/other": "x"},
        ),
        Task("remove", "Remove old.", setup="mkdir old; touch old/f", verification="test ! -e old"),
    ],
    "small",
)


def kill_sandbox(env: BashEnv) -> None:
    """Have the sandbox die under the episode, and wait until its processes have."""
    shell = env._interpreter._shell._process  # type: ignore[union-attr]
    env.sandbox.close()
    assert becomes_readable(shell.exit_fd)


MakeEnv = Callable[..., BashEnv]


@pytest.fixture
def make_env() -> Iterator[MakeEnv]:
    """Makes environments that are closed when the test ends."""
    made: list[BashEnv] = []

    def make(data: Any = TASKS, **options: Any) -> BashEnv:
        made.append(BashEnv(data, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server of this machine's, which answers by HTTP."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


MakeSql = Callable[..., "SqlEnv"]


@pytest.fixture(scope="session", params=["sqlite", "duckdb", "mysql", "postgresql"])
def sql_engine(request: pytest.FixtureRequest) -> Iterator[DatabaseEngine]:
    """Every engine in turn, started once."""
    engine = get_engine(request.param)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def sql_tasks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Tasks over a small database."""
    return dataset(tmp_path_factory.mktemp("store"))


@pytest.fixture
def make_sql(sql_engine: DatabaseEngine, sql_tasks: Dataset) -> Iterator[MakeSql]:
    """Makes SQL environments that are closed when the test ends."""
    from intercode.envs.sql import SqlEnv

    made: list[SqlEnv] = []

    def make(data: Any = sql_tasks, **options: Any) -> SqlEnv:
        made.append(SqlEnv(data, engine=sql_engine, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()
