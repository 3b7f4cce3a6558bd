"""What a database holds before anybody touches it: a file, found by the database's name.

A task names its database (`Task.db`); the dataset says where they all are: a folder, or a file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from intercode.errors import TaskError

Kind = Literal["sqlite", "duckdb", "script", "dump"]
_SUFFIXES: dict[str, Kind] = {
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".db": "sqlite",
    ".duckdb": "duckdb",
    ".sql": "script",
}
_DUMPED = re.compile(
    rb"^\s*CREATE\s+(?:DATABASE|SCHEMA)\s+(?:/\*!\d+\s+)?(?:IF\s+NOT\s+EXISTS\s*(?:\*/)?\s*)?"
    rb"`?([^`\s;/]+)`?",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Source:
    """The content of one database."""

    name: str
    """What the database is called, to those who ask it."""
    path: Path
    """The file that holds it."""
    kind: Kind
    """``sqlite`` and ``duckdb``: a database file. ``script``: SQL in SQLite's dialect that makes
    this one database. ``dump``: what ``mysqldump --databases`` writes, of which `name` is one."""
    digest: str
    """Of the file's content and the name: the same content gives it wherever it lies."""


def find(place: str | Path, name: str | None = None) -> Source:
    """The source of a database.

    Args:
        place: A folder, in which ``NAME.sqlite``, ``NAME/NAME.sqlite`` (as Spider and BIRD are
            laid out), ``NAME.duckdb`` or ``NAME.sql`` is looked for; or one such file, or a dump
            that has the database in it.
        name: The database; None: the one that `place` holds.

    Raises:
        TaskError: There is none, or several could be meant.
    """
    place = Path(place)
    if place.is_dir():
        if name is None:
            raise TaskError(f"{place}: say which of its databases (the task's field 'db')")
        for stem in (place / name, place / name / name):
            for suffix in _SUFFIXES:
                if (path := stem.parent / f"{stem.name}{suffix}").is_file():
                    return _in_file(path, name)
        raise TaskError(
            f"{place}: no database {name!r}; looked for {name} and {name}/{name} with "
            f"{', '.join(_SUFFIXES)}"
        )
    if not place.is_file():
        raise TaskError(f"{place}: there is no such database file or folder")
    if place.suffix.lower() not in _SUFFIXES:
        raise TaskError(f"{place}: a database is a file that ends in {', '.join(_SUFFIXES)}")
    return _in_file(place, name)


def names(place: str | Path) -> tuple[str, ...]:
    """The databases that a folder or a file holds, sorted."""
    place = Path(place)
    if place.is_dir():
        files = [*place.iterdir(), *(f for d in place.iterdir() if d.is_dir() for f in d.iterdir())]
        found = {f.stem for f in files if f.suffix.lower() in _SUFFIXES and f.is_file()}
        return tuple(sorted(found))
    kind, dumped, _ = _look(place, place.stat().st_mtime_ns)
    return dumped if kind == "dump" else (place.stem,)


def _in_file(path: Path, name: str | None) -> Source:
    path = path.resolve()
    kind, dumped, digest = _look(path, path.stat().st_mtime_ns)
    if kind != "dump":
        return Source(name or path.stem, path, kind, digest)
    if name is None and len(dumped) == 1:
        name = dumped[0]
    if name is None or name not in dumped:
        raise TaskError(f"{path}: has no database {name!r}, but {', '.join(dumped)}")
    section = hashlib.blake2b(f"{digest}\0{name}".encode(), digest_size=16).hexdigest()
    return Source(name, path, kind, section)


@lru_cache(maxsize=1024)
def _look(path: Path, changed: int) -> tuple[Kind, tuple[str, ...], str]:
    """Kind, the databases of a dump, digest; `changed` makes an edited file another one."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    kind = _SUFFIXES[path.suffix.lower()]
    dumped: tuple[str, ...] = ()
    if kind == "script":
        found = [match.decode() for match in _DUMPED.findall(path.read_bytes())]
        dumped = tuple(sorted(set(found)))
        kind = "dump" if dumped else "script"
    return kind, dumped, digest.hexdigest()
