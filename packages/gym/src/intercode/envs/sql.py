"""The SQL environment: database tasks, scored by the answer or by the changed tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from intercode.databases import engine_name, shared_engine
from intercode.databases.base import DatabaseEngine, DatabaseSession, Role
from intercode.databases.source import DatabaseSource, find
from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions, SqlOptions
from intercode.envs.stage import SETUP_TIMEOUT, NoWorkspaceRecipe, resolve_limits
from intercode.envs.traits import SQL, GuessedSolution, Traits, constant_actions
from intercode.episode import Episode
from intercode.errors import TaskError, UsageError
from intercode.interpreters.base import act
from intercode.interpreters.sql import SqlInterpreter
from intercode.rewards.base import Reward
from intercode.rewards.custom import CustomReward, Function, choose_reward
from intercode.rewards.gold import GoldCache
from intercode.task import Dataset, Task
from intercode_sandbox.base import Limits
from intercode_sandbox.images import hide

_EMPTY_SELECT = "SELECT x FROM (SELECT NULL AS x) AS t WHERE 1 = 0"


class SqlEnv(InterCodeEnv[DatabaseSession]):
    """An environment with one session and a fresh database per episode; observations are tables.

    The reward is `SqlReward`. The option `reward` replaces it by another reward of InterCode
    (``"bird-ex"``, ``"bird-soft-f1"``, ``"bird-r-ves"``, ``"spider-test-suite"``) or by a custom
    function.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object. If the option `engine` is a name or URL, all
            environments of the process share the engine. The option `sandbox` is the name of the
            provider that runs an embedded engine: ``native`` or, for SQLite, ``docker``.
        **changes: Single options by name, which override `options`: see `SqlOptions`.

    Raises:
        TaskError: The data is malformed, a database is missing, or a task lacks the gold that the
            reward needs.
        UsageError: An option is unknown or invalid.
        DatabaseError: The engine's server cannot be reached or started.
    """

    name: ClassVar[str] = "sql"
    prompt: ClassVar[str] = "sql> "
    Options: ClassVar[type[EnvOptions]] = SqlOptions
    traits: Traits = replace(
        SQL,
        fields=("columns", "dialect", "engines"),
        rules=("sql",),
        constants=(
            *(
                GuessedSolution(f"SELECT {n}", constant_actions(f"SELECT {n}"))
                for n in (*range(6), "NULL")
            ),
            GuessedSolution("an empty SELECT", constant_actions(_EMPTY_SELECT)),
        ),
        recognises=lambda tasks: any(task.db for task in tasks),
    )

    def __init__(
        self,
        data: str | Path | Dataset = "sql",
        *,
        options: SqlOptions | None = None,
        **changes: Any,
    ) -> None:
        options = SqlOptions.merge(options, changes)
        tasks, engine = load(data), options.engine
        if isinstance(engine, str):
            engine = shared_engine(engine, sandbox=_provider_name(options.sandbox))
        self._engine = engine
        stage = DatabaseStage(engine, tasks, options.databases, options.limits)
        _check(tasks, stage)
        if options.columns not in (None, "exact", "explained"):
            raise UsageError(f"columns must be 'exact' or 'explained', not {options.columns!r}")
        cache = GoldCache.from_option(options.cache_gold, engine)
        rules = {"permute_columns": options.permute_columns, "columns": options.columns}
        reward = options.reward or "default"
        super().__init__(
            tasks,
            stage,
            partial(SqlInterpreter, max_rows=options.max_rows, dialect=engine.dialect),
            _reward(tasks, reward, databases=stage, cache=cache, **rules),
            options=options,
        )

    def setting(self) -> str:
        """Return the engine's product name and version."""
        facts = self._engine.facts()
        versions = [str(facts[name]) for name in ("product", "version") if name in facts]
        return " ".join(versions) or self.traits.setting

    @classmethod
    def filter_tasks(cls, tasks: Dataset, options: Mapping[str, Any]) -> tuple[Dataset, str]:
        """Exclude each task with a ``metadata.engines`` that does not list the selected engine.

        On another engine, gold may have another meaning. See `InterCodeEnv.filter_tasks`.
        """
        engine = options.get("engine") or "sqlite"
        selected_engine = engine_name(engine) if isinstance(engine, str) else engine.name
        supported_tasks = tasks.filter(
            lambda task: selected_engine in task.metadata.get("engines", (selected_engine,))
        )
        excluded_count = len(tasks) - len(supported_tasks)
        note = (
            f"for other engines than {selected_engine}, and left out: "
            f"{excluded_count} of {len(tasks)} tasks"
        )
        return supported_tasks, note if excluded_count else ""

    def _attempt(self, task: Task, session: DatabaseSession, output: str | None) -> Episode:
        """Return an episode for an attempt, from a statement that is executed in the session."""
        attempt = super()._attempt(task, session, None)
        if output is not None:
            attempt.turns.append(act(self._open(session), output, task.timeout))
        return attempt


