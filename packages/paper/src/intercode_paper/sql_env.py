"""The SQL environment of 2023, ``make("sql", protocol="paper")``, and its reward.

The reward compares the rows of the agent's last query with gold's rows, as text. The recorded runs
show three versions of the reward:

- ``released``: the overlap of the rows (intersection over union of the two multisets) times
  Kendall's τ between the two orders of the common rows. The reward can be negative.
- ``early``, before the release: only the overlap.
- ``first``, also before the release: the overlap, but a gold that fails equals any rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy
from msgspec import Meta

from intercode import datasets
from intercode.databases import DatabaseEngine, DatabaseSource, shared_engine
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import Databases, EngineOption, EnvOptions
from intercode.envs.sql import DatabaseStage
from intercode.envs.traits import SQL, Traits
from intercode.episode import Episode, Score, Status
from intercode.errors import TaskError, UsageError
from intercode.task import Dataset, Task
from intercode_paper.session import PaperStage, TextInterpreter, ending
from intercode_paper.sql_databases import ERROR, Answer, EngineDatabases, SharedDatabaseConnection
from intercode_sandbox.base import Limits

Version = Literal["released", "early", "first"]
VERSIONS: tuple[Version, ...] = ("released", "early", "first")


class SqlWorkspace:
    """The workspace of one episode: the shared connection, and the answer to the last action.

    Args:
        connection: The connection that all episodes of the environment share.
        task: The episode's task, whose query is the answer before the first action.
    """

    def __init__(self, connection: SharedDatabaseConnection, task: Task) -> None:
        self.connection = connection
        self.answer: Answer = task.query

    def execute(self, action: str) -> Answer:
        """Execute an action, and keep the answer for the reward."""
        self.answer = self.connection.execute(action)
        return self.answer

    def kill(self) -> None:
        """Do nothing, because no statement runs between actions."""

    def close(self) -> None:
        """Do nothing, because the next episode continues with the same connection."""


class SqlStage(PaperStage[SqlWorkspace]):
    """A stage whose episodes all use the same connection.

    Args:
        databases: The databases.
        stage: The stage of the default protocol, which finds the databases.
    """

    def __init__(self, databases: EngineDatabases, stage: DatabaseStage) -> None:
        super().__init__(stage)
        self._connection = databases.connect()

    def check(self, task: Task) -> None:
        """Refuse a task that the protocol does not support.

        Raises:
            TaskError: The task has no gold or no database, or has a field that the 2023 protocol
                lacks.
        """
        for field in ("gold", "db"):
            if not getattr(task, field):
                raise TaskError(
                    f"task {task.task_id!r}, field {field!r}: the paper protocol needs it"
                )
        if task.setup:
            raise TaskError(
                f"task {task.task_id!r}, field 'setup': the 2023 release has no such field"
            )
        self._stage.check(task)

    def open(self, task: Task) -> SqlWorkspace:
        """Select the database of a task on the connection, and return the workspace."""
        assert task.db is not None  # `check` has refused tasks without a database
        self._connection.use(task.db)
        return SqlWorkspace(self._connection, task)


class PaperSqlOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of `PaperSqlEnv`."""

    engine: EngineOption = "sqlite"
    databases: Databases = None
    version: Annotated[
        Version,
        Meta(
            description="the version of the reward: released, early or first",
            extra={"flag": False, "choices": VERSIONS},
        ),
    ] = "released"


