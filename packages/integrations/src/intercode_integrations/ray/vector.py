"""Vectors whose environments run on a cluster, made by ``make_vec(…, backend="ray")``.

`ThreadVectorEnv` steps local proxies. Each proxy forwards its calls to an environment in a process
of the cluster. A fork must run on the machine of its origin, because a saved state cannot leave
that machine. The proxy of a fork therefore moves to a process there, and returns to its first
process at the next reset.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import gymnasium

from intercode.envs.remote import ProxyEnv
from intercode.envs.snapshots import EpisodeSnapshot, ForkMode
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import (
    EnvironmentStateError,
    InterCodeError,
    SandboxClosedError,
    SandboxError,
    SandboxUnavailableError,
)
from intercode.evaluate.worker import PATIENCE
from intercode.project import create, is_project, share_gold
from intercode_integrations.ray.cluster import (
    allocate_nodes,
    connect,
    import_ray,
    node_affinity,
    refuse_passwords,
)
from intercode_integrations.serve.client import rebuild_error

log = logging.getLogger(__name__)

WAIT_NOTICE_SECONDS = 30.0
"""Seconds without free processors after which a warning is logged."""
_STATIC = ("dataset", "name", "traits", "max_turns", "reward_every_turn", "tools", "prompt")
"""Attributes that are equal in all environments of a vector, so a proxy reads them locally."""


class EnvironmentActor:
    """A Ray actor: a process of the cluster with several environments, each with a number.

    Its methods return an InterCode error as an `_RemoteError`, in place of raising it.

    Args:
        env: As for `intercode.project.create`.
        wrappers: Functions that are applied to each environment, in order.
        options: As for `intercode.project.create`.
    """

    def __init__(
        self, env: str | Path, wrappers: Sequence[Callable[[Any], Any]], options: dict[str, Any]
    ) -> None:
        self._env, self._options = share_gold(env, options)
        self._wrappers = wrappers
        self._envs: dict[int, Any] = {}
        self._snapshots: dict[int, EpisodeSnapshot] = {}
        self._handle_numbers = itertools.count()

    def check(self) -> Any:
        """Check that this machine permits sandboxes; return the error if not, otherwise None."""
        return _capture_error(self._check)

    def _check(self) -> None:
        env = create(self._env, **self._options).unwrapped
        provider = getattr(getattr(env, "stage", None), "provider", None)
        getattr(provider, "facts", dict)()
        env.close()

    def make(self) -> Any:
        """Make an environment, and return its number."""
        return _capture_error(self._make)

    def _make(self) -> int:
        env: Any = create(self._env, **self._options)
        for wrap in self._wrappers:
            env = wrap(env)
        env_number = next(self._handle_numbers)
        self._envs[env_number] = env
        return env_number

    def call(self, env_number: int, name: str, *args: Any, **keywords: Any) -> Any:
        """Call a method of an environment, or return the value of an attribute."""

        def call() -> Any:
            attribute = self._envs[env_number].get_wrapper_attr(name)
            return attribute(*args, **keywords) if callable(attribute) else attribute

        return _capture_error(call)

    def save(self, env_number: int, mode: ForkMode, lossy: bool) -> Any:
        """Take a snapshot of an environment's episode, and return the snapshot's number."""
        return _capture_error(
            lambda: self._keep(self._envs[env_number].unwrapped.snapshot(mode, lossy))
        )

    def single_fork(self, snapshot_number: int) -> Any:
        """Reserve a snapshot for one fork; return a number; see `EpisodeSnapshot.reserve_fork`."""
        return _capture_error(lambda: self._keep(self._snapshots[snapshot_number].reserve_fork()))

    def _keep(self, snapshot: EpisodeSnapshot) -> int:
        snapshot_number = next(self._handle_numbers)
        self._snapshots[snapshot_number] = snapshot
        return snapshot_number

    def restore(self, env_number: int, snapshot_number: int) -> Any:
        """Start a fork of a snapshot's episode in an environment."""
        return _capture_error(
            lambda: self._envs[env_number].unwrapped.restore(self._snapshots[snapshot_number])
        )

    def forget(self, snapshot_number: int) -> None:
        """Free a snapshot. Idempotent."""
        if (saved_snapshot := self._snapshots.pop(snapshot_number, None)) is not None:
            saved_snapshot.close()

    def close_env(self, env_number: int) -> None:
        """Close an environment. Idempotent."""
        if (env := self._envs.pop(env_number, None)) is not None:
            env.close()

    def close(self) -> None:
        """Close all environments of this process."""
        for env_number in list(self._envs):
            self.close_env(env_number)


@dataclass(frozen=True, slots=True)
class _RemoteError:
    """An error's class name and message. The exception itself may not be picklable."""

    name: str
    message: str


