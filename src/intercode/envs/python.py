"""The Python environment: tasks for a Python prompt, scored by tests of what was written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import ClassVar

from intercode import datasets
from intercode.envs.base import InterCodeEnv
from intercode.envs.stage import SandboxStage
from intercode.episode import Episode, Score
from intercode.errors import TaskError
from intercode.interpreters.python import PythonInterpreter
from intercode.interpreters.python_start import GRADER, start
from intercode.interpreters.python_start import provider as provider_of
from intercode.rewards.base import Reward
from intercode.rewards.command import CommandReward
from intercode.rewards.gold import GoldCache
from intercode.rewards.own import Function, choose
from intercode.rewards.python import PythonReward
from intercode.rewards.python_plan import has_tests, stdio_cases
from intercode.sandbox.base import Limits, Provider, Sandbox
from intercode.task import Dataset, Task


class PythonEnv(InterCodeEnv[Sandbox]):
    """One persistent Python per episode; an observation is what its prompt would show.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        image: The image of all tasks; None: each task's own, or ``host``.
        python: A program of the image's, from Python 3.8, with the packages that it has; None: the
            Python of InterCode itself, with the standard library.
        provider: What starts sandboxes, or its name.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the sandbox reaches the network.
        max_turns: Actions in one episode.
        reward_every_turn: Score after every action (see `InterCodeEnv`).
        cache_gold: Of no effect, gold is not run; taken as by other environments.
        reward: Instead of the task's tests or, without any, its verification command: a function,
            or ``reward.py:score``.
        render_mode: None or ``"ansi"``.
        seed: Of the first `reset` that is given none.

    Raises:
        TaskError: The data is malformed, or a task has neither tests nor verification.
        UsageError: An option makes no sense.
        SandboxUnavailableError: This machine does not permit the sandbox.
    """

    name: ClassVar[str] = "python"
    prompt: ClassVar[str] = ">>> "
    takes_answer: ClassVar[bool] = True

    def __init__(
        self,
        data: str | Path | Dataset = "python",
        *,
        image: str | None = None,
        python: str | None = None,
        provider: str | Provider = "native",
        limits: Limits | None = None,
        network: bool = False,
        max_turns: int = 10,
        reward_every_turn: bool = False,
        cache_gold: bool | GoldCache = True,
        reward: str | Function | Reward[Sandbox] | None = None,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        tasks = datasets.load(data)
        if isinstance(provider, str):
            provider = provider_of(provider)
        stage = SandboxStage(provider, image, limits, network)
        self._provider = provider
        self._python = python
        self._tests = PythonReward(provider, stage.start, stage.image, network, python)
        self._command = CommandReward(provider, stage.start, network)
        if reward is None:
            _check_tests(tasks)
        super().__init__(
            tasks,
            stage,
            self._prompt_in,
            choose("python", reward, lambda: self._tested),
            max_turns=max_turns,
            reward_every_turn=reward_every_turn,
            render_mode=render_mode,
            seed=seed,
        )

    def digest(self, task: Task) -> str:
        """What identifies the content of its image, which is built if need be.

        Raises:
            ImageError: It cannot be built, or the program that is to be its Python is not in it.
        """
        digest = super().digest(task)
        if self._python is not None:
            with closing(self._provider.start(self.image(task))) as sandbox:
                start(sandbox, GRADER, self._python).close()
        return digest

    def close(self) -> None:
        """End the episode and free its sandbox, and the tests'. Idempotent."""
        super().close()
        self._tests.close()

    def _prompt_in(self, sandbox: Sandbox) -> PythonInterpreter:
        assert self._task is not None  # the episode begins
        prelude = self._task.metadata.get("setup_code") or ""
        return PythonInterpreter(sandbox, self._python, prelude)

    def _tested(self, task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        reward = self._tests if has_tests(task) else self._command
        return reward(task, episode, sandbox)


def _check_tests(tasks: Dataset) -> None:
    for row, task in enumerate(tasks):
        stdio_cases(task)
        if not has_tests(task) and task.verification is None:
            raise TaskError(
                f"{tasks.source or tasks.name}: row {row}, task {task.task_id!r} has neither "
                f"'tests' nor 'verification': nothing says when it is solved"
            )
