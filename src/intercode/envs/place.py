"""The contract of a stage: what makes the places in which an environment's tasks are tried."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from intercode.task import Task


class Place(Protocol):
    """Where one episode happens: a sandbox, or a session with a database."""

    def kill(self) -> object:
        """End everything that runs in it."""

    def close(self) -> None:
        """Free it. Idempotent, safe from any thread."""


@runtime_checkable
class EndsSlowly(Protocol):
    """A place whose end takes the kernel a while, in which other things can be done."""

    def kill_all(self) -> None:
        """Begin to end it: `close` will have less to wait for."""


PlaceT = TypeVar("PlaceT", bound=Place)
StagedT = TypeVar("StagedT", bound=Place)


class Stage(Protocol[StagedT]):
    """Makes the places of an environment; the agent's and gold's come out alike."""

    def image(self, task: Task) -> str:
        """What the task's place is made from, by name."""

    def check(self, task: Task) -> None:
        """Refuse what cannot be made, as far as that can be told before any work starts.

        Raises:
            TaskError, ImageError: As named.
        """

    def digest(self, task: Task) -> str:
        """What identifies that content, for a run's record. It may take long to make it."""

    def changed(self, task: Task, place: StagedT) -> bool:
        """Whether a place that is made for the task now would differ from one made before."""

    def start(self, task: Task) -> StagedT:
        """A fresh place, with everything that the task needs.

        Raises:
            TaskError: What the task needs cannot be had; it names the task.
            SandboxError: The place cannot be made.
        """
