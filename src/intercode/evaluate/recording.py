"""A recorded run, each of whose episodes can be read again when its turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from intercode.agents.recorded import finished_size
from intercode.episode import Episode, NoAction, Turn
from intercode.errors import RecordError
from intercode.evaluate.log import EPISODES, read_manifest
from intercode.evaluate.outcome import Outcome

Key = tuple[int, str]
"""Epoch and task."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is kept of an episode: whole ones may be large."""

    offset: int
    outcome: Outcome
    timed_out: int | None


class Recording:
    """The episodes of a run, in the order in which they ended; of repeated ones the last.

    Args:
        folder: The run's.

    Raises:
        RecordError: It cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._path = folder / EPISODES
        self._entries: dict[Key, _Entry] = {}
        for offset, episode in self._all():
            key = (episode.epoch, episode.task_id)
            self._entries.pop(key, None)
            self._entries[key] = _Entry(offset, Outcome.of(episode), _timed_out(episode))

    @property
    def outcomes(self) -> dict[Key, Outcome]:
        """What came of each."""
        return {key: entry.outcome for key, entry in self._entries.items()}

    def timed_out(self, key: Key) -> int | None:
        """The first turn of an episode that ran into the time limit, from 1; None: none did."""
        return self._entries[key].timed_out

    def read(self, key: Key) -> Episode:
        """An episode. May be called from any thread."""
        with self._path.open("rb") as file:
            file.seek(self._entries[key].offset)
            return Episode.from_json(file.readline())

    def _all(self) -> Iterator[tuple[int, Episode]]:
        try:
            size = finished_size(self._path)
            with self._path.open("rb") as file:
                number = 0
                while (offset := file.tell()) < size:
                    number += 1
                    try:
                        yield offset, Episode.from_json(file.readline())
                    except RecordError as error:
                        raise RecordError(f"{self._path}:{number}: {error}") from error
        except OSError as error:
            raise RecordError(f"cannot read {self._path}: {error.strerror}") from error


def action_of(turn: Turn) -> str:
    """A turn's action, as it was taken: also one that was none."""
    if turn.info.get("invalid"):
        return NoAction(turn.observation.removeprefix("[").removesuffix("]"))
    return turn.action


def ending_of(episode: Episode) -> str:
    """The action that ended an episode, if one did."""
    if episode.status == "skipped":
        return "skip"
    return "submit" if episode.answer is None else f"submit {episode.answer}"


def _timed_out(episode: Episode) -> int | None:
    return next((n for n, turn in enumerate(episode.turns, 1) if turn.info.get("timed_out")), None)
