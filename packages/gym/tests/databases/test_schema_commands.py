"""Looking at a database as people do, on every engine; and that looking is never an answer."""

from __future__ import annotations

import pytest

from intercode.databases import DatabaseEngine, DatabaseSession
from intercode.databases.base import SqlActionOutcome, StatementResult
from intercode.interpreters.base import Execution
from intercode.interpreters.schema_commands import SchemaCommand, parse_command
from intercode.interpreters.sql import SqlInterpreter
from intercode_sandbox.base import Limits

from .conftest import TABLES


@pytest.fixture
def interpreter(engine: DatabaseEngine, session: DatabaseSession) -> SqlInterpreter:
    return SqlInterpreter(session, dialect=engine.dialect)


def text(done: Execution) -> str:
    return done.output.decode()


@pytest.mark.parametrize(
    "action", [".tables", "SHOW TABLES", "show tables;", r"\dt", r"\d", "  .tables  "]
)
def test_tables_are_listed(interpreter: SqlInterpreter, action: str) -> None:
    done = interpreter.execute(action)
    assert done.ok
    assert set(TABLES) <= set(text(done).split())
    assert "sqlite_" not in text(done)


@pytest.mark.parametrize("action", ["DESCRIBE song", "desc song;", r"\d song", r"\d+ song"])
def test_a_tables_columns_are_listed(interpreter: SqlInterpreter, action: str) -> None:
    done = interpreter.execute(action)
    assert done.ok
    names = [line.split(" ")[0] for line in text(done).split("\n")[2:8]]
    assert names == ["id", "title", "price", "seconds", "released", "cover"]


STATEMENTS = (".schema", ".schema artist_song", "SHOW CREATE TABLE artist_song")


@pytest.mark.parametrize("action", STATEMENTS)
def test_statements_are_shown_with_their_keys(
    interpreter: SqlInterpreter, engine: DatabaseEngine, action: str
) -> None:
    done = interpreter.execute(action)
    shown = " ".join(text(done).replace("`", "").replace('"', "").split())
    assert done.ok
    assert "CREATE TABLE artist_song" in shown and "PRIMARY KEY" in shown
    if engine.name != "duckdb":  # whose copies have no foreign keys
        assert "REFERENCES artist" in shown
    assert ("VIEW long_song" in shown) == (action == ".schema")


@pytest.mark.parametrize("action", [r"\d nothing", "DESCRIBE nothing", ".schema nothing"])
def test_a_missing_table_is_told(interpreter: SqlInterpreter, action: str) -> None:
    done = interpreter.execute(action)
    assert not done.ok
    assert text(done).startswith("Error") and "nothing" in text(done)


def test_quotes_do_not_lead_out_of_the_name(interpreter: SqlInterpreter) -> None:
    done = interpreter.execute("""\\d "x'); DROP TABLE song; --" """)
    assert not done.ok
    assert interpreter.execute("SELECT count(*) FROM song").ok


def test_looking_is_no_answer(interpreter: SqlInterpreter) -> None:
    assert interpreter.execute("SELECT id FROM song").info["columns"] == 1
    for action in (".tables", ".schema", r"\d song", r"\d"):
        assert interpreter.execute(action).info["columns"] == 0


def test_without_a_dialect_an_action_is_the_engines(session: DatabaseSession) -> None:
    assert not SqlInterpreter(session).execute(".tables").ok


@pytest.mark.parametrize(
    ("action", "command"),
    [
        (".tables", SchemaCommand("tables")),
        ("SHOW FULL TABLES", SchemaCommand("tables")),
        ("DESCRIBE main.song", SchemaCommand("columns", "song")),
        ('desc "two words";', SchemaCommand("columns", "two words")),
        ("show columns in song", SchemaCommand("columns", "song")),
        (".schema", SchemaCommand("statements")),
        (".schema `song`", SchemaCommand("statements", "song")),
        ("SELECT 1", None),
        (".tables; SELECT 1", None),
        ("DESCRIBE", None),
        ("SHOW TABLES LIKE 'x'", None),
        ("describe two words", None),
        (".quit", None),
        ("", None),
    ],
)
def test_what_is_a_command(action: str, command: SchemaCommand | None) -> None:
    assert parse_command(action, "sqlite") == command
    assert parse_command(action, "oracle") is None


@pytest.mark.parametrize(
    ("dialect", "action", "own"),
    [
        ("mysql", "SHOW TABLES", True),
        ("mysql", "DESCRIBE song", True),
        ("mysql", r"\d song", False),
        ("duckdb", "SHOW TABLES", True),
        ("duckdb", "DESCRIBE song", True),
        ("duckdb", ".schema", False),
        ("postgres", "SHOW TABLES", False),
    ],
)
def test_an_engines_own_commands_are_left_to_it(dialect: str, action: str, own: bool) -> None:
    assert (parse_command(action, dialect) is None) == own


class TooLong:
    """A session whose results are beyond the limit of output: their rows are left out."""

    limits = Limits()

    def kill(self) -> None:
        """Nothing runs."""

    def execute(
        self, sql: str, *, timeout: float | None = None, max_rows: int = 0
    ) -> SqlActionOutcome:
        self.timeout = timeout
        if sql.startswith("SHOW CREATE"):
            return SqlActionOutcome(
                (StatementResult(("Table", "Create Table"), (), 1),), restarted=True
            )
        return SqlActionOutcome((StatementResult(("name",), (("song",),), 1),))


def test_a_statement_beyond_the_limit_is_a_failure_of_the_action() -> None:
    session = TooLong()
    interpreter = SqlInterpreter(session, dialect="mysql")  # type: ignore[arg-type]
    done = interpreter.execute(".schema", timeout=60)
    assert not done.ok and "longer than an output may be" in text(done)
    assert done.info["restarted"] and done.notes
    assert session.timeout is not None and session.timeout < 60  # both share the time limit
