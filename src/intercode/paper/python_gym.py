"""The 2023 semantics behind Gymnasium's interface: ``make("python", protocol="paper")``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions
from intercode.envs.stage import SandboxStage
from intercode.envs.traits import PYTHON, Traits
from intercode.episode import Episode, Score, Status
from intercode.errors import RewardError, TaskError
from intercode.interpreters.base import Execution
from intercode.paper.limits import PaperOptions, refuse
from intercode.paper.python_session import (
    LIMITS,
    PaperPython,
    defined,
    gold_name,
    is_error,
    score,
    submitted,
)
from intercode.sandbox.base import Sandbox
from intercode.task import Dataset, Task


class PaperPlace:
    """The session of one episode, in a sandbox of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.session = PaperPython(sandbox)

    def kill(self) -> None:
        """Nothing: the tests are to run in the names that the agent has made."""

    def close(self) -> None:
        """End the session and free its sandbox."""
        self.session.close()
        self.sandbox.close()


class PaperStage:
    """Gives each episode a session.

    Args:
        sandboxes: Starts the sandboxes.
    """

    def __init__(self, sandboxes: SandboxStage) -> None:
        self._sandboxes = sandboxes

    def image(self, task: Task) -> str:
        """The image that the task runs in."""
        return self._sandboxes.image(task)

    def digest(self, task: Task) -> str:
        """What identifies that image's content."""
        return self._sandboxes.digest(task)

    def changed(self, task: Task, place: PaperPlace) -> bool:
        """Whether the image is another than the session's."""
        return self._sandboxes.changed(task, place.sandbox)

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here.

        Raises:
            TaskError: It has no tests or no function as gold, or has what 2023 knew nothing of.
            ImageError: Its image cannot be.
        """
        try:
            gold_name(task)
        except RewardError as error:
            raise TaskError(str(error)) from error
        if not task.tests:
            raise TaskError(f"task {task.task_id!r}, field 'tests': the paper needs it")
        for field in ("setup", "files", "verification"):
            if getattr(task, field):
                raise TaskError(f"task {task.task_id!r}, field {field!r}: 2023 had no such thing")
        self._sandboxes.check(task)

    def start(self, task: Task) -> PaperPlace:
        """A fresh session."""
        sandbox = self._sandboxes.start(task)
        try:
            return PaperPlace(sandbox)
        except BaseException:
            sandbox.close()
            raise


class PaperInterpreter:
    """Shows what the 2023 server gave as Python's text.

    Args:
        place: Where actions run.
    """

    def __init__(self, place: PaperPlace) -> None:
        self._session = place.session

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action; the limit is the protocol's own."""
        began = time.monotonic()
        answer = self._session.step(action)
        return Execution(
            str(answer).encode("utf-8", "surrogateescape"),
            ok=not is_error(answer),
            seconds=time.monotonic() - began,
        )

    def close(self) -> None:
        """Nothing to do: the tests need the session."""


class PaperPythonEnv(InterCodeEnv[PaperPlace]):
    """The 2023 Python environment: its observations, its reward, its quirks.

    ``submit NAME`` hands in the function of that name. Gold is run in the names of the agent, and
    with `reward_every_turn` it stays there.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: The options, as one value; its `limits` must be the defaults.
        **changes: Single options by their names.

    Raises:
        TaskError: A task has no tests or no gold, or has what 2023 knew nothing of.
        UsageError: An option makes no sense.
    """

    name: ClassVar[str] = "python"
    prompt: ClassVar[str] = ">>> "
    takes_answer: ClassVar[bool] = True
    Options: ClassVar[type[EnvOptions]] = PaperOptions
    traits: Traits = PYTHON

    def __init__(
        self,
        data: str | Path | Dataset = "mbpp",
        *,
        options: PaperOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperOptions.of(options, changes)
        refuse(options.limits)
        tasks = load(data)
        provider = options.sandbox
        if isinstance(provider, str):
            provider = self.traits.provider(provider)
        stage = PaperStage(SandboxStage(provider, options.image, LIMITS))
        for task in tasks:
            stage.check(task)
        super().__init__(tasks, stage, PaperInterpreter, _reward, options=options)

    def _ending(self, action: str) -> Status | None:
        if action == "skip":
            return "skipped"
        if not action.startswith("submit"):
            return None
        self.episode.answer = submitted(action) or None
        return "submitted"


def _reward(task: Task, episode: Episode, place: PaperPlace) -> Score:
    """The reward of the function that was submitted, or of the one that was written last.

    Raises:
        SandboxError: The sandbox died.
    """
    name = episode.answer
    if episode.status != "submitted" and episode.turns:
        name = defined(episode.turns[-1].action)
        if name is None:  # the experiments submitted nothing then
            return Score(0.0)
    return score(place.session.trial(task, name or ""), name or "")
