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

from intercode.envs.elsewhere import StandIn
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
    connect,
    library,
    nodes_with_room,
    on_node,
    refuse_passwords,
)
from intercode_integrations.serve.client import raised

log = logging.getLogger(__name__)

LONG = 30.0
"""Seconds after which it is said what is waited for."""
_STATIC = ("dataset", "name", "traits", "max_turns", "reward_every_turn", "tools", "prompt")
"""Attributes that all environments of a vector have alike."""


class Room:
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
        return _told(self._check)

    def _check(self) -> None:
        env = create(self._env, **self._options).unwrapped
        provider = getattr(getattr(env, "stage", None), "provider", None)
        getattr(provider, "facts", dict)()
        env.close()

    def make(self) -> Any:
        """Make an environment; return its number."""
        return _told(self._make)

    def _make(self) -> int:
        env: Any = create(self._env, **self._options)
        for wrap in self._wrappers:
            env = wrap(env)
        number = next(self._numbers)
        self._envs[number] = env
        return number

    def call(self, number: int, name: str, *args: Any, **named: Any) -> Any:
        """Call a method of an environment, or return an attribute."""

        def call() -> Any:
            found = self._envs[number].get_wrapper_attr(name)
            return found(*args, **named) if callable(found) else found

        return _told(call)

    def save(self, number: int, how: How, lossy: bool) -> Any:
        """Take a snapshot; return its number."""
        return _told(lambda: self._keep(self._envs[number].unwrapped.snapshot(how, lossy)))

    def one(self, snapshot: int) -> Any:
        """Return the number of a snapshot for a single fork: see `EpisodeSnapshot.of_one`."""
        return _told(lambda: self._keep(self._snapshots[snapshot].reserve_fork()))

    def _keep(self, snapshot: EpisodeSnapshot) -> int:
        number = next(self._numbers)
        self._snapshots[number] = snapshot
        return number

    def restore(self, number: int, snapshot: int) -> Any:
        """Begin a fork in an environment."""
        return _told(lambda: self._envs[number].unwrapped.restore(self._snapshots[snapshot]))

    def forget(self, snapshot: int) -> None:
        """Free a snapshot."""
        if (found := self._snapshots.pop(snapshot, None)) is not None:
            found.close()

    def free(self, number: int) -> None:
        """Close an environment."""
        if (env := self._envs.pop(number, None)) is not None:
            env.close()

    def close(self) -> None:
        """Close all."""
        for number in list(self._envs):
            self.free(number)


@dataclass(frozen=True, slots=True)
class _Error:
    """An error, told by its class's name and its message: it may not be one that is pickled."""

    name: str
    said: str


