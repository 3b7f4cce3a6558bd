"""Agents that know beforehand what they will do: oracle, noop, replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.episode import Turn
from intercode.errors import UsageError
from intercode.records import load_actions

if TYPE_CHECKING:
    from intercode.agents.base import AgentFactory
    from intercode.task import Task


class ScriptedAgent:
    """Takes the given actions in order, then submits, and submits."""

    def __init__(self, actions: Iterable[str] = ()) -> None:
        self._actions = iter(actions)

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The next action of the script."""
        return next(self._actions, "submit")


class Oracle:
    """Makes agents that run the first accepted gold and submit; without a gold they only submit."""

    needs_gold = True

    def __call__(self, task: Task) -> ScriptedAgent:
        """The agent of one episode, for a gold that is an action."""
        return ScriptedAgent(task.gold[:1])

    def within(self, env: object, task: Task) -> ScriptedAgent:
        """The same where the environment says how gold is handed in: as an action or an answer."""
        solution = getattr(env, "solution", None)
        return self(task) if solution is None else ScriptedAgent(solution(task))


def noop() -> AgentFactory:
    """Submits at once. What it scores is what doing nothing is worth."""
    return lambda task: ScriptedAgent()


class Replay:
    """Makes agents that do again what was recorded."""

    def __init__(self, recording: str | Path | Mapping[str, Sequence[str]]) -> None:
        """Read the recording.

        Args:
            recording: A run's folder, its ``episodes.jsonl``, a JSON file (an object task id →
                list of actions, or the 2023 results), or such a mapping. Of several epochs the
                first is taken.

        Raises:
            RecordError: It cannot be read.
        """
        self.actions: Mapping[str, Sequence[str]]
        if isinstance(recording, Mapping):
            self.actions = recording
        else:
            self.actions = load_actions(Path(recording))

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that were not recorded."""
        missing = [task.task_id for task in tasks if task.task_id not in self.actions]
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise UsageError(
                f"the recording has no actions for {', '.join(missing[:5])}{more}; "
                f"choose tasks that it has (--task)"
            )

    def __call__(self, task: Task) -> ScriptedAgent:
        """The agent of one episode."""
        self.check([task])
        return ScriptedAgent(self.actions[task.task_id])
