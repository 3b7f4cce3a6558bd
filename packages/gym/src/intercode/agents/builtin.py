"""The built-in agents that call no model: oracle, noop, replay, random and predictions."""

from __future__ import annotations

import json
import random
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.agents.parser import find_code
from intercode.envs.traits import SHELL, Traits, resolve_traits
from intercode.episode import Turn
from intercode.errors import RecordError, UsageError
from intercode.records import load_actions
from intercode_sandbox.units import format_names

if TYPE_CHECKING:
    from intercode.agents.base import AgentFactory
    from intercode.task import Task


class ScriptedAgent:
    """An agent that takes a sequence of actions, and then submits."""

    def __init__(self, actions: Iterable[str] = ()) -> None:
        self._actions = iter(actions)

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the next action of the script."""
        return next(self._actions, "submit")


class OracleAgents:
    """A factory of agents that run a task's first reference solution (gold) and submit.

    Without gold an agent only submits.
    """

    needs_gold = True

    def check_run(self, tasks: Sequence[Task], workers: int) -> str:
        """Refuse a run in which no task has gold; return a warning about tasks without gold.

        Raises:
            UsageError: No task has gold.
        """
        task_ids = [task.task_id for task in tasks if not task.gold]
        if len(task_ids) == len(tasks):
            raise UsageError("agent oracle runs gold, but no task has gold: name another agent")
        names = format_names(task_ids, 3)
        return f"no gold for {names}: there the oracle does nothing but submit" if names else ""

    def __call__(self, task: Task) -> ScriptedAgent:
        """Make the agent of one episode in an environment whose gold is an action."""
        return ScriptedAgent(task.gold[:1])

    def make_agent(self, env: object, task: Task) -> ScriptedAgent:
        """Make the agent of one episode, whose actions are those of the environment's `solution`.

        In some environments gold is an action, in others an answer or a patch.
        """
        solution = getattr(env, "solution", None)
        return self(task) if solution is None else ScriptedAgent(solution(task))


def noop() -> AgentFactory:
    """Return a factory of agents that submit at once, to measure the score without any action."""
    return lambda task: ScriptedAgent()


class ReplayAgents:
    """A factory of agents that repeat recorded actions."""

    def __init__(self, recording: str | Path | Mapping[str, Sequence[str]]) -> None:
        """Read the recording.

        Args:
            recording: The folder of a run, the file ``episodes.jsonl`` in that folder, a JSON file,
                or a mapping of task id → list of actions. A JSON file holds such a mapping, or
                results of 2023. If a run has several epochs, the actions of the first are used.

        Raises:
            RecordError: The recording cannot be read.
        """
        self.actions: Mapping[str, Sequence[str]]
        if isinstance(recording, Mapping):
            self.actions = recording
        else:
            self.actions = load_actions(Path(recording))

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks without recorded actions.

        Raises:
            UsageError: The recording lacks tasks; the message names the first five.
        """
        if missing_tasks := _name_missing_tasks(tasks, self.actions):
            raise UsageError(
                f"the recording has no actions for {missing_tasks}; choose tasks that it has "
                "(--task)"
            )

    def __call__(self, task: Task) -> ScriptedAgent:
        """Make the agent of one episode."""
        self.check([task])
        return ScriptedAgent(self.actions[task.task_id])


def _name_missing_tasks(tasks: Sequence[Task], available_ids: Container[str]) -> str:
    """Return the ids of tasks without a recording, at most five; empty if no task lacks one."""
    return format_names([task.task_id for task in tasks if task.task_id not in available_ids], 5)


class RandomAgent:
    """An agent that takes random actions, and submits at a random turn.

    Args:
        actions: The possible actions.
        seed: The seed of all random choices.
    """

    def __init__(self, actions: Sequence[str], seed: int) -> None:
        self._actions = actions
        self._generator = random.Random(seed)

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Draw the next action; after the first turn, ``submit`` with probability 0.25."""
        if history and self._generator.random() < 0.25:
            return "submit"
        return self._generator.choice(self._actions)


class RandomAgents:
    """A factory of random agents. The seed of an agent is its episode's seed."""

    def __call__(self, task: Task) -> RandomAgent:
        """Make the agent of one episode in a shell, with the seed 0."""
        return self.make_agent(None, task)

    def make_agent(self, env: Any, task: Task) -> RandomAgent:
        """Make the agent of one episode in this environment."""
        actions = resolve_traits(env).random_actions or SHELL.random_actions
        return RandomAgent(actions, 0 if env is None else env.episode.seed or 0)


_IDS = ("task_id", "instance_id")
_TEXTS = ("prediction", "model_patch")


class PredictionAgents:
    """A factory of agents that run a prediction from a file, and submit.

    Args:
        recording: The path of a JSON Lines file. Each line is an object with the fields ``task_id``
            and ``prediction``, or with SWE-bench's fields ``instance_id`` and ``model_patch``.

    Raises:
        RecordError: The file cannot be read; the message names file and line.
    """

    def __init__(self, recording: str | Path) -> None:
        self._path = Path(recording)
        self.texts = read_predictions(self._path)

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks without a prediction.

        Raises:
            UsageError: The file lacks tasks; the message names the first five.
        """
        if missing_tasks := _name_missing_tasks(tasks, self.texts):
            raise UsageError(
                f"{self._path} has no prediction for {missing_tasks}; "
                "choose tasks that it has (--task), or give an empty one"
            )

    def __call__(self, task: Task) -> ScriptedAgent:
        """Make the agent of one episode, in a shell."""
        return self.make_agent(None, task)

    def make_agent(self, env: object, task: Task) -> ScriptedAgent:
        """Make the agent of one episode in this environment."""
        self.check([task])
        text = self.texts[task.task_id]
        return ScriptedAgent([action_for(resolve_traits(env), text)] if text.strip() else [])


def action_for(traits: Traits, prediction_text: str) -> str:
    """Return the action for a prediction.

    The action is the code in the prediction, unless the environment's traits define another form.
    Other forms are the submission of a flag or the application of a patch.
    """
    if traits.prediction is not None:
        return traits.prediction(prediction_text)
    return find_code(prediction_text, traits.language) or prediction_text


def read_predictions(path: Path) -> dict[str, str]:
    """Read predictions: task id → text.

    Raises:
        RecordError: The file cannot be read, holds no predictions, or holds two for one task.
    """
    try:
        # The method splitlines() would also split at U+2028 and similar characters, which JSON
        # strings may hold unescaped.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    predictions: dict[str, str] = {}
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task_id, text = _parse_prediction(line, f"{path}:{line_number}")
        if task_id in predictions:
            raise RecordError(f"{path}:{line_number}: task {task_id!r} has two predictions")
        predictions[task_id] = text
    if not predictions:
        raise RecordError(f"{path} contains no predictions")
    return predictions


def _parse_prediction(line: str, location: str) -> tuple[str, str]:
    try:
        prediction = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{location}: not JSON: {error}") from error
    if not isinstance(prediction, dict):
        raise RecordError(f"{location}: expected an object, not {type(prediction).__name__}")
    task_id, text = (
        _first_field(prediction, _IDS, location),
        _first_field(prediction, _TEXTS, location),
    )
    if not isinstance(text, str):
        raise RecordError(f"{location}: the prediction must be a text, not {type(text).__name__}")
    return str(task_id), text


def _first_field(prediction: Mapping[str, Any], names: Sequence[str], location: str) -> Any:
    for name in names:
        if name in prediction:
            return prediction[name]
    raise RecordError(f"{location}: field {names[0]!r} is missing")
