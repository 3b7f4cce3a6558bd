"""Recorded runs in the format of 2023: every shape in which their files come.

A file maps task ids to episodes, or wraps that map in ``{"meta": …, "logs": …}``, or lists the
episodes. An episode holds its turns as parallel lists that may differ in length. What the lists
cannot say is decided here, once: which turns reached the environment, and with what command.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intercode.errors import RecordError
from intercode.task import Task

BLOCKED = "blocked"
"""The action of a turn in which the model's provider refused to answer."""
_NO_CODE = re.compile(
    r"No \S+ (?:code|commands?) (?:was|were) found in your last"
    r"|Error executing query: Your last `?execute`? action did not contain"
)
"""The beginning of the prompts' answer to a turn without code."""
_EXECUTE = re.compile(r"execute\[(.*)\]", re.DOTALL)
"""ReAct's way to write a command: to the *last* bracket of the text."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One recorded turn."""

    index: int
    """Position in the episode, from 0."""
    action: str
    """The recorded text; in ReAct with ``execute[…]`` around the command."""
    command: str | None
    """The environment's input (``submit`` too), or None: it was not called."""
    observation: str | None
    reward: float | None
    valid: bool | None
    """The recorded ``valid_action``: the command ended with exit code 0."""

    @property
    def counts(self) -> bool:
        """Whether a replay can be compared with it: it was executed and has a reward."""
        return self.command is not None and self.reward is not None

    def has_reward(self, reward: float) -> bool:
        """Whether a reward is the recorded one."""
        return self.reward is not None and math.isclose(reward, self.reward, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One recorded attempt at one task."""

    task_id: str
    """The task's row in its data file, as text."""
    query: str
    turns: tuple[RecordedTurn, ...]
    max_reward: float
    thoughts: tuple[str, ...] = ()
    """ReAct's thoughts or Plan & Solve's steps."""
    react: bool = False
    """Whether its rewards came with the submit alone, not with every turn."""
    hardness: str | None = None

    @property
    def success(self) -> bool:
        """Whether some turn reached the full reward."""
        return self.max_reward == 1


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One results file."""

    path: Path
    episodes: tuple[RecordedEpisode, ...]
    """In the order in which they were run."""
    meta: Mapping[str, Any] = field(default_factory=dict)


def load_results(path: str | Path) -> RecordedRun:
    """Read a results file.

    Raises:
        RecordError: It cannot be read; the message names the file, the episode and the field.
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


def task_of(tasks: Sequence[Task], episode: RecordedEpisode) -> Task:
    """Return an episode's task: by its row if the query there is the same, else by its query.

    Raises:
        RecordError: No task asks it.
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
    for key, value in data.items():
        try:
            episode = _episode(key, value)
        except RecordError as error:
            raise RecordError(f"episode {key!r}: {error}") from None
        if episode.task_id in episodes:
            raise RecordError(f"episode {key!r}: task_id {episode.task_id!r} is there twice")
        episodes[episode.task_id] = episode
    return RecordedRun(path, tuple(episodes.values()), meta)


def _episode(key: str, value: Any) -> RecordedEpisode:
    if not isinstance(value, dict):
        raise RecordError(f"must be an object, not {type(value).__name__}")
    history = value.get("turn_history")
    if not isinstance(history, dict):
        raise RecordError("field 'turn_history' is missing or not an object")
    query = value.get("query")
    if not isinstance(query, str):
        raise RecordError("field 'query' is missing or not text")
    turns = _turns(history)
    summary = value.get("summary") or {}
    if not isinstance(summary, dict):
        raise RecordError("field 'summary' is not an object")
    best = _number(summary.get("max_reward"), "summary.max_reward")
    if best is None:
        best = max((t.reward for t in turns if t.reward is not None), default=0.0)
    return RecordedEpisode(
        task_id=_task_id(value.get("task_id"), key),
        query=query,
        turns=turns,
        max_reward=best,
        thoughts=tuple(str(x) for x in history.get("thoughts") or history.get("steps") or ()),
        react="thoughts" in history,
        hardness=hardness if isinstance(hardness := value.get("hardness"), str) else None,
    )


def _task_id(value: Any, key: str) -> str:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return str(value)
    return key


def _turns(history: Mapping[str, Any]) -> tuple[RecordedTurn, ...]:
    if "actions" not in history:
        raise RecordError("field 'turn_history.actions' is missing")
    actions = _list(history, "actions")
    observations = _list(history, "observations")
    rewards = [
        _number(reward, f"turn_history.rewards[{row}]")
        for row, reward in enumerate(_list(history, "rewards"))
    ]
    valid = _list(history, "valid_action")
    # Only ReAct thinks; elsewhere a command may well hold the text "execute[…]".
    react = "thoughts" in history
    turns = []
    for row, action in enumerate(actions):
        if action is not None and not isinstance(action, str):
            raise RecordError(f"field 'turn_history.actions[{row}]' is not text")
        observation = _at(observations, row)
        if observation is not None and not isinstance(observation, str):
            observation = str(observation)  # some SQL files hold rows, not their text
        ok = _at(valid, row)
        turns.append(
            RecordedTurn(
                index=row,
                action=action or "",
                command=_command(action, observation, react),
                observation=observation,
                reward=_at(rewards, row),
                valid=ok if isinstance(ok, bool) else None,
            )
        )
    return tuple(turns)


def _command(action: str | None, observation: str | None, react: bool) -> str | None:
    """Return the environment's input in this turn, if it was called."""
    if action is None or (action == BLOCKED and observation is None):
        return None
    if observation is not None and _NO_CODE.match(observation):
        return None
    if not react:
        return action
    if action.startswith(("submit", "skip")):
        return action
    found = _EXECUTE.search(action)
    return found.group(1) if found else None


def _list(history: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = history.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RecordError(f"field 'turn_history.{name}' is not a list")
    return value


def _at(values: Sequence[Any], row: int) -> Any:
    return values[row] if row < len(values) else None


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)):
        raise RecordError(f"field {name!r} is not a number")
    return float(value)
