"""Reading recorded episodes back, whole or as the actions that were taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intercode.episode import Episode
from intercode.errors import RecordError

EPISODES = "episodes.jsonl"


def finished_size(path: Path) -> int:
    """Bytes of `path` up to its last complete line.

    What follows is the torn end of a write that was never confirmed: a line without its newline,
    or the zeros that some file systems leave after a power cut.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            if (newline := file.read(end - start).rfind(b"\n")) >= 0:
                return start + newline + 1
            end = start
    return 0


def read_episodes(path: Path) -> Iterator[Episode]:
    """The finished episodes of a log, in the order in which they ended; a torn end is left out.

    Raises:
        RecordError: A complete line is not an episode; the message names file and line.
    """
    try:
        size = finished_size(path)
        with path.open("rb") as file:
            number = 0
            while file.tell() < size:
                number += 1
                try:
                    yield Episode.from_json(file.readline())
                except RecordError as error:
                    raise RecordError(f"{path}:{number}: {error}") from error
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def load_actions(path: Path) -> dict[str, list[str]]:
    """Task id → the actions that were taken, from any of the shapes that `replay` takes.

    Raises:
        RecordError: The file cannot be read or has none of these shapes.
    """
    if path.is_dir():
        path = path / EPISODES
    if path.suffix == ".jsonl":
        return _from_log(path)
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from error
    if isinstance(data, dict) and isinstance(data.get("logs"), dict):
        data = data["logs"]
    if not isinstance(data, dict) or not data:
        raise RecordError(f"{path}: expected a JSON object, task id → actions")
    return {task: _actions(value, f"{path}, task {task}") for task, value in data.items()}


def _from_log(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for episode in read_episodes(path):
        if episode.epoch or episode.status == "error":
            continue
        actions = [turn.action for turn in episode.turns]
        if episode.status == "skipped":
            actions.append("skip")
        elif episode.answer is not None:
            actions.append(f"submit {episode.answer}")
        found[episode.task_id] = actions
    if not found:
        raise RecordError(f"{path} holds no finished episode")
    return found


def _actions(value: Any, where: str) -> list[str]:
    if isinstance(value, dict):  # the 2023 shape
        history = value.get("turn_history")
        if not isinstance(history, dict):
            raise RecordError(f"{where}: neither a list of actions nor a recorded episode")
        value = [_unwrapped(action) for action in history.get("actions", [])]
        # "blocked" stands for the turn that came after the last one; None for no code at all.
        value = [action for action in value if action not in (None, "", "blocked")]
    if not isinstance(value, list) or not all(isinstance(action, str) for action in value):
        raise RecordError(f"{where}: actions must be a list of strings")
    return value


def _unwrapped(action: Any) -> Any:
    """A ReAct action without its ``execute[…]``."""
    if isinstance(action, str) and action.startswith("execute[") and action.endswith("]"):
        return action[len("execute[") : -1]
    return action
