"""Parts that the environments of the paper protocol share: options, stages and an interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta

from intercode.envs.options import DefaultImage, EnvOptions, Image
from intercode.envs.stage import NoWorkspaceRecipe, Stage, WorkspaceT
from intercode.episode import Status
from intercode.errors import UsageError
from intercode.interpreters.base import Execution
from intercode.task import Task
from intercode_sandbox.base import Limits

AnswerT = TypeVar("AnswerT")


class PaperOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of the paper protocol's environments that use sandboxes."""

    image: Image = None
    default_image: DefaultImage = None


class PaperCtfOptions(PaperOptions, frozen=True, kw_only=True):
    """The options of the paper protocol's CTF environment."""

    network: Annotated[
        bool, Meta(description="let tasks reach this machine's network, and try those that need it")
    ] = False


def refuse_limits(limits: Limits | None) -> None:
    """Refuse limits that the caller has set, because the limits of 2023 are fixed.

    Raises:
        UsageError: The limits differ from the defaults.
    """
    if limits not in (None, Limits()):
        raise UsageError("the paper protocol has limits of its own: omit yours")


def ending(action: str) -> Status | None:
    """Return the status with which an action ends the episode; None if the episode continues."""
    if action == "skip":
        return "skipped"
    return "submitted" if action.startswith("submit") else None


class PaperStage(NoWorkspaceRecipe, Generic[WorkspaceT]):
    """The base of stages whose workspace is a session. Subclasses define `check` and `open`.

    Args:
        stage: The stage of the default protocol, which resolves images or databases.
    """

    def __init__(self, stage: Stage[Any]) -> None:
        self._stage = stage

    def image(self, task: Task) -> str:
        """Return the name of a task's image or database."""
        return self._stage.image(task)

    def digest(self, task: Task) -> str:
        """Return a digest of the content that a task's image or database has before any episode."""
        return self._stage.digest(task)

    def changed(self, task: Task, workspace: WorkspaceT) -> bool:
        """Return False: as in 2023, an episode starts in the state that the previous one left."""
        return False


class TextInterpreter(Generic[AnswerT]):
    """An `Interpreter` whose output is the answer to an action as text, made by Python's `str`.

    Args:
        step: A function that executes an action, within the time limit of the protocol.
        is_error: A function that returns whether an answer reports a failed action.
    """

    def __init__(self, step: Callable[[str], AnswerT], is_error: Callable[[AnswerT], bool]) -> None:
        self._step = step
        self._is_error = is_error

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Execute one action. The argument `timeout` is ignored, because `step` has its own."""
        start_time = time.monotonic()
        answer = self._step(action)
        return Execution(
            str(answer).encode("utf-8", "surrogateescape"),
            ok=not self._is_error(answer),
            seconds=time.monotonic() - start_time,
        )

    def close(self) -> None:
        """Do nothing, because the reward needs the session to stay open."""
