"""A run is a folder: ``run.json`` says what was run, ``episodes.jsonl`` what happened.

Episodes are appended, one a line, and confirmed once they are on the disk. Workers that finish at
the same time share one `fdatasync`: whoever holds the lock commits for all who wait.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from intercode.agents.recorded import EPISODES, finished_size, read_episodes
from intercode.episode import Episode
from intercode.errors import RecordError, RunLockedError
from intercode.files import sync_folder, write_whole

MANIFEST = "run.json"

__all__ = ["EPISODES", "MANIFEST", "RunLog", "latest", "read_episodes", "read_manifest"]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What was run.

    Raises:
        RecordError: The folder is not a run's, or its ``run.json`` cannot be read.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{folder} is not the folder of a run: {path.name}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RecordError(f"{path} is not a JSON object")
    return data


T = TypeVar("T")


def latest(folder: Path, of: Callable[[Episode], T]) -> dict[tuple[int, str], T]:
    """What a run knows of each epoch and task: the last word, in the order in which they ended.

    An episode that ended in an infrastructure error is recorded, and once more when a later
    session has tried it again.

    Args:
        folder: The run's.
        of: What to keep of an episode; whole ones may be large.
    """
    found: dict[tuple[int, str], T] = {}
    for episode in read_episodes(folder / EPISODES):
        key = (episode.epoch, episode.task_id)
        found.pop(key, None)
        found[key] = of(episode)
    return found


class RunLog:
    """The one writer of a run's folder. `append` may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        """Create the folder, or go on with it; cut off a torn end.

        Raises:
            RunLockedError: Another process, or another `RunLog`, is writing to it.
            RecordError: It exists and is something else, or cannot be written.
        """
        self.folder = folder
        self._path = folder / EPISODES
        self._queue_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._pending: list[bytes] = []
        self._queued = 0
        self._durable = 0
        self._failure: OSError | None = None
        self._fd = -1
        try:
            self._open()
        except OSError as error:
            self.close()
            raise RecordError(f"cannot write to {folder}: {error.strerror}") from error

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        strange = {path.name for path in self.folder.iterdir()} - {MANIFEST, EPISODES}
        if strange and not (self.folder / EPISODES).exists():
            raise RecordError(f"{self.folder} is not empty and not the folder of a run")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o666)
        try:
            # Locked before anything is read: another process may be in the middle of a line.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunLockedError(
                f"another process is writing to the run {self.folder}; "
                "wait for it, or choose another folder (--out)"
            ) from None
        os.ftruncate(self._fd, finished_size(self._path))
        sync_folder(self.folder)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Put ``run.json`` in place, whole or not at all."""
        text = json.dumps(manifest, indent=2)
        write_whole(self.folder / MANIFEST, f"{text}\n", sync=True)

    def append(self, episode: Episode) -> None:
        """Record a finished episode. Returns when it is on the disk.

        Raises:
            RecordError: It could not be written; nor will any later one be.
        """
        line = episode.to_json().encode("ascii") + b"\n"
        with self._queue_lock:
            self._pending.append(line)
            self._queued += 1
            ticket = self._queued
        with self._commit_lock:
            if self._durable < ticket:
                self._commit()

    def _commit(self) -> None:
        """Write all that is pending, and wait for the disk once."""
        if self._failure is not None:
            raise RecordError(f"{self._path} could not be written: {self._failure.strerror}")
        if self._fd < 0:
            raise RecordError(f"{self._path} was closed")
        with self._queue_lock:
            batch, self._pending = b"".join(self._pending), []
            upto = self._queued
        try:
            view = memoryview(batch)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError as error:
            # Nothing more is written, so that a half-written line can only be the last.
            self._failure = error
            raise RecordError(f"cannot write {self._path}: {error.strerror}") from error
        self._durable = upto

    def close(self) -> None:
        """Give up the lock on the folder. Idempotent, safe from any thread."""
        with self._commit_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
