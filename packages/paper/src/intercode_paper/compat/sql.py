"""The SQL environment of the 2023 release, as the class `SqlEnv`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from intercode.databases import find, shared_engine
from intercode.errors import ActionError, EnvironmentStateError, TaskError
from intercode_paper import sql_env
from intercode_paper.compat.base import ACTION_EXEC, IntercodeEnv
from intercode_paper.compat.images import find_databases
from intercode_paper.compat.utils import stands_for
from intercode_paper.sql_databases import (
    ERROR,
    Answer,
    EngineConnection,
    EngineDatabases,
    error_observation,
)
from intercode_sandbox.images import hide


class SqlEnv(IntercodeEnv):
    """An SQL environment: agent and gold share one connection, which no episode resets.

    An observation is a list of rows, None, or the text of an error.

    Args:
        image_name: The image's name of 2023; the environment needs no container.
        **kwargs: As for `IntercodeEnv`, with two more. ``databases``: the dump, file or folder of
            the databases; the default is that of `find_databases`. ``engine``: ``sqlite`` (the
            default; actions are translated from MySQL's dialect), ``mysql`` or the URL of a server.
    """

    name: ClassVar[str] = "ic_sql"

    def __init__(self, image_name: str, **kwargs: Any) -> None:
        super().__init__(image_name, **kwargs)
        databases_path = self._databases = Path(
            kwargs.get("databases") or find_databases(self.data_path)
        )
        hide(databases_path)
        database_engine = shared_engine(
            kwargs.get("engine", "sqlite"), sandbox=self._container_settings.sandbox
        )
        self.cnx = MySQLConnectorConnection(
            EngineDatabases(database_engine, lambda name: find(databases_path, name))
        )
        self.cur = self.cnx.cursor()

    def reset_container(self) -> None:
        """Check that the database of the row exists. As in 2023, no state is reset.

        Raises:
            TaskError: The database of the row does not exist.
        """
        if not self.tool_mode and (database_name := self.record.get("db")):
            try:
                find(self._databases, database_name)
            except TaskError as error:
                advice = "give the dump, file or folder that has it: SqlEnv(…, databases=PATH)"
                raise TaskError(f"{error}; {advice}") from None

    def exec_action(self, action: str) -> None:
        """Execute a statement."""
        self.observation = self.cnx.answer(action)
        self.info[ACTION_EXEC] = not sql_env.is_error(self.observation)

    def get_reward(self) -> tuple[float, dict[str, Any]]:
        """Compare the rows of the last action with gold's rows; return the reward and `info`."""
        score = sql_env.score(self.observation, self.cnx.answer(str(self.gold)))
        self.reward, self.info = score.value, dict(score.detail)
        return self.reward, self.info

    def close(self) -> None:
        """Close the connection, and discard all changes of the databases. Idempotent."""
        self.cnx.close()
        super().close()

    def get_intersect_items(self, my_list: list[str], my_dict: dict[str, int]) -> list[str]:
        """Return the items of a list that a dictionary counts, each at most as often as counted."""
        return sql_env.common_rows(my_list, Counter(my_dict))


class MySQLConnectorConnection:
    """The part of a ``mysql.connector`` connection that `SqlEnv` exposed in 2023.

    Args:
        databases: The databases, which `close` closes, too.
    """

    __class__ = stands_for("mysql.connector", "MySQLConnection")

    def __init__(self, databases: EngineDatabases) -> None:
        self._databases = databases
        self._open: EngineConnection | None = databases.connect()
        self._cursor = MySQLConnectorCursor(self)

    def answer(self, sql: str) -> Answer:
        """Execute a statement, and return the answer.

        Raises:
            EnvironmentStateError: The connection was closed.
            DatabaseError: The server failed.
        """
        if self._open is None:
            raise EnvironmentStateError("the connection was closed: make a new environment")
        try:
            return self._open.execute(sql)
        except TaskError:  # no database has been selected by USE
            return error_observation("No database selected")

    def cursor(self, **options: object) -> MySQLConnectorCursor:
        """Return the only cursor of the connection; the options are ignored."""
        return self._cursor

    def is_connected(self) -> bool:
        """Return whether the connection is open."""
        return self._open is not None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._open = None
        self._cursor.close()
        self._databases.close()


class MySQLConnectorCursor:
    """The part of a ``mysql.connector`` cursor that scripts of 2023 use.

    Args:
        connection: The connection that executes the cursor's statements.
    """

    __class__ = stands_for("mysql.connector.cursor", "MySQLCursor")

    def __init__(self, connection: MySQLConnectorConnection) -> None:
        self._connection = connection
        self._rows: list[Any] | None = None

    @property
    def with_rows(self) -> bool:
        """Whether the last statement returned rows."""
        return self._rows is not None

    def execute(self, sql: str) -> None:
        """Execute a statement, and keep its rows.

        Raises:
            ActionError: The statement failed.
            DatabaseError: The server failed.
        """
        self._rows = None
        answer = self._connection.answer(sql)
        if isinstance(answer, str):
            raise ActionError(answer.removeprefix(ERROR))
        self._rows = answer

    def fetchall(self) -> list[Any]:
        """Return the rows of the last statement."""
        return list(self._rows or ())

    def close(self) -> None:
        """Discard the kept rows. Idempotent."""
        self._rows = None
