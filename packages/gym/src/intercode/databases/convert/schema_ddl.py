"""Statements that create a schema in MySQL, PostgreSQL or DuckDB.

- **MySQL** and MariaDB: names are unchanged, except that spaces at their end are removed. Text
  compares by code point (``utf8mb4_bin``), like SQLite's default, or by ``utf8mb4_general_ci`` for
  ``COLLATE NOCASE``. Text in keys is ``VARCHAR``.
- **PostgreSQL**: names are in lower case, so ``SELECT Name FROM Singer`` works unquoted.
  Comparisons of text are always case-sensitive: PostgreSQL has no simple way to ignore case.
- **DuckDB**: names are unchanged. Foreign keys are left out. DuckDB checks them too eagerly (an
  update of a referenced row fails), and SQLite itself does not check them.
"""

from __future__ import annotations

import re
from typing import Literal

from intercode.databases.convert import Progress
from intercode.databases.convert.schema import ColumnSchema, DatabaseSchema, TableSchema
from intercode.databases.convert.schema_types import ColumnType, fit
from intercode.sql_identifiers import quote_identifier

Dialect = Literal["mysql", "postgres", "duckdb"]

_TYPES: dict[Dialect, dict[str, str]] = {
    "mysql": {"integer": "INT", "double": "DOUBLE", "blob": "LONGBLOB", "datetime": "DATETIME"},
    "postgres": {"double": "DOUBLE PRECISION", "blob": "BYTEA", "datetime": "TIMESTAMP"},
    "duckdb": {"varchar": "VARCHAR", "text": "VARCHAR", "datetime": "TIMESTAMP"},
}
# The most characters of all VARCHAR columns together: a row of MySQL has at most 65,535 bytes.
_ROW_CHARACTERS = 12_000
_KEY_CHARACTERS = 768
_STRING = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_NOW = {
    "CURRENT_TIMESTAMP": "datetime",
    "CURRENT_DATE": "date",
    "CURRENT_TIME": "time",
    "DATETIME('NOW')": "datetime",
    "DATE('NOW')": "date",
}


def create_statements(
    schema: DatabaseSchema, dialect: Dialect, progress: Progress | None = None
) -> list[str]:
    """Return the statements that create the empty tables; run them in order, on one connection.

    Args:
        schema: The schema, a result of `intercode.databases.convert.schema.read_schema`.
        dialect: The engine's dialect.
        progress: A function that is called with a line for each part that is left out.
    """
    report_line = progress or (lambda line: None)
    for line in schema.omissions:
        report_line(f"left out: {line}")
    statements = []
    if dialect == "mysql":
        # In strict mode MySQL cuts no text. The other mode makes 0 an ordinary number in a column
        # that numbers rows.
        modes = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO"
        statements.append(f"SET @intercode_sql_mode = @@sql_mode, sql_mode = '{modes}'")
        statements.append("SET foreign_key_checks = 0, unique_checks = 0")
    for table in schema.tables:
        statements += _TableDdlWriter(schema, table, dialect, report_line).statements()
    return statements


def view_statements(
    schema: DatabaseSchema, dialect: Dialect, progress: Progress | None = None
) -> list[str]:
    """Return the statements that create the views, for `intercode.databases.convert.make_views`.

    Args:
        schema: The schema, a result of `intercode.databases.convert.schema.read_schema`.
        dialect: The engine's dialect.
        progress: A function that is called with a line for each view that cannot be translated.
    """
    statements = []
    for view in schema.views:
        if statement := _view(view.sql, dialect):
            statements.append(statement)
        elif progress:
            progress(f"left out: the view {view.name}: it cannot be translated")
    return statements


def finish_statements(schema: DatabaseSchema, dialect: Dialect) -> list[str]:
    """Return the statements to run after all inserts and views: foreign keys, indexes, counters.

    None of the statements is necessary. If an engine refuses a statement, the caller may omit it.

    Args:
        schema: The schema, a result of `intercode.databases.convert.schema.read_schema`.
        dialect: The engine's dialect.
    """
    statements = []
    for table in schema.tables:
        name = identifier(table.name, dialect)
        if dialect != "duckdb":
            statements += _foreign_keys(table, dialect)
        for index in table.indexes:
            columns = identifiers(index.columns, dialect)
            index_name = identifier(index.name, dialect)
            statements.append(f"CREATE INDEX {index_name} ON {name} ({columns})")
        if dialect == "postgres":
            statements += _counters(table)
    if dialect == "mysql":
        statements.append("SET foreign_key_checks = 1, unique_checks = 1")
        statements.append("SET sql_mode = @intercode_sql_mode")
    return statements


