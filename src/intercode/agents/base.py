"""The contract of an agent: who acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from intercode.episode import Turn
from intercode.errors import InterCodeError

if TYPE_CHECKING:
    from intercode.task import Task


class AgentError(InterCodeError, RuntimeError):
    """An agent raised instead of acting. The episode counts as an error, never as a reward of 0."""


class Agent(Protocol):
    """Acts in one episode: a fresh agent is made for each, so it may keep what it likes."""

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The next action.

        Args:
            observation: What the last action gave; at first, the task's query.
            history: The turns so far. It lives on, so copy what you keep.
        """


AgentFactory = Callable[["Task"], Agent]
"""Makes the agent of one episode."""


@runtime_checkable
class ChecksTasks(Protocol):
    """What a factory may have besides: a look at the tasks before anything starts."""

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that it can make no agent for.

        Raises:
            UsageError: It names them.
        """


@runtime_checkable
class HasFacts(Protocol):
    """What a factory may have besides: what identifies its agents, for a run's record."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Plain JSON types, without anything secret."""


@runtime_checkable
class HasMetadata(Protocol):
    """What an agent may have besides: what its episode's record is to say of it."""

    def episode_metadata(self) -> Mapping[str, Any]:
        """Plain JSON types. Asked once, when the episode has ended, in whatever way."""


@runtime_checkable
class LeavesOutWaiting(Protocol):
    """What an agent may have besides: a limit on its time, in which waiting does not count."""

    def leave_out(self, seconds: float) -> None:
        """So long it was made to wait."""


@runtime_checkable
class CallsModel(Protocol):
    """What a factory may have besides: calls to a model, of which not all may be made at once."""

    def calling(self, permits: AbstractContextManager[float]) -> AgentFactory:
        """The same, but each call holds a permit; entered, that says how long it was waited for."""


@runtime_checkable
class KnowsEnvironment(Protocol):
    """What a factory may have besides: a look at the environment, as only the oracle needs it."""

    def within(self, env: object, task: Task) -> Agent:
        """The agent of one episode in this environment."""
