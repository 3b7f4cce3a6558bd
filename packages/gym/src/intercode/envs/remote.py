"""Remote environments, whose episodes run on a server or in another framework.

A subclass of `RemoteEnvironment` begins an episode on the remote system and forwards actions to it.
The local side keeps the record, the turn limit and the rules of `step`. Agents, runs and statistics
therefore treat a remote environment like a local one. A remote environment has no workspace of
InterCode, so its episodes can be neither forked nor scored from outside.
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
class RemoteStepReply:
    """The remote system's reply to an action or a submission."""

    observation: str
    reward: float | None = None
    """The reward; None: no reward yet."""
    ended: bool = False
    truncated: bool = False
    """Whether a remote limit ended the episode."""
    goes_on: bool = False
    """Whether the episode continues after an answer, because several answers are permitted."""
    ok: bool = True
    """Whether the action ran without a reported error."""
    exit_code: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for the record."""


class ProxyEnv(gymnasium.Env[str, str]):
    """A proxy of an InterCode environment in another process.

    A subclass has the attributes and methods of `InterCodeEnv` that `ThreadVectorEnv` uses.
    """


class RemoteEnvironment(EpisodeEnv, ABC):
    """The base class of remote environments, whose episodes run on another system.

    Args:
        data: The tasks.
        options: All options in one object.
        **changes: Single options by name, which override `options`.

    Raises:
        UsageError: An option is unknown, invalid, or without effect.
        TaskError: The dataset holds no tasks.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]
    name: ClassVar[str]
    Options: ClassVar[type[EnvOptions]] = EnvOptions
    traits: Traits = SHELL
    """The environment's traits; a subclass defines its own, with ``is_remote=True``."""
    unsupported_options: ClassVar[tuple[str, ...]] = ("sandbox",)
    """The options that would have no effect, and that the constructor therefore refuses. The
    constructor also refuses limits."""

    def __init__(
        self, data: str | Path | Dataset, *, options: EnvOptions | None = None, **changes: Any
    ) -> None:
        self.options = options = self.Options.merge(options, changes)
        self._refuse_options()
        super().__init__(load(data), options)
        self._begun = False
        """Whether the last `reset` began a remote episode. After a failed `reset` no episode runs,
        because `reset` has already ended the previous one."""

    def _refuse_options(self) -> None:
        """Refuse options that would silently have no effect.

        Raises:
            UsageError: An unsupported option or a limit is set.
        """
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
                "decided by the server or framework of the tasks, and cannot be set here"
            )

    @abstractmethod
    def _begin(self, task: Task, seed: int | None) -> str:
        """Begin a remote episode, and return the first observation."""

    @abstractmethod
    def _take(self, action: str) -> RemoteStepReply:
        """Execute an action in the remote episode."""

    @abstractmethod
    def _submit(self, answer: str | None) -> RemoteStepReply:
        """Submit an answer, and return a reply with the reward unless the episode continues."""

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        task_id: str | None = None,
        index: int | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; see `InterCodeEnv.reset`."""
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
        """Return the task that options of `reset` select; see `InterCodeEnv.select_task`."""
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
            return self._end(RemoteStepReply("", 0.0), ending)
        start_time = time.monotonic()
        if ending == "submitted":
            reply = self._submit(episode.answer)
            if not reply.goes_on:
                return self._end(reply, ending)
        elif isinstance(action, NoAction):
            turn_info = {"executed": False, "invalid": True}
            reply = RemoteStepReply(f"[{action.note}]", ok=False, info=turn_info)
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
        self, reply: RemoteStepReply, status: Status, turn: Turn | None = None
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
        """Refuse to save the episode, whose state is on the remote system.

        Raises:
            ForkError: Always.
        """
        raise ForkError(f"{self.name}: an episode of another framework cannot be forked")

    fork = snapshot

    def image(self, task: Task) -> str:
        """Return the environment's name, which a run's record lists instead of the task's image."""
        return self.name

    def check(self, task: Task) -> None:
        """Refuse a task that cannot run, before any work starts; the default accepts all."""

    def digest(self, task: Task) -> str:
        """Return the constant ``elsewhere``: the content of the remote workspace is unknown."""
        return "elsewhere"
