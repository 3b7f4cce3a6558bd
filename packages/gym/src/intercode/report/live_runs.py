"""The runs that the viewer's server shows, read from run folders that may still grow.

The viewer is a web page; the server reads each episode soon after a run appends it.
"""

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
    episode_key,
    open_record,
    read_manifest,
    record_line,
)
from intercode.redaction import SecretRedactor
from intercode.report.recorded_tasks import RecordedTask, RecordedTasks
from intercode.report.runs import RecordedRun, distinguish_runs, make_run
from intercode.report.viewer_episodes import EpisodeRow, iterate_texts, make_body, make_row
from intercode.report.viewer_overview import overview
from intercode.report.viewer_page import CompressedEpisodes, page

_BATCH = 500
"""The maximum number of episodes that `ViewerRuns.refresh` reads before it releases the lock."""
_SHARE = 20
"""Divisor of the server's time: the computation of statistics takes at most one twentieth of it."""
_MIN_SECONDS = 1.0
"""The minimum number of seconds between two computations of the statistics."""


@dataclass(slots=True)
class _LiveRunFolder:
    """A run's folder, and how far its ``episodes.jsonl`` has been read."""

    path: Path
    manifest: dict[str, Any]
    stamp: tuple[int, int]
    """Modification time in nanoseconds, and inode, of the ``run.json`` that was read."""
    inode: int = 0
    """Inode of the ``episodes.jsonl`` that was read."""
    offset: int = 0
    """Number of bytes that were read of the ``episodes.jsonl``."""
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    trouble: str = ""
    """The error because of which no more episodes are read; empty without an error."""


