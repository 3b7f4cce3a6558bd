"""The ``CREATE TABLE`` of a MySQL dump, as SQLite's.

``SHOW CREATE TABLE`` writes a small and regular language, the same in all versions of MySQL and
MariaDB; it is read here directly, as general parsers of SQL stumble over some types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from intercode import syntax
from intercode.errors import TaskError

_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
_NAME = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TOKEN = re.compile(rf"{_QUOTED}|[(),]", re.DOTALL)
_NAMES = re.compile(r"`((?:[^`]|``)+)`|([\w$]+)")
_HEAD = re.compile(
    rf"CREATE\s+(?:TEMPORARY\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:{_NAME}\s*\.\s*)?({_NAME})\s*\(",
    re.IGNORECASE,
)
_COLUMN = re.compile(
    rf"({_NAME})\s+([a-z]+(?:\s+precision|\s+varying)?)\s*(\((?:{_QUOTED}|[^()'\"])*\))?(.*)",
    re.IGNORECASE | re.DOTALL,
)
_KEY = re.compile(
    rf"(?:CONSTRAINT\s+(?:{_NAME}\s+)??)?"
    r"(?P<kind>PRIMARY\s+KEY|UNIQUE(?:\s+(?:KEY|INDEX))?|FOREIGN\s+KEY|CHECK"
    r"|(?:FULLTEXT|SPATIAL)(?:\s+(?:KEY|INDEX))?|KEY|INDEX)"
    rf"\s*(?:(?P<name>{_NAME})\s*)?(?:USING\s+\w+\s*)?\((?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_REFERENCE = re.compile(
    rf"\)\s*REFERENCES\s+(?:{_NAME}\s*\.\s*)?(?P<table>{_NAME})\s*\((?P<columns>[^)]*)\)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ACTION = re.compile(
    r"ON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|RESTRICT|SET\s+NULL|SET\s+DEFAULT|NO\s+ACTION)",
    re.IGNORECASE,
)
_COMMENT = re.compile(rf"\bCOMMENT\s*=?\s*(?:{_QUOTED})", re.IGNORECASE | re.DOTALL)
_DEFAULT = re.compile(
    rf"\bDEFAULT\s+(?:_\w+\s*)?(?:(?P<text>{_QUOTED})|b'(?P<bits>[01]*)'|(?P<number>[-+]?[\d.][\de.+-]*)"
    r"|(?P<now>CURRENT_TIMESTAMP|NOW)\b)",
    re.IGNORECASE | re.DOTALL,
)
_COLLATED = re.compile(r"\bCOLLATE\s*=?\s*(\w+)", re.IGNORECASE)

_INTEGERS = {"bit", "bool", "boolean", "tinyint", "smallint", "mediumint", "int", "integer"}
_PLAIN = {"float", "double", "real", "double precision", "date", "time", "datetime", "timestamp"}
_DECIMALS = {"decimal", "numeric", "dec", "fixed"}
_SHORT_TEXTS = {"char", "varchar", "nchar", "nvarchar"}
_TEXTS = {"text", "tinytext", "mediumtext", "longtext", "enum", "set", "json"}


def convert_table(statement: str) -> list[str]:
    """MySQL's ``CREATE TABLE`` as SQLite's statements: the table, then its indexes.

    Args:
        statement: Without comments (`intercode.databases.convert.dump.plain`).

    Raises:
        TaskError: It cannot be understood.
    """
    head = _HEAD.match(statement)
    if head is None:
        raise TaskError(f"no table's definition: {statement[:80]}")
    parts, options = _parts(statement, head.end())
    return _Table(_bare(head[1]), parts, options).statements()


class _Table:
    """What a definition says, gathered part by part."""

    def __init__(self, name: str, parts: Sequence[str], options: str) -> None:
        self._name = name
        found = _COLLATED.search(options)
        self._collation = found[1] if found else ""
        self._key: tuple[str, ...] = ()
        self._constraints: list[str] = []
        self._indexes: list[str] = []
        columns = [part for part in parts if not self._add_key(part)]
        self._columns = [self._column(part) for part in columns]

    def statements(self) -> list[str]:
        lines = [*self._columns, *self._constraints]
        if self._key:
            lines.append(f"PRIMARY KEY ({quoted(self._key)})")
        made = ",\n  ".join(lines)
        return [f"CREATE TABLE {quoted([self._name])} (\n  {made}\n)", *self._indexes]

    def _add_key(self, part: str) -> bool:
        """Whether it is a key, or another constraint; then it is noted."""
        match = _KEY.match(part)
        if match is None:
            return False
        kind = match["kind"].upper().split()[0]
        names = _key_columns(match["rest"])
        if kind == "PRIMARY":
            self._key = names
        elif kind == "UNIQUE":
            self._constraints.append(f"UNIQUE ({quoted(names)})")
        elif kind == "FOREIGN":
            self._constraints.append(_foreign_key(names, match["rest"]))
        elif kind in ("KEY", "INDEX") and names:
            name = f"{self._name}_{_bare(match['name'] or '_'.join(names))}"
            self._indexes.append(
                f"CREATE INDEX {quoted([name])} ON {quoted([self._name])} ({quoted(names)})"
            )
        return True

    def _column(self, part: str) -> str:
        match = _COLUMN.match(part)
        if match is None:
            raise TaskError(f"table {self._name}: no column's definition: {part[:80]}")
        name, kind, size = _bare(match[1]), match[2].lower(), match[3] or ""
        rest = _COMMENT.sub(" ", match[4])
        flags = re.sub(_QUOTED, " ", rest, flags=re.DOTALL).upper()
        if "PRIMARY KEY" in flags:
            self._key = (name,)
        if self._key == (name,) and kind in _INTEGERS | {"bigint"}:
            # The row's own number, which SQLite counts on by itself.
            self._key = ()
            return f"{quoted([name])} INTEGER PRIMARY KEY"
        words = [quoted([name]), _declared(kind, size)]
        if "NOT NULL" in flags:
            words.append("NOT NULL")
        if re.search(r"\bUNIQUE\b", flags):
            words.append("UNIQUE")
        if default := _default(rest):
            words.append(f"DEFAULT {default}")
        if kind in _SHORT_TEXTS | _TEXTS and not self._is_exact(rest):
            words.append("COLLATE NOCASE")
        return " ".join(words)

    def _is_exact(self, rest: str) -> bool:
        found = _COLLATED.search(rest)
        collation = (found[1] if found else self._collation).lower()
        return collation == "binary" or collation.endswith(("_bin", "_cs"))


def _parts(statement: str, start: int) -> tuple[list[str], str]:
    """What stands between the commas of the outer brackets, and what follows these."""
    parts, depth = [], 1
    for token in _TOKEN.finditer(statement, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 or (token[0] == "," and depth == 1):
            parts.append(statement[start : token.start()].strip())
            start = token.end()
        if depth == 0:
            return parts, _COMMENT.sub(" ", statement[start:])
    raise TaskError(f"a table's definition is cut off: {statement[:80]}")


def _key_columns(rest: str) -> tuple[str, ...]:
    """The columns of a key, whatever length of them it takes; none for one over expressions."""
    names: list[str] = []
    depth = 1
    for token in re.finditer(rf"{_QUOTED}|[(),]|[\w$]+", rest, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            break
        if depth > 1 and token[0][0] == "`":
            return ()
        if depth == 1 and token[0] not in "(),":
            names.append(token[0])
    return tuple(_bare(name) for name in names if name.upper() not in ("ASC", "DESC"))


def _foreign_key(names: Sequence[str], rest: str) -> str:
    match = _REFERENCE.search(rest)
    if match is None:
        raise TaskError(f"a foreign key refers to nothing: {rest[:80]}")
    target = [m[2] or m[1].replace("``", "`") for m in _NAMES.finditer(match["columns"])]
    actions = "".join(f" {action.upper()}" for action in _ACTION.findall(match["rest"]))
    table = quoted([_bare(match["table"])])
    return f"FOREIGN KEY ({quoted(names)}) REFERENCES {table} ({quoted(target)}){actions}"


def _declared(kind: str, size: str) -> str:
    """A type that SQLite takes for what it is: it only looks for some syllables."""
    if kind in _INTEGERS:
        return "int" if kind in ("integer", "bool", "boolean") else kind
    if kind in _PLAIN or kind == "bigint":
        return kind
    if kind in _DECIMALS:
        return f"decimal{size or '(10)'}"
    if kind in _SHORT_TEXTS:
        return f"{kind.removeprefix('n')}{size}"
    if kind == "year":
        return "int"
    return "text" if kind in _TEXTS else "blob"


def _default(rest: str) -> str | None:
    from intercode.databases.convert.dump_values import unquote

    match = _DEFAULT.search(rest)
    if match is None:
        return None
    if match["now"]:
        return "CURRENT_TIMESTAMP"
    if match["bits"] is not None:
        return str(int(match["bits"] or "0", 2))
    if match["text"]:
        return "'" + unquote(match["text"]).replace("'", "''") + "'"
    return match["number"]


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def quoted(names: Iterator[str] | Sequence[str]) -> str:
    """Names, for SQLite, with commas between."""
    return ", ".join(map(syntax.quoted, names))
