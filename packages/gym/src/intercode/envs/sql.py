"""The SQL environment: tasks for a database, scored by the answer or by what was changed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from intercode.databases import engine_name, shared_engine
from intercode.databases.base import Engine, Role, Session
from intercode.databases.source import Source, find
from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions, SqlOptions
from intercode.envs.stage import SETUP_TIMEOUT, NoRecipe, resolve_limits
from intercode.envs.traits import SQL, Guess, Traits, constant_actions
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


class SqlEnv(InterCodeEnv[Session]):
    """One session with a database of its own per episode; an observation is a table of rows.

    Its reward is `SqlReward`. The option `reward` replaces it by another of ours (``"bird-ex"``,
    ``"bird-soft-f1"``, ``"bird-r-ves"``, ``"spider-test-suite"``) or by a function of your own.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: The options, as one value. An engine that is given by name or URL is shared by all
            environments of the process; `sandbox` is the name of what runs an embedded engine:
            ``native`` or, for SQLite, ``docker``.
        **changes: Single options by their names: see `SqlOptions`.

    Raises:
        TaskError: The data is malformed, a task has no gold, or its database is not there.
        UsageError: There is no such option, or it makes no sense.
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
            *(Guess(f"SELECT {n}", constant_actions(f"SELECT {n}")) for n in (*range(6), "NULL")),
            Guess("an empty SELECT", constant_actions(_EMPTY_SELECT)),
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
        options = SqlOptions.of(options, changes)
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
        """Name the engine and its version."""
        facts = self._engine.facts()
        parts = [str(facts[name]) for name in ("product", "version") if name in facts]
        return " ".join(parts) or self.traits.setting

    @classmethod
    def narrowed(cls, tasks: Dataset, options: Mapping[str, Any]) -> tuple[Dataset, str]:
        """Leave out the tasks whose gold means something else on the engine: see `InterCodeEnv`."""
        engine = options.get("engine") or "sqlite"
        name = engine_name(engine) if isinstance(engine, str) else engine.name
        supported_tasks = tasks.filter(lambda task: name in task.metadata.get("engines", (name,)))
        excluded_count = len(tasks) - len(supported_tasks)
        note = (
            f"for other engines than {name}, and left out: {excluded_count} of {len(tasks)} tasks"
        )
        return supported_tasks, note if excluded_count else ""

    def _attempt(self, task: Task, place: Session, output: str | None) -> Episode:
        """Record an attempt from a statement, which is run in the place."""
        attempt = super()._attempt(task, place, None)
        if output is not None:
            attempt.turns.append(act(self._open(place), output, task.timeout))
        return attempt


class DatabaseStage(NoRecipe):
    """Opens sessions for tasks; the agent's and the grader's come out alike.

    Args:
        engine: Where the databases run.
        dataset: The tasks; it says where their databases are, if `databases` does not.
        databases: The folder or file that holds the databases (see `intercode.databases.find`).
        limits: What a session may use; None: the defaults.

    Raises:
        TaskError: Neither the dataset nor `databases` says where they are.
    """

    def __init__(
        self,
        engine: Engine,
        dataset: Dataset,
        databases: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.engine = engine
        self._limits = limits
        self._place = _place(dataset, databases)
        hide(self._place)
        self._sources: dict[str | None, Source] = {}

    def source(self, task: Task) -> Source:
        """Find the task's database.

        Raises:
            TaskError: There is no such database; it names the task.
        """
        if task.db not in self._sources:
            try:
                self._sources[task.db] = find(self._place, task.db)
            except TaskError as error:
                raise TaskError(f"task {task.task_id!r}: {error}") from None
        return self._sources[task.db]

    def image(self, task: Task) -> str:
        """Name the database."""
        return self.source(task).name

    def digest(self, task: Task) -> str:
        """Identify its content, once the engine has been able to open it.

        Raises:
            TaskError: It cannot be read: each of its tasks would end in that.
        """
        source = self.source(task)
        self.engine.open(source, self._limits).close()
        return source.digest

    def changed(self, task: Task, place: Session) -> bool:
        """Return False: every session begins with a pristine copy."""
        return False

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here, before anything starts.

        Raises:
            TaskError: Its database is not there, or it has what no SQL task has.
        """
        if task.files or task.verification or task.image or task.tests:
            fields = ("files", "verification", "image", "tests")
            field = next(field_name for field_name in fields if getattr(task, field_name))
            raise TaskError(f"task {task.task_id!r}, field {field!r}: SQL tasks have no such field")
        self.source(task)

    def open(self, task: Task, role: Role = "agent", source: Source | None = None) -> Session:
        """Open a session with a pristine database, in which the task's setup has run.

        Args:
            task: The task.
            role: Whose session it is.
            source: The database's content; None: the task's.

        Raises:
            TaskError: The database cannot be had, or the setup failed.
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


def _place(dataset: Dataset, databases: str | Path | None) -> Path:
    if databases is not None:
        return Path(databases)
    if dataset.databases is not None:
        return Path(dataset.databases)
    if dataset.source is not None:
        source = Path(dataset.source)
        return source if source.is_dir() else source.parent
    raise TaskError(f"dataset {dataset.name!r}: name the folder of its databases (databases=…)")


def _provider_name(sandbox: object) -> str:
    """Refuse a provider itself: engines are shared by the name of what runs them."""
    if not isinstance(sandbox, str):
        raise UsageError(
            "for SQL, sandbox= must be a name such as 'native', because it runs the engine"
        )
    return sandbox


def _reward(
    tasks: Dataset, reward: str | Function | Reward[Session], **parts: Any
) -> Reward[Session]:
    """Return the reward that is asked for; rewards of ours compare with gold."""

    def default() -> Reward[Session]:
        return choose_reward("sql", "default", default, **parts)

    env_reward = choose_reward("sql", reward, default, **parts)
    if isinstance(env_reward, CustomReward):
        return env_reward
    parameters = inspect.signature(type(env_reward)).parameters
    for name in ("permute_columns", "columns"):
        if parts[name] is not None and name not in parameters:
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
