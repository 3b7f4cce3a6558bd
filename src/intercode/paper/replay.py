"""Recorded runs, once more: the same actions in our environment, and what came out otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from intercode.episode import Score
from intercode.errors import RecordError
from intercode.paper.causes import CUT, cause_of
from intercode.paper.container import PaperImage
from intercode.paper.env import PaperBashEnv
from intercode.paper.gold import GoldRuns
from intercode.paper.results import RecordedEpisode, RecordedRun, RecordedTurn
from intercode.paper.reward import early
from intercode.sandbox.base import Provider
from intercode.task import Task

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


@dataclass(frozen=True, slots=True)
class _Turn:
    recorded: RecordedTurn
    observation: str
    reward: float
    """Of the released version."""
    early: float
    """Of the version before it."""
    gold: str
    ran: str
    """The command that was run last."""

    def same_reward(self, early: bool) -> bool:
        """Whether the reward is the recorded one under one of the versions."""
        kept = self.recorded.reward
        return kept is not None and math.isclose(self.reward_of(early), kept, abs_tol=1e-9)

    def reward_of(self, early: bool) -> float:
        """The reward under one of the versions."""
        return self.early if early else self.reward

    @property
    def same_observation(self) -> bool:
        kept = self.recorded.observation
        return kept is None or same_text(kept, self.observation)


def same_text(recorded: str, replayed: str) -> bool:
    """Whether an observation is the recorded one, or the recorded one is cut from it."""
    return recorded == (replayed[:CUT] if len(recorded) == CUT else replayed)


def replay(
    tasks: Sequence[Task],
    recorded: RecordedRun,
    provider: Provider,
    image: str,
    workers: int = 1,
    progress: Progress | None = None,
) -> ReplayReport:
    """Take the recorded actions in fresh sandboxes and compare what comes out.

    Args:
        tasks: The data file that was run, in its order.
        recorded: The results.
        provider: Where sandboxes come from.
        image: The image of the run's file system.
        workers: Episodes at a time.
        progress: Is told of each finished episode, from this thread.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        SandboxError, ImageError: A sandbox failed: nothing is reported of a part of a run.
    """
    started = time.monotonic()
    jobs = [(episode, _task_of(tasks, episode)) for episode in recorded.episodes]
    shared = PaperImage(provider, image)
    golds = GoldRuns(shared)
    with closing(shared), ThreadPoolExecutor(max(1, workers), "replay") as pool:
        futures = [pool.submit(_episode, shared, golds, task, episode) for episode, task in jobs]
        pending = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, timeout=1.0, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if progress is not None and finished:
                    progress(len(futures) - len(pending), len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        report = _report(recorded.episodes, [future.result() for future in futures])
    report.seconds = time.monotonic() - started
    return report


def _task_of(tasks: Sequence[Task], episode: RecordedEpisode) -> Task:
    """An episode's task: by its row if the question there is the same, else by its question."""
    for task in tasks:
        if task.task_id == episode.task_id and task.query.strip() == episode.query.strip():
            return task
    for task in tasks:
        if task.query.strip() == episode.query.strip():
            return task
    raise RecordError(
        f"episode {episode.task_id!r}: no task of the data asks {episode.query[:60]!r}: "
        "are these the results of another data file?"
    )


def _episode(
    image: PaperImage, golds: GoldRuns, task: Task, episode: RecordedEpisode
) -> list[_Turn]:
    """All that one episode's actions give; turns that do not count are taken all the same."""
    env = PaperBashEnv(image, [task], golds)
    env.reset(0)
    turns: list[_Turn] = []
    ran = ""
    try:
        for turn in episode.turns:
            if turn.command is None:
                continue
            if not turn.command.startswith(("submit", "skip")):
                ran = turn.command
            observation, reward, _, info = env.step(turn.command)
            # 0 is never a computed reward (it starts at 0.01): it is what the step itself gave.
            if turn.reward and not turn.command.startswith("submit"):
                _, reward, _, info = env.step("submit")
            if not turn.counts:
                continue
            was_scored = "reward" in info
            before = early(Score(reward, detail=info)).value if was_scored else reward
            turns.append(_Turn(turn, observation, reward, before, info.get("eval_obs", ""), ran))
    finally:
        env.close()
    return turns


def _report(episodes: Sequence[RecordedEpisode], replays: Sequence[list[_Turn]]) -> ReplayReport:
    # No file says which version it is of; a run is of one. The released one, if in doubt.
    every = [turn for turns in replays for turn in turns]
    is_early = sum(t.same_reward(True) for t in every) > sum(t.same_reward(False) for t in every)
    report = ReplayReport(episodes=len(episodes), version="early" if is_early else "released")
    for episode, turns in zip(episodes, replays, strict=True):
        success = any(turn.reward_of(is_early) == 1.0 for turn in turns)
        report.success_recorded += episode.success
        report.success_replayed += success
        report.success_agree += success == episode.success
        count = report.by_task.setdefault(episode.task_id, TaskReplay())
        count.success_agree = success == episode.success
        for turn in turns:
            count.turns += 1
            count.reward_equal += turn.same_reward(is_early)
            count.observation_equal += turn.same_observation
            if not (turn.same_reward(is_early) and turn.same_observation):
                report.mismatches.append(_mismatch(episode.task_id, turn, is_early))
    counts: Mapping[str, TaskReplay] = report.by_task
    report.turns = sum(count.turns for count in counts.values())
    report.reward_equal = sum(count.reward_equal for count in counts.values())
    report.observation_equal = sum(count.observation_equal for count in counts.values())
    return report


def _mismatch(task: str, turn: _Turn, is_early: bool) -> Mismatch:
    recorded = turn.recorded
    return Mismatch(
        task=task,
        turn=recorded.index,
        action=recorded.action,
        observation_recorded=recorded.observation,
        observation_replayed=turn.observation,
        reward_recorded=recorded.reward or 0.0,
        reward_replayed=turn.reward_of(is_early),
        cause=cause_of(
            turn.ran,
            recorded.observation or "",
            turn.observation,
            same_observation=turn.same_observation,
            gold=turn.gold,
        ),
    )
