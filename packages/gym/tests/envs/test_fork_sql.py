"""Forks of SQL's episodes: by the state of an embedded database, else by the actions."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from intercode.databases.base import DatabaseSession
from intercode.envs.snapshots import ForkMode
from intercode.envs.sql import SqlEnv
from intercode.errors import ForkError

from .sql_tasks import dataset

TEMPORARY = "CREATE TEMP TABLE k (a INTEGER)"


@pytest.fixture
def env(request: pytest.FixtureRequest, tmp_path: Path) -> SqlEnv:
    env = SqlEnv(dataset(tmp_path), engine=getattr(request, "param", "sqlite"))
    request.addfinalizer(env.close)
    env.reset(seed=0)
    return env


def tables(env: SqlEnv) -> set[str]:
    return set(env.workspace.state())


@pytest.mark.parametrize("env", ["sqlite", "duckdb"], indirect=True)
def test_a_fork_has_its_own_database_and_is_scored_as_the_source(env: SqlEnv) -> None:
    env.step("CREATE TABLE notes (a INTEGER)")
    with ExitStack() as opened:
        one, other = (opened.enter_context(closing(fork)) for fork in env.fork(2, mode="state"))
        one.step("CREATE TABLE mine (a INTEGER)")
        assert "mine" in tables(one) and "notes" in tables(other)
        assert "mine" not in tables(other) | tables(env)
        ends = [env.step("submit")[:4], other.step("submit")[:4]]
        assert ends[0] == ends[1] and one.episode.status == "running"
        assert one.episode.fork is not None


def test_what_cannot_be_carried_is_repeated(env: SqlEnv) -> None:
    env.step(TEMPORARY)
    with pytest.raises(ForkError, match="temporary table k"):
        env.snapshot(mode="state")
    with env.snapshot() as snapshot, closing(env.fork()[0]) as fork:
        assert snapshot.mode == "replay"
        assert "0 rows" in fork.step("SELECT * FROM k")[0]
    with env.snapshot(mode="state", lossy=True) as snapshot:
        assert snapshot.lost == ("temporary table k",)
        assert "the database" in snapshot.carried


@pytest.mark.parametrize("mode", ["state", "replay"])
def test_a_transaction_is_only_repeated(env: SqlEnv, mode: ForkMode) -> None:
    env.step("BEGIN; CREATE TABLE notes (a INTEGER)")
    if mode == "state":
        with pytest.raises(ForkError, match="a transaction is open"):
            env.snapshot(mode)
        return
    with closing(env.fork(mode=mode)[0]) as fork:
        fork.step("ROLLBACK")
        assert "notes" not in tables(fork)
    env.step("COMMIT")
    assert "notes" in tables(env)


class Remote:
    """A session as those of servers are: it saves nothing."""

    def __init__(self, session: DatabaseSession) -> None:
        for name in ("source", "limits", "execute", "state", "kill", "close"):
            setattr(self, name, getattr(session, name))


def test_a_server_s_episode_is_repeated(env: SqlEnv) -> None:
    stage, start = env.stage, env.stage.open
    stage.open = lambda *args, **named: Remote(start(*args, **named))  # type: ignore[method-assign,assignment,return-value]
    env.reset()
    env.step("CREATE TABLE notes (a INTEGER)")
    with pytest.raises(ForkError, match=r"a database server cannot be saved: use mode='replay'"):
        env.snapshot(mode="state")
    with env.snapshot() as snapshot, closing(SqlEnv(env.dataset)) as other:
        assert snapshot.mode == "replay"
        other.restore(snapshot)
        assert "notes" in tables(other)
