"""Interfaces of agents: `Agent`, `WholeEpisodeAgent`, and the factories that make them.

An `AgentFactory` makes a fresh agent for each episode. The ``Supports…`` protocols are optional
abilities of factories and agents. The run detects an ability by the methods that the protocol
defines. `make` makes an agent without access to gold, unless the factory asks for gold
(`sees_gold`).
"""

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
    from intercode.agents.guarded_env import AgentEnv
    from intercode.task import Task


class AgentError(InterCodeError, RuntimeError):
    """An agent raised an exception. The episode counts as an error, never as a reward of 0."""


class Agent(Protocol):
    """An agent of one episode. Each episode gets a fresh agent, which may therefore keep state."""

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the next action.

        Args:
            observation: The last action's observation; in the first turn, the task's query.
            history: The turns so far. The sequence grows with the episode: copy it to retain it.

        Returns:
            The action: code to execute, ``submit``, ``submit ANSWER`` or ``skip``.
        """


@runtime_checkable
class WholeEpisodeAgent(Protocol):
    """An agent that controls the environment and plays the whole episode itself.

    Agents that search over forks use this interface, and so do external agents, which are programs
    that act in the sandbox by themselves.
    """

    def run(self, env: AgentEnv) -> Episode | None:
        """Play the running episode.

        Args:
            env: The environment, without access to gold or reward.

        Returns:
            The episode to score: the episode of `env`, or the episode of a fork. None: the episode
            of `env`. An episode that is still running is submitted in its current state.
        """


AgentFactory = Callable[["Task"], Agent | WholeEpisodeAgent]
"""A function or class that makes the agent of one episode from its task."""


@runtime_checkable
class SupportsTaskCheck(Protocol):
    """A factory that validates the tasks before the run starts. Optional."""

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks for which the factory can make no agent.

        Raises:
            UsageError: Some tasks are unsuitable; the message names them.
        """


@runtime_checkable
class SupportsRunCheck(Protocol):
    """A factory that validates the options of a run before its start. Optional."""

    def check_run(self, tasks: Sequence[Task], workers: int) -> str:
        """Refuse a run that the factory's agents cannot play; return a warning, or an empty text.

        Args:
            tasks: The tasks of the run.
            workers: The number of episodes that run at a time.

        Raises:
            UsageError: The agents cannot play the run; the message gives the reason.
        """


@runtime_checkable
class SupportsAgentFacts(Protocol):
    """A factory that identifies its agents, for a run's record. Optional."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Return the identity of the agents in plain JSON types, without secrets."""


@runtime_checkable
class SupportsEpisodeMetadata(Protocol):
    """An agent that adds facts to its episode's record. Optional."""

    def episode_metadata(self) -> Mapping[str, Any]:
        """Return facts in plain JSON types. The run calls this method once, after the episode."""


@runtime_checkable
class SupportsWaitingTimeExclusion(Protocol):
    """An agent with a time limit that excludes waiting for other episodes. Optional."""

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds of waiting from the time limit."""


@runtime_checkable
class SupportsCallPermits(Protocol):
    """A factory whose agents call a model. The run can limit concurrent calls. Optional."""

    def bind_permits(self, permits: AbstractContextManager[float]) -> AgentFactory:
        """Return a copy of the factory, whose agents enter `permits` for each call to the model.

        Args:
            permits: A context manager that limits concurrent calls. Its ``__enter__`` waits for a
                permit, and returns the seconds of waiting.
        """


@runtime_checkable
class SupportsEnvironmentAccess(Protocol):
    """A factory that uses the environment, in addition to the task. Optional."""

    def make_agent(self, env: object, task: Task) -> Agent | WholeEpisodeAgent:
        """Make the agent of one episode in this environment.

        Args:
            env: An `AgentContext`. If the factory asks for gold (`sees_gold`), the environment
                itself.
            task: The task without gold (`Task.shown`). If the factory asks for gold, the whole
                task.
        """


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The facts of an environment that an agent may see."""

    name: str
    """The environment's short name, such as ``bash``."""
    traits: Traits
    """The environment's traits, such as the language of its actions."""
    prompt: str
    """The prompt before an action on a person's terminal, such as ``$ ``."""
    max_turns: int
    reward_every_turn: bool
    episode: Episode
    """The episode that starts, with its seed and epoch, and the id and query of its task."""
    setting: Callable[[], str]
    """Returns the name of the task's setting: see `InterCodeEnv.setting`."""
    overview: Callable[[], str]
    """Returns an overview of the task's files or tables: see `InterCodeEnv.overview`."""

    @classmethod
    def from_env(cls, env: Any) -> AgentContext:
        """Collect the facts of an environment, or of an object with a similar interface."""
        traits = resolve_traits(env)
        return cls(
            name=str(getattr(env, "name", "")),
            traits=traits,
            prompt=str(getattr(env, "prompt", "$ ")),
            max_turns=int(getattr(env, "max_turns", 10)),
            reward_every_turn=bool(getattr(env, "reward_every_turn", False)),
            episode=env.episode,
            setting=_bound_method(env, "setting", lambda: traits.setting or traits.language),
            overview=_bound_method(env, "overview", _no_overview),
        )


