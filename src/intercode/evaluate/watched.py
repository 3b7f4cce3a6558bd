"""An environment that is watched while tasks are validated: what can be read, what is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

from intercode.evaluate.checks import AGAIN, GOLD, NOTHING
from intercode.evaluate.leak_places import leaks
from intercode.sandbox.base import CountsMemory

if TYPE_CHECKING:
    from intercode.episode import Episode
    from intercode.evaluate.leaks import Leak
    from intercode.evaluate.loop import EpisodeEnv
    from intercode.task import Dataset


class Seen:
    """What was seen of all tasks. Workers share it; each has other tasks, or another trial."""

    def __init__(self) -> None:
        self.leaks: dict[str, list[Leak]] = {}
        self.memory: dict[str, int] = {}
        """Task → the most bytes that a sandbox has used in which gold ran."""


class Watched:
    """Another environment, to which it does nothing but look."""

    def __init__(self, env: EpisodeEnv, dataset: Dataset, seen: Seen) -> None:
        self._env = env
        self._dataset = dataset
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @property
    def episode(self) -> Episode:
        """The environment's."""
        return self._env.episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        return self._env.reset(seed=seed, options=options)

    def step(self, action: str, /) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take an action. The first one of doing nothing finds a sandbox as the agent finds it."""
        episode, place = self.episode, getattr(self._env, "place", None)
        if episode.epoch == NOTHING and not episode.turns:
            task = self._dataset.by_id(episode.task_id)
            flags = getattr(self._env, "name", "") == "ctf"
            image = episode.metadata.get("image", "")
            self._seen.leaks[task.task_id] = leaks(task, place, image, flags=flags)
        result = self._env.step(action)
        ended = result[2] or result[3]
        if ended and episode.epoch in (GOLD, AGAIN) and isinstance(place, CountsMemory):
            used = max(place.memory_peak() or 0, self._seen.memory.get(episode.task_id, 0))
            if used:
                self._seen.memory[episode.task_id] = used
        return result

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
