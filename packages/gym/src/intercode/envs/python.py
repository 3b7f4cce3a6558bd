"""The Python environment: tasks for a Python prompt, scored by tests of the written code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions, PythonOptions
from intercode.envs.stage import SandboxStage
from intercode.envs.traits import PYTHON, GuessedSolution, Traits, constant_actions, python_answer
from intercode.episode import Episode, Score, Turn
from intercode.errors import TaskError
from intercode.interpreters.python import PythonInterpreter
from intercode.python_source import parse
from intercode.rewards.custom import choose_reward
from intercode.rewards.python import PythonReward
from intercode.rewards.python_plan import has_tests, stdio_cases
from intercode.rewards.verification import CommandReward
from intercode.task import Dataset, Task
from intercode_sandbox.base import SandboxBackend

_FIELDS = {"cases", "stdio", "entry_point"}
"""The fields of a task's `metadata` by which Python tasks are recognised."""
_EQUALS_ALL = """class answer:
    def __init__(self, *given, **named): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __call__(self, *given, **named): return self
    def __getattr__(self, name): return self
"""


def _recognises(tasks: Sequence[Task]) -> bool:
    return any(task.tests or _FIELDS & task.metadata.keys() for task in tasks)


def _expected_answer(task: Task) -> tuple[str, ...]:
    """Return actions that define a function with a constant result, and submit the function.

    The constant is the first value that the task's tests expect. If any constant solves the task,
    this value does. If the tests name no such value, the result is empty.
    """
    return next(map(python_answer, _literals(task)), ())


def _literals(task: Task) -> Iterator[str]:
    for case in task.metadata.get("stdio") or ():
        yield repr(case["stdout"])
    for case in task.metadata.get("cases") or ():
        yield repr(case.get("expected"))
    for test in task.tests:
        for node in ast.walk(parse(test)):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                for side in (node.comparators[0], node.left):
                    with suppress(ValueError):
                        yield repr(ast.literal_eval(side))


class PythonEnv(InterCodeEnv[SandboxBackend]):
    """An environment with one persistent Python per episode; observations show its output.

    The reward runs the task's tests or, without any, its verification command. The option `reward`
    replaces both.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object.
        **changes: Single options by name, which override `options`: see `PythonOptions`.

    Raises:
        TaskError: The data is malformed, or a task has neither tests nor verification.
        UsageError: An option is unknown or invalid.
    """

    name: ClassVar[str] = "python"
    prompt: ClassVar[str] = ">>> "
    takes_answer: ClassVar[bool] = True
    Options: ClassVar[type[EnvOptions]] = PythonOptions
    traits: Traits = replace(
        PYTHON,
        fields=("stdio", "cases", "setup_code"),
        rules=("python", "command"),
        constants=(
            *(
                GuessedSolution(value, constant_actions(*python_answer(value)))
                for value in ("None", "True")
            ),
            GuessedSolution("what the first test expects", _expected_answer, by_chance=True),
            GuessedSolution(
                "an object equal to all", constant_actions(_EQUALS_ALL, "submit answer")
            ),
        ),
        recognises=_recognises,
    )

    def __init__(
        self,
        data: str | Path | Dataset = "python",
        *,
        options: PythonOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PythonOptions.merge(options, changes)
        tasks = load(data)
        network, self._python = options.network, options.python
        stage = SandboxStage.from_options(options, self.traits)
        provider = stage.provider
        stage.programs = (self._python,) if self._python else ()
        self._provider = provider
        self._tests = PythonReward(provider, stage.open, stage.image, network, self._python)
        self._command = CommandReward(provider, stage.open, network)
        if options.reward is None:
            _check_tests(tasks)
        env_reward = choose_reward("python", options.reward, lambda: self._score_episode)
        super().__init__(tasks, stage, self._open_prompt, env_reward, options=options)

    def close(self) -> None:
        """End the episode; free the episode's sandbox and the sandbox of the tests. Idempotent."""
        super().close()
        self._tests.close()

    def _open_prompt(self, sandbox: SandboxBackend) -> PythonInterpreter:
        prelude = self.episode_state.task.metadata.get("setup_code") or ""
        return PythonInterpreter(sandbox, self._python, prelude)

    def _attempt(self, task: Task, sandbox: SandboxBackend, output: str | None) -> Episode:
        """Return an episode for an attempt, from the program that the agent wrote."""
        turns = [] if output is None else [Turn(output, "")]
        return replace(super()._attempt(task, sandbox, None), turns=turns)

    def _score_episode(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        reward = self._tests if has_tests(task) else self._command
        return reward(task, episode, sandbox)


def _check_tests(tasks: Dataset) -> None:
    for task in tasks:
        stdio_cases(task)
        if not has_tests(task) and task.verification is None:
            raise TaskError(
                f"{tasks.where(task)} has neither 'tests' nor 'verification', so it cannot be "
                "scored"
            )
