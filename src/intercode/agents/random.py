"""Random actions: what luck is worth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intercode.agents.scene import Scene
from intercode.envs.traits import SHELL
from intercode.episode import Turn

if TYPE_CHECKING:
    from intercode.task import Task


class RandomAgent:
    """Takes actions at random, and submits after some.

    Args:
        actions: Those that it may take.
        seed: The seed that decides everything.
    """

    def __init__(self, actions: Sequence[str], seed: int) -> None:
        self._actions = actions
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
        return RandomAgent(scene.traits.random_actions or SHELL.random_actions, scene.seed or 0)
