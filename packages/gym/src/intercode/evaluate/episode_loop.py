"""The episode loop: one agent, one environment, one episode.

`run_episode` resets the environment, creates the agent, and lets it act until the episode ends.
`FifoSemaphore` and `SharedRunResources` limit the concurrency of episodes. The last functions build
the records of episodes that have no result.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

from intercode.agents.base import (
    Agent,
    AgentError,
    AgentFactory,
    SupportsCallPermits,
    SupportsEpisodeMetadata,
    SupportsWaitingTimeExclusion,
    WholeEpisodeAgent,
    make,
)
from intercode.agents.guarded_env import (
    AgentEnv,
    SharedAttemptState,
    defer_scores,
    free_forks,
    settle,
)
from intercode.episode import Episode, Turn, not_json
from intercode.errors import (
    ImageError,
    InterCodeError,
    ModelError,
    SandboxError,
    TaskError,
    UsageError,
)
from intercode.redaction import SecretRedactor
from intercode_sandbox.interruption import is_handlers
from intercode_sandbox.user_code import describe_error

if TYPE_CHECKING:
    from intercode.task import Task

SANDBOXES_PER_CORE = 2
"""Busy sandboxes per core: with two, the core has work while one of them waits for the kernel."""
Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
"""Observation, reward, whether the episode ended, whether it was truncated, info."""


class PlayableEnv(Protocol):
    """The part of an environment's interface that the loop needs; `InterCodeEnv` implements it."""

    @property
    def episode(self) -> Episode:
        """The episode since the last `reset`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""

    def step(self, action: str, /) -> Step:
        """Take an action."""

    def close(self) -> None:
        """Free all resources. Idempotent."""


class WrappedEnv:
    """The base class of environments that wrap another environment, and inspect its steps.

    Args:
        env: The wrapped environment, which executes the actions.
    """

    def __init__(self, env: PlayableEnv) -> None:
        self._env = env

    @property
    def episode(self) -> Episode:
        """The episode of the wrapped environment."""
        return self._env.episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        return self._env.reset(seed=seed, options=options)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class EpisodeStop(Exception):  # noqa: N818 - it is not an error
    """The exception that ends an episode without a result, because the run stops immediately."""


class FifoSemaphore:
    """A first-come, first-served semaphore that measures each thread's waiting time.

    The ``with`` statement binds the seconds of waiting::

        with semaphore as waited:
            ...

    Args:
        count: The number of threads that may hold the semaphore at the same time; None: unlimited.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count: float = math.inf if count is None else count
        self._holders = 0
        self._lock = threading.Lock()
        self._waiters: deque[threading.Lock] = deque()
        self._closed = False

    def __enter__(self) -> float:
        with self._lock:
            if self._closed:
                raise EpisodeStop
            if self._holders < self._count:
                self._holders += 1
                return 0.0
            turn = threading.Lock()
            turn.acquire()
            self._waiters.append(turn)
        start = time.monotonic()
        turn.acquire()
        if self._closed:
            self.__exit__(None, None, None)
            raise EpisodeStop
        return time.monotonic() - start

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            if self._waiters:
                # The permit goes directly to the first waiting thread. A release in between would
                # let a later thread take the permit.
                self._waiters.popleft().release()
            else:
                self._holders -= 1

    @property
    def held(self) -> int:
        """The number of threads that hold the semaphore."""
        return self._holders

    def close(self) -> None:
        """Stop all waiting: threads that wait now, or enter later, raise `EpisodeStop`."""
        with self._lock:
            self._closed = True
            while self._waiters:
                # A woken thread counts as a holder, because that thread will give a permit back.
                self._holders += 1
                self._waiters.popleft().release()


def default_sandboxes() -> int:
    """Return the number of busy sandboxes that this machine's cores support."""
    return SANDBOXES_PER_CORE * len(os.sched_getaffinity(0))


def _ignore(task: Task, action: str) -> None:
    """Ignore an action."""


@dataclass(frozen=True, slots=True)
class SharedRunResources:
    """The resources that all episodes of a run share."""

    calls: FifoSemaphore = field(default_factory=FifoSemaphore)
    """The permits for calls to the model. An agent whose calls cannot be limited one by one holds a
    permit during its whole decision."""
    sandboxes: FifoSemaphore = field(default_factory=FifoSemaphore)
    """The permits for an environment's reset, action or scoring."""
    on_action: Callable[[Task, str], None] = _ignore
    """Called with each action before the environment takes it."""

    def stop(self) -> None:
        """Make all threads that wait for a permit raise `EpisodeStop`."""
        self.calls.close()
        self.sandboxes.close()


