"""Forks: other environments that begin with the running episode of one."""

from __future__ import annotations

import inspect
import zlib
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Self

import numpy as np

from intercode.envs.attempt import Attempt
from intercode.envs.snapshots import HOWS, EpisodeSnapshot, How, repeat, take
from intercode.envs.stage import PlaceT
from intercode.envs.turns import act
from intercode.episode import Episode
from intercode.errors import ForkError, UsageError
from intercode.interpreters.base import Interpreter
from intercode.task import Dataset


class Remade:
    """Base of a class whose instances can be made again, with what they were made with."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remember the constructor's arguments."""
        self = super().__new__(cls)
        self._made_with = args, options
        return self

    def another(self, tasks: Dataset) -> Self:
        """Make one more.

        Args:
            tasks: Its tasks: the constructor's first argument.
        """
        args, options = self._made_with
        first = next(iter(inspect.signature(type(self)).parameters.values()), None)
        if first is not None and first.kind not in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
            args = (tasks, *args[1:])
            options = {name: value for name, value in options.items() if name != first.name}
        return type(self)(*args, **options)


def random_of(episode: Episode, seed: int) -> np.random.Generator:
    """Return the source of random numbers of an environment that begins with a fork.

    Args:
        episode: The fork: its branch tells it from its siblings.
        seed: The seed of the environment that it was forked from.
    """
    assert episode.fork is not None
    entropy = [max(seed, 0), zlib.crc32(episode.id.encode("utf-8", "surrogatepass"))]
    return np.random.Generator(np.random.PCG64(entropy))


class Forkable(Remade, Attempt[PlaceT]):
    """The part of an `InterCodeEnv` that forks its episode."""

    def _draws_apart_from(self, source: Self) -> None:
        """Draw random numbers of its own, which the fork's branch and the source's seed decide."""

    def snapshot(self, how: How = "auto", lossy: bool = False) -> EpisodeSnapshot:
        """Save the running episode, between two actions. It goes on as if nothing had happened.

        Args:
            how: ``"state"`` saves what the actions have made of place and interpreter;
                ``"replay"`` lets each fork repeat the actions and compare what comes of them;
                ``"auto"`` saves the state where that is possible.
            lossy: Leave out the parts of the state that cannot be saved, such as programs that
                run, rather than refuse. They are listed in the snapshot's `lost`, in each fork's
                ``info["lost"]`` and in its episode's ``metadata["lost"]``.

        Raises:
            ForkError: It cannot be saved in this way; or it has ended.
            EnvironmentStateError: There is no episode; or an action is running.
            SandboxError: The sandbox was lost.
        """
        try:
            with self._calls:
                return self._save(how, lossy)
        except BaseException as error:  # the interpreter may not have told all of its state
            self.interrupt(error)
            raise

    def restore(self, snapshot: EpisodeSnapshot) -> tuple[str, dict[str, Any]]:
        """Begin a fork of a snapshot's episode here, in place of the current episode.

        The fork has the snapshot's turns and elapsed time, a place with the same limits, and a
        number of its own. The place is started before its first action. This environment's order
        of tasks is left alone, and so are Gymnasium's wrappers, which count by themselves.

        Returns:
            What `step` has returned last in the snapshot's episode, or `reset`: observation, info.

        Raises:
            ForkError: The snapshot is of another kind of environment or of other tasks, has no
                turns left, or was closed.
            EnvironmentStateError: It was made by another process, or another thread is using it.
        """
        with self._calls:
            task = snapshot.task_in(self.dataset, self.name, self.max_turns)
            with self._freed():
                episode = snapshot.episode()
                self.episode_state.begin(task, episode, snapshot.submissions)
                self._origin = snapshot.held(episode, self.episode_state.fork_numbers)
            last = episode.turns[-1] if episode.turns else None
            observation = task.query if last is None else last.observation
            return self._said((observation, self.episode_state.first_info(self.max_turns, last)))

    def fork(self, n: int = 1, how: How = "auto", lossy: bool = False) -> list[Self]:
        """Fork the running episode into other environments; here it goes on.

        Args:
            n: The number of forks, each in an environment of its own, which the caller closes.
            how: See `snapshot`.
            lossy: See `snapshot`.

        Raises:
            UsageError: `n` is below 1.
            ForkError, EnvironmentStateError, SandboxError: As for `snapshot`.
        """
        if n < 1:
            raise UsageError(f"the number of forks must be at least 1, not {n}")
        with ExitStack() as made, self.snapshot(how, lossy) as snapshot:
            forks = []
            for _ in range(n):
                fork = made.enter_context(closing(self.another(self.dataset)))
                fork.max_turns, fork.reward_every_turn = self.max_turns, self.reward_every_turn
                fork.scores_later = self.scores_later
                fork.restore(snapshot)
                fork._draws_apart_from(self)
                forks.append(fork)
            made.pop_all()
            return forks

    def _save(self, how: How, lossy: bool) -> EpisodeSnapshot:
        state, episode, origin = self.episode_state, self.episode, self._origin
        if how not in HOWS:
            raise UsageError(f"how must be one of {', '.join(HOWS)}, not {how!r}")
        running = self._asleep or self._interpreter is not None
        if episode.status != "running" or not running:
            raise ForkError("the episode has ended: take a snapshot while it is running")
        if self._asleep and origin is not None and how in ("auto", origin.how):
            return origin.held(episode, state.fork_numbers)
        if not self._asleep:
            episode = replace(episode, seconds=state.seconds)

        def interpreter() -> Interpreter:
            self._awake()
            assert self._interpreter is not None  # it is running
            return self._interpreter

        numbers = state.fork_numbers
        return take(state.task, episode, numbers, interpreter, how, lossy, state.submissions)

    def _awake(self) -> None:
        """Start place and interpreter of a fork, before they are first used."""
        if not self._asleep:
            return
        assert self._origin is not None  # it is asleep
        self.episode_state.start_clock()
        with self.episode_state.recording_failures():
            self._place, self._interpreter = self._origin.start(self._repeated)
            self._refuse_stopped()
        self.episode_state.start_clock()

    def _repeated(self) -> tuple[PlaceT, Interpreter]:
        """Start a place, and take the actions of the episode in it."""
        task = self.episode_state.task
        with ExitStack() as opened:
            place = opened.enter_context(closing(self.stage.open(task)))
            interpreter = opened.enter_context(closing(self._open(place)))
            repeat(
                self.episode.turns,
                lambda action: act(interpreter, action, task.timeout),
            )
            opened.pop_all()
        return place, interpreter
