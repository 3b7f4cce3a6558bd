"""The replay of SQL runs: in the recorded order, with all leaks of state between episodes.

The episodes of a process of 2023 share one connection. A results file may combine several
processes. If an episode's task does not follow that of the previous episode, another process began
there, with a new connection. Such a part of the file may have another version of the reward.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise

from intercode.errors import TaskError
from intercode.task import Task
from intercode_paper.replay_report import CUT, Progress, ReplayedTurn, ReplayReport
from intercode_paper.results_files import RecordedEpisode, RecordedRun, find_task
from intercode_paper.sql_databases import Answer, ReplayDatabases, SharedDatabaseConnection
from intercode_paper.sql_env import VERSIONS, RewardsByVersion, Version, rewards

_MIN_PROCESS_EPISODES = 4
"""Average number of episodes in a part, at or below which the tasks count as randomly ordered."""
_EVIDENCE = 2
"""Number of equal rewards by which another version must exceed the file's version, to count as the
version of a part."""


@dataclass(slots=True)
class RecordedProcessEpisodes:
    """A part of a results file: consecutive episodes that one process of 2023 recorded."""

    first: str
    """Id of the task of the first episode."""
    episodes: int = 0
    turns: int = 0
    version: Version = "released"
    """Version of the reward for this part: that of the file, unless another has a clear lead."""
    agree: dict[Version, int] = field(default_factory=dict)
    """Version → number of turns whose reward equals the recorded one."""


@dataclass(slots=True)
class DifficultyCounts:
    """Numbers of the replayed episodes of one difficulty, and of those that succeed.

    Success is counted in the record and in the replay; `success_agree` counts equal results.
    """

    episodes: int = 0
    success_recorded: int = 0
    success_replayed: int = 0
    success_agree: int = 0


@dataclass(slots=True)
class SqlReplayReport(ReplayReport):
    """The report of a replay of an SQL run, with counts by difficulty and by part."""

    engine: str = ""
    by_hardness: dict[str, DifficultyCounts] = field(default_factory=dict)
    parts: list[RecordedProcessEpisodes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _SqlReplayTurn(ReplayedTurn):
    rewards: RewardsByVersion


_Pair = tuple[RecordedEpisode, Task]
_EpisodeReplay = tuple[RecordedEpisode, Task, list[_SqlReplayTurn]]


def replay_sql(
    tasks: Sequence[Task],
    recorded_run: RecordedRun,
    databases: ReplayDatabases,
    progress: Progress | None = None,
) -> SqlReplayReport:
    """Execute the recorded actions again, and compare the results with the record.

    Args:
        tasks: The tasks of the run's data file, in order.
        recorded_run: The recorded results.
        databases: The databases in their initial state.
        progress: A function to call after each finished episode.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        TaskError: A task has no gold or no database.
        DatabaseError: The engine failed. Then no report is returned, even of finished episodes.
    """
    start_time = time.monotonic()
    pairs = [(episode, find_task(tasks, episode)) for episode in recorded_run.episodes]
    replayed_processes: list[list[_EpisodeReplay]] = []
    for process in _split_processes(pairs, [tasks.index(task) for _, task in pairs]):
        with closing(databases.connect()) as connection:
            replayed_processes.append([])
            for episode, task in process:
                replayed_processes[-1].append((episode, task, _episode(connection, task, episode)))
                if progress is not None:
                    progress(sum(map(len, replayed_processes)), len(pairs))
    report = _report(replayed_processes)
    report.engine = databases.engine
    report.seconds = time.monotonic() - start_time
    return report


def _split_processes(pairs: Sequence[_Pair], task_rows: Sequence[int]) -> list[list[_Pair]]:
    """Split the episodes into parts: a new part starts where the order of the data file breaks.

    Args:
        pairs: The episodes with their tasks, in recorded order.
        task_rows: The row of each job's task in the data file.
    """
    next_row_by_row = dict(pairwise(sorted(task_rows)))
    processes: list[list[_Pair]] = []
    previous_row = None
    for pair, row in zip(pairs, task_rows, strict=True):
        if previous_row is None or next_row_by_row.get(previous_row) != row:
            processes.append([])
        processes[-1].append(pair)
        previous_row = row
    # Many short parts show that one process recorded the run in random order. All episodes are then
    # returned as a single part.
    return (
        processes
        if len(processes) * _MIN_PROCESS_EPISODES < len(pairs) or len(pairs) < _MIN_PROCESS_EPISODES
        else [list(pairs)]
    )


def _episode(
    connection: SharedDatabaseConnection, task: Task, episode: RecordedEpisode
) -> list[_SqlReplayTurn]:
    if task.db is None or not task.gold:
        raise TaskError(f"task {task.task_id!r}: field 'db' or 'gold' is missing")
    connection.use(task.db)
    answer: Answer = task.query
    replayed_turns: list[_SqlReplayTurn] = []
    for turn in episode.turns:
        if turn.command is None:
            continue
        is_submission = turn.command.startswith(("submit", "skip"))
        if not is_submission:
            # The ReAct parser of 2023 executed only the first statement of a command.
            statement = turn.command.partition(";")[0] if episode.react else turn.command
            answer = connection.execute(statement)
        replay_rewards = RewardsByVersion()
        if is_submission or not episode.react:
            gold = connection.execute(task.gold[0])
            replay_rewards = rewards(answer, gold) if turn.command != "skip" else replay_rewards
        if turn.is_compared:
            same_observation = turn.observation is None or has_same_answer(
                turn.observation, answer, episode.react
            )
            replay_observation = _excerpt(answer, episode.react)
            replayed_turns.append(
                _SqlReplayTurn(turn, replay_observation, 0.0, same_observation, replay_rewards)
            )
    return replayed_turns


def _report(processes: Sequence[Sequence[_EpisodeReplay]]) -> SqlReplayReport:
    replays = [replay for process in processes for replay in process]
    default_version = _best_version(_agreements(replays), "released", 1)
    report = SqlReplayReport(version=default_version)
    for process in processes:
        agreements = _agreements(process)
        version = _best_version(agreements, default_version, _EVIDENCE)
        turn_count = sum(len(turns) for _, _, turns in process)
        report.parts.append(
            RecordedProcessEpisodes(
                process[0][0].task_id, len(process), turn_count, version, agreements
            )
        )
        for episode, task, turns in process:
            graded_turns = [replace(turn, reward=turn.rewards.reward(version)) for turn in turns]
            success = report.count(episode, graded_turns)
            hardness = str(episode.hardness or task.metadata.get("hardness") or "unknown")
            counts = report.by_hardness.setdefault(hardness, DifficultyCounts())
            counts.episodes += 1
            counts.success_recorded += episode.success
            counts.success_replayed += success
            counts.success_agree += success == episode.success
    return report


def _agreements(replays: Sequence[_EpisodeReplay]) -> dict[Version, int]:
    turns = [turn for _, _, turns in replays for turn in turns]
    return {
        version: sum(turn.recorded_turn.has_reward(turn.rewards.reward(version)) for turn in turns)
        for version in VERSIONS
    }


def _best_version(
    agreements: Mapping[Version, int], default_version: Version, min_lead: int
) -> Version:
    """Return the version with the most equal rewards.

    If its lead over the default version is below `min_lead`, return the default version.
    """
    best_version = max(VERSIONS, key=lambda version: agreements[version])
    return (
        best_version
        if agreements[best_version] - agreements[default_version] >= min_lead
        else default_version
    )


# Observations are compared as texts, but servers word the same message differently. The comparison
# ignores such differences. Rewards are computed from the unchanged answers.

_SHOWN_ROWS = (25, 30, 10)
"""Numbers of rows of an observation that ReAct's runs recorded. Most runs have the first number."""
_CLAUSES = {
    "field list": "SELECT",
    "from clause": "FROM",
    "where clause": "WHERE",
    "on clause": "ON",
    "group statement": "GROUP BY",
    "having clause": "HAVING",
    "order clause": "ORDER BY",
    "IN/ALL/ANY subquery": "IN/ALL/ANY",
}
"""Name of a clause in MySQL's messages → name in MariaDB's."""
_CLAUSE = re.compile(rf" in '?({'|'.join([*_CLAUSES, *_CLAUSES.values()])})'?(?= is ambiguous|$)")
_WORDINGS = (
    (re.compile(r"\b((?:tiny|small|medium|big)?int)\(\d+\)"), r"\1"),
    (re.compile(r"\bb(?='(?:[^'\\]|\\.)*')"), ""),
    (re.compile(r"\b(?:MariaDB|MySQL) server version"), "server version"),
)
_ROW_SEPARATOR = re.compile(r"(?<=\)), (?=\()")


