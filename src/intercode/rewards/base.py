"""The contract of a reward: how well an episode went."""

from __future__ import annotations

from typing import Protocol, TypeVar

from intercode.episode import Episode, Score
from intercode.task import Task

PlaceT = TypeVar("PlaceT", contravariant=True)


class Reward(Protocol[PlaceT]):
    """A function of what was asked, what was done, and the place as it was left.

    The place is where the environment's actions run: a sandbox, or a database's session.
    """

    def __call__(self, task: Task, episode: Episode, place: PlaceT, /) -> Score:
        """The score.

        Raises:
            RewardError: Gold or the verification could not be run.
            CausedInsideError: What the agent ran has left nothing that could be scored.
            SandboxError: The place was lost otherwise.
        """
