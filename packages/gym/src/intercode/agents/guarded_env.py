"""An environment as an agent may hold it: it acts and forks, and learns neither gold nor reward.

Neither is behind an attribute of what it holds: environments and snapshots lie in a table of this
module. No end is scored before the agent has returned, so that none can tell its score, not even by
the time that it takes. Submissions are counted over all forks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from intercode.envs.snapshots import EpisodeSnapshot
from intercode.envs.tools import list_tools, read_action
from intercode.envs.traits import Traits, resolve_traits
from intercode.episode import Episode
from intercode.errors import ActionError, EnvironmentStateError, ForkError, UsageError
from intercode.tool_calls import Tool, ToolCall

T = TypeVar("T")
Result = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, whether the episode ended, whether it was truncated, info."""
_AGENT_ERRORS = (ActionError, EnvironmentStateError, ForkError, UsageError)
"""Errors that an agent makes itself, and may catch."""
_REWARD_FACTS = ("success", "parts", "outcome")
"""Facts of an `info` that tell the reward."""


@dataclass(slots=True)
class AttemptContext:
    """The terms on which an agent holds an environment and its forks."""

    working: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes what is held while an environment works."""
    on_action: Callable[[str], None] = lambda action: None
    """Called with each action before it is taken."""
    held: list[HeldEnv] = field(default_factory=list)
    """The environment and all forks of it."""
    failure: Exception | None = None
    """The first failure that was not the agent's, also if the agent has caught it."""

    def perform(self, work: Callable[[], T]) -> T:
        """Let an environment work."""
        with self.working():
            return self.run_guarded(work)

    def run_guarded(self, work: Callable[[], T]) -> T:
        """Do some work, and note a failure that is not the agent's."""
        try:
            return work()
        except _AGENT_ERRORS:
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise


class HeldSnapshot:
    """A saved episode in the hands of an agent: see `EpisodeSnapshot`. It holds no gold."""

    def __init__(self, snapshot: EpisodeSnapshot) -> None:
        _snapshots[self] = snapshot
        self.how = snapshot.how
        self.carried, self.lost = snapshot.carried, snapshot.lost
        self.task_id, self.turns = snapshot.task_id, snapshot.turns

    def close(self) -> None:
        """Free what is saved, once no fork needs it. Idempotent."""
        _snapshots[self].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class HeldEnv:
    """An environment in the hands of an agent, or a fork of it.

    The reward of an episode's end is not told, unless every turn is rewarded: an agent that forks
    could otherwise try several ends and choose the best one.

    Args:
        env: The environment, whose episode has begun.
        terms: The terms, the same for all forks; it is added to them.
        observation: What the agent sees first.
    """

    def __init__(self, env: Any, terms: AttemptContext, observation: str) -> None:
        _environments[self] = env, terms
        self._observation = observation
        self._public_copy: tuple[Episode, Episode] | None = None
        self._is_first = not terms.held
        terms.held.append(self)

    @property
    def name(self) -> str:
        """The environment's short name, as ``bash``."""
        return str(getattr(_env(self), "name", ""))

    @property
    def traits(self) -> Traits:
        """The environment's traits, such as the language of its actions."""
        return resolve_traits(_env(self))

    @property
    def max_turns(self) -> int:
        """The actions of one episode, at most."""
        return int(getattr(_env(self), "max_turns", 10))

    @property
    def running(self) -> bool:
        """Whether the episode has not ended."""
        return bool(_env(self).episode.status == "running")

    @property
    def observation(self) -> str:
        """The last observation; at first, the task's query."""
        return self._observation

    @property
    def episode(self) -> Episode:
        """The episode so far; once it has ended, a copy that does not tell its reward."""
        episode: Episode = _env(self).episode
        if episode.status == "running" or self._tells:
            return episode
        if self._public_copy is None or self._public_copy[0] is not episode:
            turns = [replace(turn, reward=0.0) for turn in episode.turns]
            self._public_copy = episode, replace(episode, score=None, turns=turns)
        return self._public_copy[1]

    @property
    def full_episode(self) -> Episode:
        """The episode itself, for the record."""
        episode: Episode = _env(self).episode
        return episode

    @property
    def sandbox(self) -> Any:
        """The sandbox or session that the episode takes place in."""
        return _attempt_context(self).perform(lambda: _env(self).place)

    @property
    def directory(self) -> str:
        """The directory where its actions begin in the sandbox, from the image's own directory."""
        return str(_env(self).directory)

    def run_guarded(self, work: Callable[[Any], T]) -> T:
        """Let the agent itself use the sandbox, whose failure is the run's and not the agent's.

        Unlike a `step` it takes no permit of those that the run has for busy sandboxes: a program
        that acts by itself waits for its model most of the time.
        """
        place = self.sandbox
        return _attempt_context(self).run_guarded(lambda: work(place))

    @property
    def tools(self) -> list[Tool]:
        """The tools of the environment, for `call`."""
        env_tools: list[Tool] = getattr(_env(self), "tools", None) or list_tools(self.traits)
        return env_tools

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Tell the episode so far as chat messages, as `InterCodeEnv.messages`."""
        chat_messages: list[dict[str, Any]] = _env(self).messages(style)
        return chat_messages

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
            raise EnvironmentStateError("the episode has ended: no more actions are possible")
        _attempt_context(self).on_action(action)
        step_result = _attempt_context(self).perform(lambda: _env(self).step(action))
        self._observation, reward, terminated, truncated, info = step_result
        if not self._tells:
            info = {name: value for name, value in info.items() if name not in _REWARD_FACTS}
            reward = 0.0
        return self._observation, float(reward), terminated, truncated, info

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Take an action by calling a tool; otherwise like `step`."""
        return self.step(read_action(ToolCall("", name, arguments), self.traits))

    def fork(self, n: int = 1, how: str = "auto", lossy: bool = False) -> list[HeldEnv]:
        """Fork the running episode, as `InterCodeEnv.fork`. Forks are closed with the attempt.

        Raises:
            ForkError: It cannot be forked in this way, or not at all.
        """
        if not hasattr(_env(self), "fork"):
            raise ForkError(f"environment {self.name!r} cannot be forked")
        forks = _attempt_context(self).perform(lambda: _env(self).fork(n, how, lossy))
        return [HeldEnv(fork, _attempt_context(self), self._observation) for fork in forks]

    def snapshot(self, how: str = "auto", lossy: bool = False) -> HeldSnapshot:
        """Save the running episode, as `InterCodeEnv.snapshot`.

        Raises:
            ForkError: It cannot be saved in this way.
        """
        return HeldSnapshot(_attempt_context(self).perform(lambda: _env(self).snapshot(how, lossy)))

    def restore(self, snapshot: HeldSnapshot) -> str:
        """Begin a fork of a snapshot's episode here, in place of the present one.

        Returns:
            The last observation.
        """
        self._observation, _ = _attempt_context(self).perform(
            lambda: _env(self).restore(_snapshots[snapshot])
        )
        return self._observation

    def close(self) -> None:
        """Free a fork. The run's own environment stays, and so does an end that may be scored."""
        if not self._is_first and self.running:
            _env(self).close()

    @property
    def _tells(self) -> bool:
        return bool(getattr(_env(self), "reward_every_turn", False))


