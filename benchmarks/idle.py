"""An environment that does nothing: what is left is the runner's own work."""

from __future__ import annotations

import time
from typing import Any

from intercode.episode import Episode, Score, Turn
from intercode.task import Dataset, Task


def tasks(count: int) -> Dataset:
    """That many tasks, all alike."""
    found = [
        Task(f"t{n}", f"Print {n}.", gold=(f"echo {n}",), tags=("idle",)) for n in range(count)
    ]
    return Dataset(found, name="idle")


class IdleEnv:
    """Every action is a turn; ``submit`` is right."""

    name = "bash"

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        task = self._dataset.by_id(options["task_id"])
        self.episode = Episode(task.task_id, task.query, self.name, started=time.time())
        self.episode.metadata["image"] = "none"
        return task.query, {}

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Note the action, and do nothing."""
        if action == "submit":
            self.episode.status, self.episode.score = "submitted", Score(1.0)
            return "", 1.0, True, False, {}
        turn = Turn(action, "nothing\n", exit_code=0)
        self.episode.turns.append(turn)
        return turn.observation, 0.0, False, False, {}

    def close(self) -> None:
        """Nothing is held."""
