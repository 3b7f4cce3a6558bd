"""What a replay found: the same for every kind of run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from intercode.paper.results import RecordedTurn

Progress = Callable[[int, int], None]
"""Is told how many episodes are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A turn in which the reward or the observation is another than the recorded one."""

    task: str
    turn: int
    action: str
    observation_recorded: str | None
    observation_replayed: str
    reward_recorded: float
    reward_replayed: float
    cause: str

    @classmethod
    def of(
        cls, task: str, recorded: RecordedTurn, observation: str, reward: float, cause: str
    ) -> Mismatch:
        """What was recorded of a task's turn, and what came out now."""
        return cls(
            task=task,
            turn=recorded.index,
            action=recorded.action,
            observation_recorded=recorded.observation,
            observation_replayed=observation,
            reward_recorded=recorded.reward or 0.0,
            reward_replayed=reward,
            cause=cause,
        )


@dataclass(slots=True)
class TaskReplay:
    """The counts of one task."""

    turns: int = 0
    reward_equal: int = 0
    observation_equal: int = 0
    success_agree: bool = True
    """Of its episode."""


@dataclass(slots=True)
class ReplayReport:
    """What a replay found."""

    episodes: int = 0
    turns: int = 0
    """Executed turns that have a recorded reward."""
    reward_equal: int = 0
    observation_equal: int = 0
    success_recorded: int = 0
    success_replayed: int = 0
    success_agree: int = 0
    """Episodes of which both say the same."""
    seconds: float = 0.0
    version: str = "released"
    """Which of the two rewards the run was recorded with: ``early`` or ``released``."""
    by_task: dict[str, TaskReplay] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)
