"""Random actions: what luck is worth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from intercode.agents.scene import Scene
from intercode.episode import Turn

if TYPE_CHECKING:
    from intercode.task import Task

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "bash": (
        "ls -la",
        "pwd",
        "find . -type f | head -n 20",
        "cat *",
        "wc -l *",
        "du -sh .",
        "date",
        "whoami",
        "touch new.txt",
        "mkdir -p new",
        "sort * | uniq -c | head",
        "echo 42",
    ),
    "sql": (
        "SELECT 1",
        "SELECT 42",
        "SELECT NULL",
        "SELECT CURRENT_DATE",
        "SELECT COUNT(*) FROM (SELECT 1 AS one) AS rows_",
        "SELECT 'yes'",
        "SELECT 0 WHERE 1 = 0",
    ),
    "python": (
        "42",
        "print(dir())",
        "def answer(*given):\n    return given",
        "import math, random",
        "help",
        "[]",
    ),
}
"""By language."""


class RandomAgent:
    """Takes actions at random, and submits after some.

    Args:
        language: Of the actions.
        seed: From it comes everything.
    """

    def __init__(self, language: str, seed: int) -> None:
        self._actions = ACTIONS.get(language, ACTIONS["bash"])
        self._random = random.Random(seed)

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """An action; each turn in four ``submit``, but not the first."""
        if history and self._random.random() < 0.25:
            return "submit"
        return self._random.choice(self._actions)


class RandomAgents:
    """Makes them, with each episode's own seed."""

    def __call__(self, task: Task) -> RandomAgent:
        """The agent of one episode, in a shell."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> RandomAgent:
        """The agent of one episode in this environment."""
        scene = Scene.of(env, task)
        return RandomAgent(scene.language, scene.seed or 0)
