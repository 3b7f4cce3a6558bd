"""Replays that are graded twice: by the rules of 2023, and under the default protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from intercode.paper.report import Mismatch, ReplayReport, TaskReplay
from intercode.paper.results import RecordedEpisode, RecordedTurn


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """What a recorded turn gave now."""

    recorded: RecordedTurn
    observation: str
    reward: float

    @property
    def same_reward(self) -> bool:
        """Whether the reward is the recorded one."""
        kept = self.recorded.reward
        return kept is not None and math.isclose(self.reward, kept, abs_tol=1e-9)

    @property
    def same_observation(self) -> bool:
        """Whether the observation is the recorded one, or none was."""
        return self.recorded.observation in (None, self.observation)


@dataclass(slots=True)
class RegradedReport(ReplayReport):
    """What a replay found, and what the default protocol makes of the same episodes."""

    success_default: int = 0
    """Episodes that succeed under the default protocol."""
    success_lost: list[str] = field(default_factory=list)
    """Tasks that succeed here, and do not by default."""
    success_gained: list[str] = field(default_factory=list)
    """Tasks that do not succeed here, and do by default."""

    def count(
        self,
        episode: RecordedEpisode,
        turns: Sequence[ReplayedTurn],
        default: float,
        cause_of: Callable[[ReplayedTurn], str],
    ) -> None:
        """Add an episode.

        Args:
            episode: As it was recorded.
            turns: What it gave.
            default: Its reward under the default protocol.
            cause_of: The likely cause of a mismatch.
        """
        success, by_default = any(turn.reward == 1.0 for turn in turns), default == 1.0
        agrees = success == episode.success
        count = TaskReplay(len(turns), success_agree=agrees)
        for turn in turns:
            count.reward_equal += turn.same_reward
            count.observation_equal += turn.same_observation
            if not (turn.same_reward and turn.same_observation):
                found = Mismatch.of(
                    episode.task_id, turn.recorded, turn.observation, turn.reward, cause_of(turn)
                )
                self.mismatches.append(found)
        self.by_task[episode.task_id] = count
        self.episodes += 1
        self.turns += count.turns
        self.reward_equal += count.reward_equal
        self.observation_equal += count.observation_equal
        self.success_recorded += episode.success
        self.success_replayed += success
        self.success_agree += agrees
        self.success_default += by_default
        if success != by_default:
            (self.success_lost if success else self.success_gained).append(episode.task_id)
