"""Vectors whose environments are on a cluster: what ``make_vec(…, backend="ray")`` makes.

`ThreadVectorEnv` steps stand-ins here, each of which passes its calls on to an environment in a
process of the cluster. A fork stays on the machine of its origin, since a saved state cannot leave
it: the stand-in that gets it moves there, and goes home at its next reset.
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

from intercode.envs.remote import StandIn
from intercode.envs.snapshots import EpisodeSnapshot, How
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
"""Seconds after which it is said what is waited for."""
_STATIC = ("dataset", "name", "traits", "max_turns", "reward_every_turn", "tools", "prompt")
"""Attributes that all environments of a vector have alike."""


class EnvironmentActor:
    """The actor: a process with environments, by number.

    Args:
        env: As in `intercode.project.create`.
        wrappers: Each is called with an environment.
        options: As in `create`.
    """

    def __init__(
        self, env: str | Path, wrappers: Sequence[Callable[[Any], Any]], options: dict[str, Any]
    ) -> None:
        self._env, self._options = share_gold(env, options)
        self._wrappers = wrappers
        self._envs: dict[int, Any] = {}
        self._snapshots: dict[int, EpisodeSnapshot] = {}
        self._numbers = itertools.count()

    def check(self) -> Any:
        """Find out whether this machine permits sandboxes."""
        return _capture_error(self._check)

    def _check(self) -> None:
        env = create(self._env, **self._options).unwrapped
        provider = getattr(getattr(env, "stage", None), "provider", None)
        getattr(provider, "facts", dict)()
        env.close()

    def make(self) -> Any:
        """Make an environment; return its number."""
        return _capture_error(self._make)

    def _make(self) -> int:
        env: Any = create(self._env, **self._options)
        for wrap in self._wrappers:
            env = wrap(env)
        number = next(self._numbers)
        self._envs[number] = env
        return number

    def call(self, number: int, name: str, *args: Any, **keywords: Any) -> Any:
        """Call a method of an environment, or return an attribute."""

        def call() -> Any:
            attribute = self._envs[number].get_wrapper_attr(name)
            return attribute(*args, **keywords) if callable(attribute) else attribute

        return _capture_error(call)

    def save(self, number: int, mode: How, lossy: bool) -> Any:
        """Take a snapshot; return its number."""
        return _capture_error(
            lambda: self._keep(self._envs[number].unwrapped.snapshot(mode, lossy))
        )

    def single_fork(self, snapshot: int) -> Any:
        """Return the number of a snapshot for a single fork: see `EpisodeSnapshot.of_one`."""
        return _capture_error(lambda: self._keep(self._snapshots[snapshot].reserve_fork()))

    def _keep(self, snapshot: EpisodeSnapshot) -> int:
        number = next(self._numbers)
        self._snapshots[number] = snapshot
        return number

    def restore(self, number: int, snapshot: int) -> Any:
        """Begin a fork in an environment."""
        return _capture_error(
            lambda: self._envs[number].unwrapped.restore(self._snapshots[snapshot])
        )

    def forget(self, snapshot: int) -> None:
        """Free a snapshot."""
        if (saved_snapshot := self._snapshots.pop(snapshot, None)) is not None:
            saved_snapshot.close()

    def close_env(self, number: int) -> None:
        """Close an environment."""
        if (env := self._envs.pop(number, None)) is not None:
            env.close()

    def close(self) -> None:
        """Close all."""
        for number in list(self._envs):
            self.close_env(number)


@dataclass(frozen=True, slots=True)
class _Error:
    """An error, told by its class's name and its message: it may not be one that is pickled."""

    name: str
    message: str