_environments: WeakKeyDictionary[HeldEnv, tuple[Any, AttemptContext]] = WeakKeyDictionary()
_snapshots: WeakKeyDictionary[HeldSnapshot, EpisodeSnapshot] = WeakKeyDictionary()


def _env(held_env: HeldEnv) -> Any:
    return _environments[held_env][0]


def _attempt_context(held_env: HeldEnv) -> AttemptContext:
    return _environments[held_env][1]


@contextmanager
def defer_scores(env: Any) -> Iterator[None]:
    """Leave the score of the ends of an environment, and of its forks, to `settle`."""
    if not hasattr(env, "settle"):
        yield  # it is played elsewhere
        return
    env.scores_later = True
    try:
        yield
    finally:
        env.scores_later = False


def settle(held_env: HeldEnv) -> dict[str, Any]:
    """Score the episode that an agent has chosen; return facts about its forks, for the record.

    Raises:
        RewardError, SandboxError: It cannot be scored.
    """
    env = _env(held_env)
    if not hasattr(env, "settle"):
        return {}
    with _attempt_context(held_env).working():
        env.settle()
    episode: Episode = env.episode
    branch_submissions = sum("submitted" in turn.info for turn in episode.turns)
    branch_submissions += episode.status == "submitted"
    return {"submissions": env.submissions} if env.submissions > branch_submissions else {}


def free_forks(terms: AttemptContext) -> None:
    """End all forks of an attempt that is over, and let go of what was behind them."""
    for fork in terms.held:
        if not fork._is_first:
            _env(fork).close()
        _environments[fork] = _ClosedEnvironment(), AttemptContext()
    terms.held.clear()


class _ClosedEnvironment:
    """The place of an environment whose attempt is over."""

    def __getattr__(self, name: str) -> Any:
        raise EnvironmentStateError(
            "the episode is over: the agent can no longer use its environment"
        )