def run_episode(
    env: PlayableEnv,
    agent: AgentFactory,
    task: Task,
    *,
    seed: int | None = None,
    epoch: int = 0,
    name: str = "",
    resources: SharedRunResources | None = None,
) -> Episode:
    """Run one attempt of an agent at a task.

    Args:
        env: An environment whose dataset holds the task.
        agent: Makes the agent.
        task: The task.
        seed: The environment's seed.
        epoch: The number of this attempt at the task, for the record.
        name: The agent's name, for the record.
        resources: The limits on concurrency, and the observer of actions.

    Returns:
        The ended episode. If the agent forked the episode, the result is the branch that the agent
        chose.

    Raises:
        AgentError: The agent raised, or returned a value that is not an action.
        ModelError: The agent's model gave no answer.
        UsageError: The agent cannot act in this environment.
        TaskError, ImageError: The task's workspace cannot be opened.
        SandboxError: The sandbox died.
        RewardError: The reward could not judge the result.
        EpisodeStop: The run stops immediately.
    """
    resources = resources or SharedRunResources()
    call_permits = resources.calls
    if isinstance(agent, SupportsCallPermits):
        agent, call_permits = agent.bind_permits(call_permits), FifoSemaphore()
    with resources.sandboxes:
        observation, _ = env.reset(seed=seed, options={"task_id": task.task_id})
    episode = env.episode
    episode.agent, episode.epoch, episode.seed = name, epoch, seed
    if task.tags:
        episode.metadata["tags"] = list(task.tags)
    # The creation of an agent takes a permit, because it may open a second sandbox of the task.
    with resources.sandboxes:
        agent_instance = _make_agent(agent, env, task)
    attempt_context = SharedAttemptState(on_action=partial(resources.on_action, task))
    permit = AgentDecisionPermit(call_permits, agent_instance)
    attempt_context.working = partial(_hold_permit, resources.sandboxes, agent_instance)
    start_time = time.monotonic()
    facts: dict[str, Any] = {}
    try:
        guarded_env = AgentEnv(env, attempt_context, observation)
        if isinstance(agent_instance, WholeEpisodeAgent):
            attempt_context.working = partial(permit.pause, attempt_context.working)
            with permit, defer_scores(env):
                chosen_env = _play_by_agent(agent_instance, guarded_env, attempt_context)
                facts = settle(chosen_env)
        else:
            chosen_env = _play_by_turns(agent_instance, guarded_env, permit)
        episode = chosen_env.full_episode
        if chosen_env is not guarded_env:
            # The episode's time is the time of all branches.
            episode.seconds = time.monotonic() - start_time
        if episode.fork is not None:
            # The run counts the chosen branch as its only attempt at the task in this epoch.
            episode.metadata["fork"], episode.fork = asdict(episode.fork), None
    finally:
        try:
            if isinstance(agent_instance, SupportsEpisodeMetadata):
                episode.metadata.update(agent_instance.episode_metadata())
            episode.metadata.update(facts)
        finally:
            free_forks(attempt_context)
    return episode


@contextmanager
def _hold_permit(sandboxes: FifoSemaphore, agent: object) -> Iterator[None]:
    """Hold a permit for a sandbox while the ``with`` block runs.

    The time of waiting for the permit does not count towards the agent's time limit.
    """
    with sandboxes as wait_seconds:
        _exclude_wait(wait_seconds, agent)
        yield


