"""The attempt under way in an environment: its task, its place, its interpreter and its record.

The parts of `intercode.envs.base.InterCodeEnv` share it: the loop of one agent, forks
(`intercode.envs.fork`), and the means for others than that agent (`intercode.envs.outside`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, Generic, NoReturn

from intercode.envs.episode_state import EpisodeState
from intercode.envs.options import EnvOptions
from intercode.envs.snapshots import EpisodeSnapshot
from intercode.envs.stage import EndsSlowly, PlaceT, Stage
from intercode.envs.traits import Traits
from intercode.episode import ENDED, DataT, Episode, NoAction, Score, Status, exact, plain
from intercode.errors import (
    CausedInsideError,
    EnvironmentStateError,
    SandboxError,
)
from intercode.interpreters.base import Interpreter
from intercode.rewards.base import Reward
from intercode.sandbox.ownership import OneCaller
from intercode.task import Dataset, Task


class Attempt(Generic[PlaceT]):
    """The state of an environment, and what is done with it."""

    name: ClassVar[str]
    options: EnvOptions
    traits: Traits
    episode_state: EpisodeState
    dataset: Dataset
    max_turns: int
    reward_every_turn: bool
    stage: Stage[PlaceT]
    """Makes the places in which tasks are tried."""
    _open: Callable[[PlaceT], Interpreter]
    _reward: Reward[PlaceT]
    _place: PlaceT | None = None
    _interpreter: Interpreter | None = None
    scores_later = False
    """Whether the end of an episode is scored only by `settle`, and so does not tell its score."""
    _is_wire = False
    """Whether texts leave and enter escaped (the option `observations`)."""
    _stopped = False
    _origin: EpisodeSnapshot | None = None
    """The snapshot that a fork begins from."""

    def __init__(self) -> None:
        self._calls = OneCaller("this environment")
        self._scored: weakref.WeakSet[Any] = weakref.WeakSet()
        """The places that `score` has judged."""

    @property
    def episode(self) -> Episode:
        """The episode since the last `reset`, finished or running.

        Raises:
            EnvironmentStateError: There is none yet.
        """
        return self.episode_state.episode

    @property
    def submissions(self) -> int:
        """The number of submissions so far, over the episode and all its forks."""
        return self.episode_state.submissions.made

    @property
    def _asleep(self) -> bool:
        """Whether this is a fork that has not been used yet."""
        is_fork = self._origin is not None and self._place is None
        return is_fork and self.episode_state.is_running

    def _awake(self) -> None:
        """Start place and interpreter of a fork, before they are first used (see `Forkable`)."""

    @property
    def place(self) -> PlaceT:
        """The current episode's sandbox or session, for a look from outside.

        Raises:
            EnvironmentStateError: There is none.
            ForkError, SandboxError: A fork's place is started now, and cannot be.
        """
        if self._asleep:
            with self._calls:
                self._awake()
        if self._place is None:
            raise EnvironmentStateError("there is no sandbox: call reset() first")
        return self._place

    @property
    def sandbox(self) -> PlaceT:
        """The place, by the name that it has in environments with a sandbox."""
        return self.place

    @property
    def directory(self) -> str:
        """The directory where the episode's actions begin, from the place's own directory.

        Raises:
            EnvironmentStateError: There is no episode yet.
        """
        task = self.episode_state.task
        find = getattr(self.stage, "directory", None)  # of a stage that makes sandboxes
        return "." if find is None else str(find(task))

    def image(self, task: Task) -> str:
        """Name the image, or the database, that a task of this environment is tried in."""
        return self.stage.image(task)

    def stop(self) -> None:
        """End the place for good, while another thread's call may run. `close` frees the rest.

        The running call fails, with `SandboxClosedError` or `EnvironmentStateError`. Idempotent.
        """
        self._stopped = True
        self.abort()

    def abort(self) -> None:
        """End a call that runs on another thread, as `stop` does, but only that one."""
        if (place := self._place) is not None:
            place.close()

    def _refuse_stopped(self) -> None:
        """Refuse a place that was opened while `stop` was called, which has not seen it."""
        if self._stopped and self._place is not None:
            self._place.close()
            raise EnvironmentStateError("this environment was stopped")

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent, and safe from any thread.

        In a fork of the process that made the environment it does nothing: all is the parent's.
        """
        if not self._calls.forked:
            with self._freed():
                pass

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            EnvironmentStateError: Always.
        """
        raise EnvironmentStateError(
            "an environment cannot be copied or pickled, as its sandbox is one: fork() branches an "
            "episode, and another process makes an environment of its own"
        )

    def _score(self) -> Score:
        return self._judge(self.episode_state.task, self.episode, self.place)

    def _judge(self, task: Task, episode: Episode, place: PlaceT) -> Score:
        """Score an episode by the place that it left, after all that runs there has ended."""
        score, ended = Score(0.0), {}
        try:
            if episode.status != "running":
                place.kill()
        except CausedInsideError as error:  # some scores need no place that still answers
            ended = {ENDED: str(error)}
        try:
            score = self._reward(task, episode, place)
        except CausedInsideError as error:
            ended = {ENDED: str(error)}
        if self.stage.changed(task, place):
            # A package was installed, with the image `host`: gold may have met other programs.
            raise SandboxError(
                f"the content of {self.image(task)!r} changed while the episode ran: the "
                "episode and its gold did not run on the same thing"
            )
        return replace(score, detail={**score.detail, **ended}) if ended else score

    def _finish(self, status: Status) -> Score | None:
        """End the episode, with everything that the agent started, and score it if it is time."""
        assert self._interpreter is not None  # the episode is running
        self.episode.status = status
        self._interpreter.close()
        gate = getattr(self._place, "gate", None)  # of a sandbox with a policy for the network
        if gate is not None and (refused := gate.refused):
            self.episode.metadata["network_refused"] = dict(refused)
        if self.scores_later and not self.reward_every_turn:
            with suppress(CausedInsideError):
                self.place.kill()
            self.episode.seconds = self.episode_state.seconds
            return None
        return self._scored_end()

    def _scored_end(self) -> Score:
        score = Score(0.0) if self.episode.status == "skipped" else self._score()
        self.episode.score = score
        self.episode.seconds = self.episode_state.seconds
        return score

    def settle(self) -> None:
        """Score an episode that has ended, where that was left for later. Idempotent.

        Raises:
            RewardError, SandboxError: As for `step`.
        """
        episode = self.episode
        if episode.status in ("running", "error") or episode.score is not None:
            return
        seconds = episode.seconds
        with self._calls, self.episode_state.recording_failures():
            score = self._scored_end()
        episode.seconds = seconds
        if episode.turns and episode.status in ("ended", "truncated"):
            episode.turns[-1] = replace(episode.turns[-1], reward=score.value)

    def _meant(self, action: str) -> str:
        """Return the action as it is executed."""
        is_escaped = self._is_wire and isinstance(action, str)
        return exact(action) if is_escaped and not isinstance(action, NoAction) else action

    def _said(self, data: DataT) -> DataT:
        """Return what leaves the environment, in the form that `observations` asks for."""
        return plain(data) if self._is_wire else data

    def interrupt(self, error: BaseException) -> None:
        """End the running episode by an exception, if that is the caller's.

        Call it between two calls of others, or where one of them has raised the exception.
        """
        self.episode_state.interrupt(error)

    @contextmanager
    def _freed(self) -> Iterator[None]:
        """End the episode's place: begin to at once, and have ended it afterwards."""
        interpreter, self._interpreter = self._interpreter, None
        place, self._place = self._place, None
        origin, self._origin = self._origin, None  # what it holds is freed after the place
        try:
            if interpreter is not None:
                interpreter.close()
            if isinstance(place, EndsSlowly):
                place.kill_all()
            yield
        finally:
            if place is not None:
                place.close()
            del origin
