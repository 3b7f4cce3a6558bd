"""SQLite in a worker: sessions that start on the pristine file and copy it when they write.

The module has four parts: the database, the authorizer, the split of an action into statements, and
the redirection. SQLite's compiler consults the authorizer for each statement. The redirection lets
SQLite open the descriptor of the pristine file under a path.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import quote

from intercode.databases.inside import worker
from intercode.databases.inside.worker import Message, ResultRowCollector

_STEPS = 10_000
"""Steps of SQLite's virtual machine between two checks of the clock: well under 1 ms."""
_MAX_VALUE_BYTES = 1 << 28
_LIMIT_LENGTH = 0  # sqlite3.SQLITE_LIMIT_LENGTH, since Python 3.11
_HIDDEN_COLUMN = 1
_TABLES = (
    "SELECT name, type, sql FROM main.sqlite_master WHERE type IN ('table', 'view') "
    "AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name"
)
_TRIGGERS = (
    "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' "
    "AND tbl_name = ? COLLATE NOCASE ORDER BY name"
)
_VIRTUAL_TABLE = re.compile(
    r"CREATE\s+VIRTUAL\s.*?\sUSING\s+(?P<kind>\W?(?P<module>\w+).*)", re.I | re.S
)
_FTS, _RTREE = ("content", "segments", "segdir", "docsize", "stat"), ("node", "parent", "rowid")
_SHADOWS = {
    **dict.fromkeys(("fts3", "fts4"), _FTS),
    "fts5": ("data", "idx", "content", "docsize", "config"),
    **dict.fromkeys(("rtree", "rtree_i32", "geopoly"), _RTREE),
}
"""Module of a virtual table → name suffixes of the tables in which the module keeps rows."""
_INDEX = "SELECT sql FROM main.sqlite_master WHERE type = 'index' AND name = ?"
_READ_ACTIONS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_CHANGE_ACTIONS = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
_CATALOGUES = {"sqlite_master", "sqlite_temp_master", "sqlite_schema", "sqlite_temp_schema"}
_ASKING_PRAGMAS = {
    *("collation_list", "compile_options", "foreign_key_check", "foreign_key_list"),
    *("function_list", "index_info", "index_list", "index_xinfo", "integrity_check"),
    *("module_list", "pragma_list", "quick_check", "table_info", "table_list", "table_xinfo"),
}
"""Pragmas that only read, even with an argument."""
_TELLING_PRAGMAS = {
    *("application_id", "auto_vacuum", "cache_size", "case_sensitive_like", "defer_foreign_keys"),
    *("encoding", "foreign_keys", "freelist_count", "max_page_count", "page_count", "page_size"),
    *("query_only", "recursive_triggers", "schema_version", "synchronous", "temp_store"),
    "user_version",
}
"""Pragmas that only read if they have no argument."""
_CLOSED_PRAGMAS = {
    "data_store_directory",
    "hard_heap_limit",
    "soft_heap_limit",
    "temp_store_directory",
    "writable_schema",
}
"""Pragmas that have an effect outside the session, or that can produce a broken file."""
_VACUUM = "vacuum_db"
"""The name of the database that a VACUUM statement attaches while it rewrites the file."""
_SETTINGS = (
    *("temp_store", "analysis_limit", "automatic_index", "busy_timeout", "cache_size"),
    *("cache_spill", "cell_size_check", "checkpoint_fullfsync", "count_changes"),
    *("defer_foreign_keys", "empty_result_callbacks", "foreign_keys", "full_column_names"),
    *("fullfsync", "ignore_check_constraints", "journal_mode", "journal_size_limit"),
    *("legacy_alter_table", "locking_mode", "max_page_count", "mmap_size", "read_uncommitted"),
    *("recursive_triggers", "reverse_unordered_selects", "secure_delete", "short_column_names"),
    *("synchronous", "threads", "trusted_schema", "wal_autocheckpoint", "query_only"),
)
"""Pragmas that are settings of a connection, in the order in which a session restores them.

The first pragma empties the temporary schema. The last pragma forbids all further writes.
"""
_TEMPORARY = "SELECT type, name FROM temp.sqlite_master WHERE type IN ('table', 'view', 'trigger')"
_WITH_TEMPORARY = ("CREATE TEMP TABLE fork_counts (x)", "DROP TABLE temp.fork_counts")
_WITHOUT_TEMPORARY = ("PRAGMA temp_store = 2", "PRAGMA temp_store = 0")
"""Statements that give a session an empty temporary schema, or no temporary schema.

The result of ``PRAGMA database_list`` shows whether a session has such a schema.
"""
_MAX_COUNTED_ROWS = 100_000
_CLOSED_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]
      | (?P<end>;)
      | [^\s'"`\[;/-]+ | .""",
    re.DOTALL | re.VERBOSE,
)
_SYNTAX_ERROR = re.compile(r'near "(.*)": syntax error', re.DOTALL)
_PATH, _INT = ctypes.c_char_p, ctypes.c_int
_Open = ctypes.CFUNCTYPE(_INT, _PATH, _INT, _INT, use_errno=True)
_SetSystemCall = ctypes.CFUNCTYPE(_INT, ctypes.c_void_p, _PATH, ctypes.c_void_p)
_VFS_FIELDS = (
    "pNext zName pAppData xOpen xDelete xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose "
    "xRandomness xSleep xCurrentTime xGetLastError xCurrentTimeInt64"
)


