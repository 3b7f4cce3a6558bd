"""The contract of a reward: how well an episode went."""

from __future__ import annotations

from typing import Protocol

from intercode.episode import Episode, Score
from intercode.sandbox.base import Sandbox
from intercode.task import Task


class Reward(Protocol):
    """A function of what was asked, what was done, and the sandbox as it was left."""

    def __call__(self, task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        """The score.

        Raises:
            RewardError: Gold or the verification could not be run.
            SandboxError: The sandbox died.
        """
