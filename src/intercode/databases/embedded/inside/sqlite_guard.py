"""What a statement may do, decided by SQLite's own compiler as it compiles the statement."""

from __future__ import annotations

import sqlite3

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_CHANGES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
_CATALOGUES = {"sqlite_master", "sqlite_temp_master", "sqlite_schema", "sqlite_temp_schema"}

_ASKING_PRAGMAS = {
    *("collation_list", "compile_options", "foreign_key_check", "foreign_key_list"),
    *("function_list", "index_info", "index_list", "index_xinfo", "integrity_check"),
    *("module_list", "pragma_list", "quick_check", "table_info", "table_list", "table_xinfo"),
}
"""They only tell, even with an argument."""
_TELLING_PRAGMAS = {
    *("application_id", "auto_vacuum", "cache_size", "case_sensitive_like", "defer_foreign_keys"),
    *("encoding", "foreign_keys", "freelist_count", "max_page_count", "page_count", "page_size"),
    *("query_only", "recursive_triggers", "schema_version", "synchronous", "temp_store"),
    "user_version",
}
"""They only tell, without an argument."""
_CLOSED_PRAGMAS = {
    "data_store_directory",
    "hard_heap_limit",
    "soft_heap_limit",
    "temp_store_directory",
    "writable_schema",
}
"""They reach beyond the session, or make a broken file."""
_VACUUM = "vacuum_db"
"""What VACUUM calls the file that it writes."""
_CLOSED_FUNCTIONS = {"load_extension", "fts3_tokenizer"}


class Guard:
    """An authorizer. While `writable` is False only what reads is let through."""

    def __init__(self) -> None:
        self.writable = False
        self.asked_to_write = False
        """Whether a statement was refused only because it does more than read."""
        self.changes = False
        """Whether the last statement changes rows."""

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, by: object
    ) -> int:
        """What SQLite calls for each thing that a statement is about to do."""
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _CLOSED_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        if action in _READS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and self._only_tells(first, second):
            return sqlite3.SQLITE_OK
        if _never(action, first, second):
            return sqlite3.SQLITE_DENY
        if action in _CHANGES and first not in _CATALOGUES and database != _VACUUM:
            self.changes = True
        if not self.writable:
            self.asked_to_write = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _only_tells(self, name: str | None, argument: str | None) -> bool:
        name = (name or "").lower()
        return name in _ASKING_PRAGMAS or (name in _TELLING_PRAGMAS and argument is None)


def _never(action: int, first: str | None, second: str | None) -> bool:
    if action == sqlite3.SQLITE_PRAGMA:
        return (first or "").lower() in _CLOSED_PRAGMAS
    # VACUUM attaches a nameless file, VACUUM INTO one with a name.
    return action == sqlite3.SQLITE_ATTACH and first != ""