class PaperSqlEnv(InterCodeEnv[SqlWorkspace]):
    """The 2023 SQL environment, with its observations, its reward, and its leaks of state.

    Agent and gold share one connection, and its state persists from episode to episode. Changes by
    other environments are never visible.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object.
        **changes: Single options by name, which override `options`: see `PaperSqlOptions`.

    Raises:
        TaskError: A task has no gold or no database, or has a field that the 2023 protocol lacks.
        UsageError: An option is invalid.
    """

    name: ClassVar[str] = "sql"
    Options: ClassVar[type[EnvOptions]] = PaperSqlOptions
    traits: Traits = replace(SQL, rules=("paper",), separable=False, overview="")

    def __init__(
        self,
        data: str | Path | Dataset = "sql",
        *,
        options: PaperSqlOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperSqlOptions.merge(options, changes)
        if (version := options.version) not in VERSIONS:
            raise UsageError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
        tasks, engine = datasets.load(data), options.engine
        if isinstance(engine, str):
            engine = shared_engine(engine, sandbox=str(options.sandbox))
        stage = DatabaseStage(engine, tasks, options.databases, options.limits)
        self._databases = _databases(engine, tasks, stage, options.limits)
        paper_stage = SqlStage(self._databases, stage)
        for task in tasks:
            paper_stage.check(task)

        def reward(task: Task, episode: Episode, workspace: SqlWorkspace) -> Score:
            return score(workspace.answer, workspace.connection.execute(task.gold[0]), version)

        super().__init__(
            tasks,
            paper_stage,
            lambda workspace: TextInterpreter(workspace.execute, is_error),
            reward,
            options=options,
        )

    def close(self) -> None:
        """End the episode, and discard the changes that all episodes have made. Idempotent.

        In a forked child process, the method does nothing: the parent process owns the databases.
        """
        super().close()
        if not self._calls.forked:
            self._databases.close()

    def _ending(self, action: str) -> Status | None:
        return ending(action)


def _databases(
    engine: DatabaseEngine, tasks: Dataset, stage: DatabaseStage, limits: Limits | None
) -> EngineDatabases:
    tasks_by_database = {(task.db or "").lower(): task for task in tasks}

    def find(database: str) -> DatabaseSource:
        if database.lower() not in tasks_by_database:
            raise TaskError(f"no task has the database {database!r}")
        return stage.source(tasks_by_database[database.lower()])

    dialect = str(tasks[0].metadata.get("dialect", "mysql")) if tasks else "mysql"
    return EngineDatabases(engine, find, dialect, limits)


def is_error(answer: Answer) -> bool:
    """Return whether an answer reports that a statement failed."""
    return isinstance(answer, str) and answer.startswith(ERROR)


@dataclass(frozen=True, slots=True)
class RewardsByVersion:
    """The rewards of one answer by all versions of the reward."""

    released: float = 0.0
    early: float = 0.0
    first: float = 0.0

    def reward(self, version: Version) -> float:
        """Return the reward by the given version."""
        value: float = getattr(self, version)
        return value


def rewards(answer: Answer, gold: Answer) -> RewardsByVersion:
    """Compute the reward by all versions: ``released`` in [-1, 1], the others in [0, 1].

    Args:
        answer: The answer to the agent's last action. If it is not a list of rows, all rewards are
            0.
        gold: The answer to gold, which the caller executes after the agent's actions. If gold
            failed, ``released`` and ``early`` treat it as having no rows, and ``first`` is 1.
    """
    if not isinstance(answer, list):
        return RewardsByVersion()
    has_gold_failed = isinstance(gold, str)
    agent_rows = [str(row) for row in answer]
    gold_rows = [str(row) for row in gold] if isinstance(gold, list) else []
    common_counts = Counter(agent_rows) & Counter(gold_rows)
    overlap = _overlap(Counter(agent_rows), Counter(gold_rows))
    tau = (
        _tau(common_rows(agent_rows, common_counts), common_rows(gold_rows, common_counts))
        if common_counts
        else math.nan
    )
    # numpy rounds as in 2023: -0.95 · 0.5 becomes -0.48. Python's `round` would give -0.47.
    released_reward = overlap if math.isnan(tau) else float(numpy.round(tau * overlap, 2))
    return RewardsByVersion(released_reward, overlap, 1.0 if has_gold_failed else overlap)


def score(answer: Answer, gold: Answer, version: Version = "released") -> Score:
    """Compute the reward by one version. The score's detail is the ``info`` of 2023."""
    version_rewards = rewards(answer, gold)
    info = {
        "agent_obs": str(answer),
        "eval_obs": str(gold if isinstance(gold, list) else []),
        "corrupt_gold": isinstance(gold, str),
        "reward": version_rewards.reward(version),
    }
    return Score(version_rewards.reward(version), {"overlap": version_rewards.early}, info)


def _overlap(agent_rows: Counter[str], gold_rows: Counter[str]) -> float:
    union_size = sum((agent_rows | gold_rows).values())
    return sum((agent_rows & gold_rows).values()) / union_size if union_size else 1.0


def common_rows(rows: Iterable[str], common_counts: Counter[str]) -> list[str]:
    """Return the common rows in the order of `rows`.

    If a row occurs more often than in `common_counts`, its first occurrences are returned.
    """
    remaining_counts = Counter(common_counts)
    result_rows = []
    for row in rows:
        if remaining_counts[row] > 0:
            remaining_counts[row] -= 1
            result_rows.append(row)
    return result_rows


def _tau(first_rows: Sequence[str], second_rows: Sequence[str]) -> float:
    """Return Kendall's τ-b of two lists, paired by position; NaN if τ-b is not defined.

    The order of the operations in the last division is that of SciPy. Another order would round
    differently.
    """
    pairs = sorted(zip(first_rows, second_rows, strict=True))
    pair_count = len(pairs) * (len(pairs) - 1) // 2
    # Both lists contain the same rows, so both have the same number of ties.
    tie_count, joint_tie_count = _ties(first_rows), _ties(pairs)
    if tie_count == pair_count:
        return math.nan
    concordant_less_discordant = (
        pair_count - 2 * tie_count + joint_tie_count - 2 * _inversions([row for _, row in pairs])
    )
    tau = (
        concordant_less_discordant
        / math.sqrt(pair_count - tie_count)
        / math.sqrt(pair_count - tie_count)
    )
    return min(1.0, max(-1.0, tau))


def _ties(values: Iterable[object]) -> int:
    return sum(value_count * (value_count - 1) // 2 for value_count in Counter(values).values())


def _inversions(values: Iterable[str]) -> int:
    """Return the number of pairs of values that are in descending order."""
    sorted_values: list[str] = []
    inversion_count = 0
    for value in values:
        position = bisect_right(sorted_values, value)
        inversion_count += len(sorted_values) - position
        sorted_values.insert(position, value)
    return inversion_count
