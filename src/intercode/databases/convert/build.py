"""An SQLite file with the content of a source, whatever the source is: built once, and kept.

::

    ROOT/databases/DIGEST-vN.sqlite          complete, and never changed
    ROOT/databases/DIGEST-vN.sqlite.tmp-X    being built; torn, if nobody holds the lock
    ROOT/databases/DIGEST-vN.sqlite.lock     held by who builds it

where ROOT is InterCode's cache, DIGEST the source's, and N `VERSION`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from intercode.databases.source import Source
from intercode.errors import TaskError
from intercode.files import cache_root, locked

VERSION = 2
"""Of what is built from a source. Count it on with every change that makes other files."""

SCRIPT_SECONDS = 600.0
"""How long a script may run."""

Progress = Callable[[str], None]

_MAGIC = b"SQLite format 3\0"
_OTHERS = re.compile(rb"^-- (?:MySQL|MariaDB) dump|\bENGINE\s*=\s*\w", re.MULTILINE)
_STEPS = 1_000_000  # of SQLite's machine, between two looks at the clock
_WAL = 2  # the file format's versions for reading and writing, if it has a write-ahead log


def as_sqlite(source: Source, progress: Progress | None = None) -> Path:
    """An SQLite file, not to be written to, with the content of a source.

    It has no write-ahead log, so that it can be read without anything beside it. Safe among
    threads and processes: who comes second waits for the first.

    Args:
        source: What it is to hold. A plain SQLite file is given back as it is.
        progress: Is told what takes long, and what is left out.

    Raises:
        TaskError: The source cannot be read or understood.
    """
    if source.kind == "sqlite" and not _has_log(source.path):
        return source.path
    return cached(_key(source), lambda path: _build(source, path, progress or (lambda line: None)))


def cached(key: str, make: Callable[[Path], None]) -> Path:
    """The file of a key in the cache of databases, made first if it is not there.

    Args:
        key: Names its content: a file of the same key is taken for the same.
        make: Writes it to a path, at which nothing is yet.

    Raises:
        TaskError: The cache cannot be written to.
    """
    folder = cache_root() / "databases"
    path = folder / f"{key}.sqlite"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{path.name}.lock"):
            if not path.exists():
                _make(path, make)
    except OSError as error:
        raise TaskError(
            f"cannot keep databases in {folder}: {error}; set INTERCODE_CACHE to a folder that "
            "you may write, on a disk with room"
        ) from error
    return path


def _make(path: Path, make: Callable[[Path], None]) -> None:
    for torn in path.parent.glob(f"{path.name}.tmp-*"):  # we hold the lock: nobody works on it
        torn.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        make(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o444)
        temporary.rename(path)
    finally:
        for left in path.parent.glob(f"{temporary.name}*"):
            left.unlink(missing_ok=True)


def _key(source: Source) -> str:
    digest = source.digest
    log = _log(source.path)
    if source.kind == "sqlite" and log.is_file():
        # Part of the content, of which the source's digest knows nothing.
        with log.open("rb") as file:
            logged = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
        digest = hashlib.blake2b(f"{digest}\0{logged}".encode(), digest_size=16).hexdigest()
    return f"{digest}-v{VERSION}"


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _has_log(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(20)
    if header and not header.startswith(_MAGIC):
        raise TaskError(f"{path}: is no SQLite database")
    if _WAL in header[18:20]:
        return True
    log = _log(path)
    return log.is_file() and log.stat().st_size > 0


def _build(source: Source, path: Path, progress: Progress) -> None:
    progress(f"building the database {source.name} from {source.path.name}")
    try:
        if source.kind == "sqlite":
            _without_log(source.path, path)
            return
        # Nothing of it needs to survive a crash: what is torn is thrown away.
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF")
            connection.set_authorizer(_authorize)
            _FILL[source.kind](source, connection, progress)
            if connection.in_transaction:
                connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise TaskError(f"{source.path}: database {source.name!r}: {error}") from error


def _without_log(origin: Path, path: Path) -> None:
    shutil.copyfile(origin, path)
    if _log(origin).is_file():
        shutil.copyfile(_log(origin), _log(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def _authorize(action: int, *_: str | None) -> int:
    """No other file than the one that is being built."""
    denied = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _fill_from_script(source: Source, connection: sqlite3.Connection, _: Progress) -> None:
    end = time.monotonic() + SCRIPT_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    data = source.path.read_bytes()
    try:
        connection.executescript(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, sqlite3.OperationalError) as error:
        if time.monotonic() > end:
            raise TaskError(f"{source.path}: runs for over {SCRIPT_SECONDS:g} s") from error
        if _OTHERS.search(data):
            raise TaskError(
                f"{source.path}: is no script of SQLite's ({error}); a dump of MySQL or MariaDB "
                "must say its database: make it with --databases"
            ) from error
        if isinstance(error, UnicodeDecodeError):
            raise TaskError(f"{source.path}: not UTF-8 at byte {error.start}") from error
        raise


def _fill_from_dump(source: Source, connection: sqlite3.Connection, progress: Progress) -> None:
    from intercode.databases.convert import dump
    from intercode.databases.convert.dump_convert import convert

    connection.execute("BEGIN")
    convert(dump.read(source.path), source.name, connection, progress)


def _fill_from_duckdb(source: Source, connection: sqlite3.Connection, progress: Progress) -> None:
    from intercode.databases.convert.from_duckdb import convert

    connection.execute("BEGIN")
    convert(source.path, connection, progress)


_FILL: dict[str, Callable[[Source, sqlite3.Connection, Progress], None]] = {
    "script": _fill_from_script,
    "dump": _fill_from_dump,
    "duckdb": _fill_from_duckdb,
}
