"""The contract of an agent: who acts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from intercode.envs.traits import Traits, resolve_traits
from intercode.episode import Episode, Turn
from intercode.errors import InterCodeError, UsageError

if TYPE_CHECKING:
    from intercode.agents.guarded_env import HeldEnv
    from intercode.task import Task


class AgentError(InterCodeError, RuntimeError):
    """An agent raised instead of acting. The episode counts as an error, never as a reward of 0."""


class Agent(Protocol):
    """Acts in one episode: a fresh agent is made for each, so it may keep what it likes."""

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the next action.

        Args:
            observation: The last action's observation; at first, the task's query.
            history: The turns so far. It lives on, so copy what you keep.
        """


@runtime_checkable
class EpisodeAgent(Protocol):
    """The other contract of an agent: it holds the environment, and plays the episode itself.

    For search over forks, and for programs that act in the sandbox by themselves.
    """

    def run(self, env: HeldEnv) -> Episode | None:
        """Play the episode that has begun.

        Args:
            env: The environment, without gold or reward.

        Returns:
            The episode that is to count: that of `env`, or of a fork of it; None: that of `env`.
            One that has not ended is handed in as it stands, as by the action ``submit``.
        """


AgentFactory = Callable[["Task"], Agent | EpisodeAgent]
"""Makes the agent of one episode."""


@runtime_checkable
class SupportsTaskCheck(Protocol):
    """A factory that looks at the tasks before anything starts. Optional."""

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks for which it can make no agent.

        Raises:
            UsageError: It names them.
        """


@runtime_checkable
class SupportsRunCheck(Protocol):
    """A factory that looks at a whole run before anything starts. Optional."""

    def check_run(self, tasks: Sequence[Task], workers: int) -> str:
        """Refuse a run that its agents cannot play; return a warning, or an empty text.

        Raises:
            UsageError: It says why not.
        """


@runtime_checkable
class SupportsFacts(Protocol):
    """A factory that identifies its agents, for a run's record. Optional."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Return plain JSON types, without anything secret."""


@runtime_checkable
class SupportsMetadata(Protocol):
    """An agent that adds facts to its episode's record. Optional."""

    def episode_metadata(self) -> Mapping[str, Any]:
        """Return plain JSON types. Called once, when the episode has ended, in whatever way."""


@runtime_checkable
class SupportsWaitExclusion(Protocol):
    """An agent with a limit on its time, in which waiting does not count. Optional."""

    def leave_out(self, seconds: float) -> None:
        """Leave seconds out that it was made to wait."""


@runtime_checkable
class SupportsPermits(Protocol):
    """A factory whose agents call a model; not all calls may be made at once. Optional."""

    def calling(self, permits: AbstractContextManager[float]) -> AgentFactory:
        """Return a copy whose calls hold a permit, which yields the seconds waited for it."""


@runtime_checkable
class SupportsEnvironment(Protocol):
    """A factory that looks at the environment. Optional."""

    def within(self, env: object, task: Task) -> Agent | EpisodeAgent:
        """Make the agent of one episode in this environment.

        Args:
            env: A `Surroundings`; the environment itself for a factory that `sees_gold`.
            task: The task, as the agent may know it.
        """


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts of an environment that an agent may know."""

    name: str
    """The environment's short name, as ``bash``."""
    traits: Traits
    """The environment's traits, such as the language of its actions."""
    prompt: str
    """The text before an action where people read it."""
    max_turns: int
    reward_every_turn: bool
    episode: Episode
    """The episode that begins: its seed and epoch, its task's id and query."""
    setting: Callable[[], str]
    """Names the place of the task: see `InterCodeEnv.setting`."""
    overview: Callable[[], str]
    """Shows what there is in it: see `InterCodeEnv.overview`."""

    @classmethod
    def of(cls, env: Any) -> Surroundings:
        """Collect the facts of an environment, or of anything that looks like one."""
        traits = resolve_traits(env)
        return cls(
            name=str(getattr(env, "name", "")),
            traits=traits,
            prompt=str(getattr(env, "prompt", "$ ")),
            max_turns=int(getattr(env, "max_turns", 10)),
            reward_every_turn=bool(getattr(env, "reward_every_turn", False)),
            episode=env.episode,
            setting=_method(env, "setting", lambda: traits.setting or traits.language),
            overview=_method(env, "overview", _no_overview),
        )


def _method(env: Any, name: str, default: Callable[[], str]) -> Callable[[], str]:
    """Find a method; an environment of somebody's own may have another thing of that name."""
    method = getattr(env, name, None)
    return (lambda: str(method())) if callable(method) else default


def _no_overview() -> NoReturn:
    raise UsageError("this environment has no commands that list its contents")


def sees_gold(factory: object) -> bool:
    """Tell whether a factory says by ``needs_gold = True`` that its agents see all of a task.

    Others get `Task.shown`. A run's record says which it was.
    """
    return getattr(factory, "needs_gold", False) is True


def make(factory: AgentFactory, env: Any, task: Task) -> Agent | EpisodeAgent:
    """Make the agent of an episode that has begun, shown no more than its factory asks for."""
    if not sees_gold(factory):
        env, task = Surroundings.of(env), task.shown()
    agent = factory.within(env, task) if isinstance(factory, SupportsEnvironment) else factory(task)
    _check_methods(agent)
    return agent


def check_factory(factory: object) -> None:
    """Refuse, before anything starts, what makes no agent of any task.

    Raises:
        UsageError: It is not a function or class of one task, or a class without `act` and `run`.
    """
    if isinstance(factory, SupportsEnvironment) and not inspect.isclass(factory):
        return
    if not callable(factory):
        raise UsageError(
            f"an agent is made by a function or a class that takes a task: {_name(factory)} is "
            "neither"
        )
    if not _takes(factory, 1):
        raise UsageError(
            f"an agent is made for each task: {_name(factory)} has to take one argument, the task"
        )
    if inspect.iscoroutinefunction(factory):
        raise UsageError(f"{_name(factory)} is async: an agent is made by a plain function")


def _check_methods(agent: object) -> None:
    """Refuse an agent that cannot be asked: each episode would end in the same error."""
    run, act = getattr(agent, "run", None), getattr(agent, "act", None)
    method, count, form = (run, 1, "run(env)") if run else (act, 2, "act(observation, history)")
    if not callable(method):
        raise UsageError(
            f"an agent has act() or run(): {_name(agent)} has neither; write "
            "act(self, observation, history), which returns the next action"
        )
    if inspect.iscoroutinefunction(method):
        raise UsageError(f"{_name(method)} is async: an agent has a plain {form}")
    if not _takes(method, count):
        raise UsageError(f"{_name(method)} takes other arguments: an agent has {form}")


def _takes(call: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # written in C: it does not tell
        return True
    return True


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)
