"""The parser of recorded runs in the formats of 2023.

A file has a map from task id to episode, or a list of episodes; either may be the value ``logs`` of
``{"meta": …, "logs": …}``. An episode has its turns as parallel lists, which may differ in length.
A person's episode has one list of turns, and a reward only at the end. The lists do not state which
turns reached the environment, and with which command. This module infers both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from intercode.errors import RecordError
from intercode.task import Task

BLOCKED = "blocked"
"""The action of a turn for which the model's provider refused to generate a reply."""
_NO_CODE = re.compile(
    r"No \S+ (?:code|commands?) (?:was|were) found in your last"
    r"|Error executing query: Your last `?execute`? action did not contain"
)
"""Pattern of the start of the observation after a reply without code."""
_MIN_LIKENESS = 0.5
"""Minimum similarity, in [0, 1], of two queries for one to count as a new wording of the other."""
_EXECUTE = re.compile(r"execute\[(.*)\]", re.DOTALL)
"""Pattern of a command in ReAct's form, which extends to the last bracket of the text."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of a recorded episode."""

    index: int
    """Index of the turn in the episode, from 0."""
    action: str
    """The recorded text. In ReAct's runs it has ``execute[…]`` around the command."""
    command: str | None
    """The text that the environment received, including ``submit``; None: the turn did not reach
    the environment."""
    observation: str | None
    reward: float | None
    valid: bool | None
    """The recorded ``valid_action``: whether the command succeeded, in Bash with exit code 0. None:
    not recorded."""

    @property
    def is_compared(self) -> bool:
        """Whether a replay compares the turn: it reached the environment, and has a reward."""
        return self.command is not None and self.reward is not None

    def has_reward(self, replay_reward: float) -> bool:
        """Return whether a reward equals the recorded reward, with a tolerance of 1e-9."""
        return self.reward is not None and math.isclose(replay_reward, self.reward, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One recorded episode: a single attempt at a task."""

    task_id: str
    """The recorded id, mostly the row of the task in its data file, as text."""
    query: str
    turns: tuple[RecordedTurn, ...]
    max_reward: float
    thoughts: tuple[str, ...] = ()
    """The thoughts of ReAct, or the steps of Plan & Solve."""
    react: bool = False
    """Whether the strategy is ReAct, whose runs computed a reward only for the submission."""
    hardness: str | None = None
    """The recorded difficulty, such as ``easy``."""
    dataset: str = ""
    """The recorded path of the run's data file; empty if none was recorded."""

    @property
    def success(self) -> bool:
        """Whether any turn reached the reward 1."""
        return self.max_reward == 1


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The content of a results file."""

    path: Path
    episodes: tuple[RecordedEpisode, ...]
    """The episodes in the order of the file."""
    meta: Mapping[str, Any] = field(default_factory=dict)


def load_results(path: str | Path) -> RecordedRun:
    """Read and parse a results file.

    Raises:
        RecordError: The file cannot be read or parsed; the message names file, episode and field.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from error
    try:
        return _run(path, data)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def find_task(tasks: Sequence[Task], episode: RecordedEpisode) -> Task:
    """Return the task of an episode: by id and query if both are equal, otherwise by query.

    Raises:
        RecordError: No task has the episode's query.
    """
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


def update_queries(
    tasks: Sequence[Task], recorded_run: RecordedRun
) -> tuple[RecordedRun, tuple[str, ...]]:
    """Replace the queries of a run that no task has by the current wording of the tasks.

    The candidate for such a query is the task with the episode's id, or the task in the row of that
    number. If these are two tasks, the more similar query decides. The candidate's query replaces
    the recorded one in two cases: the queries are similar, or at least half of the run's queries
    have a task. Other queries stay unchanged, and `find_task` refuses them.

    Args:
        tasks: The tasks of the run's data file, in order.
        recorded_run: The whole run.

    Returns:
        The run with the current queries, and the ids of the episodes whose queries have changed.
    """
    queries = {task.query.strip() for task in tasks}
    unmatched_episodes = [
        episode for episode in recorded_run.episodes if episode.query.strip() not in queries
    ]
    has_same_data = 2 * len(unmatched_episodes) <= len(recorded_run.episodes)
    reworded_episodes: dict[str, RecordedEpisode] = {}
    for episode in unmatched_episodes:
        likeness, task = _find_by_id(tasks, episode)
        if task is not None and (has_same_data or likeness >= _MIN_LIKENESS):
            reworded_episodes[episode.task_id] = replace(episode, query=task.query)
    episodes = tuple(
        reworded_episodes.get(episode.task_id, episode) for episode in recorded_run.episodes
    )
    return replace(recorded_run, episodes=episodes), tuple(reworded_episodes)


def _find_by_id(tasks: Sequence[Task], episode: RecordedEpisode) -> tuple[float, Task | None]:
    """Return the similarity of the queries, and the task with an episode's id or in its row."""
    candidates = [task for task in tasks if task.task_id == episode.task_id]
    if episode.task_id.isdecimal():
        row = int(episode.task_id)
        candidates += tasks[row : row + 1]
    query_words = episode.query.split()
    likenesses = [
        SequenceMatcher(None, task.query.split(), query_words).ratio() for task in candidates
    ]
    return max(
        zip(likenesses, candidates, strict=True), key=lambda pair: pair[0], default=(0.0, None)
    )


def _run(path: Path, data: Any) -> RecordedRun:
    meta: Mapping[str, Any] = {}
    if isinstance(data, dict) and isinstance(data.get("logs"), (dict, list)):
        meta = data["meta"] if isinstance(data.get("meta"), dict) else {}
        data = data["logs"]
    if isinstance(data, list):
        data = {str(row): episode for row, episode in enumerate(data)}
    if not isinstance(data, dict):
        raise RecordError(f"must be a JSON object of episodes, not {type(data).__name__}")
    if not data:
        raise RecordError("holds no episodes")
    episodes: dict[str, RecordedEpisode] = {}
    for key, episode_data in data.items():
        try:
            episode = _episode(key, episode_data)
        except RecordError as error:
            raise RecordError(f"episode {key!r}: {error}") from None
        if episode.task_id in episodes:
            raise RecordError(f"episode {key!r}: task_id {episode.task_id!r} is listed twice")
        episodes[episode.task_id] = episode
    return RecordedRun(path, tuple(episodes.values()), meta)


class _TurnHistory(msgspec.Struct):
    """The turns of an episode, as parallel lists that may differ in length."""

    actions: list[str | None]
    observations: list[Any] | None = None
    rewards: list[float | None] | None = None
    valid_action: list[Any] | None = None
    thoughts: Any = msgspec.UNSET
    steps: Any = None


class _EpisodeSummary(msgspec.Struct):
    max_reward: float | None = None


class _ResultsEpisode(msgspec.Struct):
    turn_history: _TurnHistory
    query: str
    summary: _EpisodeSummary | None = None
    task_id: Any = None
    hardness: Any = None
    dataset: Any = None


class _HumanTurn(msgspec.Struct):
    """A turn in a person's episode."""

    action: str
    observation: Any = None


class _HumanEpisode(msgspec.Struct):
    """An episode of a person, which has a reward only for the end."""

    trajectory: list[_HumanTurn]
    reward: float

    def history(self) -> dict[str, Any]:
        """Return the turns as parallel lists, and add the submission that received the reward."""
        return {
            "actions": [*(step.action for step in self.trajectory), "submit"],
            "observations": [*(step.observation for step in self.trajectory), None],
            "rewards": [*(None for _ in self.trajectory), self.reward],
        }


T = TypeVar("T")


def _convert(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, field_path = str(error).partition(" - at `$.")
        raise RecordError(
            f"field {field_path[:-1]!r}: {problem}" if field_path else problem
        ) from None


def _episode(key: str, value: Any) -> RecordedEpisode:
    if isinstance(value, dict) and "trajectory" in value and "turn_history" not in value:
        value = {**value, "turn_history": _convert(value, _HumanEpisode).history()}
    parsed_episode = _convert(value, _ResultsEpisode)
    history = parsed_episode.turn_history
    # Thoughts identify ReAct, because no other strategy has them. The text "execute[…]" does not
    # identify ReAct, because commands of other strategies may contain the text.
    react = history.thoughts is not msgspec.UNSET
    columns = (history.actions, history.observations, history.rewards, history.valid_action)
    rows = islice(zip_longest(*(column or () for column in columns)), len(history.actions))
    turns = tuple(_turn(index, react, *row) for index, row in enumerate(rows))
    max_reward = parsed_episode.summary.max_reward if parsed_episode.summary else None
    if max_reward is None:
        max_reward = max((turn.reward for turn in turns if turn.reward is not None), default=0.0)
    has_own_id = isinstance(parsed_episode.task_id, (int, str)) and not isinstance(
        parsed_episode.task_id, bool
    )
    return RecordedEpisode(
        task_id=str(parsed_episode.task_id) if has_own_id else key,
        query=parsed_episode.query,
        turns=turns,
        max_reward=max_reward,
        thoughts=tuple(map(str, (history.thoughts if react else None) or history.steps or ())),
        react=react,
        hardness=parsed_episode.hardness if isinstance(parsed_episode.hardness, str) else None,
        dataset=parsed_episode.dataset if isinstance(parsed_episode.dataset, str) else "",
    )


def _turn(
    index: int,
    react: bool,
    action: str | None,
    raw_observation: Any,
    reward: float | None,
    validity: Any,
) -> RecordedTurn:
    # Some files of SQL runs contain lists of rows in place of text.
    observation = (
        raw_observation
        if raw_observation is None or isinstance(raw_observation, str)
        else str(raw_observation)
    )
    return RecordedTurn(
        index=index,
        action=action or "",
        command=_command(action, observation, react),
        observation=observation,
        reward=reward,
        valid=validity if isinstance(validity, bool) else None,
    )


def _command(action: str | None, observation: str | None, react: bool) -> str | None:
    """Return the text that reached the environment in a turn; None if no text did."""
    if action is None or (action == BLOCKED and observation is None):
        return None
    if observation is not None and _NO_CODE.match(observation):
        return None
    if not react:
        return action
    if action.startswith(("submit", "skip")):
        return action
    match = _EXECUTE.search(action)
    return match.group(1) if match else None
