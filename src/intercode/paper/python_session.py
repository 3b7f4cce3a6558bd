"""A Python session of 2023: actions, and the reward that ran in the very names they had made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from intercode.episode import Score
from intercode.errors import RewardError
from intercode.interpreters.python import PythonInterpreter
from intercode.paper.python_server import FAILED
from intercode.sandbox.base import Limits, Sandbox
from intercode.task import Task

TIMEOUT = 30.0
"""Seconds that the client of 2023 waited for one request, an action or a test."""
LIMITS = Limits(timeout=TIMEOUT, output=16 << 20)
LATE = "result expired"
"""What it said then."""
ENDED = "connection closed by peer"
"""What it said of a server that was no more."""

Result = dict[str, str]
"""What executing gave: ``output`` and ``error``, or ``error`` alone."""
Answer = Result | str
"""An action's: a text if it was not executed."""

_FUNCTION = re.compile(r"def (\w+)\(")


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests gave for the function that was submitted, and for gold."""

    agent: Mapping[str, Result]
    gold: Mapping[str, Result]

    @property
    def reward(self) -> float:
        """The share of tests that gave the same for both; that both failed is the same, too."""
        same = sum(result == self.gold[test] for test, result in self.agent.items())
        return same / len(self.agent)


class PaperPython:
    """One server and its client.

    Args:
        sandbox: Where; it is not closed with the session.
        timeout: Seconds that one request may take.

    Raises:
        SandboxError: The sandbox failed.
    """

    def __init__(self, sandbox: Sandbox, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._python = PythonInterpreter(sandbox, prelude=_prelude())

    def step(self, action: str) -> Answer:
        """Take an action: the observation, before it was made a text."""
        return self._ask("step", action)

    def trial(self, task: Task, name: str) -> Trial:
        """Test a function of the agent's under gold's name, then gold, whose names then stay.

        Raises:
            RewardError: Gold is no function, or there are no tests.
        """
        if not task.tests:
            raise RewardError(f"task {task.task_id!r} has no tests")
        self._execute(f"{gold_name(task)} = {name}")
        agent = self._tests(task)
        self._ask("reset", "")
        return Trial(agent, self._tests(task, task.gold[0]))

    def close(self) -> None:
        """End the server."""
        self._python.close()

    def _tests(self, task: Task, gold: str = "") -> dict[str, Result]:
        self._execute(str(task.metadata.get("test_setup_code") or ""))
        self._execute(gold)
        return {test: self._execute(test) for test in task.tests}

    def _execute(self, source: str) -> Result:
        answer = self._ask("execute", source)
        # In 2023 the experiment itself ended here.
        return answer if isinstance(answer, dict) else {"error": f"Error: {answer}"}

    def _ask(self, request: str, source: str) -> Answer:
        done = self._python.execute(f"server.answer({request!r}, {source!r})", self._timeout)
        if done.info.get("timed_out"):
            return FAILED + LATE
        answer = _checked(done.output.strip().rpartition(b"\n")[2])
        return FAILED + ENDED if answer is None else answer


def score(trial: Trial, name: str) -> Score:
    """The reward, with the 2023 ``info`` as its detail."""
    info = {
        "submitted_function": name,
        "agent_obs": dict(trial.agent),
        "eval_obs": dict(trial.gold),
        "reward": trial.reward,
    }
    return Score(trial.reward, {"tests": trial.reward}, info)


def gold_name(task: Task) -> str:
    """The name of the first function that gold defines.

    Raises:
        RewardError: It defines none.
    """
    found = _FUNCTION.search(task.gold[0]) if task.gold else None
    if found is None:
        raise RewardError(f"task {task.task_id!r}, field 'gold': it defines no function")
    return found[1]


def submitted(action: str) -> str:
    """The name that a ``submit NAME`` gives; nothing if it gives none.

    >>> submitted("submit total")
    'total'
    """
    return action.split(" ")[1] if " " in action else ""


def defined(action: str) -> str | None:
    """The function that the experiments submitted after an action; None: they did not."""
    found = _FUNCTION.match(action)
    return found[1] if found else None


def is_error(answer: Answer) -> bool:
    """Whether an action failed."""
    return isinstance(answer, str) or bool(answer["error"])


def _checked(data: bytes) -> Answer | None:
    """What a server may say; None for anything else: what runs beside it is the agent's."""
    try:
        given: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(given, str):
        return given
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        return None
    if set(given) not in ({"error"}, {"output", "error"}):
        return None
    return {str(key): str(text) for key, text in given.items()}


@cache
def _prelude() -> str:
    source = Path(__file__).with_name("python_server.py").read_text(encoding="utf-8")
    return f"{source}\nserver = Server()\n"
