"""The 2023 Bash environment as a class: ``reset(index)``, and a ``step`` that returns four."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intercode.errors import EnvironmentStateError, TaskNotFoundError
from intercode.paper.bash import AGENT_HOST, PaperBash, variables
from intercode.paper.container import PaperImage, md5sum
from intercode.paper.gold import GoldRuns
from intercode.paper.reward import Outcome, score
from intercode.sandbox.base import Sandbox
from intercode.task import Task


class PaperBashEnv:
    """One agent's environment.

    The reward of an action is 0; ``submit`` gives the reward and says "done", but one may go on:
    the 2023 experiments stepped an action, then ``submit``, in every turn.

    Args:
        image: What sandboxes are made of; may be shared by environments in other threads.
        tasks: The tasks, by row.
        golds: What gold leaves in that image; may be shared too.
    """

    def __init__(
        self, image: PaperImage, tasks: Sequence[Task], golds: GoldRuns | None = None
    ) -> None:
        self._image = image
        self._tasks = tasks
        self._golds = golds or GoldRuns(image)
        self._scored = False
        self._next = 0
        self._sandbox: Sandbox | None = None
        self._bash: PaperBash | None = None
        self.task: Task | None = None
        self.observation = ""
        self.reward: float | None = None
        self.info: dict[str, Any] = {}
        self.trajectory: list[tuple[str, str | None]] = []
        """Actions and what they showed, as in 2023; None for the episode's end."""

    def reset(self, index: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            index: The task's row; None is the next one, in order and round again.

        Returns:
            The query, and an empty ``info``.

        Raises:
            TaskNotFoundError: There is no such row.
            SandboxError: The sandbox failed.
        """
        row = self._next % max(1, len(self._tasks)) if index is None else index
        if not 0 <= row < len(self._tasks):
            raise TaskNotFoundError(f"no task has the index {row}: there are {len(self._tasks)}")
        self._next = row + 1
        self.close()
        self.task = self._tasks[row]
        self._sandbox = self._image.start()
        self._bash = PaperBash(self._sandbox, variables(AGENT_HOST, self._image.name))
        self._scored = False
        self.observation, self.reward = self.task.query, None
        self.info, self.trajectory = {}, []
        return self.observation, self.info

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take an action.

        Returns:
            The observation, the reward, whether the episode is over, and ``info``.

        Raises:
            EnvironmentStateError: There was no `reset`.
            RewardError, SandboxError: As named.
        """
        if self._sandbox is None or self._bash is None or self.task is None:
            raise EnvironmentStateError("step() before reset()")
        if action == "skip":
            self.reward = 0.0
            self.trajectory.append((action, None))
            return self.observation, 0.0, True, self.info
        if action.startswith("submit"):
            sandbox, pairs = self._sandbox, self._image.status(self._sandbox)
            agent = Outcome(pairs, self.observation, lambda path: md5sum(sandbox, path))
            result = score(agent, self._golds.outcome(self.task, again=self._scored))
            self._scored = True
            self.reward, self.info = result.value, dict(result.detail)
            self.trajectory.append((action, None))
            return self.observation, result.value, True, self.info
        done = self._bash.execute(action)
        self.observation, self.reward = done.output.decode("utf-8"), 0.0
        self.info = {"action_executed": done.ok}
        self.trajectory.append((action, self.observation))
        return self.observation, 0.0, False, self.info

    def close(self) -> None:
        """Free the sandbox. Idempotent."""
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = self._bash = None
