"""What a database is made of, beside its rows: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from intercode.databases.convert.schema_types import Type


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    declared: str
    """Its type in SQLite, as it was written."""
    type: Type
    """The type for what it really holds."""
    not_null: bool = False
    default: str | None = None
    """An expression of SQLite."""
    next_number: int | None = None
    """What the next row gets by itself, if the column numbers the rows."""
    ignores_case: bool = False
    """Whether its texts compare without the case of A to Z (``COLLATE NOCASE``)."""
    longest: int = 0
    """How many characters its longest text has."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Columns that refer to another table's."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]
    on_delete: str = "NO ACTION"
    on_update: str = "NO ACTION"


@dataclass(frozen=True, slots=True)
class Index:
    """An index that is no constraint."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    uniques: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[Index, ...] = ()

    def column(self, name: str) -> Column:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    sql: str
    """Its whole ``CREATE VIEW``, in SQLite's dialect."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One database."""

    tables: tuple[TableSchema, ...]
    """A table comes after those that it refers to, unless they refer to each other."""
    views: tuple[View, ...] = ()
    """A view comes after those that it reads."""
    left_out: tuple[str, ...] = ()
    """What SQLite has and other engines would refuse, in words."""
