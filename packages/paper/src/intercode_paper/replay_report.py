"""Reports of replays, and the threads that replay episodes, for all environments of 2023."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from intercode_paper.results_files import RecordedEpisode, RecordedTurn

Progress = Callable[[int, int], None]
"""Type of a function that receives the number of finished episodes, and the number of all."""
CUT = 350
"""Number of characters to which the runs of ReAct cut an observation that is a text."""


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """A recorded turn, with the observation and the reward of the replay."""

    recorded_turn: RecordedTurn
    observation: str
    reward: float
    same_observation: bool
    """Whether the observation equals the recorded one; true if no observation was recorded."""

    @property
    def same_reward(self) -> bool:
        """Whether the reward of the replay equals the recorded reward."""
        return self.recorded_turn.has_reward(self.reward)


@dataclass(frozen=True, slots=True)
class ReplayMismatch:
    """A turn whose reward or observation in the replay differs from the record."""

    task: str
    turn: int
    action: str
    observation_recorded: str | None
    observation_replayed: str
    reward_recorded: float
    reward_replayed: float


@dataclass(slots=True)
class TaskReplayCounts:
    """The counts for the episode of one task; see `ReplayReport`."""

    turns: int = 0
    reward_equal: int = 0
    observation_equal: int = 0
    success_agree: bool = True
    """Whether the episode succeeds both in replay and record, or in neither."""


@dataclass(slots=True)
class ReplayReport:
    """The counts over all episodes of a replay, and all mismatches."""

    episodes: int = 0
    turns: int = 0
    """Number of executed turns that have a recorded reward."""
    reward_equal: int = 0
    observation_equal: int = 0
    success_recorded: int = 0
    success_replayed: int = 0
    success_agree: int = 0
    """Number of episodes that succeed both in replay and record, or in neither."""
    seconds: float = 0.0
    """Wall time of the replay, in seconds."""
    version: str = "released"
    """Version of the reward in the recorded run, ``released`` or an earlier version."""
    by_task: dict[str, TaskReplayCounts] = field(default_factory=dict)
    mismatches: list[ReplayMismatch] = field(default_factory=list)

    def count(self, episode: RecordedEpisode, turns: Sequence[ReplayedTurn]) -> bool:
        """Add an episode and its replayed turns; return whether the replayed episode succeeds."""
        replay_success = any(turn.reward == 1.0 for turn in turns)
        task_replay = self.by_task.setdefault(episode.task_id, TaskReplayCounts())
        task_replay.success_agree = replay_success == episode.success
        self.episodes += 1
        self.success_recorded += episode.success
        self.success_replayed += replay_success
        self.success_agree += task_replay.success_agree
        for tally in (self, task_replay):
            tally.turns += len(turns)
            tally.reward_equal += sum(turn.same_reward for turn in turns)
            tally.observation_equal += sum(turn.same_observation for turn in turns)
        self.mismatches += [
            ReplayMismatch(
                task=episode.task_id,
                turn=turn.recorded_turn.index,
                action=turn.recorded_turn.action,
                observation_recorded=turn.recorded_turn.observation,
                observation_replayed=turn.observation,
                reward_recorded=turn.recorded_turn.reward or 0.0,
                reward_replayed=turn.reward,
            )
            for turn in turns
            if not (turn.same_reward and turn.same_observation)
        ]
        return replay_success

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON types."""
        return asdict(self)


@dataclass(slots=True)
class RegradedReplayReport(ReplayReport):
    """A report that also contains the success of the episodes under the default protocol."""

    success_default: int = 0
    """Number of episodes that succeed under the default protocol."""
    success_lost: list[str] = field(default_factory=list)
    """Ids of the tasks whose episode succeeds only under the paper protocol."""
    success_gained: list[str] = field(default_factory=list)
    """Ids of the tasks whose episode succeeds only under the default protocol."""

    def compare(self, task_id: str, success: bool, default_reward: float) -> None:
        """Add the reward of an episode under the default protocol.

        Args:
            task_id: The id of the episode's task.
            success: Whether the episode succeeds under the paper protocol, in the replay.
            default_reward: The reward of the episode under the default protocol.
        """
        default_success = default_reward == 1.0
        self.success_default += default_success
        if success != default_success:
            (self.success_lost if success else self.success_gained).append(task_id)


T = TypeVar("T")


def run_jobs(
    jobs: Sequence[Callable[[], T]], workers: int = 1, progress: Progress | None = None
) -> list[T]:
    """Run jobs on threads, and return their results in the order of the jobs.

    The first error cancels the jobs that have not started, and propagates.

    Args:
        jobs: Functions without arguments.
        workers: The number of threads.
        progress: A function to call from this thread, with the numbers of finished and all jobs.
            The calls are at least a second apart, except the last.
    """
    with ThreadPoolExecutor(max(1, workers), "replay") as pool:
        futures = [pool.submit(job) for job in jobs]
        pending_futures = set(futures)
        try:
            while pending_futures:
                finished_futures, pending_futures = wait(
                    pending_futures, timeout=1.0, return_when=FIRST_EXCEPTION
                )
                for future in finished_futures:
                    future.result()
                if progress is not None and finished_futures:
                    progress(len(futures) - len(pending_futures), len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]
