"""Run folders as the viewer's server sees them: what is appended to them is read as it comes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intercode.episode import Episode
from intercode.errors import RecordError
from intercode.records import (
    EPISODES,
    MANIFEST,
    Key,
    Outcome,
    key_of,
    open_record,
    read_manifest,
    record_line,
)
from intercode.redaction import Redactor
from intercode.report.episodes import Row, body_of, row_of, texts_of
from intercode.report.overview import overview
from intercode.report.runs import Run, run_of, told_apart

_BATCH = 500
"""Episodes that are read before others may have the lock."""
_SHARE = 20
"""The statistics take at most one part in so many of the time."""
_LEAST = 1.0
"""Seconds between two readings of the statistics, at least."""


@dataclass(slots=True)
class _Folder:
    """A run's folder, as far as it has been read."""

    path: Path
    manifest: dict[str, Any]
    stamp: tuple[int, int]
    """Of its ``run.json``: time and inode."""
    inode: int = 0
    offset: int = 0
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    trouble: str = ""
    """The reason why it cannot be read on."""


class Library:
    """Runs that are viewed, also while they go on. Methods may be called from any thread.

    Rows are only ever appended: the last one of an episode counts. If a run's file is replaced,
    `generation` changes, and all is read once more.

    Args:
        places: Folders of runs, and folders that contain them.
        hide_gold: Whether to leave out all that may quote gold.

    Raises:
        RecordError: A place is neither, or a run cannot be read.
    """

    def __init__(self, places: Sequence[Path], *, hide_gold: bool = False) -> None:
        self.rows: list[Row] = []
        self.generation = 0
        self._places, self._hide_gold = places, hide_gold
        self._redactor = Redactor()
        self._lock = threading.Lock()
        self._folders: list[_Folder] = []
        self._offsets: list[int] = []
        self._damaged: dict[Path, str] = {}
        self._changed = 0
        self._overview: tuple[int, str] = (-1, "")
        self._due = 0.0
        for place in places:
            if not place.is_dir():
                raise RecordError(f"{place} is neither the folder of a run nor contains one")
            if (place / MANIFEST).is_file():
                read_manifest(place)
        self._find()

    def refresh(self) -> bool:
        """Read what is new, as much as one batch; return whether there may be more."""
        with self._lock:
            self._find()
            left = _BATCH
            for number, folder in enumerate(self._folders):
                left -= self._read(number, folder, left)
                if left <= 0:
                    return True
            return False

    def body(self, at: int) -> Any:
        """Return the body of the episode of a row."""
        row, offset = self.rows[at], self._offsets[at]
        return self._body(row, self._line(row, offset))

    def search(self, words: str, start: int = 0) -> Iterator[tuple[int, bool]]:
        """Yield the number of each row from a first one on, and whether its texts have the words.

        Case does not matter. What is hidden is not searched.
        """
        forms = {words, words.lower(), words.upper(), words.title()}
        wanted = {json.dumps(form)[1:-1].lower().encode() for form in forms}
        rows, offsets = self.rows, self._offsets  # others, once a file was replaced
        for at in range(start, len(rows)):
            line = self._line(rows[at], offsets[at])
            lower = line.lower()
            # The raw line has names of fields, too, and what is hidden or redacted.
            yield at, any(one in lower for one in wanted) and self._has(rows[at], line, words)

    def overview(self) -> tuple[int, str]:
        """Return the version of the report, and the report as JSON; it may be a little late."""
        with self._lock:
            now, version = time.monotonic(), self._changed
            if version == self._overview[0] or now < self._due:
                return self._overview
            runs = told_apart(
                [run_of(one.path, one.manifest, [*one.outcomes.values()]) for one in self._folders]
            )
        found = overview(runs)
        found["warnings"] += [one.trouble for one in self._folders if one.trouble]
        found["warnings"] += self._damaged.values()
        with self._lock:
            took = time.monotonic() - now
            self._due = now + max(_LEAST, _SHARE * took)
            self._overview = (version, json.dumps(found, separators=(",", ":")))
            return self._overview

    def runs(self) -> list[dict[str, str]]:
        """Return what rows need to know of their runs."""
        with self._lock:
            made = [Run(one.path, one.manifest, [], "") for one in self._folders]
            labels = [run_of(run.folder, run.manifest, []).label for run in made]
        return [
            {
                "name": named.name,
                "label": label,
                "agent": str(run.manifest.get("agent", {}).get("name", "")),
                "model": run.model,
                "env": run.env,
                "where": run.where,
            }
            for run, named, label in zip(made, told_apart(made), labels, strict=True)
        ]

    def _line(self, row: Row, offset: int) -> bytes:
        with open_record(self._folders[row.run].path / EPISODES) as file:
            file.seek(offset)
            return record_line(file)

    def _body(self, row: Row, line: bytes) -> Any:
        episode = self._redactor.episode(Episode.from_json(line))
        shown_gold = bool(self._folders[row.run].manifest.get("needs_gold"))
        return body_of(episode, hide_gold=self._hide_gold, shown_gold=shown_gold)

    def _has(self, row: Row, line: bytes, words: str) -> bool:
        try:
            body = self._body(row, line)
        except RecordError:  # the file was replaced meanwhile
            return False
        lower = words.lower()
        return any(lower in text.lower() for text in texts_of([row.task, body]))

    def _find(self) -> None:
        """Add runs that are new, and read each ``run.json`` that has changed."""
        known = {one.path: one for one in self._folders}
        for place in self._places:
            inside = [place] if (place / MANIFEST).is_file() else _entries(place)
            for path in inside:
                try:
                    stat = (path / MANIFEST).lstat()
                except OSError:
                    continue
                stamp = (stat.st_mtime_ns, stat.st_ino)
                if (folder := known.get(path)) is not None and folder.stamp == stamp:
                    continue
                self._learn(path, stamp, folder)

    def _learn(self, path: Path, stamp: tuple[int, int], folder: _Folder | None) -> None:
        """Read a run's ``run.json``; one that is damaged hides no other run."""
        try:
            manifest = self._redactor.facts(read_manifest(path))
        except RecordError as error:
            self._changed += self._damaged.get(path) != str(error)
            self._damaged[path] = str(error)
            return
        self._damaged.pop(path, None)
        self._changed += 1
        if folder is None:
            self._folders.append(_Folder(path, manifest, stamp))
        else:
            folder.manifest, folder.stamp = manifest, stamp

    def _read(self, number: int, folder: _Folder, most: int) -> int:
        """Read what a run has more; return how many episodes."""
        path = folder.path / EPISODES
        try:
            stat = path.lstat()
        except OSError:
            return 0  # it has only begun
        if folder.offset and (stat.st_size < folder.offset or stat.st_ino != folder.inode):
            self._begin_again()
            return most
        folder.inode = stat.st_ino
        if folder.trouble or stat.st_size == folder.offset:
            return 0
        count = 0
        try:
            file = open_record(path)
        except (RecordError, OSError) as error:
            folder.trouble = str(error)
            self._changed += 1
            return 0
        with file:
            file.seek(folder.offset)
            while count < most:
                try:
                    if not (line := record_line(file)).endswith(b"\n"):
                        break
                    episode = self._redactor.episode(Episode.from_json(line))
                except RecordError as error:
                    folder.trouble = f"{path}, byte {folder.offset}: {error}"
                    self._changed += 1
                    break
                self._add(number, folder, episode)
                folder.offset += len(line)
                count += 1
        return count

    def _add(self, number: int, folder: _Folder, episode: Episode) -> None:
        outcome = Outcome.of(episode)
        folder.outcomes.pop(key_of(episode), None)
        folder.outcomes[key_of(episode)] = outcome
        self._offsets.append(folder.offset)
        self.rows.append(row_of(number, episode, outcome))
        self._changed += 1

    def _begin_again(self) -> None:
        """Forget all rows: a file is another one than it was."""
        self.generation += 1
        self._changed += 1
        self.rows, self._offsets = [], []
        for folder in self._folders:
            folder.offset, folder.outcomes, folder.trouble = 0, {}, ""


def _entries(place: Path) -> list[Path]:
    """List the entries of a folder of runs, without links that lead out of it."""
    root = place.resolve()
    return sorted(
        path
        for path in place.iterdir()
        if not path.is_symlink() or path.resolve().is_relative_to(root)
    )
