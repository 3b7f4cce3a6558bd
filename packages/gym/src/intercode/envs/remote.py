"""Environments whose tasks are tried elsewhere: by a server, or by another framework.

A subclass begins an episode there and passes actions on; the record, the limit of turns and the
rules of `step` are kept here, so that agents, runs and statistics take it as any other
environment. It has no place of ours: it can be neither forked nor scored from outside.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import gymnasium

from intercode.datasets import load
from intercode.envs.episode_state import VALUES, EpisodeEnv, choices
from intercode.envs.options import EnvOptions
from intercode.envs.traits import SHELL, Traits
from intercode.episode import ENDED, NoAction, Score, Status, Turn
from intercode.errors import (
    ForkError,
    RewardError,
    UsageError,
)
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


class Elsewhere(EpisodeEnv, ABC):
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
    unsupported_options: ClassVar[tuple[str, ...]] = ("sandbox",)
    """The options that have no effect here, beside limits: they are refused."""

    def __init__(
        self, data: str | Path | Dataset, *, options: EnvOptions | None = None, **changes: Any
    ) -> None:
        self.options = options = self.Options.of(options, changes)
        self._refuse_options()
        super().__init__(load(data), options)
        self._begun = False
        """Whether the episode was begun there. A reset that is refused has ended it, too."""

    def _refuse_options(self) -> None:
        """Refuse options that would silently have no effect."""
        default = self.Options()
        names = [
            name
            for name in self.unsupported_options
            if getattr(self.options, name) != getattr(default, name)
        ]
        if (limits := self.options.limits) is not None:
            names += sorted(limits.overrides or ())
        if names:
            raise UsageError(
                f"{self.name}: {', '.join(map(repr, names))} {'is' if names[1:] == [] else 'are'} "
                "decided by the framework of the tasks, and cannot be set here"
            )

    @abstractmethod
    def _begin(self, task: Task, seed: int | None) -> str:
        """Begin an episode there; return the first observation."""

    @abstractmethod
    def _take(self, action: str) -> Reply:
        """Take an action there."""

    @abstractmethod
    def _submit(self, answer: str | None) -> Reply:
        """End the episode there; its reply has the reward."""

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
            state = self.episode_state
            selected_task = self.select_task(choices(options, task_id=task_id, index=index))
            task = state.begin(self, selected_task, seed)
            try:
                with state.recording_failures():
                    state.episode.query = self._begin(task, state.episode.seed)
                    self._begun = True
            except VALUES as error:
                state.failure = error
                return task.query, state.failure_info(error, self.max_turns)
            return state.episode.query, state.first_info(self.max_turns)

    def select_task(self, options: Mapping[str, Any]) -> Task | None:
        """Return the task that options of `reset` name, as `InterCodeEnv.named` does."""
        return self.dataset.select_task(**options)

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.episode_state.check(action, is_open=self._begun)
        with self.episode_state.recording_failures():
            return self._take_turn(action)

    def _take_turn(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state, episode = self.episode_state, self.episode
        takes_answer = bool(self.traits.answer or self.traits.may_answer)
        ending = state.ending(action, takes_answer=takes_answer)
        if ending == "skipped":
            return self._end(Reply("", 0.0), ending)
        start_time = time.monotonic()
        if ending == "submitted":
            reply = self._submit(episode.answer)
            if not reply.goes_on:
                return self._end(reply, ending)
        elif isinstance(action, NoAction):
            turn_info = {"executed": False, "invalid": True}
            reply = Reply(f"[{action.note}]", ok=False, info=turn_info)
        else:
            reply = self._take(action)
        seconds = time.monotonic() - start_time
        turn = Turn(str(action), reply.observation, 0.0, reply.ok, reply.exit_code, seconds)
        turn = replace(turn, info=dict(reply.info))
        episode.turns.append(turn)
        if not reply.ended and not reply.truncated and len(episode.turns) >= self.max_turns:
            final_reply = self._submit(None)
            reply = replace(
                reply, reward=final_reply.reward, parts=final_reply.parts, truncated=True
            )
        if not reply.ended and not reply.truncated:
            info = state.info(self.max_turns, turn)
            return reply.observation, reply.reward or 0.0, False, False, info
        step_result = self._end(reply, "truncated" if reply.truncated else "ended", turn)
        episode.turns[-1] = replace(turn, reward=step_result[1])
        return step_result

    def _end(
        self, reply: Reply, status: Status, turn: Turn | None = None
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if reply.reward is None or not math.isfinite(reply.reward):
            raise RewardError(
                f"{self.name}: the other framework ended the episode without a reward"
            )
        self.episode.status = status
        detail = {name: reply.info[name] for name in (ENDED,) if name in reply.info}
        self.episode.score = score = Score(float(reply.reward), dict(reply.parts), detail)
        self.episode.seconds = self.episode_state.seconds
        info = self.episode_state.info(self.max_turns, turn, score)
        truncated = status == "truncated"
        return reply.observation, score.value, not truncated, truncated, info

    def snapshot(self, *args: Any, **options: Any) -> NoReturn:
        """Refuse: an episode elsewhere cannot be saved.

        Raises:
            ForkError: Always.
        """
        raise ForkError(f"{self.name}: an episode of another framework cannot be forked")

    fork = snapshot

    def image(self, task: Task) -> str:
        """Name the place of a task, for a run's record: the environment elsewhere."""
        return self.name

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried, before any work starts."""

    def digest(self, task: Task) -> str:
        """Identify the content of a task's place, as far as that is known: it is not."""
        return "elsewhere"
