"""Environment handles for agents, which permit acting and forking but reveal no gold and no reward.

No attribute of a `AgentEnv` or `AgentSnapshot` leads to gold, because the environments and
snapshots are in tables of this module. Scoring waits until the agent has returned, so neither
`AgentEnv.full_episode` nor the duration of a step reveals a score. Environments on another system
are an exception: they score an episode at its end. Submissions are counted over all forks.
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
"""Observation, reward, terminated, truncated, info: the result of Gymnasium's `step`."""
_AGENT_ERRORS = (ActionError, EnvironmentStateError, ForkError, UsageError)
"""The errors that an agent causes by mistakes, and may catch."""
_REWARD_FACTS = ("success", "parts", "outcome")
"""The keys of an `info` whose values reveal the reward."""


@dataclass(slots=True)
class SharedAttemptState:
    """The state that an environment handle and its forks share during an attempt."""

    working: Callable[[], AbstractContextManager[object]] = nullcontext
    """Returns a context manager, such as a permit, that is entered while an environment works."""
    on_action: Callable[[str], None] = lambda action: None
    """Called with each action before its execution."""
    held: list[AgentEnv] = field(default_factory=list)
    """The handles of the environment and of all its forks."""
    failure: Exception | None = None
    """The first failure that the agent did not cause, even if the agent caught the exception."""

    def perform(self, operation: Callable[[], T]) -> T:
        """Run a function of the environment, within a context of `working`.

        Failures are recorded in the same way as by `run_guarded`.
        """
        with self.working():
            return self.run_guarded(operation)

    def run_guarded(self, operation: Callable[[], T]) -> T:
        """Run a function, and record a failure that the agent did not cause in `failure`."""
        try:
            return operation()
        except _AGENT_ERRORS:
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise


