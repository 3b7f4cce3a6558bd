"""What tests of recorded runs share: an agent with a script, and what a reward decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from intercode.episode import Episode, Turn
from intercode.evaluate.episode_loop import PlayableEnv

Make = Callable[[], PlayableEnv]


class Scripted:
    """Takes these actions, and reports as a model would."""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        return self._actions[len(history)] if len(history) < len(self._actions) else "submit"

    def episode_metadata(self) -> dict[str, Any]:
        return {"model": {"name": "m", "input_tokens": 70, "output_tokens": 3, "cost": 0.25}}


def found(folder: Path) -> dict[tuple[int, str], Episode]:
    """The episodes; of those that are there twice the last."""
    lines = (folder / "episodes.jsonl").read_bytes().splitlines()
    episodes = map(Episode.from_json, lines)
    return {(episode.epoch, episode.task_id): episode for episode in episodes}


def result_of(episode: Episode) -> Any:
    """All of an episode that a reward decides, and what it decides upon."""
    turns = [(turn.action, turn.observation, turn.ok, turn.reward) for turn in episode.turns]
    score = episode.score and (episode.score.value, dict(episode.score.parts))
    if episode.status == "error":  # a fresh one has only the turns that it got to
        return episode.error
    return episode.status, episode.answer, turns, score, episode.error