class AgentDecisionPermit:
    """The permit that an agent holds while deciding, and releases while its environments work.

    Args:
        permits: The source of permits.
        agent: The agent, whose time limit excludes the waiting time.
    """

    def __init__(self, permits: AbstractContextManager[float], agent: object) -> None:
        self._permits = permits
        self._agent = agent
        self._lock = threading.Lock()
        self._working_count = 0
        """The number of environments that work for the agent at the moment. An agent with several
        threads may use several environments."""
        self._is_held = False

    def __enter__(self) -> None:
        wait_seconds = self._permits.__enter__()
        self._is_held = True
        _exclude_wait(wait_seconds, self._agent)

    def __exit__(self, *exception: object) -> None:
        if self._is_held:
            self._is_held = False
            self._permits.__exit__(None, None, None)

    @contextmanager
    def pause(self, acquire: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Release the permit while an environment works, and acquire it again afterwards."""
        with self._lock:
            self._working_count += 1
            if self._working_count == 1:
                self.__exit__()
        try:
            with acquire():
                yield
        finally:
            with self._lock:
                self._working_count -= 1
                if not self._working_count:
                    self.__enter__()


def _play_by_turns(agent: Agent, guarded_env: AgentEnv, permit: AgentDecisionPermit) -> AgentEnv:
    """Run an episode with an agent that returns one action for each turn."""
    while guarded_env.running:
        with permit:
            action = _act(agent, guarded_env.observation, guarded_env.episode.turns)
        guarded_env.step(action)
    return guarded_env


def _play_by_agent(
    agent: WholeEpisodeAgent, guarded_env: AgentEnv, attempt_context: SharedAttemptState
) -> AgentEnv:
    """Let an agent drive its own episode; return the environment whose episode counts."""
    try:
        returned_episode = agent.run(guarded_env)
    except (ModelError, EpisodeStop):
        raise
    except BaseException as error:
        if is_handlers(error):
            raise
        if attempt_context.failure is not None:
            raise attempt_context.failure from None
        raise AgentError(f"the agent raised {describe_error(error)}") from error
    if attempt_context.failure is not None:
        raise attempt_context.failure
    chosen_env = next(
        (env for env in attempt_context.held if returned_episode is env.episode), None
    )
    chosen_env = guarded_env if returned_episode is None else chosen_env
    if chosen_env is None:
        raise AgentError(
            "the agent returned no episode of its environment: run(env) returns env.episode, or "
            "that of a fork"
        )
    if chosen_env.episode.status == "error":
        raise AgentError(f"the agent chose an episode that failed: {chosen_env.episode.error}")
    if chosen_env.running:
        chosen_env.step("submit")
    return chosen_env


def _make_agent(agent: AgentFactory, env: PlayableEnv, task: Task) -> Agent | WholeEpisodeAgent:
    try:
        return make(agent, env, task)
    except (UsageError, SandboxError, TaskError, ImageError):
        # These errors are not mistakes in the agent's code. A `UsageError` is common to all tasks.
        # The others are failures of the workspace that the agent inspects.
        raise
    except BaseException as error:
        if is_handlers(error):
            raise
        raise AgentError(f"the agent could not be made: {describe_error(error)}") from error


def _act(agent: Agent, observation: str, turns: Sequence[Turn]) -> str:
    try:
        action = agent.act(observation, turns)
    except (ModelError, EpisodeStop):
        # The model or the run caused the exception, not the agent's code.
        raise
    except BaseException as error:  # sys.exit() in an agent ends only the episode, not the run
        if is_handlers(error):
            raise
        raise AgentError(f"the agent raised {describe_error(error)}") from error
    if not isinstance(action, str):
        raise AgentError(f"the agent's action is not a text but {type(action).__name__}")
    return action


def _exclude_wait(wait_seconds: float, agent: object) -> None:
    """Exclude an agent's waiting time from its time limit."""
    if wait_seconds and isinstance(agent, SupportsWaitingTimeExclusion):
        agent.leave_out(wait_seconds)


def episode_seed(seed: int, epoch: int, task_id: str) -> int:
    """Return the seed of one episode.

    The seed depends only on the arguments, not on the order in which a run's episodes start.

    Returns:
        An unsigned integer of 32 bits.
    """
    text = f"{seed}:{epoch}:{task_id}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


def unserialisable_episode(episode: Episode) -> Episode:
    """Return the record of an episode that JSON cannot represent: an error that names the field.

    Args:
        episode: The episode; this function empties the fields that cannot be written.
    """
    locations = []
    for index, turn in enumerate(episode.turns):
        if json_error := not_json(turn.info):
            locations.append(f"info of turn {index + 1}{json_error}")
            episode.turns[index] = replace(turn, info={})
    if json_error := not_json(episode.metadata):
        locations.append(f"metadata{json_error}")
        episode.metadata = {}
    if json_error := not_json(episode.score):
        locations.append(f"score{json_error}")
    if not locations or (json_error := not_json(replace(episode, score=None))):
        locations.append(f"the episode{json_error}")
        episode = Episode(episode.task_id, episode.query, episode.env, epoch=episode.epoch)
    return failed_episode(TypeError(f"not JSON, so it cannot be recorded: {locations[0]}"), episode)


def failed_episode(error: BaseException, partial_episode: Episode) -> Episode:
    """Return the record of an episode without a result.

    Args:
        error: The reason.
        partial_episode: The unfinished episode with its turns; this function changes it.
    """
    partial_episode.status = "error"
    partial_episode.score = None
    redactor = SecretRedactor()
    message = str(error) if isinstance(error, InterCodeError) else describe_error(error)
    partial_episode.error = redactor.text(message) or type(error).__name__
    partial_episode.metadata["error_type"] = type(error).__name__
    # Any exception but an `InterCodeError` probably comes from the user's code. The record then has
    # a traceback, which shows the position in that code.
    user_error = error.__cause__ if isinstance(error, AgentError | ModelError) else error
    if user_error is not None and not isinstance(user_error, InterCodeError):
        text = "".join(traceback.format_exception(user_error))
        partial_episode.metadata["traceback"] = redactor.text(text)
    return partial_episode
