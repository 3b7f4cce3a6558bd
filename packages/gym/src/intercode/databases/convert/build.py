"""Files with the content of a source, for SQLite and for DuckDB: created once, and cached.

::

    ROOT/databases/KEY.sqlite          complete, and never changed
    ROOT/databases/.KEY.sqlite.new     incomplete: a process creates the file, or was killed
    ROOT/databases/KEY.sqlite.lock     locked by the process that creates the file

ROOT is InterCode's cache folder. KEY consists of a digest of the content and of versions, such as
`VERSION`. DuckDB files have the ending ``.sqlite``, too; their keys contain ``-duckdb``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from intercode.databases.convert import Progress
from intercode.databases.source import DatabaseSource
from intercode.errors import TaskError
from intercode_sandbox.host_files import DiskBudget, atomic_file, cache_root, file_lock, hold_folder

VERSION = 3
"""The version of the SQLite files that are created from a source.

Increase the number with every change of their content.
"""
DUCKDB_VERSION = 2
"""The version of the DuckDB files. Increase the number with every change of their content."""

SCRIPT_SECONDS = 600.0
"""Time limit of a script in seconds."""

_MAGIC = b"SQLite format 3\0"
_FOREIGN_DUMP = re.compile(rb"^-- (?:MySQL|MariaDB) dump|\bENGINE\s*=\s*\w", re.MULTILINE)
_SIZES = ("max_page_count", "page_size")
_STEPS = 1_000_000  # steps of SQLite's virtual machine between two checks of the clock
_WAL = 2  # the read and write versions in the header of a file with a write-ahead log


def as_sqlite(source: DatabaseSource, progress: Progress | None = None) -> Path:
    """Return an SQLite file with the content of a source, which callers must not write to.

    The file has no write-ahead log, so readers need no files beside it. Threads and processes may
    call this function at the same time: one creates the file, and the others wait.

    Args:
        source: The content. An SQLite file without a write-ahead log is not copied: the result is
            its own path.
        progress: A function that is called with lines about slow work and omitted parts.

    Raises:
        TaskError: The source cannot be read or parsed, or the cache cannot be written to.
        UsageError: The source is a DuckDB file, and DuckDB is not installed.
    """
    try:
        if source.kind == "sqlite" and not _has_log(source.path):
            return source.path
        key = _cache_key(source)
    except OSError as error:
        raise TaskError(f"{source.path}: the database cannot be read: {error.strerror}") from error
    return get_cached_file(
        key,
        lambda path: _build_database(source, path, progress or (lambda line: None)),
    )


def as_duckdb(source: DatabaseSource, progress: Progress | None = None) -> Path:
    """Return a DuckDB file with the content of a source, which callers must not write to.

    Args:
        source: The content. A DuckDB file is not copied: the result is its own path.
        progress: A function that is called with lines about slow work and omitted parts.

    Raises:
        TaskError: The source cannot be read, DuckDB cannot hold its content, or a part of a DuckDB
            file is still in its write-ahead log.
    """
    if source.kind == "duckdb":
        log = source.path.with_name(f"{source.path.name}.wal")
        if log.is_file() and log.stat().st_size:
            raise TaskError(f"{source.path}: part of it is still in {log.name}: CHECKPOINT it")
        return source.path
    from intercode.databases.convert import duckdb

    report_line = progress or (lambda line: None)
    path = as_sqlite(source, progress)
    content = source.digest if path == source.path else path.stem
    key = f"{content}-duckdb{importlib.metadata.version('duckdb')}-v{DUCKDB_VERSION}"

    def make(new_path: Path) -> None:
        report_line(f"building the DuckDB database {source.name}")
        duckdb.from_sqlite(path, new_path, f"{source.path}: database {source.name!r}", report_line)

    return get_cached_file(key, make)


def get_cached_file(key: str, write_file: Callable[[Path], None]) -> Path:
    """Return the file of a key in the cache of databases; create a missing file.

    Args:
        key: A key that determines the content: files with the same key have the same content.
        write_file: Writes the content to a path at which no file exists.

    Raises:
        TaskError: The cache cannot be written to.
    """
    folder = cache_root() / "databases"
    path = folder / f"{key}.sqlite"
    try:
        hold_folder(folder)
        if path.exists():
            return path
        with file_lock(folder / f"{path.name}.lock"):
            if not path.exists():
                _make_file(path, write_file)
    except OSError as error:
        raise TaskError(
            f"cannot store databases in {folder}: {error}; set INTERCODE_CACHE to a folder that "
            "you may write, on a disk with room"
        ) from error
    return path


def _make_file(path: Path, write_file: Callable[[Path], None]) -> None:
    with atomic_file(path, sync=True) as temporary:
        # A killed process may have left these files. No other process uses them: this one has the
        # lock.
        _remove_database_files(temporary)
        try:
            write_file(temporary)
            temporary.chmod(0o444)
        except BaseException:
            _remove_database_files(temporary)
            raise


def _remove_database_files(path: Path) -> None:
    """Remove a file and the files that an engine has put beside it."""
    for leftover_path in path.parent.glob(f"{path.name}*"):
        leftover_path.unlink()


def _cache_key(source: DatabaseSource) -> str:
    digest = source.digest
    log = _log_path(source.path)
    if source.kind == "sqlite" and log.is_file():
        # The write-ahead log contains a part of the content, but is not included in the source's
        # digest.
        with log.open("rb") as file:
            log_digest = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
        digest = hashlib.blake2b(f"{digest}\0{log_digest}".encode(), digest_size=16).hexdigest()
    return f"{digest}-v{VERSION}"


def _log_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _has_log(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(20)
    if header and not header.startswith(_MAGIC):
        raise TaskError(f"{path}: is not an SQLite database")
    if _WAL in header[18:20]:
        return True
    log = _log_path(path)
    return log.is_file() and log.stat().st_size > 0


def _build_database(source: DatabaseSource, path: Path, progress: Progress) -> None:
    progress(f"building the database {source.name} from {source.path.name}")
    budget = DiskBudget(path.parent)
    try:
        if source.kind == "sqlite":
            _copy_without_log(source.path, path, budget)
            return
        # The file need not survive a crash: an incomplete file is discarded.
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF")
            size = connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {max(1, budget.bytes // size)}")
            connection.set_authorizer(_authorize)
            _FILLERS[source.kind](source, connection, progress)
            if connection.in_transaction:
                connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise TaskError(f"{source.path}: database {source.name!r}: {error}") from error


def _copy_without_log(origin: Path, path: Path, budget: DiskBudget) -> None:
    budget.take(sum(file.stat().st_size for file in (origin, _log_path(origin)) if file.is_file()))
    shutil.copyfile(origin, path)
    if _log_path(origin).is_file():
        shutil.copyfile(_log_path(origin), _log_path(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def _authorize(action: int, name: str | None, value: str | None, *_: str | None) -> int:
    """Deny access to other files, and ignore pragmas that would change the size limit of the file.

    Pragmas may read the sizes, because modules of virtual tables read them.
    """
    if action == sqlite3.SQLITE_PRAGMA and str(name).lower() in _SIZES and value is not None:
        return sqlite3.SQLITE_IGNORE
    denied = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _fill_from_script(source: DatabaseSource, connection: sqlite3.Connection, _: Progress) -> None:
    end = time.monotonic() + SCRIPT_SECONDS
    # SQLite sorts in the temporary folder, whose disk space has a separate budget.
    sort_budget = DiskBudget(Path(tempfile.gettempdir()))
    connection.set_progress_handler(
        lambda: time.monotonic() > end or sort_budget.is_spent(), _STEPS
    )
    script = source.path.read_bytes()
    try:
        connection.executescript(script.decode("utf-8-sig"))
    except (UnicodeDecodeError, sqlite3.OperationalError) as error:
        if time.monotonic() > end:
            raise TaskError(f"{source.path}: runs for over {SCRIPT_SECONDS:g} s") from error
        if sort_budget.is_spent() or "is full" in str(error):
            raise TaskError(
                f"{source.path}: needs more than half of the free disk space"
            ) from error
        if _FOREIGN_DUMP.search(script):
            raise TaskError(
                f"{source.path}: is not a script of SQLite's ({error}); a dump of MySQL or "
                "MariaDB must name its databases: write the dump with --databases"
            ) from error
        if isinstance(error, UnicodeDecodeError):
            raise TaskError(f"{source.path}: not UTF-8 at byte {error.start}") from error
        raise


def _fill_from_dump(
    source: DatabaseSource, connection: sqlite3.Connection, progress: Progress
) -> None:
    from intercode.databases.convert import dump, mysql_dump_to_sqlite

    connection.execute("BEGIN")
    mysql_dump_to_sqlite.convert(dump.read(source.path), source.name, connection, progress)


def _fill_from_duckdb(
    source: DatabaseSource, connection: sqlite3.Connection, progress: Progress
) -> None:
    from intercode.databases.convert import duckdb

    connection.execute("BEGIN")
    duckdb.to_sqlite(source.path, connection, progress)


_FILLERS: dict[str, Callable[[DatabaseSource, sqlite3.Connection, Progress], None]] = {
    "script": _fill_from_script,
    "dump": _fill_from_dump,
    "duckdb": _fill_from_duckdb,
}