class SQLiteDatabase(worker.EmbeddedDatabase):
    """A database of SQLite."""

    suffix = "sqlite"
    error = sqlite3.Error
    no_space_error = (sqlite3.OperationalError, "database or disk is full")
    connection: sqlite3.Connection

    def __init__(self) -> None:
        super().__init__()
        self.redirection = SqliteOpenHook()
        self.authorizer = SqliteAuthorizer()

    # -- sessions --------------------------------------------------------------------------------

    def connect(self, writable: bool) -> None:
        """Connect to the copy, or to the pristine file under the copy's path.

        If the redirection is not installed, the session reads a copy, too.
        """
        self.redirection.descriptors.clear()
        if not writable and self.redirection.is_installed:
            self.redirection.descriptors[os.fsencode(self.path)] = self.pristine_descriptor
        elif not self.path.exists():
            worker.copy_pristine(self.pristine_descriptor, self.path)
        address = f"file:{quote(str(self.path))}?" + (
            "mode=rw" if writable else "mode=ro&immutable=1"
        )
        self.connection = connection = sqlite3.connect(
            address, uri=True, isolation_level=None, cached_statements=0
        )
        connection.text_factory = _text
        connection.set_progress_handler(self.is_late, _STEPS)
        connection.setlimit(_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        self.authorizer.writable = writable
        connection.set_authorizer(self.authorizer)

    def is_late(self) -> bool:
        """Return whether the running statement has reached its limit, so SQLite interrupts it."""
        return self.collector.is_late()

    # -- actions ---------------------------------------------------------------------------------

    def execute(self, sql: str, collector: ResultRowCollector) -> Message:
        """Run the statements of an action, up to the first failure."""
        self.collector = collector
        results: list[Message] = []
        failure, has_timed_out = None, False
        for start, statement in split(sql):
            try:
                results.append(self.run(statement))
            except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
                failure, has_timed_out = _failure(error, statement, start), collector.is_late()
            if failure is None and collector.is_late():
                has_timed_out = True  # for instance, the action has very many statements
            if failure is not None or has_timed_out:
                break
        return [
            results,
            collector.timeout_failure() if has_timed_out else failure,
            has_timed_out,
            self.authorizer.writable,
        ]

    def run(self, statement: str) -> Message:
        """Run one statement. If it does more than read, run it on a copy of the database."""
        try:
            return self.result(statement)
        except sqlite3.DatabaseError:
            if self.authorizer.writable or not self.authorizer.is_write_refused:
                raise
        self.make_writable()
        return self.result(statement)

    def result(self, statement: str) -> Message:
        """Run one statement on the current connection."""
        self.authorizer.is_write_refused = self.authorizer.has_changes = False
        with closing(self.connection.execute(statement)) as cursor:
            columns = [column[0] for column in cursor.description or ()]
            result = self.collector.result(columns, cursor, None)
        if self.authorizer.has_changes:
            result[-1] = self.connection.execute("SELECT changes()").fetchone()[0]
        return result

    # -- state -----------------------------------------------------------------------------------

    def state(self, collector: ResultRowCollector) -> Message:
        """Return all tables and views of the main schema.

        A virtual table's module keeps its rows in other tables. These tables are left out: even for
        equal rows, their bytes depend on the order of changes.
        """
        self.collector = collector
        try:
            self.end_transaction()
            catalog_rows = self.connection.execute(_TABLES).fetchall()
            virtual_tables = {
                name: match for name, _, sql in catalog_rows if (match := _VIRTUAL_TABLE.match(sql))
            }
            if virtual_tables and not self.authorizer.writable:
                # The module of a virtual table writes even when the table is only read.
                self.make_writable()
            shadow_names = {
                shadow_name
                for name, kind in virtual_tables.items()
                for shadow_name in _shadows(name, kind)
            }
            return [
                [
                    *self.rows(name, kind, name in virtual_tables, collector),
                    self.constraints(name, virtual_tables.get(name)) if kind == "table" else [],
                    sql,
                    [[*trigger] for trigger in self.connection.execute(_TRIGGERS, [name])],
                ]
                for name, kind, sql in catalog_rows
                if name.lower() not in shadow_names
            ]
        except (sqlite3.Error, MemoryError) as error:
            raise OSError(str(error) or "out of memory") from error

    def rows(
        self, name: str, kind: str, is_virtual: bool, collector: ResultRowCollector
    ) -> Message:
        """Return a table or view with its rows; a virtual table that cannot be read has none."""
        read_kind = "view" if is_virtual else kind
        name, _, columns, rows = self.table(name, read_kind, collector, partial(self.read, name))
        return [name, kind, columns, rows]

    # -- saving ----------------------------------------------------------------------------------

    def prepare_save(self) -> tuple[bool, list[str], list[str]]:
        """Return whether a copy exists, statements for the session's settings, and lost parts."""
        if not self.authorizer.writable:
            return False, [], []
        if self.connection.in_transaction:
            raise OSError("a transaction is open")
        ask = self.connection.execute
        pragmas = self.pragmas()
        counts = ask("SELECT total_changes(), changes(), last_insert_rowid()").fetchone()
        has_temporary = any(row[1] == "temp" for row in ask("PRAGMA database_list").fetchall())
        # A query of the temporary schema would create the schema, so it runs only if one exists.
        objects = ask(_TEMPORARY).fetchall() if has_temporary else []
        # The checkpoint writes the log's changes to the database's file.
        ask("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchall()
        omissions = [f"temporary {kind} {name}" for kind, name in objects]
        if (statements := count_statements(*counts)) is None:
            omissions, statements = [*omissions, "the counts of changed rows"], []
        if has_temporary:
            statements += _WITH_TEMPORARY
        elif statements:
            statements += _WITHOUT_TEMPORARY
        return True, statements + pragmas, omissions

    def pragmas(self) -> list[str]:
        """Return statements for all settings that differ from the settings of a new session."""
        fresh_connection = sqlite3.connect(self.path.with_name("fresh.tmp"))
        with closing(fresh_connection):
            ask_session, ask_fresh = self.connection.execute, fresh_connection.execute
            pragma_queries = [(name, f"PRAGMA {name}") for name in _SETTINGS]
            values = [
                (name, ask_session(ask).fetchall(), ask_fresh(ask).fetchall())
                for name, ask in pragma_queries
            ]
        self.path.with_name("fresh.tmp").unlink(missing_ok=True)
        sensitivity_settings = (
            ["case_sensitive_like = 1"]
            if not ask_session("SELECT 'a' LIKE 'A'").fetchone()[0]
            else []
        )
        changed_settings = [
            f"{name} = {value[0][0]}" for name, value, fresh_value in values if value != fresh_value
        ]
        return [f"PRAGMA {setting}" for setting in sensitivity_settings + changed_settings]

    def end_transaction(self) -> None:
        """Commit an open transaction; if SQLite refuses, roll back.

        A deferred foreign key that is violated is a reason for a refusal.
        """
        if self.connection.in_transaction:
            try:
                self.connection.execute("COMMIT")
            except sqlite3.Error:
                self.connection.execute("ROLLBACK")

    def read(self, name: str) -> tuple[Message, Iterable[Any]]:
        """Return the columns and the rows of a table or view in the main schema."""
        rows = self.connection.execute(f"SELECT * FROM main.{_quote_name(name)}")
        return [
            [column[1], column[2]]
            for column in self.ask("table_xinfo", name)
            if column[6] != _HIDDEN_COLUMN
        ], rows

    def constraints(self, name: str, virtual_match: re.Match[str] | None = None) -> list[Message]:
        """Return the constraints of a table, without checks, which the table's definition contains.

        A virtual table's constraints are its module and the module's arguments.
        """
        if virtual_match is not None:
            return [["virtual", [], virtual_match["kind"]]]
        columns = self.ask("table_xinfo", name)
        rules: list[Message] = [["primary key", self.key(name), ""]] if self.key(name) else []
        for _, column, _, not_null, default, _, hidden_kind in columns:
            rules += [["not null", [column], ""]] * bool(not_null)
            rules += [["default", [column], default]] * (default is not None)
            rules += [["generated", [column], ""]] * (hidden_kind > _HIDDEN_COLUMN)
        for _, index, is_unique, origin, is_partial, *_ in self.ask("index_list", name):
            if is_unique and origin != "pk":
                names = [row[2] for row in self.ask("index_info", index)]
                sql = self.connection.execute(_INDEX, [index]).fetchone()[0]
                # For an index over expressions or some rows, the constraint has the text after ON.
                has_condition = is_partial or None in names
                text = re.split(r"\bON\b", sql, maxsplit=1, flags=re.I)[1] if has_condition else ""
                rules.append(["unique", [n for n in names if n is not None], text])
        keys: dict[int, list[Any]] = {}
        for key_number, _, table, column, target, update_rule, delete_rule, *_ in self.ask(
            "foreign_key_list", name
        ):
            key = keys.setdefault(
                key_number, [table, [], [], f"update {update_rule}, delete {delete_rule}"]
            )
            key[1].append(column)
            key[2] += [] if target is None else [target]
        for table, source_columns, targets, actions in keys.values():
            target_text = ", ".join(targets or self.key(table))
            rules.append(["foreign key", source_columns, f"{table} ({target_text}), {actions}"])
        return rules

    def key(self, name: str) -> list[str]:
        """Return the columns of a table's primary key."""
        columns = self.ask("table_xinfo", name)
        return [
            column_row[1]
            for column_row in sorted(columns, key=lambda column: column[5])
            if column_row[5]
        ]

    def ask(self, pragma: str, name: str) -> list[Any]:
        """Return the rows that a pragma gives for a table or index in the main schema."""
        return self.connection.execute(f"PRAGMA main.{pragma}({_quote_name(name)})").fetchall()


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shadows(name: str, virtual_match: re.Match[str]) -> Iterator[str]:
    for end in _SHADOWS.get(virtual_match["module"].lower(), ()):
        yield f"{name}_{end}".lower()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _failure(error: Exception, statement: str, start: int) -> Message:
    message = str(error) or "out of memory"
    code = getattr(error, "sqlite_errorname", "")
    # SQLite gives this code to whichever statement reads the schema first.
    if code == "SQLITE_SCHEMA":
        code = "SQLITE_ERROR"
    return [message, code, position(message, statement, start)]


class SqliteAuthorizer:
    """The authorizer that SQLite's compiler consults for each operation of a statement.

    While `writable` is False, the authorizer permits only statements that read.
    """

    def __init__(self) -> None:
        self.writable = False
        self.is_write_refused = False
        """Whether the last statement was refused only because it does more than read."""
        self.has_changes = False
        """Whether the last statement changes rows."""

    def __call__(
        self,
        action: int,
        first_argument: str | None,
        second_argument: str | None,
        database: str | None,
        origin: object,
    ) -> int:
        """Return the code ``SQLITE_OK`` to permit an operation, or ``SQLITE_DENY``."""
        if (
            action == sqlite3.SQLITE_FUNCTION
            and (second_argument or "").lower() in _CLOSED_FUNCTIONS
        ):
            return sqlite3.SQLITE_DENY
        if action in _READ_ACTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and self._has_only_reads(
            first_argument, second_argument
        ):
            return sqlite3.SQLITE_OK
        if _is_forbidden(action, first_argument, second_argument):
            return sqlite3.SQLITE_DENY
        if action in _CHANGE_ACTIONS and first_argument not in _CATALOGUES and database != _VACUUM:
            self.has_changes = True
        if not self.writable:
            self.is_write_refused = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _has_only_reads(self, name: str | None, argument: str | None) -> bool:
        name = (name or "").lower()
        return name in _ASKING_PRAGMAS or (name in _TELLING_PRAGMAS and argument is None)


def _is_forbidden(action: int, first_argument: str | None, second_argument: str | None) -> bool:
    if action == sqlite3.SQLITE_PRAGMA:
        return (first_argument or "").lower() in _CLOSED_PRAGMAS
    # A plain VACUUM is permitted: it attaches a file without a name. A file with a name is refused;
    # VACUUM INTO attaches such a file.
    return action == sqlite3.SQLITE_ATTACH and first_argument != ""


def split(sql: str) -> Iterator[tuple[int, str]]:
    """Split an action into statements by SQLite's own lexical rules.

    Yields:
        The position and the text of each statement. A comment alone is no statement.
    """
    start, empty = 0, True
    for token in _TOKEN.finditer(sql):
        if token["end"]:
            statement = sql[start : token.end()]
            if empty:
                start = token.end()
            elif sqlite3.complete_statement(statement):
                # The semicolon is not inside the body of a trigger.
                yield start, statement
                start, empty = token.end(), True
        elif empty and not token["space"]:
            start, empty = token.start(), False
    if not empty:
        yield start, sql[start:]


def count_statements(total_count: int, last_count: int, rowid: int) -> list[str] | None:
    """Return statements after which a new session reports the same counts of changes as another.

    Args:
        total_count: The value of ``total_changes()`` in the other session.
        last_count: The value of ``changes()`` in the other session.
        rowid: The value of ``last_insert_rowid()`` in the other session.

    Returns:
        The statements; an empty list if all values are 0. None if more than 100,000 rows would have
        to be inserted, or if no statements give these counts.
    """
    if (total_count, last_count, rowid) == (0, 0, 0):
        return []
    earlier_count = total_count - last_count
    if (
        not total_count
        or not 0 <= earlier_count <= total_count <= _MAX_COUNTED_ROWS
        or rowid - total_count < -(1 << 63)
    ):
        return None
    group_counts = [earlier_count, last_count] if last_count else [earlier_count]
    statements = []
    for count in filter(None, group_counts):
        numbers_query = f"SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}"
        statements += [
            "CREATE TEMP TABLE fork_counts (x)",
            f"INSERT INTO temp.fork_counts (rowid) WITH RECURSIVE numbers (n) AS ({numbers_query}) "
            f"SELECT {rowid} - {count} + n FROM numbers",
            "DROP TABLE temp.fork_counts",
        ]
    if not last_count:
        empty_update = "UPDATE temp.fork_counts SET x = 1 WHERE 0"
        statements = [*statements[:-1], empty_update, statements[-1]]
    return statements


def position(message: str, statement: str, start: int) -> int | None:
    """Return the position of an error in the action, if its message determines it; None if not.

    Args:
        message: SQLite's message.
        statement: The statement with the error.
        start: The position of the statement in the action.
    """
    match = _SYNTAX_ERROR.fullmatch(message)
    if match is None or not match[1] or statement.count(match[1]) != 1:
        return None
    return start + statement.index(match[1])


class _SqliteVfs(ctypes.Structure):
    _fields_ = (
        *(("iVersion", _INT), ("szOsFile", _INT), ("mxPathname", _INT)),
        *((name, ctypes.c_void_p) for name in _VFS_FIELDS.split()),
        ("xSetSystemCall", ctypes.c_void_p),
    )


class SqliteOpenHook:
    """A replacement of SQLite's system call ``open`` that opens a descriptor under a chosen path.

    SQLite opens the target of a symlink. For the symlink ``/proc/self/fd/N`` of a file in memory,
    no file exists at the target's path. But SQLite's file layer permits programs to replace a
    system call (``xSetSystemCall``, made for sandboxes). With this replacement SQLite needs no copy
    of the file. The replacement lasts as long as the process.
    """

    def __init__(self) -> None:
        self.descriptors: dict[bytes, int] = {}
        # SQLite keeps only the address of the function, so this reference keeps the object alive.
        self._open = _Open(self._open_redirected)
        self.is_installed = self._install()
        """Whether SQLite accepted the replacement: some builds hide the necessary symbols."""

    def _install(self) -> bool:
        try:
            import _sqlite3

            library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
            library.sqlite3_vfs_find.restype = ctypes.c_void_p
            address = library.sqlite3_vfs_find(None)
            vfs = _SqliteVfs.from_address(address)
            callback_address = ctypes.cast(self._open, ctypes.c_void_p)
            return vfs.iVersion >= 3 and not _SetSystemCall(vfs.xSetSystemCall)(
                address, b"open", callback_address
            )
        except (AttributeError, ImportError, OSError):
            return False

    def _open_redirected(self, path: bytes, flags: int, mode: int) -> int:
        try:
            descriptor = self.descriptors.get(path)
            if descriptor is not None:
                return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
            return os.open(path, flags, mode)
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1


def main(channel: socket.socket) -> None:
    """Serve requests, in a worker that `SandboxBackend.worker` starts.

    Args:
        channel: The socket to the host.
    """
    worker.serve(channel, SQLiteDatabase())
