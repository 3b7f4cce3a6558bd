"""Recorded SQL runs, once more: in their order, on one connection, with everything that leaks.

A file may be put together from several runs: wherever the order of its tasks breaks, another
process of 2023 begins, with a connection of its own and, it may be, another version of the reward.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

from intercode.errors import TaskError
from intercode.paper.report import Mismatch, Progress, ReplayReport, TaskReplay
from intercode.paper.results import RecordedEpisode, RecordedRun, RecordedTurn, task_of
from intercode.paper.sql_causes import cause_of
from intercode.paper.sql_connection import Connection, Databases
from intercode.paper.sql_reward import VERSIONS, Answer, Rewards, Version, rewards
from intercode.paper.sql_texts import same, shown
from intercode.task import Task

_NOTHING = Rewards(0.0, 0.0, 0.0)
_RANDOM = 4
"""Episodes that a part must have on average, or the order of the tasks was random."""
_EVIDENCE = 2
"""Turns by which a version must agree better than the file's to be taken for a part of it."""


@dataclass(slots=True)
class Part:
    """Episodes that follow each other in the data file: of one process of 2023."""

    first: str
    """The task that it begins with."""
    episodes: int = 0
    turns: int = 0
    version: Version = "released"
    """The version of the reward that agrees with most of its turns."""
    agree: dict[Version, int] = field(default_factory=dict)
    """Turns that agree under each version."""


@dataclass(slots=True)
class Hardness:
    """The episodes of one level."""

    episodes: int = 0
    success_recorded: int = 0
    success_replayed: int = 0
    success_agree: int = 0


@dataclass(slots=True)
class SqlReplayReport(ReplayReport):
    """What a replay of an SQL run found."""

    engine: str = ""
    by_hardness: dict[str, Hardness] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Turn:
    recorded: RecordedTurn
    observation: str
    same_observation: bool
    rewards: Rewards
    gold: Answer
    ran: str
    """The statement that was run last."""

    def same_reward(self, version: Version) -> bool:
        kept = self.recorded.reward
        return kept is not None and math.isclose(self.rewards.of(version), kept, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class _Replayed:
    episode: RecordedEpisode
    task: Task
    turns: list[_Turn]

    def success(self, version: Version) -> bool:
        return any(turn.rewards.of(version) == 1.0 for turn in self.turns)


def replay_sql(
    tasks: Sequence[Task],
    recorded: RecordedRun,
    databases: Databases,
    progress: Progress | None = None,
) -> SqlReplayReport:
    """Take the recorded actions again and compare what comes out.

    Args:
        tasks: The data file that was run, in its order.
        recorded: The results.
        databases: The databases, pristine.
        progress: Is told of each finished episode.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        TaskError: A task has no gold or no database.
        DatabaseError: The engine failed: nothing is reported of a part of a run.
    """
    started = time.monotonic()
    jobs = [(episode, task_of(tasks, episode)) for episode in recorded.episodes]
    done: list[list[_Replayed]] = []
    for part in _parts(jobs, [tasks.index(task) for _, task in jobs]):
        with closing(databases.connect()) as connection:
            done.append([])
            for episode, task in part:
                done[-1].append(_Replayed(episode, task, _episode(connection, task, episode)))
                if progress is not None:
                    progress(sum(map(len, done)), len(jobs))
    report = _report(done)
    report.engine = databases.engine
    report.seconds = time.monotonic() - started
    return report


_Job = tuple[RecordedEpisode, Task]


def _parts(jobs: Sequence[_Job], rows: Sequence[int]) -> list[list[_Job]]:
    """The episodes in their order, cut where the next task is not the next that there is."""
    following = dict(pairwise(sorted(rows)))
    parts: list[list[_Job]] = []
    before = None
    for job, row in zip(jobs, rows, strict=True):
        if before is None or following.get(before) != row:
            parts.append([])
        parts[-1].append(job)
        before = row
    # A run that took its tasks in a random order is one nevertheless.
    return parts if len(parts) * _RANDOM < len(jobs) or len(jobs) < _RANDOM else [list(jobs)]


def _episode(connection: Connection, task: Task, episode: RecordedEpisode) -> list[_Turn]:
    """All that one episode's actions give."""
    if task.db is None or not task.gold:
        raise TaskError(f"task {task.task_id!r}: field 'db' or 'gold' is missing")
    connection.use(task.db)
    answer: Answer = task.query
    turns: list[_Turn] = []
    ran = ""
    for turn in episode.turns:
        if turn.command is None:
            continue
        submits = turn.command.startswith(("submit", "skip"))
        if not submits:
            # ReAct's parser of 2023 took the first statement alone.
            ran = turn.command.partition(";")[0] if episode.react else turn.command
            answer = connection.execute(ran)
        gold: Answer = None
        worth = _NOTHING
        if submits or not episode.react:
            gold = connection.execute(task.gold[0])
            worth = rewards(answer, gold) if turn.command != "skip" else _NOTHING
        if turn.counts:
            kept = turn.observation
            agrees = kept is None or same(kept, answer, episode.react)
            text = shown(answer, episode.react)
            turns.append(_Turn(turn, text, agrees, worth, gold, ran))
    return turns


def _report(parts: Sequence[Sequence[_Replayed]]) -> SqlReplayReport:
    every = [one for part in parts for one in part]
    usual = _best(_agreements(every), "released", 1)
    report = SqlReplayReport(episodes=len(every), version=usual)
    for part in parts:
        agree = _agreements(part)
        version = _best(agree, usual, _EVIDENCE)
        turns = sum(len(one.turns) for one in part)
        first = part[0].episode.task_id
        report.parts.append(Part(first, len(part), turns, version, {**agree}))
        for one in part:
            _count(report, one, version)
    for count in report.by_task.values():
        report.turns += count.turns
        report.reward_equal += count.reward_equal
        report.observation_equal += count.observation_equal
    return report


def _agreements(part: Sequence[_Replayed]) -> dict[Version, int]:
    return {
        version: sum(turn.same_reward(version) for one in part for turn in one.turns)
        for version in VERSIONS
    }


def _best(agree: Mapping[Version, int], usual: Version, evidence: int) -> Version:
    """The version that most turns agree with; the usual one unless there is evidence."""
    best = max(VERSIONS, key=lambda version: agree[version])
    return best if agree[best] - agree[usual] >= evidence else usual


def _count(report: SqlReplayReport, one: _Replayed, version: Version) -> None:
    success, recorded = one.success(version), one.episode.success
    count = TaskReplay(turns=len(one.turns), success_agree=success == recorded)
    report.by_task[one.episode.task_id] = count
    level = report.by_hardness.setdefault(_hardness(one), Hardness())
    level.episodes += 1
    for total in (report, level):
        total.success_recorded += recorded
        total.success_replayed += success
        total.success_agree += success == recorded
    for turn in one.turns:
        agrees = turn.same_reward(version)
        count.reward_equal += agrees
        count.observation_equal += turn.same_observation
        if not (agrees and turn.same_observation):
            report.mismatches.append(_mismatch(one, turn, version))


def _hardness(one: _Replayed) -> str:
    return str(one.episode.hardness or one.task.metadata.get("hardness") or "unknown")


def _mismatch(one: _Replayed, turn: _Turn, version: Version) -> Mismatch:
    cause = cause_of(
        turn.ran,
        turn.recorded.observation or "",
        turn.observation,
        same_observation=turn.same_observation,
        gold=turn.gold,
        gold_command=one.task.gold[0],
    )
    reward = turn.rewards.of(version)
    return Mismatch.of(one.episode.task_id, turn.recorded, turn.observation, reward, cause)
