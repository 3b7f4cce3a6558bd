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

from intercode.calls import Tool, ToolCall
from intercode.envs.snapshots import EpisodeSnapshot
from intercode.envs.tools import action_of, tools_of
from intercode.envs.traits import Traits, traits_in
from intercode.episode import Episode
from intercode.errors import ActionError, EnvironmentStateError, ForkError, UsageError

T = TypeVar("T")
Result = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, whether the episode ended, whether it was truncated, info."""
_THE_AGENTS = (ActionError, EnvironmentStateError, ForkError, UsageError)
"""Errors that an agent makes itself, and may catch."""
_TELLING = ("success", "parts", "outcome")
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

    def __init__(self, env: Any, terms: Terms, observation: str) -> None:
        _behind[self] = env, terms
        self._observation = observation
        self._shown: tuple[Episode, Episode] | None = None
        self._is_first = not terms.held
        terms.held.append(self)

    @property
    def name(self) -> str:
        """The environment's short name, as ``bash``."""
        return str(getattr(_env(self), "name", ""))

    @property
    def traits(self) -> Traits:
        """The environment's traits, such as the language of its actions."""
        return traits_in(_env(self))

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
        if self._shown is None or self._shown[0] is not episode:
            turns = [replace(turn, reward=0.0) for turn in episode.turns]
            self._shown = episode, replace(episode, score=None, turns=turns)
        return self._shown[1]

    @property
    def recorded(self) -> Episode:
        """The episode itself, for the record."""
        episode: Episode = _env(self).episode
        return episode

    @property
    def sandbox(self) -> Any:
        """The sandbox or session that the episode takes place in."""
        return _terms(self).do(lambda: _env(self).place)

    @property
    def directory(self) -> str:
        """The directory where its actions begin in the sandbox, from the image's own directory."""
        return str(_env(self).directory)

    def watched(self, work: Callable[[Any], T]) -> T:
        """Let the agent itself use the sandbox, whose failure is the run's and not the agent's.

        Unlike a `step` it takes no permit of those that the run has for busy sandboxes: a program
        that acts by itself waits for its model most of the time.
        """
        place = self.sandbox
        return _terms(self).watched(lambda: work(place))

    @property
    def tools(self) -> list[Tool]:
        """The tools of the environment, for `call`."""
        found: list[Tool] = getattr(_env(self), "tools", None) or tools_of(self.traits)
        return found

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Tell the episode so far as chat messages, as `InterCodeEnv.messages`."""
        told: list[dict[str, Any]] = _env(self).messages(style)
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
        _terms(self).on_action(action)
        found = _terms(self).do(lambda: _env(self).step(action))
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
        if not hasattr(_env(self), "fork"):
            raise ForkError(f"environment {self.name!r} cannot be forked")
        forks = _terms(self).do(lambda: _env(self).fork(n, how, lossy))
        return [HeldEnv(fork, _terms(self), self._observation) for fork in forks]

    def snapshot(self, how: str = "auto", lossy: bool = False) -> HeldSnapshot:
        """Save the running episode, as `InterCodeEnv.snapshot`.

        Raises:
            ForkError: It cannot be saved in this way.
        """
        return HeldSnapshot(_terms(self).do(lambda: _env(self).snapshot(how, lossy)))

    def restore(self, snapshot: HeldSnapshot) -> str:
        """Begin a fork of a snapshot's episode here, in place of the present one.

        Returns:
            The last observation.
        """
        self._observation, _ = _terms(self).do(lambda: _env(self).restore(_snapshots[snapshot]))
        return self._observation

    def close(self) -> None:
        """Free a fork. The run's own environment stays, and so does an end that may be scored."""
        if not self._is_first and self.running:
            _env(self).close()

    @property
    def _tells(self) -> bool:
        return bool(getattr(_env(self), "reward_every_turn", False))


_behind: WeakKeyDictionary[HeldEnv, tuple[Any, Terms]] = WeakKeyDictionary()
_snapshots: WeakKeyDictionary[HeldSnapshot, EpisodeSnapshot] = WeakKeyDictionary()


def _env(held: HeldEnv) -> Any:
    return _behind[held][0]


def _terms(held: HeldEnv) -> Terms:
    return _behind[held][1]


@contextmanager
def scored_later(env: Any) -> Iterator[None]:
    """Leave the score of the ends of an environment, and of its forks, to `settle`."""
    if not hasattr(env, "settle"):
        yield  # it is played elsewhere
        return
    env.scores_later = True
    try:
        yield
    finally:
        env.scores_later = False


def settle(held: HeldEnv) -> dict[str, Any]:
    """Score the episode that an agent has chosen; return facts about its forks, for the record.

    Raises:
        RewardError, SandboxError: It cannot be scored.
    """
    env = _env(held)
    if not hasattr(env, "settle"):
        return {}
    with _terms(held).working():
        env.settle()
    episode: Episode = env.episode
    its_own = sum("submitted" in turn.info for turn in episode.turns)
    its_own += episode.status == "submitted"
    return {"submissions": env.submissions} if env.submissions > its_own else {}


def free(terms: Terms) -> None:
    """End all forks of an attempt that is over, and let go of what was behind them."""
    for fork in terms.held:
        if not fork._is_first:
            _env(fork).close()
        _behind[fork] = _Over(), Terms()
    terms.held.clear()


class _Over:
    """The place of an environment whose attempt is over."""

    def __getattr__(self, name: str) -> Any:
        raise EnvironmentStateError("the attempt is over: the environment is its run's again")