class AgentSnapshot:
    """An agent's handle of a saved episode: see `EpisodeSnapshot`. The handle reveals no gold."""

    def __init__(self, snapshot: EpisodeSnapshot) -> None:
        _snapshots[self] = snapshot
        self.mode = snapshot.mode
        self.carried, self.lost = snapshot.carried, snapshot.lost
        self.task_id, self.turns = snapshot.task_id, snapshot.turns

    def close(self) -> None:
        """Free the snapshot as soon as no fork needs it. Idempotent."""
        _snapshots[self].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AgentEnv:
    """An agent's handle of an environment, or of a fork of the environment.

    The handle hides the reward at the end of an episode, unless every turn is rewarded. With the
    reward, an agent that forks could try several ends and choose the best.

    Args:
        env: The environment, whose episode is running.
        attempt_context: The shared state of the attempt. The constructor adds the handle to
            `SharedAttemptState.held`.
        observation: The agent's first observation.
    """

    def __init__(self, env: Any, attempt_context: SharedAttemptState, observation: str) -> None:
        _environments[self] = env, attempt_context
        self._observation = observation
        self._public_copy: tuple[Episode, Episode] | None = None
        self._is_first = not attempt_context.held
        attempt_context.held.append(self)

    @property
    def name(self) -> str:
        """The environment's short name, such as ``bash``."""
        return str(getattr(_env(self), "name", ""))

    @property
    def traits(self) -> Traits:
        """The environment's traits, such as the language of its actions."""
        return resolve_traits(_env(self))

    @property
    def max_turns(self) -> int:
        """The maximum number of actions of an episode."""
        return int(getattr(_env(self), "max_turns", 10))

    @property
    def running(self) -> bool:
        """Whether the episode is still running."""
        return bool(_env(self).episode.status == "running")

    @property
    def observation(self) -> str:
        """The last observation; before the first action, the task's query."""
        return self._observation

    @property
    def episode(self) -> Episode:
        """The episode so far; after its end, a copy without rewards and score.

        If every turn is rewarded, the episode itself is returned at its end, too.
        """
        episode: Episode = _env(self).episode
        if episode.status == "running" or self._reports_rewards:
            return episode
        if self._public_copy is None or self._public_copy[0] is not episode:
            turns = [replace(turn, reward=0.0) for turn in episode.turns]
            self._public_copy = episode, replace(episode, score=None, turns=turns)
        return self._public_copy[1]

    @property
    def full_episode(self) -> Episode:
        """The original episode, for the record."""
        episode: Episode = _env(self).episode
        return episode

    @property
    def sandbox(self) -> Any:
        """The sandbox or database session of the episode."""
        return _attempt_context(self).perform(lambda: _env(self).workspace)

    @property
    def directory(self) -> str:
        """The initial working directory of actions, relative to the image's working directory."""
        return str(_env(self).directory)

    def run_guarded(self, operation: Callable[[Any], T]) -> T:
        """Call a function with the sandbox. A failure of the sandbox makes the episode an error.

        The call, unlike `step`, takes none of the run's permits for busy sandboxes. The function
        may run an external agent, which mostly waits for its model.
        """
        sandbox = self.sandbox
        return _attempt_context(self).run_guarded(lambda: operation(sandbox))

    @property
    def tools(self) -> list[Tool]:
        """The tools of the environment, for `call`."""
        env_tools: list[Tool] = getattr(_env(self), "tools", None) or list_tools(self.traits)
        return env_tools

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Return the episode so far as chat messages, like `InterCodeEnv.messages`."""
        chat_messages: list[dict[str, Any]] = _env(self).messages(style)
        return chat_messages

    def step(self, action: str) -> Result:
        """Execute an action, like `InterCodeEnv.step`, but with the reward 0.0 at the end.

        If every turn is rewarded (``reward_every_turn``), the result has the real reward.

        Raises:
            ActionError: The action is not a text.
            EnvironmentStateError: The episode has ended.
            ForkError: The handle is a fork, whose sandbox cannot be started.
            SandboxError: The sandbox was lost. The attempt fails even if the agent catches this
                error.
        """
        if not isinstance(action, str):
            raise ActionError(f"the agent's action is not a text but {type(action).__name__}")
        if not self.running:
            raise EnvironmentStateError("the episode has ended: no more actions are possible")
        _attempt_context(self).on_action(action)
        step_result = _attempt_context(self).perform(lambda: _env(self).step(action))
        self._observation, reward, terminated, truncated, info = step_result
        if not self._reports_rewards:
            info = {name: value for name, value in info.items() if name not in _REWARD_FACTS}
            reward = 0.0
        return self._observation, float(reward), terminated, truncated, info

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Execute the action that a tool call stands for; see `step`."""
        return self.step(read_action(ToolCall("", name, arguments), self.traits))

    def fork(self, n: int = 1, mode: str = "auto", lossy: bool = False) -> list[AgentEnv]:
        """Fork the running episode, like `InterCodeEnv.fork`.

        At the end of the attempt, the run closes all forks.

        Raises:
            ForkError: The episode cannot be forked in this way, or not at all.
        """
        if not hasattr(_env(self), "fork"):
            raise ForkError(f"environment {self.name!r} cannot be forked")
        forks = _attempt_context(self).perform(lambda: _env(self).fork(n, mode, lossy))
        return [AgentEnv(fork, _attempt_context(self), self._observation) for fork in forks]

    def snapshot(self, mode: str = "auto", lossy: bool = False) -> AgentSnapshot:
        """Save the running episode, like `InterCodeEnv.snapshot`.

        Raises:
            ForkError: The episode cannot be saved in this way.
        """
        return AgentSnapshot(
            _attempt_context(self).perform(lambda: _env(self).snapshot(mode, lossy))
        )

    def restore(self, snapshot: AgentSnapshot) -> str:
        """Replace the running episode by a fork of a snapshot's episode.

        Returns:
            The last observation.
        """
        self._observation, _ = _attempt_context(self).perform(
            lambda: _env(self).restore(_snapshots[snapshot])
        )
        return self._observation

    def close(self) -> None:
        """Close a fork whose episode is running.

        The method does not close the run's own environment, or a fork whose episode has ended,
        because the run may score these later.
        """
        if not self._is_first and self.running:
            _env(self).close()

    @property
    def _reports_rewards(self) -> bool:
        return bool(getattr(_env(self), "reward_every_turn", False))


_environments: WeakKeyDictionary[AgentEnv, tuple[Any, SharedAttemptState]] = WeakKeyDictionary()
_snapshots: WeakKeyDictionary[AgentSnapshot, EpisodeSnapshot] = WeakKeyDictionary()


def _env(held_env: AgentEnv) -> Any:
    return _environments[held_env][0]


def _attempt_context(held_env: AgentEnv) -> SharedAttemptState:
    return _environments[held_env][1]


@contextmanager
def defer_scores(env: Any) -> Iterator[None]:
    """Defer the scoring of an environment's episode and its forks to `settle`."""
    if not hasattr(env, "settle"):
        yield  # the environment runs on another system, which scores the episode
        return
    env.scores_later = True
    try:
        yield
    finally:
        env.scores_later = False


def settle(held_env: AgentEnv) -> dict[str, Any]:
    """Score the episode that an agent has chosen, and return facts for the episode's record.

    Returns:
        ``submissions``, the number of submissions over all forks, if that number is greater than
        the number in the chosen episode's own branch.

    Raises:
        RewardError, SandboxError: The episode cannot be scored.
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


def free_forks(attempt_context: SharedAttemptState) -> None:
    """Close all forks of a finished attempt, and detach all handles from the environments."""
    for fork in attempt_context.held:
        if not fork._is_first:
            _env(fork).close()
        _environments[fork] = _ClosedEnvironment(), SharedAttemptState()
    attempt_context.held.clear()


class _ClosedEnvironment:
    """A stand-in for the environment of a finished attempt, which refuses every access."""

    def __getattr__(self, name: str) -> Any:
        raise EnvironmentStateError(
            "the episode is over: the agent can no longer use its environment"
        )
