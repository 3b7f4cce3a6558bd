"""The attempt under way in an environment: its task, its place, its interpreter and its record.

The parts of `intercode.envs.base.InterCodeEnv` share it: the loop of one agent, forks
(`intercode.envs.fork`), and the means for others than that agent (`intercode.envs.outside`).
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, Generic, NoReturn

from intercode.envs.options import EnvOptions
from intercode.envs.snapshots import EpisodeSnapshot
from intercode.envs.stage import EndsSlowly, PlaceT, Stage
from intercode.envs.traits import Traits
from intercode.episode import ENDED, DataT, Episode, NoAction, Score, Status, Turn, exact, plain
from intercode.errors import (
    CausedInsideError,
    EnvironmentStateError,
    ImageError,
    RewardError,
    SandboxError,
    SandboxUnavailableError,
    TaskError,
)
from intercode.interpreters.base import Interpreter
from intercode.interruption import is_callers
from intercode.outcomes import failure_kind
from intercode.rewards.base import Reward
from intercode.sandbox.ownership import OneCaller
from intercode.task import Dataset, Task

VALUES = (SandboxError, ImageError, OSError, TaskError, RewardError)
"""The errors that ``errors="value"`` turns into values: no caller's, no agent's, and none that
every other episode meets (`SandboxUnavailableError`)."""
SHOWN = ("timed_out", "restarted", "truncated", "gone")
"""The facts that `info` takes over from an execution: none that differs from run to run."""


def failure(error: Exception) -> dict[str, str]:
    """Tell of a failure, as ``info["error"]`` has it.

    Only that of the infrastructure has its message there: others may quote gold.
    """
    name, said = type(error).__name__, str(error)
    kind = "task" if failure_kind(name) == "refused" else "infrastructure"
    if isinstance(error, (TaskError, RewardError)):
        said = "the task's own part failed: env.episode.error says why"
    return {"kind": kind, "type": name, "message": said}


def is_value(error: Exception, episode: Episode, errors: str) -> bool:
    """Tell whether a failure becomes a value, and is not raised.

    Args:
        error: The failure, one of `VALUES`.
        episode: The episode that it may have ended.
        errors: The environment's option of that name.
    """
    is_permanent = isinstance(error, SandboxUnavailableError)
    is_ours = "interrupted" not in episode.metadata
    return errors == "value" and episode.status == "error" and is_ours and not is_permanent


def interrupt(episode: Episode, error: BaseException) -> None:
    """End an episode by an exception of the caller that struck before an observation had come.

    The effects of the action are not known, and its observation could be taken for another one's.
    """
    name = type(error).__name__
    episode.status = "error"
    episode.error = f"interrupted by {name}: {error}".removesuffix(": ")
    episode.score = None
    episode.metadata["interrupted"] = name


def has_ended(episode: Episode) -> EnvironmentStateError:
    """Make the error of an action after the end of an episode."""
    reason = ""
    if name := episode.metadata.get("interrupted"):
        reason = f": {name} has interrupted an action before its observation came"
    return EnvironmentStateError(f"the episode has ended{reason}: call reset() first")


class Submissions:
    """The submissions of an episode and of all its forks: what one has tried, all have tried."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made = 0
        self.wrong = 0
        """The number of those that were refused, and did not end an episode."""

    def add(self, *, wrong: bool = False) -> None:
        """Count one, or count one as wrong that was counted."""
        with self._lock:
            self.made += not wrong
            self.wrong += wrong

    def __deepcopy__(self, memo: object) -> Submissions:
        """Return itself: forks share it."""
        return self


