"""The episode loop, once for all environments.

`InterCodeEnv` puts four things behind Gymnasium's `reset` and `step`: tasks, a stage that makes
the places where they are tried (sandboxes, databases), an interpreter that turns an action into
an observation, and a reward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import gymnasium

from intercode import datasets
from intercode.envs.action import execute
from intercode.envs.compose import opener, own_reward, sandboxes
from intercode.envs.order import TaskOrder
from intercode.envs.place import EndsSlowly, PlaceT, Stage
from intercode.envs.record import info_of, rendered, turn_of
from intercode.envs.spaces import Unicode
from intercode.episode import ENDED, Episode, Score, Status
from intercode.errors import (
    ActionError,
    CausedInsideError,
    EnvironmentStateError,
    SandboxError,
    TaskError,
    UsageError,
)
from intercode.interpreters.base import Execution, Interpreter
from intercode.rewards.base import Reward
from intercode.rewards.own import Function
from intercode.sandbox.base import Limits, Provider
from intercode.sandbox.images import hide
from intercode.task import Dataset, Task


class InterCodeEnv(gymnasium.Env[str, str], Generic[PlaceT]):
    """An interactive coding environment: observations and actions are texts.

    The action ``submit`` ends the episode with its reward, ``skip`` gives up; any other is
    executed. After `max_turns` executed actions the episode is truncated, and the state at that
    point is scored; an action that ends its own sandbox ends the episode, and so much is scored as
    can still be read. Before its end the reward is 0.0, unless every turn is rewarded.

    `info` holds ``task_id``, ``turn`` (actions executed so far), after an action ``ok`` and, if
    there is one, ``exit_code``, and with a reward ``success`` and ``parts``. Everything else,
    also what varies from run to run, is in `episode`.

    An environment of one's own needs no more than this::

        env = InterCodeEnv("tasks.jsonl", image="Dockerfile", interpreter="bash", reward=score)

    Args:
        dataset: The tasks, or the file or the dataset's name that they are in. Without a
            ``task_id`` in its options, `reset` takes the next one of a seeded order, and when all
            had their turn, of another.
        stage: Makes the places where they are tried; None: sandboxes of `image`.
        interpreter: Opens an interpreter in such a place; ``"bash"`` or ``"python"``.
        reward: Scores an episode: a function, or ``reward.py:score`` (see `intercode.rewards.own`).
        image: The image of all tasks, without a `stage`; None: each task's own, or ``host``.
        provider: What starts its sandboxes, or its name.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the sandbox reaches the network.
        max_turns: Actions in one episode.
        reward_every_turn: Score after every action, as the 2023 "Try Again" setting did. It
            tells the agent how close it is: to be reported as such.
        render_mode: None or ``"ansi"``.
        seed: Of the first `reset` that is given none.

    Raises:
        UsageError: An option makes no sense.
        TaskError: There are no tasks.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    name: ClassVar[str] = "intercode"
    """The environment's short name, for the record."""
    prompt: ClassVar[str] = "$ "
    """What stands before an action where people read it."""
    takes_answer: ClassVar[bool] = False
    """Whether ``submit ANSWER`` submits; else only ``submit`` itself does."""

    def __init__(
        self,
        dataset: str | Path | Dataset,
        stage: Stage[PlaceT] | None = None,
        interpreter: str | Callable[[PlaceT], Interpreter] = "bash",
        reward: str | Function | Reward[PlaceT] | None = None,
        *,
        image: str | Path | None = None,
        provider: str | Provider = "native",
        limits: Limits | None = None,
        network: bool = False,
        max_turns: int = 10,
        reward_every_turn: bool = False,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        if max_turns < 1:
            raise UsageError(f"max_turns must be at least 1, not {max_turns}")
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode must be None or 'ansi', not {render_mode!r}")
        opens = opener(interpreter)
        if stage is None or reward is None or isinstance(reward, str):
            reward = own_reward(self.name, reward)
        if stage is None:
            made = sandboxes(interpreter, image, provider, limits, network)
            stage = cast("Stage[PlaceT]", made)
        self.dataset = tasks = datasets.load(dataset)
        hide(tasks.source, tasks.databases)
        if not tasks:
            raise TaskError(f"dataset {tasks.name!r} holds no tasks")
        self.max_turns = max_turns
        self.render_mode = render_mode
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._stage = stage
        self._open = opens
        self._reward = cast("Reward[PlaceT]", reward)
        self.reward_every_turn = reward_every_turn
        self._seed = seed
        self._order = TaskOrder(tasks)
        self._task: Task | None = None
        self._place: PlaceT | None = None
        self._interpreter: Interpreter | None = None
        self._episode: Episode | None = None
        self._clock = 0.0

    @property
    def episode(self) -> Episode:
        """The episode since the last `reset`: finished, or as far as it is.

        Raises:
            EnvironmentStateError: There is none yet.
        """
        if self._episode is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return self._episode

    @property
    def place(self) -> PlaceT:
        """Where the current episode happens, for looking in from outside.

        Raises:
            EnvironmentStateError: There is none.
        """
        if self._place is None:
            raise EnvironmentStateError("there is no sandbox: call reset() first")
        return self._place

    @property
    def sandbox(self) -> PlaceT:
        """The same, by the name that it has in environments with a sandbox."""
        return self.place

    @property
    def language(self) -> str:
        """What actions are written in, as far as its interpreter says."""
        return str(getattr(self._open, "language", "bash"))

    def image(self, task: Task) -> str:
        """The image, or the database, that a task of this environment is tried in."""
        return self._stage.image(task)

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here, before any work starts.

        Raises:
            TaskError, ImageError: What it is to be tried in is not there.
        """
        self._stage.check(task)

    def digest(self, task: Task) -> str:
        """What identifies the content of its image or database; an image is built if need be."""
        return self._stage.digest(task)

    def solution(self, task: Task) -> list[str]:
        """Actions that solve a task by its first gold, the last of them a submit: the oracle's."""
        return [*task.gold[:1], "submit"]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a fresh place.

        Args:
            seed: Starts the order of the tasks anew.
            options: ``{"task_id": …}`` chooses a task and leaves the order alone.

        Raises:
            TaskNotFoundError: No task has that id.
            UsageError: There is another option.
            TaskError: The task's files or setup failed.
            ImageError: The image cannot be found or built.
            SandboxError: The sandbox cannot be started.
        """
        with self._freed():
            return self._begin(seed, options or {})

    def _begin(self, seed: int | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        seed, self._seed = (self._seed if seed is None else seed), None
        super().reset(seed=seed)
        if seed is not None:
            self._order.restart()
        self._task = task = self._choose(options)
        self._clock = time.monotonic()
        self._episode = Episode(task.task_id, task.query, self.name, seed=seed, started=time.time())
        self._episode.metadata["image"] = self._stage.image(task)
        with self._failures_recorded():
            self._place = self._stage.start(task)
            self._interpreter = self._open(self._place)
        return task.query, info_of(self.episode)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Returns:
            Observation, reward, whether the episode was ended, whether it was truncated, info.

        Raises:
            EnvironmentStateError: There is no episode, or it has ended.
            ActionError: The action is no text.
            SandboxError: The sandbox was lost, and not by what ran in it. The episode counts as an
                error, never as a reward.
            RewardError: The episode cannot be scored.
        """
        task, interpreter = self._task, self._interpreter
        if self.episode.status != "running" or task is None or interpreter is None:
            raise EnvironmentStateError("the episode has ended: call reset() first")
        if not isinstance(action, str):
            raise ActionError(f"an action must be a text, not {type(action).__name__}")
        with self._failures_recorded():
            status = self._ending(action)
            reply = self._reply(self.episode.answer) if status == "submitted" else None
            if status is not None and reply is None:
                score = self._finish(status)
                return "", score.value, True, False, info_of(self.episode, score=score)
            turn = turn_of(action, reply or execute(interpreter, action, task.timeout))
            self.episode.turns.append(turn)
            ended = ENDED in turn.info
            truncated = not ended and len(self.episode.turns) >= self.max_turns
            if not ended and not truncated and not self.reward_every_turn:
                return turn.observation, 0.0, False, False, info_of(self.episode, turn)
            if ended or truncated:
                score = self._finish("ended" if ended else "truncated")
            else:
                score = self._score()
            self.episode.turns[-1] = replace(turn, reward=score.value)
            info = info_of(self.episode, turn, score)
            return turn.observation, score.value, ended, truncated, info

    def render(self) -> str | None:
        """The episode so far, as a terminal would show it."""
        if self.render_mode is None:
            return None
        return rendered(self.episode, self.prompt)

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent."""
        with self._freed():
            pass

    def _choose(self, options: dict[str, Any]) -> Task:
        return self._order.choose(options, lambda: int(self.np_random.integers(2**32)))

    def _ending(self, action: str) -> Status | None:
        """How the episode ends by this action; None if the action is to be executed."""
        word, _, answer = action.strip().partition(" ")
        if word == "submit" and (not answer or self.takes_answer):
            self.episode.answer = answer.strip() or None
            return "submitted"
        return "skipped" if word == "skip" and not answer else None

    def _reply(self, answer: str | None) -> Execution | None:
        """What is said to an answer after which the episode goes on; None: it ends with it.

        For environments in which an answer may be tried: the reply makes a turn.
        """
        return None

    def _score(self) -> Score:
        assert self._task is not None  # the episode is running
        score, ended = Score(0.0), {}
        try:
            if self.episode.status != "running":
                self.place.kill()
        except CausedInsideError as error:  # some scores need no place that still answers
            ended = {ENDED: str(error)}
        try:
            score = self._reward(self._task, self.episode, self.place)
        except CausedInsideError as error:
            ended = {ENDED: str(error)}
        if self._stage.changed(self._task, self.place):
            # A package was installed, with the image `host`: gold may have met other programs.
            raise SandboxError(
                f"the content of {self.image(self._task)!r} changed while the episode ran: the "
                "episode and its gold did not run on the same thing"
            )
        return replace(score, detail={**score.detail, **ended}) if ended else score

    def _finish(self, status: Status) -> Score:
        """End the episode, with everything that the agent started, and score it."""
        assert self._interpreter is not None  # the episode is running
        self.episode.status = status
        self._interpreter.close()
        score = Score(0.0) if status == "skipped" else self._score()
        self.episode.score = score
        self.episode.seconds = time.monotonic() - self._clock
        return score

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """What is no fault of the agent's ends the episode as an error, for the caller to see."""
        try:
            yield
        except Exception as error:
            self.episode.status = "error"
            self.episode.error = f"{type(error).__name__}: {error}"
            self.episode.seconds = time.monotonic() - self._clock
            raise

    @contextmanager
    def _freed(self) -> Iterator[None]:
        """End the episode's place: it begins to end at once, and has ended afterwards."""
        interpreter, self._interpreter = self._interpreter, None
        place, self._place = self._place, None
        try:
            if interpreter is not None:
                interpreter.close()
            if isinstance(place, EndsSlowly):
                place.kill_all()
            yield
        finally:
            if place is not None:
                place.close()