def _told(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InterCodeError as error:
        return _Error(type(error).__name__, str(error))


def _failure(call: Any) -> SandboxError | None:
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
    ray = library()
    try:
        answer = ray.get(call)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise SandboxClosedError(
            f"the environment's process on the cluster was lost, and with it the episode; the next "
            f"reset begins another one elsewhere ({type(error).__name__})"
        ) from error
    if isinstance(answer, _Error):
        raise raised(answer.name, answer.said)
    return answer


class Rooms:
    """The processes of a vector; lost ones are replaced when an environment needs one.

    Args:
        count: The number of environments.
        arguments: Those of `Room`.

    Raises:
        SandboxUnavailableError: No node permits sandboxes.
    """

    def __init__(self, count: int, *arguments: Any) -> None:
        self._count, self._arguments = count, arguments
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self._next = itertools.count()
        self._users = count
        self._rooms: list[Any] = []
        self._open()

    def _open(self) -> None:
        why: Exception | None = None
        while not self._rooms:
            places = nodes_with_room(self._count, without=self._refused)
            if not places:
                raise why or SandboxUnavailableError("no node of the cluster has a processor")
            started = [(self._start(node), node) for node in places.elements()]
            checks = [(room, node, room.check.remote()) for room, node in started]
            calls = [check for *_, check in checks]
            if len(library().wait(calls, num_returns=len(calls), timeout=LONG)[0]) < len(calls):
                log.warning("waiting for free processors of the cluster, %d in all", len(calls))
            for room, node, check in checks:
                if (refused := _failure(check)) is None:
                    self._rooms.append(room)
                    continue
                why = refused
                self._refused.add(node)
                log.warning("node %s is left out: %s", node[:8], why)

    def _start(self, node: str) -> Any:
        how = {"max_concurrency": self._count + 2, "scheduling_strategy": on_node(node)}
        return library().remote(Room).options(num_cpus=1, **how).remote(*self._arguments)

    def place(self) -> Any:
        """Return the process for another environment: each in turn."""
        with self._lock:
            if not self._rooms:
                self._open()
            return self._rooms[next(self._next) % len(self._rooms)]

    def lose(self, room: Any) -> None:
        """Use a process no more."""
        with self._lock:
            if room in self._rooms:
                self._rooms.remove(room)
                library().kill(room)

    def leave(self) -> None:
        """Say that an environment is closed; the last one closes all."""
        with self._lock:
            self._users -= 1
            if self._users or not (ray := library()).is_initialized():
                return
            if ends := [room.close.remote() for room in self._rooms]:
                ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
            for room in self._rooms:
                ray.kill(room)
            self._rooms.clear()


class RemoteSnapshot:
    """A snapshot in a process of the cluster: see `EpisodeSnapshot`."""

    def __init__(self, room: Any, number: int) -> None:
        self.room, self.number = room, number

    def reserve_fork(self) -> RemoteSnapshot:
        """See `EpisodeSnapshot.of_one`."""
        return RemoteSnapshot(self.room, _answer(self.room.one.remote(self.number)))

    def close(self) -> None:
        """Free the snapshot. Idempotent."""
        self.room.forget.remote(self.number)

    def __enter__(self) -> RemoteSnapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ClusterEnv(StandIn):
    """The stand-in of one environment.

    Args:
        rooms: The vector's processes.
        template: An environment of the same arguments, of which nothing is started.
    """

    def __init__(self, rooms: Rooms, template: Any) -> None:
        self._rooms, self._template = rooms, template
        self._home: tuple[Any, int] | None = None
        self._away: tuple[Any, int] | None = None
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
            return lambda *args, **named: self._call(name, *args, **named)
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
        if self._home is None:
            self._home = self._made(self._rooms.place())
        return self._told(self._call("reset", seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        found: tuple[str, float, bool, bool, dict[str, Any]] = self._call("step", action)
        return found

    def snapshot(self, how: How = "auto", lossy: bool = False) -> RemoteSnapshot:
        """See `InterCodeEnv.snapshot`; it is restored in stand-ins of this vector only."""
        room, number = self._now()
        return RemoteSnapshot(room, self._in(room, room.save, number, how, lossy))

    def restore(self, snapshot: RemoteSnapshot) -> tuple[str, dict[str, Any]]:
        """Begin a fork, on the machine where its origin is."""
        room = snapshot.room
        if self._home is not None and self._home[0] is room:
            self._go_home()
        elif self._away is None or self._away[0] is not room:
            self._go_home()
            self._away = self._made(room)
        number = self._now()[1]
        return self._told(self._in(room, room.restore, number, snapshot.number))

    def _go_home(self) -> None:
        """Leave the environment that a fork was in."""
        if self._away is not None:
            room, number = self._away
            self._away = None
            room.free.remote(number)

    def _made(self, room: Any) -> tuple[Any, int]:
        return room, self._in(room, room.make)

    def _now(self) -> tuple[Any, int]:
        if (found := self._away or self._home) is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return found

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        room, number = self._now()
        return self._in(room, room.call, number, name, *args, **named)

    def _in(self, room: Any, method: Any, *args: Any, **named: Any) -> Any:
        try:
            return _answer(method.remote(*args, **named))
        except SandboxClosedError as error:
            if error.__cause__ is not None:  # the process, and not a sandbox in it
                self._rooms.lose(room)
                self._home = None if self._home and self._home[0] is room else self._home
                self._away = None if self._away and self._away[0] is room else self._away
            raise

    @staticmethod
    def _told(found: Any) -> tuple[str, dict[str, Any]]:
        observation, info = found
        return observation, info

    def close(self) -> None:
        """Close the environment. Idempotent."""
        if not self._closed:
            self._closed = True
            self._rooms.leave()

    def fork(self, *args: Any, **named: Any) -> NoReturn:
        """Refuse: a vector's forks are in the vector.

        Raises:
            EnvironmentStateError: Always.
        """
        raise EnvironmentStateError("fork by the vector's fork(), into one of its environments")


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
    if not library().is_initialized():
        connect()
    env = str(Path(env).absolute()) if is_project(env) else env
    template: Any = create(env, **options)
    template.close()
    for wrap in wrappers:
        template = wrap(template)
    rooms = Rooms(num_envs, env, tuple(wrappers), options)
    envs = [ClusterEnv(rooms, template) for _ in range(num_envs)]
    return ThreadVectorEnv(envs, autoreset_mode, seed)
