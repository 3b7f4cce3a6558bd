"""The SQL environment: tasks for a database, scored by the answer or by what was changed."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from intercode import datasets
from intercode.databases import shared_engine
from intercode.databases.base import Engine, Session
from intercode.envs.base import InterCodeEnv
from intercode.envs.stage_sql import DatabaseStage
from intercode.errors import TaskError, UsageError
from intercode.interpreters.sql import MAX_ROWS, SqlInterpreter
from intercode.rewards.base import Reward
from intercode.rewards.gold import GoldCache
from intercode.rewards.own import Function, OwnReward, choose
from intercode.sandbox.base import Limits
from intercode.task import Dataset


class SqlEnv(InterCodeEnv[Session]):
    """One session with a database of its own per episode; an observation is a table of rows.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        engine: An engine, its name, or a server's URL (see `intercode.databases.get_engine`).
            One given by name or URL is shared by all environments of the process.
        databases: The folder or file that holds the tasks' databases; None: where the dataset
            says, or beside its file.
        provider: The name of what runs an embedded engine's sandboxes, unless `engine` is an
            engine: ``native``, or, for SQLite, ``docker``.
        limits: What a session may use; None: the defaults.
        max_turns: Actions in one episode.
        max_rows: Rows of a result that an observation shows.
        permute_columns: Whether an answer's columns may come in another order than gold's; None: as
            the tasks say.
        reward_every_turn: Score after every action (see `InterCodeEnv`).
        cache_gold: Whether gold runs once per task rather than at every score, or a cache to
            share with other environments.
        reward: Instead of `SqlReward`: a reward, or the name of one: ``"bird-ex"``,
            ``"bird-soft-f1"``, ``"bird-r-ves"``, ``"spider-test-suite"``; or a function of your
            own, or ``reward.py:score`` (see `intercode.rewards.own`).
        render_mode: None or ``"ansi"``.
        seed: Of the first `reset` that is given none.

    Raises:
        TaskError: The data is malformed, a task has no gold, or its database is not there.
        UsageError: An option makes no sense.
        DatabaseError: The engine's server cannot be reached or started.
    """

    name: ClassVar[str] = "sql"
    prompt: ClassVar[str] = "sql> "

    def __init__(
        self,
        data: str | Path | Dataset = "sql",
        *,
        engine: str | Engine = "sqlite",
        databases: str | Path | None = None,
        provider: str = "native",
        limits: Limits | None = None,
        max_turns: int = 10,
        max_rows: int = MAX_ROWS,
        permute_columns: bool | None = None,
        reward_every_turn: bool = False,
        cache_gold: bool | GoldCache = True,
        reward: str | Function | Reward[Session] = "default",
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        if max_rows < 1:
            raise UsageError(f"max_rows must be at least 1, not {max_rows}")
        tasks = datasets.load(data)
        if isinstance(engine, str):
            engine = shared_engine(engine, sandbox=provider)
        stage = DatabaseStage(engine, tasks, databases, limits)
        for task in tasks:
            stage.check(task)
        cache = GoldCache(4096 if cache_gold else 0) if isinstance(cache_gold, bool) else cache_gold
        super().__init__(
            tasks,
            stage,
            partial(SqlInterpreter, max_rows=max_rows),
            _reward(tasks, reward, databases=stage, cache=cache, permute_columns=permute_columns),
            max_turns=max_turns,
            reward_every_turn=reward_every_turn,
            render_mode=render_mode,
            seed=seed,
        )


def _reward(
    tasks: Dataset, reward: str | Function | Reward[Session], **parts: Any
) -> Reward[Session]:
    """Return the reward that is asked for; rewards of ours compare with gold."""

    def default() -> Reward[Session]:
        return choose("sql", "default", default, **parts)

    chosen = choose("sql", reward, default, **parts)
    if isinstance(chosen, OwnReward):
        return chosen
    permutes = "permute_columns" in inspect.signature(type(chosen)).parameters
    if parts["permute_columns"] is not None and not permutes:
        raise UsageError(f"reward {reward!r} has a rule of its own for the order of columns")
    _check_gold(tasks)
    return chosen


def _check_gold(tasks: Dataset) -> None:
    for row, task in enumerate(tasks):
        if not task.gold:
            raise TaskError(
                f"{tasks.source or tasks.name}: row {row}, task {task.task_id!r}: field 'gold' is "
                f"missing: nothing says when it is solved"
            )
