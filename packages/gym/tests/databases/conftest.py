"""Engines, each started once, and a small database with every kind of value in it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from intercode.databases import DatabaseEngine, DatabaseSession, DatabaseSource, find, get_engine
from intercode.databases.embedded import EmbeddedDatabaseEngine
from intercode_sandbox import Limits

ENGINES = ["sqlite", "duckdb", "mysql", "postgresql"]
PROGRAMS = {"mysql": ["mariadbd", "mysqld"], "postgresql": ["pg_ctlcluster", "postgres"]}

SCRIPT = """
CREATE TABLE artist (
  id INTEGER PRIMARY KEY, name VARCHAR(60) NOT NULL, born DATE, country VARCHAR(20)
);
CREATE TABLE song (
  id INTEGER PRIMARY KEY, title VARCHAR(80) NOT NULL, price DECIMAL(6, 2), seconds INTEGER,
  released DATETIME, cover BLOB
);
CREATE TABLE artist_song (
  artist_id INTEGER NOT NULL REFERENCES artist (id),
  song_id INTEGER NOT NULL REFERENCES song (id),
  PRIMARY KEY (artist_id, song_id)
);
CREATE VIEW long_song AS SELECT title FROM song WHERE seconds > 200;
INSERT INTO artist VALUES
  (1, 'Björk', '1965-11-21', 'Iceland'),
  (2, '中島みゆき', '1952-02-23', 'Japan'),
  (3, 'O''Malley; "the" -- 🎸', NULL, ''),
  (4, 'Nobody', NULL, NULL);
INSERT INTO song VALUES
  (1, 'Jóga', 1.5, 305, '1997-09-15 10:30:00', X'00FF10'),
  (2, '糸', 0.99, 200, '1998-02-04 00:00:00', NULL),
  (3, 'Tie', 0.99, 200, NULL, NULL),
  (4, 'Free', 0, NULL, NULL, X'01');
INSERT INTO artist_song VALUES (1, 1), (2, 2), (2, 3), (3, 3);
"""
TABLES = {"artist": 4, "song": 4, "artist_song": 4, "long_song": 1}
"""The tables and views, and their rows."""

Open = Callable[..., DatabaseSession]


def there_is(name: str) -> bool:
    """Whether what the engine needs is installed."""
    if name == "duckdb":
        return importlib.util.find_spec("duckdb") is not None
    if name == "postgresql" and list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return True
    path = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
    return name not in PROGRAMS or any(shutil.which(p, path=path) for p in PROGRAMS[name])


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[DatabaseEngine]:
    if not there_is(request.param):
        pytest.skip(f"{request.param} is not installed here")
    found = get_engine(request.param)
    yield found
    found.close()


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> DatabaseSource:
    path = tmp_path_factory.mktemp("databases") / "music.sql"
    path.write_text(SCRIPT)
    return find(path)


@pytest.fixture
def start(engine: DatabaseEngine, source: DatabaseSource) -> Iterator[Open]:
    """Opens sessions, with limits by keyword, that are closed when the test ends."""
    opened: list[DatabaseSession] = []

    def open_one(role: str = "agent", **limits: object) -> DatabaseSession:
        wanted = Limits(**limits) if limits else None  # type: ignore[arg-type]
        opened.append(engine.open(source, wanted, role))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def session(start: Open) -> DatabaseSession:
    return start()


@pytest.fixture(scope="session", params=["sqlite", "duckdb"])
def embedded(request: pytest.FixtureRequest) -> Iterator[EmbeddedDatabaseEngine]:
    if not there_is(request.param):
        pytest.skip(f"{request.param} is not installed here")
    engine = get_engine(request.param)
    assert isinstance(engine, EmbeddedDatabaseEngine)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def sqlite() -> Iterator[EmbeddedDatabaseEngine]:
    engine = get_engine("sqlite")
    assert isinstance(engine, EmbeddedDatabaseEngine)
    yield engine
    engine.close()
