"""The pristine files of the embedded engines: from any source, sealed, shared, never written to."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from intercode.databases import find
from intercode.databases.embedded import (
    EmbeddedDatabaseEngine,
    PristineDatabaseCache,
    PristineDatabaseFile,
)
from intercode.databases.inside import worker
from intercode.databases.inside.sqlite import SQLiteDatabase, SqliteOpenHook
from intercode.databases.inside.worker import ResultRowCollector
from intercode.errors import DatabaseError

from .test_engines import rows


def make(path: Path, then: Callable[[sqlite3.Connection], object] = lambda c: None) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a TEXT)")
        connection.execute("INSERT INTO t VALUES ('é')")
        connection.commit()
        then(connection)
    return path


def test_a_file_with_a_write_ahead_log(embedded: EmbeddedDatabaseEngine, tmp_path: Path) -> None:
    path = make(tmp_path / "a b%20?#.sqlite", lambda c: c.execute("PRAGMA journal_mode = WAL"))
    with closing(embedded.open(find(path))) as session:
        assert rows(session.execute("SELECT * FROM t")) == [("é",)]
        assert session.execute("INSERT INTO t VALUES ('x')").failure is None


def test_text_that_is_not_utf_8(sqlite: EmbeddedDatabaseEngine, tmp_path: Path) -> None:
    path = make(tmp_path / "latin.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO t VALUES (CAST(X'FF41' AS TEXT))")
        connection.commit()
    with closing(sqlite.open(find(path))) as session:
        assert rows(session.execute("SELECT * FROM t")) == [("é",), ("\udcffA",)]


def test_a_file_is_never_written_to(sqlite: EmbeddedDatabaseEngine, tmp_path: Path) -> None:
    path = make(tmp_path / "mine.sqlite")
    before = path.read_bytes()
    with closing(sqlite.open(find(path))) as session:
        session.execute("DELETE FROM t; DROP TABLE t; VACUUM")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["mine.sqlite"]


@pytest.mark.defends("peer DoS")
def test_pristine_files_are_sealed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"content")
    file = PristineDatabaseFile.from_path(path)
    assert fcntl.fcntl(file.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    for attempt in (
        lambda: os.pwrite(file.fd, b"x", 0),
        lambda: os.ftruncate(file.fd, 1),
        lambda: os.ftruncate(file.fd, 100),
        lambda: os.write(os.open(f"/proc/self/fd/{file.fd}", os.O_WRONLY), b"x"),
    ):
        with pytest.raises(PermissionError):
            attempt()
    assert os.pread(file.fd, 100, 0) == b"content"


def test_a_large_file_is_read_where_it_is(
    embedded: EmbeddedDatabaseEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, whose files no sandbox can write to."""
    monkeypatch.setattr("intercode.databases.embedded._LARGE_FILE_BYTES", 0)
    path = make(tmp_path / "large.sqlite")
    path.chmod(0o644)
    before = path.read_bytes()
    with closing(embedded.open(find(path), role="grader")) as session:
        assert rows(session.execute("SELECT * FROM t")) == [("é",)]
        session.execute("DELETE FROM t")
        assert rows(session.execute("SELECT count(*) FROM t")) == [(0,)]
    assert path.read_bytes() == before
    file = PristineDatabaseFile.from_path(path)
    assert os.readlink(f"/proc/self/fd/{file.fd}").startswith("/memfd") == (os.geteuid() != 0)
    path.chmod(0o640)
    file = PristineDatabaseFile.from_path(path)
    assert os.readlink(f"/proc/self/fd/{file.fd}").startswith("/memfd"), "others may not read it"


def test_pristine_files_are_bounded(tmp_path: Path) -> None:
    pristine = PristineDatabaseCache(size=250)
    made: list[str] = []

    def get(name: str) -> PristineDatabaseFile:
        def write() -> Path:
            made.append(name)
            (tmp_path / name).write_bytes(name.encode() * 100)
            return tmp_path / name

        return pristine.get(name, write)

    held = get("a")
    for name in ("b", "a", "c", "a", "b"):
        get(name)
    assert made == ["a", "b", "c", "b"], "the one that was not used for longest went"
    for name in ("c", "d", "e"):
        get(name)
    assert os.pread(held.fd, 1, 0) == b"a", "what is held stays"
    with pytest.raises(DatabaseError):
        pristine.get("nothing", lambda: tmp_path / "nothing")


def test_an_sqlite_that_hides_its_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be made to open a descriptor: then the file is copied at once."""
    monkeypatch.setattr(worker, "FOLDER", tmp_path)
    monkeypatch.setattr(SqliteOpenHook, "_install", lambda self: False)
    path = make(tmp_path.with_name(f"{tmp_path.name}.sqlite"))
    database = SQLiteDatabase()
    for sql, count in (("SELECT count(*) FROM t", 1), ("DELETE FROM t; SELECT 0", 0)):
        database.open(os.open(path, os.O_RDONLY), "x", False, 0)
        results, failure, _, written = database.execute(sql, ResultRowCollector(10, 10, 1000))
        assert failure is None
        assert results[-1][1] == [(count,)]
        assert written == (count == 0)
        database.close()
        assert list(tmp_path.iterdir()) == []
