"""An environment as an agent may hold it: it acts and forks, and learns neither gold nor reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from intercode.calls import Tool, ToolCall
from intercode.envs.tools import action_of, tools_of
from intercode.envs.traits import Traits, traits_in
from intercode.episode import Episode
from intercode.errors import ActionError, EnvironmentStateError, ForkError, UsageError

T = TypeVar("T")
Result = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, whether the episode ended, whether it was truncated, info."""
_THE_AGENTS = (ActionError, EnvironmentStateError, ForkError, UsageError)
"""Errors that an agent makes itself, and may catch."""
_TELLING = ("success", "parts")
"""Facts of an `info` that tell the reward."""


@dataclass(slots=True)
class Terms:
    """The terms on which an agent holds an environment and its forks."""

    working: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes what is held while an environment works."""
    on_action: Callable[[str], None] = lambda action: None
    """Called with each action before it is taken."""
    held: list[HeldEnv] = field(default_factory=list)
    """The environment and all forks of it."""
    failure: Exception | None = None
    """The first failure that was not the agent's, also if the agent has caught it."""

    def do(self, work: Callable[[], T]) -> T:
        """Let an environment work."""
        with self.working():
            return self.watched(work)

    def watched(self, work: Callable[[], T]) -> T:
        """Do some work, and note a failure that is not the agent's."""
        try:
            return work()
        except _THE_AGENTS:
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise


class HeldEnv:
    """An environment in the hands of an agent, or a fork of it.

    The reward of an episode's end is not told, unless every turn is rewarded: an agent that forks
    could otherwise try several ends and choose the best one.

    Args:
        env: The environment, whose episode has begun.
        terms: The terms, the same for all forks; it is added to them.
        observation: What the agent sees first.
    """

    def __init__(self, env: Any, terms: Terms, observation: str) -> None:
        self._env = env
        self._terms = terms
        self._observation = observation
        self._shown: tuple[Episode, Episode] | None = None
        self._is_first = not self._terms.held
        self._terms.held.append(self)

    @property
    def name(self) -> str:
        """The environment's short name, as ``bash``."""
        return str(getattr(self._env, "name", ""))

    @property
    def traits(self) -> Traits:
        """The environment's traits, such as the language of its actions."""
        return traits_in(self._env)

    @property
    def max_turns(self) -> int:
        """The actions of one episode, at most."""
        return int(getattr(self._env, "max_turns", 10))

    @property
    def running(self) -> bool:
        """Whether the episode has not ended."""
        return bool(self._env.episode.status == "running")

    @property
    def observation(self) -> str:
        """The last observation; at first, the task's query."""
        return self._observation

    @property
    def episode(self) -> Episode:
        """The episode so far; once it has ended, a copy that does not tell its reward."""
        episode: Episode = self._env.episode
        if episode.status == "running" or self._tells:
            return episode
        if self._shown is None or self._shown[0] is not episode:
            turns = [replace(turn, reward=0.0) for turn in episode.turns]
            self._shown = episode, replace(episode, score=None, turns=turns)
        return self._shown[1]

    @property
    def recorded(self) -> Episode:
        """The episode itself, for the record."""
        episode: Episode = self._env.episode
        return episode

    @property
    def sandbox(self) -> Any:
        """The sandbox or session that the episode takes place in."""
        return self._terms.do(lambda: self._env.place)

    @property
    def directory(self) -> str:
        """The directory where its actions begin in the sandbox, from the image's own directory."""
        return str(self._env.directory)

    def watched(self, work: Callable[[Any], T]) -> T:
        """Let the agent itself use the sandbox, whose failure is the run's and not the agent's.

        Unlike a `step` it takes no permit of those that the run has for busy sandboxes: a program
        that acts by itself waits for its model most of the time.
        """
        place = self.sandbox
        return self._terms.watched(lambda: work(place))

    @property
    def tools(self) -> list[Tool]:
        """The tools of the environment, for `call`."""
        found: list[Tool] = getattr(self._env, "tools", None) or tools_of(self.traits)
        return found

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Tell the episode so far as chat messages, as `InterCodeEnv.messages`."""
        told: list[dict[str, Any]] = self._env.messages(style)
        return told

    def step(self, action: str) -> Result:
        """Take an action, as `InterCodeEnv.step`; but the reward of the end is 0.0.

        Raises:
            ActionError, EnvironmentStateError: The action is not a text; the episode has ended.
            ForkError: This is a fork that cannot be started.
            SandboxError: The sandbox was lost. An agent cannot save the attempt by catching it.
        """
        if not isinstance(action, str):
            raise ActionError(f"the agent's action is not a text but {type(action).__name__}")
        if not self.running:
            raise EnvironmentStateError("the episode has ended: it takes no more actions")
        self._terms.on_action(action)
        found = self._terms.do(lambda: self._env.step(action))
        self._observation, reward, terminated, truncated, info = found
        if not self._tells:
            info = {name: value for name, value in info.items() if name not in _TELLING}
            reward = 0.0
        return self._observation, float(reward), terminated, truncated, info

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Take an action by calling a tool; otherwise like `step`."""
        return self.step(action_of(ToolCall("", name, arguments), self.traits))

    def fork(self, n: int = 1, how: str = "auto", lossy: bool = False) -> list[HeldEnv]:
        """Fork the running episode, as `InterCodeEnv.fork`. Forks are closed with the attempt.

        Raises:
            ForkError: It cannot be forked in this way, or not at all.
        """
        if not hasattr(self._env, "fork"):
            raise ForkError(f"environment {self.name!r} cannot be forked")
        forks = self._terms.do(lambda: self._env.fork(n, how, lossy))
        return [HeldEnv(fork, self._terms, self._observation) for fork in forks]

    def snapshot(self, how: str = "auto", lossy: bool = False) -> Any:
        """Save the running episode, as `InterCodeEnv.snapshot`.

        Raises:
            ForkError: It cannot be saved in this way.
        """
        return self._terms.do(lambda: self._env.snapshot(how, lossy))

    def restore(self, snapshot: Any) -> str:
        """Begin a fork of a snapshot's episode here, in place of the present one.

        Returns:
            The last observation.
        """
        self._observation, _ = self._terms.do(lambda: self._env.restore(snapshot))
        return self._observation

    def close(self) -> None:
        """Free a fork. The first environment is its run's, and stays."""
        if not self._is_first:
            self._env.close()

    @property
    def _tells(self) -> bool:
        return bool(getattr(self._env, "reward_every_turn", False))
