"""Predictions that were made elsewhere: a file of them goes in, scores come out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.agents.parser import find_code
from intercode.agents.scene import Scene
from intercode.agents.scripted import ScriptedAgent
from intercode.envs.traits import Traits
from intercode.errors import RecordError, UsageError

if TYPE_CHECKING:
    from intercode.task import Task

_IDS = ("task_id", "instance_id")
_TEXTS = ("prediction", "model_patch")


class Predictions:
    """Makes agents that run what was predicted, and submit.

    Args:
        recording: JSON Lines: objects with ``task_id`` and ``prediction`` (or, as in SWE-bench,
            ``instance_id`` and ``model_patch``).

    Raises:
        RecordError: It cannot be read; the message names file and line.
    """

    def __init__(self, recording: str | Path) -> None:
        self._path = Path(recording)
        self.texts = read_predictions(self._path)

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that have no prediction."""
        missing = [task.task_id for task in tasks if task.task_id not in self.texts]
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise UsageError(
                f"{self._path} has no prediction for {', '.join(missing[:5])}{more}; "
                "choose tasks that it has (--task), or give an empty one"
            )

    def __call__(self, task: Task) -> ScriptedAgent:
        """The agent of one episode, in a shell."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> ScriptedAgent:
        """The agent of one episode in this environment."""
        self.check([task])
        text = self.texts[task.task_id]
        scene = Scene.of(env, task)
        return ScriptedAgent([action_for(scene.traits, text)] if text.strip() else [])


def action_for(traits: Traits, text: str) -> str:
    """Make the action that a prediction stands for: code, a flag, a patch."""
    if traits.prediction is not None:
        return traits.prediction(text)
    return find_code(text, traits.language) or text


def read_predictions(path: Path) -> dict[str, str]:
    """Task id → what was predicted.

    Raises:
        RecordError: The file cannot be read, or is something else.
    """
    try:
        # Not splitlines(): U+2028 and its like may stand unescaped within a JSON text.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task_id, text = _prediction(line, f"{path}:{number}")
        if task_id in found:
            raise RecordError(f"{path}:{number}: task {task_id!r} has two predictions")
        found[task_id] = text
    if not found:
        raise RecordError(f"{path} holds no prediction")
    return found


def _prediction(line: str, where: str) -> tuple[str, str]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RecordError(f"{where}: expected an object, not {type(data).__name__}")
    task_id, text = _field(data, _IDS, where), _field(data, _TEXTS, where)
    if not isinstance(text, str):
        raise RecordError(f"{where}: the prediction must be a text, not {type(text).__name__}")
    return str(task_id), text


def _field(data: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in data:
            return data[name]
    raise RecordError(f"{where}: field {names[0]!r} is missing")
