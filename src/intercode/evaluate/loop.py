"""The loop: one agent, one environment, one episode."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

from intercode.agents.base import (
    Agent,
    AgentError,
    AgentFactory,
    CallsModel,
    HasMetadata,
    LeavesOutWaiting,
    make,
)
from intercode.episode import Episode, Turn
from intercode.errors import InterCodeError, ModelError, UsageError
from intercode.evaluate.permits import Permits, Stopped

if TYPE_CHECKING:
    from intercode.task import Task


class EpisodeEnv(Protocol):
    """What the loop needs of an environment: `InterCodeEnv`, or anything that looks like it."""

    @property
    def episode(self) -> Episode:
        """The episode since the last `reset`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""

    def step(self, action: str, /) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take an action."""

    def close(self) -> None:
        """Free everything. Idempotent."""


def run_episode(
    env: EpisodeEnv,
    agent: AgentFactory,
    task: Task,
    *,
    seed: int | None = None,
    epoch: int = 0,
    name: str = "",
    on_action: Callable[[Task, str], None] | None = None,
    calls: Permits | None = None,
    sandboxes: Permits | None = None,
) -> Episode:
    """Let an agent try a task once.

    Args:
        env: An environment whose dataset holds the task.
        agent: Makes the agent.
        task: What is asked.
        seed: For the environment.
        epoch: Which of several attempts at the task this is, for the record.
        name: The agent's name, for the record.
        on_action: Called with each action before it is taken.
        calls: Held by each call to the model; by an agent that does not say when it makes one,
            while it decides.
        sandboxes: Held while the environment is reset, and while it takes an action.

    Raises:
        AgentError: The agent raised, or gave something that is no action.
        ModelError: The agent's model gave no answer.
        UsageError: The agent cannot act in this environment.
        SandboxError: The sandbox died.
        RewardError: The result could not be judged.
    """
    acting, sandboxes = calls or Permits(), sandboxes or Permits()
    if isinstance(agent, CallsModel):
        agent, acting = agent.calling(acting), Permits()
    with sandboxes:
        observation, _ = env.reset(seed=seed, options={"task_id": task.task_id})
    episode = env.episode
    episode.agent, episode.epoch, episode.seed = name, epoch, seed
    if task.tags:
        episode.metadata["tags"] = list(task.tags)
    try:
        actor = make(agent, env, task)
    except UsageError:
        raise  # it would be the same for every task
    except Exception as error:
        raise AgentError(f"the agent could not be made: {_described(error)}") from error
    try:
        terminated = truncated = False
        while not (terminated or truncated):
            with acting as waited:
                _leave_out(waited, actor)
                action = _act(actor, observation, episode.turns)
            if on_action is not None:
                on_action(task, action)
            with sandboxes as waited:
                _leave_out(waited, actor)
                observation, _, terminated, truncated, _ = env.step(action)
    finally:
        if isinstance(actor, HasMetadata):
            episode.metadata.update(actor.episode_metadata())
    return episode


def _act(actor: Agent, observation: str, turns: Sequence[Turn]) -> str:
    try:
        action = actor.act(observation, turns)
    except (ModelError, Stopped):
        raise  # no fault in the agent
    except Exception as error:
        raise AgentError(f"the agent raised {_described(error)}") from error
    if not isinstance(action, str):
        raise AgentError(f"the agent's action is no text but {type(action).__name__}")
    return action


def _leave_out(waited: float, actor: Agent) -> None:
    """Waiting for one's turn is in no limit of the agent's time."""
    if waited and isinstance(actor, LeavesOutWaiting):
        actor.leave_out(waited)


def episode_seed(seed: int, epoch: int, task_id: str) -> int:
    """The seed of one episode. It depends on nothing else, so that the order does not matter."""
    text = f"{seed}:{epoch}:{task_id}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


def failed(
    task: Task, error: Exception, *, env: str, name: str, epoch: int, partial: Episode | None
) -> Episode:
    """The record of an episode that has no result, with the turns that it got to."""
    if partial is None or partial.task_id != task.task_id or partial.epoch != epoch:
        partial = Episode(task_id=task.task_id, query=task.query, env=env, epoch=epoch)
    partial.agent = name
    partial.status = "error"
    partial.score = None
    partial.error = str(error) or type(error).__name__
    partial.metadata["error_type"] = type(error).__name__
    # A failure that the reader is likely to have written, and wants to find.
    written = error.__cause__ if isinstance(error, AgentError) else error
    if written is not None and not isinstance(written, InterCodeError):
        partial.metadata["traceback"] = "".join(traceback.format_exception(written))
    return partial


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