def _capture_error(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InterCodeError as error:
        return _RemoteError(type(error).__name__, str(error))


def _sandbox_failure(answer_ref: Any) -> SandboxError | None:
    """Wait for the answer of `EnvironmentActor.check`.

    Returns:
        The error if the machine permits no sandboxes, or the process was lost; otherwise None.
    """
    try:
        _await_answer(answer_ref)
    except (SandboxUnavailableError, SandboxClosedError) as error:
        return error
    return None


def _await_answer(answer_ref: Any) -> Any:
    """Wait for an actor's answer, and raise the error if the answer is one.

    Raises:
        InterCodeError: The error that the actor has returned.
        SandboxClosedError: The actor's process was lost.
    """
    ray = import_ray()
    try:
        answer = ray.get(answer_ref)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise SandboxClosedError(
            "the environment's process on the cluster was lost, and with it the episode; the "
            f"next reset starts a new one in another process ({type(error).__name__})"
        ) from error
    if isinstance(answer, _RemoteError):
        raise rebuild_error(answer.name, answer.message)
    return answer


class EnvironmentActors:
    """The processes of a vector.

    The other processes replace a lost process. When all are lost, the next request starts new ones.

    Args:
        count: The number of environments.
        arguments: The arguments of `EnvironmentActor`.

    Raises:
        SandboxUnavailableError: No node permits sandboxes.
    """

    def __init__(self, count: int, *arguments: Any) -> None:
        self._count, self._arguments = count, arguments
        self._lock = threading.Lock()
        self._excluded_nodes: set[str] = set()
        self._turn_counter = itertools.count()
        self._users = count
        self._actors: list[Any] = []
        self._open()

    def _open(self) -> None:
        error: Exception | None = None
        while not self._actors:
            process_counts = allocate_nodes(self._count, excluded_nodes=self._excluded_nodes)
            if not process_counts:
                raise error or SandboxUnavailableError(
                    "no node of the cluster has a free processor"
                )
            started_actors = [(self._start(node), node) for node in process_counts.elements()]
            checks = [(actor, node, actor.check.remote()) for actor, node in started_actors]
            check_refs = [check_ref for *_, check_ref in checks]
            if len(
                import_ray().wait(
                    check_refs, num_returns=len(check_refs), timeout=WAIT_NOTICE_SECONDS
                )[0]
            ) < len(check_refs):
                log.warning(
                    "waiting for free processors of the cluster, %d in all", len(check_refs)
                )
            for actor, node, check_ref in checks:
                if (failure := _sandbox_failure(check_ref)) is None:
                    self._actors.append(actor)
                    continue
                error = failure
                self._excluded_nodes.add(node)
                log.warning("node %s is left out: %s", node[:8], error)

    def _start(self, node: str) -> Any:
        actor_options = {
            "max_concurrency": self._count + 2,
            "scheduling_strategy": node_affinity(node),
        }
        return (
            import_ray()
            .remote(EnvironmentActor)
            .options(num_cpus=1, **actor_options)
            .remote(*self._arguments)
        )

    def next_actor(self) -> Any:
        """Return the process for another environment; the processes take turns."""
        with self._lock:
            if not self._actors:
                self._open()
            return self._actors[next(self._turn_counter) % len(self._actors)]

    def lose(self, actor: Any) -> None:
        """End a lost process, and give it no further environments."""
        with self._lock:
            if actor in self._actors:
                self._actors.remove(actor)
                import_ray().kill(actor)

    def leave(self) -> None:
        """Count an environment as closed; the last one ends all processes."""
        with self._lock:
            self._users -= 1
            if self._users or not (ray := import_ray()).is_initialized():
                return
            if close_refs := [actor.close.remote() for actor in self._actors]:
                ray.wait(close_refs, num_returns=len(close_refs), timeout=PATIENCE)
            for actor in self._actors:
                ray.kill(actor)
            self._actors.clear()


class RemoteSnapshot:
    """The handle of a snapshot that a process of the cluster holds; see `EpisodeSnapshot`."""

    def __init__(self, actor: Any, number: int) -> None:
        self.actor, self.number = actor, number

    def reserve_fork(self) -> RemoteSnapshot:
        """Reserve the snapshot for a single fork; see `EpisodeSnapshot.reserve_fork`."""
        return RemoteSnapshot(self.actor, _await_answer(self.actor.single_fork.remote(self.number)))

    def close(self) -> None:
        """Free the snapshot. Idempotent."""
        self.actor.forget.remote(self.number)

    def __enter__(self) -> RemoteSnapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ClusterEnv(ProxyEnv):
    """The local proxy of an environment that runs in a process of the cluster.

    Args:
        actors: The processes of the vector.
        template: A local environment with the same arguments, which starts no episode.
    """

    def __init__(self, actors: EnvironmentActors, template: Any) -> None:
        self._actors, self._template = actors, template
        self._home_slot: tuple[Any, int] | None = None
        self._fork_slot: tuple[Any, int] | None = None
        self._closed = False
        self.metadata = template.metadata
        self.render_mode = template.render_mode
        self.observation_space = template.observation_space
        self.action_space = template.action_space
        self.options = template.unwrapped.options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _STATIC:
            return getattr(self._template.unwrapped, name)
        if callable(getattr(self._template.unwrapped, name)):
            return lambda *args, **keywords: self._call(name, *args, **keywords)
        return self._call(name)

    @property
    def episode(self) -> Any:
        """The current episode of the environment on the cluster."""
        return self._call("episode")

    def select_task(self, options: Mapping[str, Any]) -> Any:
        """Select a task without a call to the cluster; see `InterCodeEnv.select_task`."""
        return self._template.unwrapped.select_task(options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode in the process that the proxy has when it is not a fork."""
        self._close_fork()
        if self._home_slot is None:
            self._home_slot = self._make_env(self._actors.next_actor())
        return self._reset_result(self._call("reset", seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute an action; see `InterCodeEnv.step`."""
        step_result: tuple[str, float, bool, bool, dict[str, Any]] = self._call("step", action)
        return step_result

    def snapshot(self, mode: ForkMode = "auto", lossy: bool = False) -> RemoteSnapshot:
        """Save the running episode; only proxies of this vector can restore the snapshot.

        See `InterCodeEnv.snapshot`.
        """
        actor, env_number = self._current_slot()
        return RemoteSnapshot(actor, self._call_actor(actor, actor.save, env_number, mode, lossy))

    def restore(self, snapshot: RemoteSnapshot) -> tuple[str, dict[str, Any]]:
        """Continue as a fork of a snapshot's episode, in the process that holds the snapshot."""
        actor = snapshot.actor
        if self._home_slot is not None and self._home_slot[0] is actor:
            self._close_fork()
        elif self._fork_slot is None or self._fork_slot[0] is not actor:
            self._close_fork()
            self._fork_slot = self._make_env(actor)
        env_number = self._current_slot()[1]
        return self._reset_result(
            self._call_actor(actor, actor.restore, env_number, snapshot.number)
        )

    def _close_fork(self) -> None:
        """Close the environment that the proxy uses as a fork in another process, if any."""
        if self._fork_slot is not None:
            actor, env_number = self._fork_slot
            self._fork_slot = None
            actor.close_env.remote(env_number)

    def _make_env(self, ray_actor: Any) -> tuple[Any, int]:
        return ray_actor, self._call_actor(ray_actor, ray_actor.make)

    def _current_slot(self) -> tuple[Any, int]:
        if (slot := self._fork_slot or self._home_slot) is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return slot

    def _call(self, name: str, *args: Any, **keywords: Any) -> Any:
        actor, env_number = self._current_slot()
        return self._call_actor(actor, actor.call, env_number, name, *args, **keywords)

    def _call_actor(self, actor: Any, method: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return _await_answer(method.remote(*args, **keywords))
        except SandboxClosedError as error:
            if error.__cause__ is not None:  # only a lost process has a cause, not a lost sandbox
                self._actors.lose(actor)
                self._home_slot = (
                    None if self._home_slot and self._home_slot[0] is actor else self._home_slot
                )
                self._fork_slot = (
                    None if self._fork_slot and self._fork_slot[0] is actor else self._fork_slot
                )
            raise

    @staticmethod
    def _reset_result(result: Any) -> tuple[str, dict[str, Any]]:
        observation, info = result
        return observation, info

    def close(self) -> None:
        """Count the environment as closed; the last one ends all processes. Idempotent."""
        if not self._closed:
            self._closed = True
            self._actors.leave()

    def fork(self, *args: Any, **keywords: Any) -> NoReturn:
        """Refuse a fork of a single environment: forks must use environments of the vector.

        Raises:
            EnvironmentStateError: Always.
        """
        raise EnvironmentStateError(
            "use the vector's fork(), which forks into one of its environments"
        )


def make(
    env: str | Path,
    num_envs: int,
    *,
    seed: int | None,
    autoreset_mode: str,
    wrappers: Sequence[Callable[[Any], gymnasium.Env[str, str]]],
    options: dict[str, Any],
) -> ThreadVectorEnv:
    """Make a vector of environments on the cluster; see `intercode.project.create_vec`."""
    refuse_passwords(options)
    if not import_ray().is_initialized():
        connect()
    env = str(Path(env).absolute()) if is_project(env) else env
    template: Any = create(env, **options)
    template.close()
    for wrap in wrappers:
        template = wrap(template)
    actors = EnvironmentActors(num_envs, env, tuple(wrappers), options)
    envs = [ClusterEnv(actors, template) for _ in range(num_envs)]
    return ThreadVectorEnv(envs, autoreset_mode, seed)