def identifier(name: str, dialect: Dialect) -> str:
    """Return a name, quoted for a dialect."""
    if dialect == "mysql":
        return quote_identifier(name.rstrip(), "`")
    return quote_identifier(name.lower() if dialect == "postgres" else name)


def identifiers(names: tuple[str, ...], dialect: Dialect) -> str:
    """Return names, quoted for a dialect and separated by commas."""
    return ", ".join(identifier(name, dialect) for name in names)


class _TableDdlWriter:
    """The writer of the statements that create one table."""

    def __init__(
        self, schema: DatabaseSchema, table: TableSchema, dialect: Dialect, report_line: Progress
    ) -> None:
        self._table = table
        self._dialect: Dialect = dialect
        self._report_line = report_line
        self._keys = list(_keys(schema, table))
        varchars = sum(c.type.size for c in table.columns if c.type.kind == "varchar")
        self._is_wide = varchars > _ROW_CHARACTERS

    def statements(self) -> list[str]:
        """Return the statement that creates the table, after those that create its sequences."""
        table, dialect = self._table, self._dialect
        sequence_statements: list[str] = []
        lines = []
        for column in table.columns:
            if dialect == "duckdb" and column.next_number is not None:
                counter = identifier(f"{table.name}_{column.name}_seq", dialect)
                sequence_statements.append(f"CREATE SEQUENCE {counter} START {column.next_number}")
            lines.append(self._column(column))
        if table.primary_key:
            lines.append(f"PRIMARY KEY ({identifiers(table.primary_key, dialect)})")
        lines += [
            f"UNIQUE ({identifiers(unique_columns, dialect)})" for unique_columns in table.uniques
        ]
        ending = " DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin" if dialect == "mysql" else ""
        body = ", ".join(lines)
        return [
            *sequence_statements,
            f"CREATE TABLE {identifier(table.name, dialect)} ({body}){ending}",
        ]

    def _column(self, column: ColumnSchema) -> str:
        words = [identifier(column.name, self._dialect), self._type(column)]
        if column.ignores_case and self._dialect != "postgres":
            words.append(
                "COLLATE utf8mb4_general_ci" if self._dialect == "mysql" else "COLLATE NOCASE"
            )
        if column.not_null:
            words.append("NOT NULL")
        if column.next_number is not None:
            counter = f"{self._table.name}_{column.name}_seq".replace("'", "''")
            words.append(
                {
                    "mysql": "AUTO_INCREMENT",
                    "postgres": "GENERATED BY DEFAULT AS IDENTITY",
                    "duckdb": f"DEFAULT nextval('\"{counter}\"')",
                }[self._dialect]
            )
        elif column.default is not None and column.default.upper() != "NULL":
            if default := _default_value(column, self._dialect):
                words.append(f"DEFAULT {default}")
            else:
                default_label = f"{self._table.name}.{column.name}: {column.default}"
                self._report_line(f"left out: the default of {default_label}")
        return " ".join(words)

    def _type(self, column: ColumnSchema) -> str:
        kind = column.type
        if self._dialect == "mysql" and kind.is_text:
            return self._mysql_text(column)
        word = _TYPES[self._dialect].get(kind.kind, kind.kind.upper())
        if kind.kind == "decimal":
            return f"DECIMAL({kind.size}, {kind.scale})"
        if kind.kind == "varchar" and self._dialect == "postgres":
            return f"VARCHAR({kind.size})"
        if kind.kind == "datetime" and kind.size and self._dialect == "mysql":
            return f"DATETIME({kind.size})"
        return word

    def _mysql_text(self, column: ColumnSchema) -> str:
        """Return MySQL's type for a text column; in a key, with a length that fits the key."""
        key_width = max((len(key) for key in self._keys if column.name in key), default=0)
        if key_width:
            max_characters = _KEY_CHARACTERS // key_width
            size = (
                column.type.size
                if 0 < column.type.size <= max_characters
                else min(255, max_characters)
            )
            return f"VARCHAR({max(size, column.max_length)})"
        if column.type.kind == "varchar" and not self._is_wide:
            return f"VARCHAR({column.type.size})"
        return "LONGTEXT" if column.max_length > 16_000 else "TEXT"


