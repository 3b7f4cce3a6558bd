"""An environment that is watched while tasks are validated: what can be read, what is used."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, SupportsFloat

from intercode.envs.traits import traits_in
from intercode.evaluate.checks import AGAIN, GOLD, WAITED
from intercode.evaluate.guesses import NOTHING
from intercode.evaluate.leak_places import leaks
from intercode.sandbox.base import CountsMemory

if TYPE_CHECKING:
    from intercode.episode import Episode
    from intercode.evaluate.leaks import Leak
    from intercode.evaluate.loop import EpisodeEnv
    from intercode.task import Dataset


class Clock:
    """Holds back the two trials of a task's gold until an odd number of seconds lies between them.

    So all shows that depends on whole seconds, be it on whether their number is even.

    Args:
        now: Seconds since 1970.
        sleep: Waits for so many.
    """

    LATEST = 0.7
    """The part of a second in which a trial may begin: what it does has the rest of it."""

    def __init__(
        self, now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._begun: dict[tuple[str, int], int] = {}
        self._lock = Lock()

    def wait(self, task_id: str, trial: int) -> float:
        """Wait until a trial may begin.

        Returns:
            For how many seconds it was held back.
        """
        first = self._now()
        while not self._begins(task_id, trial, now := self._now()):
            self._sleep(1 - now % 1)
        return now - first

    def _begins(self, task_id: str, trial: int, now: float) -> bool:
        with self._lock:
            other = self._begun.get((task_id, GOLD if trial == AGAIN else AGAIN))
            if now % 1 > self.LATEST or (other is not None and (int(now) - other) % 2 == 0):
                return False
            self._begun[task_id, trial] = int(now)
            return True


class Seen:
    """What was seen of all tasks. Workers share it; each has other tasks, or another trial."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.leaks: dict[str, list[Leak]] = {}
        self.memory: dict[str, int] = {}
        """Task → the most bytes that a sandbox has used in which gold ran."""


class Watched:
    """Another environment: it looks at it, and chooses the second in which gold begins."""

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
            flags = traits_in(self._env).secret_gold
            image = episode.metadata.get("image", "")
            self._seen.leaks[task.task_id] = leaks(task, place, image, flags=flags)
        if episode.epoch in (GOLD, AGAIN) and not episode.turns:
            episode.metadata[WAITED] = self._seen.clock.wait(episode.task_id, episode.epoch)
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