class Attempt(Generic[PlaceT]):
    """The state of an environment, and what is done with it."""

    name: ClassVar[str]
    options: EnvOptions
    traits: Traits
    dataset: Dataset
    max_turns: int
    reward_every_turn: bool
    stage: Stage[PlaceT]
    """Makes the places in which tasks are tried."""
    _open: Callable[[PlaceT], Interpreter]
    _reward: Reward[PlaceT]
    _task: Task | None = None
    _place: PlaceT | None = None
    _interpreter: Interpreter | None = None
    _episode: Episode | None = None
    scores_later = False
    """Whether the end of an episode is scored only by `settle`, and so does not tell its score."""
    _is_wire = False
    """Whether texts leave and enter escaped (the option `observations`)."""
    _clock = 0.0
    """The time at which the episode began; a fork's, as if it had begun here."""
    _stopped = False
    _untold: Exception | None = None
    """The failure of the last reset, for the next step."""
    _origin: EpisodeSnapshot | None = None
    """The snapshot that a fork begins from."""

    def __init__(self) -> None:
        self._calls = OneCaller("this environment")
        self._scored: weakref.WeakSet[Any] = weakref.WeakSet()
        """The places that `score` has judged."""
        self._numbers: Iterator[int] = itertools.count()
        """Numbers of the episode's forks."""
        self._submissions = Submissions()

    @property
    def episode(self) -> Episode:
        """The episode since the last `reset`, finished or running.

        Raises:
            EnvironmentStateError: There is none yet.
        """
        if self._episode is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return self._episode

    @property
    def submissions(self) -> int:
        """The number of submissions so far, over the episode and all its forks."""
        return self._submissions.made

    @property
    def _asleep(self) -> bool:
        """Whether this is a fork that has not been used yet."""
        running = self._episode is not None and self._episode.status == "running"
        return running and self._origin is not None and self._place is None

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
        if self._task is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        find = getattr(self.stage, "directory", None)  # of a stage that makes sandboxes
        return "." if find is None else str(find(self._task))

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
        assert self._task is not None  # the episode is running
        return self._judge(self._task, self.episode, self.place)

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
            self.episode.seconds = time.monotonic() - self._clock
            return None
        return self._scored_end()

    def _scored_end(self) -> Score:
        score = Score(0.0) if self.episode.status == "skipped" else self._score()
        self.episode.score = score
        self.episode.seconds = time.monotonic() - self._clock
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
        with self._calls, self._failures_recorded():
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

    def _failed(self, error: Exception) -> dict[str, Any]:
        """Make the `info` of an episode that failed; or raise the error, where none is a value."""
        if not is_value(error, self.episode, self.options.errors):
            raise error
        return {**self._info(), "error": failure(error)}

    def interrupt(self, error: BaseException) -> None:
        """End the running episode by an exception, if that is the caller's.

        Call it between two calls of others, or where one of them has raised the exception.
        """
        if self._episode is not None and self._episode.status == "running" and is_callers(error):
            interrupt(self._episode, error)
            self._episode.seconds = time.monotonic() - self._clock

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """End the episode as an error, and raise it, where a failure is not the agent's fault."""
        try:
            yield
        except BaseException as error:
            if is_callers(error):
                interrupt(self.episode, error)
            else:
                self.episode.status = "error"
                self.episode.error = f"{type(error).__name__}: {error}"
            self.episode.seconds = time.monotonic() - self._clock
            raise

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

    def _first_info(self, task: Task, turn: Turn | None = None) -> dict[str, Any]:
        """Make the `info` with which an episode or a fork begins."""
        return {**self._info(turn), "query": task.query, "tags": task.tags}

    def _info(self, turn: Turn | None = None, score: Score | None = None) -> dict[str, Any]:
        """Make the `info` of `reset` and `step`."""
        done = len(self.episode.turns)
        info: dict[str, Any] = {
            "task_id": self.episode.task_id,
            "turn": done,
            "turns_left": self.max_turns - done,
        }
        if (outcome := self.episode.outcome) is not None:
            info["outcome"] = outcome
        if "lost" in self.episode.metadata:
            info["lost"] = self.episode.metadata["lost"]
        if turn is not None:
            info["ok"] = turn.ok
            if turn.exit_code is not None:
                info["exit_code"] = turn.exit_code
            info.update({key: turn.info[key] for key in SHOWN if key in turn.info})
        if score is not None:
            info["success"] = score.value == 1.0
            info["parts"] = dict(score.parts)
        return info
