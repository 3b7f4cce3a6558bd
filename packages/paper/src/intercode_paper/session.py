"""Pieces that several environments of the paper protocol share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta

from intercode.envs.options import DefaultImage, EnvOptions, Image
from intercode.envs.stage import NoRecipe, PlaceT, Stage
from intercode.episode import Status
from intercode.errors import UsageError
from intercode.interpreters.base import Execution
from intercode.task import Task
from intercode_sandbox.base import Limits

AnswerT = TypeVar("AnswerT")


class PaperOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of the environments whose tasks are tried in sandboxes."""

    image: Image = None
    default_image: DefaultImage = None


class PaperCtfOptions(PaperOptions, frozen=True, kw_only=True):
    """The options of the CTF environment."""

    network: Annotated[
        bool, Meta(description="let tasks reach this machine's network, and try those that need it")
    ] = False


def refuse_limits(limits: Limits | None) -> None:
    """Refuse limits that were given.

    Raises:
        UsageError: They are not the defaults.
    """
    if limits not in (None, Limits()):
        raise UsageError("the paper protocol has limits of its own: omit yours")


def ending(action: str) -> Status | None:
    """Return how an action ends the episode; None if it does not."""
    if action == "skip":
        return "skipped"
    return "submitted" if action.startswith("submit") else None


class PaperStage(NoRecipe, Generic[PlaceT]):
    """Base of the stages whose places are sessions. A `Stage`, once it has `check` and `start`.

    Args:
        stage: The default protocol's stage: it knows the images or databases.
    """

    def __init__(self, stage: Stage[Any]) -> None:
        self._stage = stage

    def image(self, task: Task) -> str:
        """Return the name of the task's image or database."""
        return self._stage.image(task)

    def digest(self, task: Task) -> str:
        """Return a digest of its content, before an episode has changed it."""
        return self._stage.digest(task)

    def changed(self, task: Task, place: PlaceT) -> bool:
        """Return False: an episode of this protocol finds what the one before it has left."""
        return False


class TextInterpreter(Generic[AnswerT]):
    """Shows the answer to an action as Python's `str` of it. An `Interpreter`.

    Args:
        step: Executes an action under the protocol's own time limit.
        is_error: Whether an answer says that the action failed.
    """

    def __init__(self, step: Callable[[str], AnswerT], is_error: Callable[[AnswerT], bool]) -> None:
        self._step = step
        self._is_error = is_error

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Execute one action."""
        start_time = time.monotonic()
        answer = self._step(action)
        return Execution(
            str(answer).encode("utf-8", "surrogateescape"),
            ok=not self._is_error(answer),
            seconds=time.monotonic() - start_time,
        )

    def close(self) -> None:
        """Leave the session open: the reward needs it."""