def _keys(schema: DatabaseSchema, table: TableSchema) -> list[tuple[str, ...]]:
    """Return all groups of a table's columns for which MySQL has an index."""
    return [
        table.primary_key,
        *table.uniques,
        *(key.columns for key in table.foreign_keys),
        *(index.columns for index in table.indexes),
        *(
            key.targets
            for other_table in schema.tables
            for key in other_table.foreign_keys
            if key.table == table.name
        ),
    ]


def _foreign_keys(table: TableSchema, dialect: Dialect) -> list[str]:
    statements = []
    for key in table.foreign_keys:
        statement = (
            f"ALTER TABLE {identifier(table.name, dialect)} ADD FOREIGN KEY "
            f"({identifiers(key.columns, dialect)}) REFERENCES {identifier(key.table, dialect)} "
            f"({identifiers(key.targets, dialect)})"
        )
        for event, action in (("DELETE", key.on_delete), ("UPDATE", key.on_update)):
            # MySQL has no SET DEFAULT.
            if action not in ("NO ACTION", "SET DEFAULT"):
                statement += f" ON {event} {action}"
        statements.append(statement)
    return statements


def _counters(table: TableSchema) -> list[str]:
    """Return statements that make PostgreSQL's identities continue after the existing rows."""
    return [
        f"ALTER TABLE {identifier(table.name, 'postgres')} ALTER COLUMN "
        f"{identifier(column.name, 'postgres')} RESTART WITH {column.next_number}"
        for column in table.columns
        if column.next_number is not None
    ]


def _view(sql: str, dialect: Dialect) -> str | None:
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(sql, dialect="sqlite")
        if dialect == "postgres":
            for name in tree.find_all(exp.Identifier):
                name.set("this", name.name.lower())
                name.set("quoted", True)
        return tree.sql(dialect=dialect, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError:
        return None


def _default_value(column: ColumnSchema, dialect: Dialect) -> str | None:
    """Return a column's default in a dialect; None if the expression cannot be translated."""
    text = (column.default or "").strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    moment_kind = _NOW.get(re.sub(r"\s", "", text).upper())
    if moment_kind is not None:
        return _now_expression(moment_kind, column.type, dialect)
    if _STRING.fullmatch(text):
        value = text[1:-1].replace(text[0] * 2, text[0])
    elif _NUMBER.fullmatch(text):
        value = text
    else:
        return None
    try:
        fitted_value = fit(value, column.type)
    except (ValueError, ArithmeticError):
        return None
    if column.type.kind in ("integer", "bigint", "double", "decimal"):
        return str(fitted_value)
    if column.type.kind == "blob":
        return None
    literal = str(fitted_value).replace("'", "''")
    if dialect == "mysql":
        literal = literal.replace("\\", "\\\\")
        return f"('{literal}')" if column.type.is_text else f"'{literal}'"
    return f"'{literal}'"


def _now_expression(moment_kind: str, kind: ColumnType, dialect: Dialect) -> str | None:
    """Return the expression for the time of an insert, in a type; None if the type cannot hold it.

    Args:
        moment_kind: The part of the time that SQLite's default has: ``datetime``, ``date`` or
            ``time``.
        kind: The type of the column.
        dialect: The engine's dialect.
    """
    word = {"datetime": "CURRENT_TIMESTAMP", "date": "CURRENT_DATE", "time": "CURRENT_TIME"}[
        moment_kind
    ]
    if kind.kind not in ("date", "datetime", "time") and not kind.is_text:
        return None
    if dialect == "mysql":
        if kind.kind == "datetime":
            return "CURRENT_TIMESTAMP" + (f"({kind.size})" if kind.size else "")
        return f"({word})"
    target = {"datetime": "TIMESTAMP(0)", "date": "DATE", "time": "TIME(0)"}.get(kind.kind, "TEXT")
    if dialect == "duckdb":
        target = target.removesuffix("(0)")
    if kind.is_text and moment_kind == "datetime":
        return f"CAST(CAST({word} AS TIMESTAMP{'(0)' * (dialect == 'postgres')}) AS TEXT)"
    return f"CAST({word} AS {target})"