def _bound_method(env: Any, name: str, default: Callable[[], str]) -> Callable[[], str]:
    """Return an environment's method in a form that returns text.

    A user-defined environment may lack the method, or have an attribute of that name that is not
    callable. The result is then `default`.
    """
    method = getattr(env, name, None)
    return (lambda: str(method())) if callable(method) else default


def _no_overview() -> NoReturn:
    raise UsageError("this environment has no commands that list its contents")


def sees_gold(factory: object) -> bool:
    """Return whether a factory declares ``needs_gold = True``.

    Agents of such a factory receive the whole task with gold. Agents of other factories receive
    `Task.shown`, which lacks gold. A run's record states which case applied.
    """
    return getattr(factory, "needs_gold", False) is True


def make(factory: AgentFactory, env: Any, task: Task) -> Agent | WholeEpisodeAgent:
    """Make the agent of a running episode.

    The agent receives no gold, unless the factory asks for gold (`sees_gold`).

    Raises:
        UsageError: The agent has no usable `act` or `run`.
    """
    if not sees_gold(factory):
        env, task = AgentContext.from_env(env), task.shown()
    agent = (
        factory.make_agent(env, task)
        if isinstance(factory, SupportsEnvironmentAccess)
        else factory(task)
    )
    _check_methods(agent)
    return agent


def check_factory(factory: object) -> None:
    """Refuse an object that can make no agent, before a run starts.

    Raises:
        UsageError: The object is not callable with one task, or is an async function.
    """
    if isinstance(factory, SupportsEnvironmentAccess) and not inspect.isclass(factory):
        return
    if not callable(factory):
        raise UsageError(
            "an agent is made by a function or a class that takes a task: "
            f"{_qualified_name(factory)} is "
            "neither"
        )
    if not _accepts_arguments(factory, 1):
        raise UsageError(
            f"an agent is made for each task: {_qualified_name(factory)} has to take one "
            "argument, the task"
        )
    if inspect.iscoroutinefunction(factory):
        raise UsageError(
            f"{_qualified_name(factory)} is async: an agent is made by a plain function"
        )


def _check_methods(agent: object) -> None:
    """Refuse an agent without a usable method `act` or `run`.

    Without this check, each episode would end in the same error.
    """
    run, act = getattr(agent, "run", None), getattr(agent, "act", None)
    method, count, signature_text = (
        (run, 1, "run(env)") if run else (act, 2, "act(observation, history)")
    )
    if not callable(method):
        raise UsageError(
            f"an agent has act() or run(): {_qualified_name(agent)} has neither; write "
            "act(self, observation, history), which returns the next action"
        )
    if inspect.iscoroutinefunction(method):
        raise UsageError(
            f"{_qualified_name(method)} is async: an agent has a plain {signature_text}"
        )
    if not _accepts_arguments(method, count):
        raise UsageError(
            f"{_qualified_name(method)} takes other arguments: an agent has {signature_text}"
        )


def _accepts_arguments(call: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a callable written in C may have no signature
        return True
    return True


def _qualified_name(named_object: object) -> str:
    return str(getattr(named_object, "__qualname__", None) or type(named_object).__qualname__)
