"""Environments whose tasks are tried elsewhere: by a server, or by another framework.

A subclass begins an episode there and passes actions on; the record, the limit of turns and the
rules of `step` are kept here, so that agents, runs and statistics take it as any other
environment. It has no place of ours: it can be neither forked nor scored from outside.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import gymnasium

from intercode.calls import Tool, ToolCall
from intercode.datasets import load
from intercode.envs.attempt import SHOWN, VALUES, failure, has_ended, interrupt, is_value
from intercode.envs.options import EnvOptions
from intercode.envs.spaces import Unicode
from intercode.envs.tools import action_of, tools_of
from intercode.envs.traits import SHELL, Traits
from intercode.episode import ENDED, Episode, NoAction, Score, Status, Turn
from intercode.errors import (
    ActionError,
    EnvironmentStateError,
    ForkError,
    RewardError,
    TaskError,
    UsageError,
)
from intercode.interruption import is_callers
from intercode.registry import MESSAGES
from intercode.sandbox.ownership import OneCaller
from intercode.task import Dataset, Task


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply from elsewhere to an action, or to the wish to end the episode."""

    observation: str
    reward: float | None = None
    """None: no reward yet."""
    ended: bool = False
    truncated: bool = False
    """Whether a limit there has ended it."""
    goes_on: bool = False
    """Whether the episode goes on after an answer, as where several may be tried."""
    ok: bool = True
    """Whether the action ran without an error, as far as that is told."""
    exit_code: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the record."""


class StandIn(gymnasium.Env[str, str]):
    """An environment that passes its calls on to one of ours in another process.

    It has the attributes and methods of `InterCodeEnv` that `ThreadVectorEnv` asks for.
    """


class Elsewhere(gymnasium.Env[str, str], ABC):
    """An environment whose episodes take place elsewhere.

    Args:
        data: The tasks.
        options: The options, as one value.
        **changes: Single options by their names.

    Raises:
        UsageError: There is no such option, or it makes no sense.
        TaskError: There are no tasks.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]
    name: ClassVar[str]
    Options: ClassVar[type[EnvOptions]] = EnvOptions
    traits: Traits = SHELL
    """State ``elsewhere=True`` in the subclass's own."""

    def __init__(
        self, data: str | Path | Dataset, *, options: EnvOptions | None = None, **changes: Any
    ) -> None:
        self.options = options = self.Options.of(options, changes)
        self.dataset = load(data)
        if not self.dataset:
            raise TaskError(f"dataset {self.dataset.name!r} holds no tasks")
        self.max_turns = options.max_turns
        self.reward_every_turn = options.reward_every_turn
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._calls = OneCaller("this environment")
        self._seed = options.seed
        self._order: Iterator[Task] | None = None
        self._episode: Episode | None = None
        self._clock = 0.0
        self._untold: Exception | None = None
        self._begun = False
        """Whether the episode was begun there. A reset that is refused has ended it, too."""

    @abstractmethod
    def _begin(self, task: Task, seed: int | None) -> str:
        """Begin an episode there; return the first observation."""

    @abstractmethod
    def _take(self, action: str) -> Reply:
        """Take an action there."""

    @abstractmethod
    def _submit(self, answer: str | None) -> Reply:
        """End the episode there; its reply has the reward."""

    def _free(self) -> None:
        """Let go of the episode there. Idempotent."""

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
    def tools(self) -> list[Tool]:
        """The tools, with their JSON schemas, for `call`."""
        return tools_of(self.traits)

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        task_id: str | None = None,
        index: int | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode, as `InterCodeEnv.reset` does."""
        with self._calls:
            self._begun = False
            given = {"task_id": task_id, "index": index}
            given = {name: one for name, one in given.items() if one is not None}
            if twice := sorted(given.keys() & (options or {}).keys()):
                raise UsageError(f"give {twice[0]!r} to reset once, not in its options as well")
            task = self.named({**(options or {}), **given})
            self._free()
            seed, self._seed = (self._seed if seed is None else seed), None
            super().reset(seed=seed)
            if seed is not None or self._order is None:
                self._order = self.dataset.shuffled(self.np_random)
            task = task or next(self._order)
            self._untold = None
            self._episode = Episode(task.task_id, task.query, self.name, seed=seed)
            self._episode.started, self._clock = time.time(), time.monotonic()
            try:
                with self._failures_recorded():
                    text = self._episode.query = self._begin(task, seed)
                    self._begun = True
            except VALUES as error:
                self._untold = error
                return task.query, self._failed(error)
            return text, {**self._info(), "query": text, "tags": task.tags}

    def named(self, options: Mapping[str, Any]) -> Task | None:
        """Return the task that options of `reset` name, as `InterCodeEnv.named` does."""
        return self.dataset.named(**options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action, as `InterCodeEnv.step` does."""
        try:
            with self._calls:
                try:
                    return self._checked_step(action)
                except VALUES as failed:
                    return "", float("nan"), False, True, self._failed(failed)
        except BaseException as error:  # also on the way out: the observation is lost
            self.interrupt(error)
            raise

    def _checked_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        episode = self.episode
        if (error := self._untold) is not None:  # of `reset`, which cannot truncate
            self._untold = None
            raise error
        if episode.status != "running" or not self._begun:
            raise has_ended(episode)
        if not isinstance(action, str):
            raise ActionError(f"an action must be a text, not {type(action).__name__}")
        with self._failures_recorded():
            return self._step(episode, action)

    def _step(self, episode: Episode, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        ending = self._ending(action)
        if ending == "skipped":
            return self._end(Reply("", 0.0), ending)
        began = time.monotonic()
        if ending == "submitted":
            reply = self._submit(episode.answer)
            if not reply.goes_on:
                return self._end(reply, ending)
        elif isinstance(action, NoAction):
            told = {"executed": False, "invalid": True}
            reply = Reply(f"[{action.note}]", ok=False, info=told)
        else:
            reply = self._take(action)
        seconds = time.monotonic() - began
        turn = Turn(str(action), reply.observation, 0.0, reply.ok, reply.exit_code, seconds)
        turn = replace(turn, info=dict(reply.info))
        episode.turns.append(turn)
        if not reply.ended and not reply.truncated and len(episode.turns) >= self.max_turns:
            last = self._submit(None)
            reply = replace(reply, reward=last.reward, parts=last.parts, truncated=True)
        if not reply.ended and not reply.truncated:
            return reply.observation, reply.reward or 0.0, False, False, self._info(turn)
        ended = self._end(reply, "truncated" if reply.truncated else "ended", turn)
        episode.turns[-1] = replace(turn, reward=ended[1])
        return ended

    def _ending(self, action: str) -> Status | None:
        word, _, answer = action.strip().partition(" ")
        if word == "submit" and (not answer or self.traits.answer or self.traits.may_answer):
            self.episode.answer = answer.strip() or None
            return "submitted"
        return "skipped" if word == "skip" and not answer else None

    def _end(
        self, reply: Reply, status: Status, turn: Turn | None = None
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if reply.reward is None or not math.isfinite(reply.reward):
            raise RewardError(f"{self.name}: the episode has ended there without a reward")
        self.episode.status = status
        detail = {name: reply.info[name] for name in (ENDED,) if name in reply.info}
        self.episode.score = score = Score(float(reply.reward), dict(reply.parts), detail)
        self.episode.seconds = time.monotonic() - self._clock
        self._free()
        info = {**self._info(turn), "success": score.value == 1.0, "parts": dict(score.parts)}
        truncated = status == "truncated"
        return reply.observation, score.value, not truncated, truncated, info

    def _info(self, turn: Turn | None = None) -> dict[str, Any]:
        done = len(self.episode.turns)
        info = {"task_id": self.episode.task_id, "turn": done, "turns_left": self.max_turns - done}
        info |= {} if (outcome := self.episode.outcome) is None else {"outcome": outcome}
        if turn is not None:
            info["ok"] = turn.ok
            info |= {} if turn.exit_code is None else {"exit_code": turn.exit_code}
            info |= {name: turn.info[name] for name in SHOWN if name in turn.info}
        return info

    def interrupt(self, error: BaseException) -> None:
        """End the running episode by an exception, as `InterCodeEnv.interrupt` does."""
        if self._episode is not None and self._episode.status == "running" and is_callers(error):
            interrupt(self._episode, error)
            self._episode.seconds = time.monotonic() - self._clock
            self._free()

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """End the episode as an error, and raise it, where there was a failure."""
        try:
            yield
        except BaseException as error:
            if is_callers(error):
                interrupt(self.episode, error)
            else:
                self.episode.status = "error"
                self.episode.error = f"{type(error).__name__}: {error}"
            self.episode.seconds = time.monotonic() - self._clock
            self._free()
            raise

    def _failed(self, error: Exception) -> dict[str, Any]:
        """Make the `info` of an episode that failed; or raise the error, where none is a value."""
        if not is_value(error, self.episode, self.options.errors):
            raise error
        return {**self._info(), "error": failure(error)}

    def snapshot(self, *args: Any, **named: Any) -> NoReturn:
        """Refuse: an episode elsewhere cannot be saved.

        Raises:
            ForkError: Always.
        """
        raise ForkError(f"{self.name}: an episode that takes place elsewhere cannot be forked")

    fork = snapshot

    def call(
        self, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action by calling a tool, as `InterCodeEnv.call` does."""
        return self.step(action_of(ToolCall("", name, arguments), self.traits))

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Tell the episode so far as chat messages, as `InterCodeEnv.messages` does."""
        task = self.dataset.by_id(self.episode.task_id)
        told: list[dict[str, Any]] = MESSAGES.get(style)(self, task)
        return told

    def image(self, task: Task) -> str:
        """Name the place of a task, for a run's record: the environment elsewhere."""
        return self.name

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried, before any work starts."""

    def digest(self, task: Task) -> str:
        """Identify the content of a task's place, as far as that is known: it is not."""
        return "elsewhere"

    def close(self) -> None:
        """End the episode. Idempotent."""
        self._free()