def has_same_answer(recorded_text: str, answer: Answer, react: bool = False) -> bool:
    """Return whether an answer equals the recorded observation, apart from a server's wording.

    Args:
        recorded_text: The recorded observation.
        answer: The answer in the replay.
        react: Whether the strategy is ReAct, whose runs recorded only excerpts of observations.
    """
    plain_text = _normalise(recorded_text)
    if plain_text in (_normalise(_excerpt(answer, react)), _normalise(str(answer))):
        return True
    if react and isinstance(answer, list):
        return any(
            plain_text == _normalise(str(answer[:row_count])) for row_count in _SHOWN_ROWS[1:]
        )
    if react and len(recorded_text) == CUT:
        return _normalise(str(answer)).startswith(plain_text)
    # Some files contain rows as lists in place of tuples.
    return isinstance(answer, list) and recorded_text == str([list(row) for row in answer])


def _excerpt(answer: Answer, react: bool) -> str:
    """Return the part of an answer that a run recorded as the observation."""
    if react and isinstance(answer, list):
        return str(answer[: _SHOWN_ROWS[0]])
    return str(answer)[:CUT] if react else str(answer)


def _normalise(text: str) -> str:
    """Replace the parts of an observation that servers word differently by one form."""
    for pattern, replacement in _WORDINGS:
        text = pattern.sub(replacement, text)
    return _CLAUSE.sub(lambda match: f" in {_CLAUSES.get(match[1], match[1])}", text)
