"""Sources of databases: files with the pristine content, found by the database's name.

A task names its database (`Task.db`). The dataset, or the option ``databases``, names the folder or
file that holds the databases of all its tasks.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from intercode.errors import TaskError
from intercode_sandbox.path_containment import resolve_data_path

Kind = Literal["sqlite", "duckdb", "script", "dump"]
_SUFFIXES: dict[str, Kind] = {
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".db": "sqlite",
    ".duckdb": "duckdb",
    ".sql": "script",
}
_DUMP_DATABASE = re.compile(
    rb"^\s*CREATE\s+(?:DATABASE|SCHEMA)\s+(?:/\*!\d+\s+)?(?:IF\s+NOT\s+EXISTS\s*(?:\*/)?\s*)?"
    rb"`?([^`\s;/]+)`?",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class DatabaseSource:
    """The pristine content of one database."""

    name: str
    """The name under which an agent sees the database."""
    path: Path
    """The file that holds the content."""
    kind: Kind
    """The kind of the file.

    ``sqlite`` and ``duckdb`` are database files. A ``script`` is SQL in SQLite's dialect that
    creates this one database. A ``dump`` is an output of ``mysqldump --databases`` that includes
    `name`.
    """
    digest: str
    """Digest of the file's content, and for a dump also of the name. The path has no influence."""


def find(location: str | Path, name: str | None = None) -> DatabaseSource:
    """Return the source of a database.

    Args:
        location: A folder or a file. A folder holds ``NAME.sqlite`` or ``NAME/NAME.sqlite`` (the
            layout of Spider and BIRD). Other endings are ``.sqlite3``, ``.db``, ``.duckdb`` and
            ``.sql``; the first existing file is used. A file is a database file, a script, or a
            dump that includes the database.
        name: The name of the database; a folder requires a name. None: the only database of a
            file. The name of a single database file is its stem.

    Raises:
        TaskError: No database matches, or the name is missing for a folder or for a dump of
            several databases.
    """
    location = Path(location)
    if location.is_dir():
        if name is None:
            raise TaskError(f"{location}: name one of its databases in the task's field 'db'")
        for stem in (location / name, location / name / name):
            for suffix in _SUFFIXES:
                if (path := stem.parent / f"{stem.name}{suffix}").is_file():
                    return _source_in_file(_resolve_inside(location, path), name)
        raise TaskError(
            f"{location}: no database {name!r}; looked for {name} and {name}/{name} with "
            f"{', '.join(_SUFFIXES)}"
        )
    if not location.is_file():
        raise TaskError(f"{location}: there is no such database file or folder")
    if location.suffix.lower() not in _SUFFIXES:
        raise TaskError(f"{location}: a database is a file that ends in {', '.join(_SUFFIXES)}")
    source = _source_in_file(location, name)
    if source.kind != "dump" and source.name != location.stem:
        raise TaskError(f"{location}: no database {name!r}, but {location.stem!r}")
    return source


def _resolve_inside(folder: Path, path: Path) -> Path:
    try:
        return resolve_data_path(folder, path.relative_to(folder))
    except ValueError as error:
        raise TaskError(f"a task's database: {error}; name the file itself (databases=…)") from None


def names(location: str | Path) -> tuple[str, ...]:
    """Return the sorted names of the databases in a folder or a file, as `find` knows them.

    Raises:
        TaskError: The file or a folder cannot be read.
    """
    location = Path(location)
    try:
        if location.is_dir():
            return _names_in_folder(location)
    except OSError as error:
        raise TaskError(f"{error.filename}: cannot be read: {error.strerror}") from error
    kind, dump_names, _ = _read_facts(location)
    return dump_names if kind == "dump" else (location.stem,)


def _names_in_folder(location: Path) -> tuple[str, ...]:
    files = [
        *location.iterdir(),
        *(
            file
            for folder in location.iterdir()
            if folder.is_dir()
            for file in folder.iterdir()
            if file.stem == folder.name  # no other file has a name that `find` knows
        ),
    ]
    stems = {f.stem for f in files if f.suffix.lower() in _SUFFIXES and f.is_file()}
    return tuple(sorted(stems))


def _source_in_file(path: Path, name: str | None) -> DatabaseSource:
    path = path.resolve()
    kind, dump_names, digest = _read_facts(path)
    if kind != "dump":
        return DatabaseSource(name or path.stem, path, kind, digest)
    if name is None and len(dump_names) == 1:
        name = dump_names[0]
    if name is None:
        raise TaskError(
            f"{path}: name one of its databases in the task's field 'db': {', '.join(dump_names)}"
        )
    if name not in dump_names:
        raise TaskError(f"{path}: no database {name!r}, but {', '.join(map(repr, dump_names))}")
    section = hashlib.blake2b(f"{digest}\0{name}".encode(), digest_size=16).hexdigest()
    return DatabaseSource(name, path, kind, section)


def _read_facts(path: Path) -> tuple[Kind, tuple[str, ...], str]:
    try:
        return _inspect_file(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise TaskError(f"{path}: the database cannot be read: {error.strerror}") from error


@lru_cache(maxsize=1024)
def _inspect_file(path: Path, timestamp: int) -> tuple[Kind, tuple[str, ...], str]:
    """Return a file's kind, the names of the databases in a dump, and the digest of the content.

    Args:
        path: The file.
        timestamp: The file's modification time, by which the cache notices that the file was
            edited.
    """
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    kind = _SUFFIXES[path.suffix.lower()]
    dump_names: tuple[str, ...] = ()
    if kind == "script":
        database_names = [match.decode() for match in _DUMP_DATABASE.findall(path.read_bytes())]
        dump_names = tuple(sorted(set(database_names)))
        kind = "dump" if dump_names else "script"
    return kind, dump_names, digest.hexdigest()