class DatabaseStage(NoWorkspaceRecipe):
    """A stage that opens database sessions; agent and grader get databases with equal content.

    Args:
        engine: The database engine.
        dataset: The tasks, which also locate the databases if `databases` is None.
        databases: The folder or file of the databases (see `intercode.databases.source.find`).
        limits: The resource limits of a session; None: the defaults.

    Raises:
        TaskError: Neither the dataset nor `databases` locates the databases.
    """

    def __init__(
        self,
        engine: DatabaseEngine,
        dataset: Dataset,
        databases: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.engine = engine
        self._limits = limits
        self._database_path = _find_databases(dataset, databases)
        hide(self._database_path)
        self._sources: dict[str | None, DatabaseSource] = {}

    def source(self, task: Task) -> DatabaseSource:
        """Return the source of the task's database.

        Raises:
            TaskError: The database is missing; the message names the task.
        """
        if task.db not in self._sources:
            try:
                self._sources[task.db] = find(self._database_path, task.db)
            except TaskError as error:
                raise TaskError(f"task {task.task_id!r}: {error}") from None
        return self._sources[task.db]

    def image(self, task: Task) -> str:
        """Return the name of the task's database."""
        return self.source(task).name

    def digest(self, task: Task) -> str:
        """Return the digest of the database's content, after a trial session with the engine.

        Raises:
            TaskError: The database is missing, or the engine cannot read it, so each task on the
                database would fail.
            DatabaseError: The engine failed.
        """
        source = self.source(task)
        self.engine.open(source, self._limits).close()
        return source.digest

    def changed(self, task: Task, session: DatabaseSession) -> bool:
        """Return False: every session has a pristine copy of the database."""
        return False

    def check(self, task: Task) -> None:
        """Refuse a task that no SQL environment can run, before any session starts.

        Raises:
            TaskError: The task's database is missing, or the task has a field that no SQL task has.
        """
        if task.files or task.verification or task.image or task.tests:
            unsupported_fields = ("files", "verification", "image", "tests")
            field = next(
                field_name for field_name in unsupported_fields if getattr(task, field_name)
            )
            raise TaskError(f"task {task.task_id!r}, field {field!r}: SQL tasks have no such field")
        self.source(task)

    def open(
        self, task: Task, role: Role = "agent", source: DatabaseSource | None = None
    ) -> DatabaseSession:
        """Open a session with a pristine database, and run the task's setup.

        Args:
            task: The task.
            role: The role of the session's user: ``agent`` or ``grader``.
            source: The source of the database; None: the source of the task's database.

        Raises:
            TaskError: The database is missing or unreadable, or the setup failed.
            DatabaseError: The engine failed.
        """
        source = self.source(task) if source is None else source
        session = self.engine.open(source, resolve_limits(task, self._limits), role)
        if task.setup is None:
            return session
        try:
            failure = session.execute(task.setup, timeout=SETUP_TIMEOUT, max_rows=0).failure
        except BaseException:
            session.close()
            raise
        if failure is not None:
            session.close()
            raise TaskError(f"task {task.task_id!r}: setup failed: {failure.message}")
        return session


def _find_databases(dataset: Dataset, databases: str | Path | None) -> Path:
    if databases is not None:
        return Path(databases)
    if dataset.databases is not None:
        return Path(dataset.databases)
    if dataset.source is not None:
        source = Path(dataset.source)
        return source if source.is_dir() else source.parent
    raise TaskError(f"dataset {dataset.name!r}: name the folder of its databases (databases=…)")


def _provider_name(sandbox: object) -> str:
    """Return the name of the provider that runs the engine.

    Raises:
        UsageError: `sandbox` is a provider object. Only a name is valid, because the environments
            that share an engine are matched by their provider's name.
    """
    if not isinstance(sandbox, str):
        raise UsageError(
            "for SQL, sandbox= must be a name such as 'native', because it runs the engine"
        )
    return sandbox


def _reward(
    tasks: Dataset, reward: str | Function | Reward[DatabaseSession], **components: Any
) -> Reward[DatabaseSession]:
    """Return the configured reward: one of InterCode's, which need gold, or a custom function.

    Raises:
        UsageError: The reward defines how columns are compared, and an option asks for another
            comparison.
        TaskError: The reward is InterCode's, and a task has no gold.
    """

    def default() -> Reward[DatabaseSession]:
        return choose_reward("sql", "default", default, **components)

    env_reward = choose_reward("sql", reward, default, **components)
    if isinstance(env_reward, CustomReward):
        return env_reward
    parameters = inspect.signature(type(env_reward)).parameters
    for name in ("permute_columns", "columns"):
        if components[name] is not None and name not in parameters:
            raise UsageError(f"reward {reward!r} has its own rule for columns: omit {name}")
    _check_gold(tasks)
    return env_reward


def _check(tasks: Dataset, stage: DatabaseStage) -> None:
    try:
        for task in tasks:
            stage.check(task)
    except TaskError:
        with tasks.locate_errors(task):
            raise


def _check_gold(tasks: Dataset) -> None:
    for task in tasks:
        if not task.gold:
            raise TaskError(
                f"{tasks.where(task)}: field 'gold' is missing, so the task cannot be scored"
            )
