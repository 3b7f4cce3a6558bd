"""An environment without a sandbox, and ways for it to fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from intercode.episode import Episode, Score, Turn
from intercode.errors import EnvironmentStateError, SandboxClosedError
from intercode.task import Dataset, Task


def dataset(count: int = 10, name: str = "fake") -> Dataset:
    return Dataset(
        [
            Task(
                task_id=f"t{n}", query=f"say {n}", gold=(f"echo {n}",), tags=("even", "odd")[n % 2]
            )
            for n in range(count)
        ],
        name=name,
    )


class FakeEnv:
    """`echo N` is right for task N; whatever else is wrong."""

    def __init__(
        self,
        tasks: Dataset,
        *,
        delay: float = 0.0,
        fail: Callable[[str, str], BaseException | None] = lambda task_id, action: None,
        max_turns: int = 10,
    ) -> None:
        self.tasks = tasks
        self.delay = delay
        self.fail = fail
        self.max_turns = max_turns
        self.closed = False
        self.resets: list[tuple[str, int | None]] = []
        self._episode: Episode | None = None
        self._gone = threading.Event()

    @property
    def episode(self) -> Episode:
        if self._episode is None:
            raise EnvironmentStateError("reset first")
        return self._episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        assert options is not None
        self.task = self.tasks.by_id(options["task_id"])
        self.resets.append((self.task.task_id, seed))
        self._raise("reset")
        self._episode = Episode(self.task.task_id, self.task.query, "fake", started=time.time())
        return self.task.query, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        episode = self.episode
        self._raise(action)
        if self._gone.wait(self.delay):
            raise SandboxClosedError("closed")
        if action == "submit":
            right = any(turn.action == self.task.gold[0] for turn in episode.turns)
            episode.score = Score(float(right))
            episode.status = "submitted"
            return "", float(right), True, False, {}
        if action == "skip":
            episode.score, episode.status = Score(0.0), "skipped"
            return "", 0.0, True, False, {}
        episode.turns.append(Turn(action, f"did {action}\n"))
        if len(episode.turns) >= self.max_turns:
            episode.score, episode.status = Score(0.0), "truncated"
            return "", 0.0, False, True, {}
        return f"did {action}\n", 0.0, False, False, {}

    def _raise(self, action: str) -> None:
        if (error := self.fail(self.task.task_id, action)) is not None:
            raise error

    def close(self) -> None:
        self.closed = True
        self._gone.set()


class Factory:
    """Makes fake environments and remembers them."""

    def __init__(self, tasks: Dataset, **options: Any) -> None:
        self.tasks = tasks
        self.options = options
        self.made: list[FakeEnv] = []

    def __call__(self) -> FakeEnv:
        env = FakeEnv(self.tasks, **self.options)
        self.made.append(env)
        return env