def _capture_error(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InterCodeError as error:
        return _Error(type(error).__name__, str(error))


def _sandbox_failure(call: Any) -> SandboxError | None:
    """Return what keeps a machine from having sandboxes, if anything does."""
    try:
        _answer(call)
    except (SandboxUnavailableError, SandboxClosedError) as error:
        return error
    return None


def _answer(call: Any) -> Any:
    """Wait for an actor's answer, and raise what was told.

    Raises:
        SandboxClosedError: Its process was lost.
    """
    ray = import_ray()
    try:
        answer = ray.get(call)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise SandboxClosedError(
            "the environment's process on the cluster was lost, and with it the episode; the "
            f"next reset starts a new one in another process ({type(error).__name__})"
        ) from error
    if isinstance(answer, _Error):
        raise rebuild_error(answer.name, answer.message)
    return answer


class EnvironmentActors:
    """The processes of a vector; lost ones are replaced when an environment needs one.

    Args:
        count: The number of environments.
        arguments: Those of `EnvironmentActor`.

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
            calls = [check for *_, check in checks]
            if len(
                import_ray().wait(calls, num_returns=len(calls), timeout=WAIT_NOTICE_SECONDS)[0]
            ) < len(calls):
                log.warning("waiting for free processors of the cluster, %d in all", len(calls))
            for actor, node, check in checks:
                if (failure := _sandbox_failure(check)) is None:
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
        """Return the process for another environment: each in turn."""
        with self._lock:
            if not self._actors:
                self._open()
            return self._actors[next(self._turn_counter) % len(self._actors)]

    def lose(self, actor: Any) -> None:
        """Use a process no more."""
        with self._lock:
            if actor in self._actors:
                self._actors.remove(actor)
                import_ray().kill(actor)

    def leave(self) -> None:
        """Say that an environment is closed; the last one closes all."""
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
    """A snapshot in a process of the cluster: see `EpisodeSnapshot`."""

    def __init__(self, actor: Any, number: int) -> None:
        self.actor, self.number = actor, number

    def reserve_fork(self) -> RemoteSnapshot:
        """See `EpisodeSnapshot.of_one`."""
        return RemoteSnapshot(self.actor, _answer(self.actor.single_fork.remote(self.number)))

    def close(self) -> None:
        """Free the snapshot. Idempotent."""
        self.actor.forget.remote(self.number)

    def __enter__(self) -> RemoteSnapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ClusterEnv(StandIn):
    """The stand-in of one environment.

    Args:
        actors: The vector's processes.
        template: An environment of the same arguments, of which nothing is started.
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
        """The episode, as it is there now."""
        return self._call("episode")

    def select_task(self, options: Mapping[str, Any]) -> Any:
        """See `InterCodeEnv.named`."""
        return self._template.unwrapped.select_task(options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode, at home."""
        self._go_home()
        if self._home_slot is None:
            self._home_slot = self._make_env(self._actors.next_actor())
        return self._reset_result(self._call("reset", seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        result: tuple[str, float, bool, bool, dict[str, Any]] = self._call("step", action)
        return result

    def snapshot(self, how: How = "auto", lossy: bool = False) -> RemoteSnapshot:
        """See `InterCodeEnv.snapshot`; it is restored in stand-ins of this vector only."""
        actor, number = self._current_slot()
        return RemoteSnapshot(actor, self._call_actor(actor, actor.save, number, how, lossy))

    def restore(self, snapshot: RemoteSnapshot) -> tuple[str, dict[str, Any]]:
        """Begin a fork, on the machine where its origin is."""
        actor = snapshot.actor
        if self._home_slot is not None and self._home_slot[0] is actor:
            self._go_home()
        elif self._fork_slot is None or self._fork_slot[0] is not actor:
            self._go_home()
            self._fork_slot = self._make_env(actor)
        number = self._current_slot()[1]
        return self._reset_result(self._call_actor(actor, actor.restore, number, snapshot.number))

    def _go_home(self) -> None:
        """Leave the environment that a fork was in."""
        if self._fork_slot is not None:
            actor, number = self._fork_slot
            self._fork_slot = None
            actor.close_env.remote(number)

    def _make_env(self, actor: Any) -> tuple[Any, int]:
        return actor, self._call_actor(actor, actor.make)

    def _current_slot(self) -> tuple[Any, int]:
        if (slot := self._fork_slot or self._home_slot) is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return slot

    def _call(self, name: str, *args: Any, **keywords: Any) -> Any:
        actor, number = self._current_slot()
        return self._call_actor(actor, actor.call, number, name, *args, **keywords)

    def _call_actor(self, actor: Any, method: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return _answer(method.remote(*args, **keywords))
        except SandboxClosedError as error:
            if error.__cause__ is not None:  # the process, and not a sandbox in it
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
        """Close the environment. Idempotent."""
        if not self._closed:
            self._closed = True
            self._actors.leave()

    def fork(self, *args: Any, **keywords: Any) -> NoReturn:
        """Refuse: a vector's forks are in the vector.

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
    """Make a vector on the cluster; see `intercode.project.create_vec`."""
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
