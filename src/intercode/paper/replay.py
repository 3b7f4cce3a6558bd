"""Recorded runs, once more: the same actions in our environment, and what came out otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from intercode.episode import Score
from intercode.paper.causes import CUT, cause_of
from intercode.paper.container import PaperImage
from intercode.paper.env import PaperBashEnv
from intercode.paper.gold import GoldRuns
from intercode.paper.report import Mismatch, Progress, ReplayReport, TaskReplay
from intercode.paper.results import RecordedEpisode, RecordedRun, RecordedTurn, task_of
from intercode.paper.reward import early
from intercode.paper.together import together
from intercode.sandbox.base import Provider
from intercode.task import Task


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
    jobs = [(episode, task_of(tasks, episode)) for episode in recorded.episodes]
    shared = PaperImage(provider, image)
    golds = GoldRuns(shared)
    with closing(shared):
        replays = together(
            [partial(_episode, shared, golds, task, episode) for episode, task in jobs],
            workers,
            progress,
        )
    report = _report(recorded.episodes, replays)
    report.seconds = time.monotonic() - started
    return report


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
    cause = cause_of(
        turn.ran,
        turn.recorded.observation or "",
        turn.observation,
        same_observation=turn.same_observation,
        gold=turn.gold,
    )
    return Mismatch.of(task, turn.recorded, turn.observation, turn.reward_of(is_early), cause)