class ViewerRuns:
    """The runs that the viewer shows, including unfinished runs. Any thread may call the methods.

    The list `rows` has a row for each recorded episode. If an episode is recorded again, its last
    row counts. The list only grows, with one exception. If the ``episodes.jsonl`` of a run is
    replaced, `generation` increases, a new list begins, and all files are read again.

    Args:
        paths: Folders of runs, and folders that contain folders of runs.
        hide_gold: Whether to omit all texts that may quote gold.
        trust: Whether to read the data files that the runs name as their tasks.

    Raises:
        RecordError: A path is not a folder, or is a run's folder whose manifest cannot be read.
    """

    def __init__(
        self, paths: Sequence[Path], *, hide_gold: bool = False, trust: bool = False
    ) -> None:
        self.rows: list[EpisodeRow] = []
        self.generation = 0
        self._paths, self._hide_gold = paths, hide_gold
        self._tasks = RecordedTasks(trust=trust)
        self._redactor = SecretRedactor()
        self._lock, self._task_lock = threading.Lock(), threading.Lock()
        self._folders: list[_LiveRunFolder] = []
        self._offsets: list[int] = []
        self._damage_by_path: dict[Path, str] = {}
        self._change_count = 0
        self._overview: tuple[int, str] = (-1, "")
        self._due_time = 0.0
        for path in paths:
            if not path.is_dir():
                raise RecordError(f"{path} is neither the folder of a run nor contains one")
            if (path / MANIFEST).is_file():
                read_manifest(path)
        self._find()

    def refresh(self) -> bool:
        """Read new episodes, at most `_BATCH`; return whether further new episodes may exist."""
        with self._lock:
            self._find()
            remaining_count = _BATCH
            for run_number, folder in enumerate(self._folders):
                remaining_count -= self._read(run_number, folder, remaining_count)
                if remaining_count <= 0:
                    return True
            return False

    def body(self, row_number: int) -> Any:
        """Return the body of the episode in a row, read from the run's file."""
        row, offset = self.rows[row_number], self._offsets[row_number]
        episode = self._redactor.episode(Episode.from_json(self._line(row, offset)))
        folder = self._folders[row.run]
        task = None
        if not self._hide_gold:
            with self._task_lock:
                task = self._tasks.find(folder.path, folder.manifest, episode.task_id)
        return self._body(row, episode, task)

    def saved_page(self) -> str:
        """Return a page that needs no server, with all episodes that were read so far."""
        with self._lock:
            rows, offsets, folders = [*self.rows], [*self._offsets], [*self._folders]

        def find_task(run_number: int, task_id: str) -> RecordedTask:
            folder = folders[run_number]
            with self._task_lock:
                return self._tasks.find(folder.path, folder.manifest, task_id)

        gold_runs = [n for n, folder in enumerate(folders) if folder.manifest.get("needs_gold")]
        episodes = CompressedEpisodes(
            hide_gold=self._hide_gold, shown_gold=gold_runs, find_task=find_task
        )
        report = json.loads(self.overview()[1])
        for row, offset in zip(rows, offsets, strict=True):
            if row.run < len(report["runs"]):  # the report may be older than a new run
                line = self._line(row, offset)
                episodes.add(row.run, self._redactor.episode(Episode.from_json(line)))
        return page(report["title"], report, episodes.page_data())

    def search(self, words: str, start: int = 0) -> Iterator[tuple[int, bool]]:
        """Search the texts of all episodes, ignoring case.

        Hidden texts, such as gold, are not searched.

        Args:
            words: The text to find.
            start: The number of the first row to search.

        Yields:
            The number of a row, and whether the texts of its episode contain `words`.
        """
        spellings = {words, words.lower(), words.upper(), words.title()}
        encoded_forms = {json.dumps(spelling)[1:-1].lower().encode() for spelling in spellings}
        # When a file is replaced, `_begin_again` assigns new lists. The search continues with both
        # old lists, whose entries still correspond.
        rows, offsets = self.rows, self._offsets
        for row_number in range(start, len(rows)):
            line = self._line(rows[row_number], offsets[row_number])
            lower_line = line.lower()
            # The first test is fast, but the raw line also contains names of fields, and hidden or
            # redacted texts. The second test excludes these.
            yield (
                row_number,
                any(pattern in lower_line for pattern in encoded_forms)
                and self._has_words(rows[row_number], line, words),
            )

    def overview(self) -> tuple[int, str]:
        """Return the version of the report, and the report as JSON.

        After a computation, a pause follows (`_MIN_SECONDS`, `_SHARE`). During the pause the method
        returns the previous report, in which recent episodes may be missing.
        """
        with self._lock:
            now, version = time.monotonic(), self._change_count
            if version == self._overview[0] or now < self._due_time:
                return self._overview
            runs = distinguish_runs(
                [
                    make_run(folder.path, folder.manifest, [*folder.outcomes.values()])
                    for folder in self._folders
                ]
            )
        report = overview(runs)
        report["warnings"] += [folder.trouble for folder in self._folders if folder.trouble]
        report["warnings"] += self._damage_by_path.values()
        with self._lock:
            duration = time.monotonic() - now
            self._due_time = now + max(_MIN_SECONDS, _SHARE * duration)
            self._overview = (version, json.dumps(report, separators=(",", ":"), allow_nan=False))
            return self._overview

    def runs(self) -> list[dict[str, str]]:
        """Return the facts of each run that the viewer needs to list the run's episodes."""
        with self._lock:
            runs = [RecordedRun(folder.path, folder.manifest, [], "") for folder in self._folders]
            labels = [make_run(run.folder, run.manifest, []).label for run in runs]
        return [
            {
                "name": named_run.name,
                "label": label,
                "agent": str(run.manifest.get("agent", {}).get("name", "")),
                "model": run.model,
                "env": run.env,
                "where": run.env_label,
            }
            for run, named_run, label in zip(runs, distinguish_runs(runs), labels, strict=True)
        ]

    def _line(self, row: EpisodeRow, offset: int) -> bytes:
        with open_record(self._folders[row.run].path / EPISODES) as file:
            file.seek(offset)
            return record_line(file)

    def _body(self, row: EpisodeRow, episode: Episode, task: RecordedTask | None = None) -> Any:
        shown_gold = bool(self._folders[row.run].manifest.get("needs_gold"))
        return make_body(episode, task, hide_gold=self._hide_gold, shown_gold=shown_gold)

    def _has_words(self, row: EpisodeRow, line: bytes, words: str) -> bool:
        try:
            body = self._body(row, self._redactor.episode(Episode.from_json(line)))
        except RecordError:  # the file was replaced, so no line begins at the offset
            return False
        lower_words = words.lower()
        return any(lower_words in text.lower() for text in iterate_texts([row.task, body]))

    def _find(self) -> None:
        """Add new run folders, and read each ``run.json`` that has changed."""
        folders_by_path = {known_folder.path: known_folder for known_folder in self._folders}
        for root_path in self._paths:
            paths = [root_path] if (root_path / MANIFEST).is_file() else _entries(root_path)
            for path in paths:
                try:
                    stat = (path / MANIFEST).lstat()
                except OSError:
                    continue
                stamp = (stat.st_mtime_ns, stat.st_ino)
                if (folder := folders_by_path.get(path)) is not None and folder.stamp == stamp:
                    continue
                self._learn(path, stamp, folder)

    def _learn(self, path: Path, stamp: tuple[int, int], folder: _LiveRunFolder | None) -> None:
        """Read the ``run.json`` of a run.

        If the file is damaged, the report has a warning, and the other runs are still shown.

        Args:
            path: The run's folder.
            stamp: The modification time and inode of the ``run.json``.
            folder: The run if it is known already; None: a new run.
        """
        try:
            manifest = self._redactor.facts(read_manifest(path))
        except RecordError as error:
            self._change_count += self._damage_by_path.get(path) != str(error)
            self._damage_by_path[path] = str(error)
            return
        self._damage_by_path.pop(path, None)
        self._change_count += 1
        if folder is None:
            self._folders.append(_LiveRunFolder(path, manifest, stamp))
        else:
            folder.manifest, folder.stamp = manifest, stamp

    def _read(self, run_number: int, folder: _LiveRunFolder, limit: int) -> int:
        """Read the new episodes of a run, at most `limit`, and return their number."""
        path = folder.path / EPISODES
        try:
            stat = path.lstat()
        except OSError:
            return 0  # the run has no episode yet
        if folder.offset and (stat.st_size < folder.offset or stat.st_ino != folder.inode):
            self._begin_again()
            return limit
        folder.inode = stat.st_ino
        if folder.trouble or stat.st_size == folder.offset:
            return 0
        count = 0
        try:
            file = open_record(path)
        except (RecordError, OSError) as error:
            folder.trouble = str(error)
            self._change_count += 1
            return 0
        with file:
            file.seek(folder.offset)
            while count < limit:
                try:
                    if not (line := record_line(file)).endswith(b"\n"):
                        break
                    episode = self._redactor.episode(Episode.from_json(line))
                except RecordError as error:
                    folder.trouble = f"{path}, byte {folder.offset}: {error}"
                    self._change_count += 1
                    break
                self._add(run_number, folder, episode)
                folder.offset += len(line)
                count += 1
        return count

    def _add(self, run_number: int, folder: _LiveRunFolder, episode: Episode) -> None:
        outcome = Outcome.from_episode(episode)
        row = make_row(run_number, episode, outcome)
        folder.outcomes.pop(episode_key(episode), None)
        folder.outcomes[episode_key(episode)] = outcome
        self._offsets.append(folder.offset)
        self.rows.append(row)
        self._change_count += 1

    def _begin_again(self) -> None:
        """Discard all rows, because a file was replaced: all files are then read again."""
        self.generation += 1
        self._change_count += 1
        self.rows, self._offsets = [], []
        for folder in self._folders:
            folder.offset, folder.outcomes, folder.trouble = 0, {}, ""


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder of runs.

    Symbolic links to places outside the folder are omitted, because the folder may be untrusted.
    """
    root = folder.resolve()
    return sorted(
        path
        for path in folder.iterdir()
        if not path.is_symlink() or path.resolve().is_relative_to(root)
    )
