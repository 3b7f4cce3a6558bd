"""What ends an episode before the agent does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from intercode.agents.base import Agent
from intercode.episode import Turn
from intercode.errors import ContextLengthError, UsageError
from intercode.models.transcript import Transcript


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What one episode may take; None: any amount. Looked at before every turn."""

    seconds: float | None = None
    """Without those in which it waited for other episodes."""
    tokens: int | None = None
    cost: float | None = None
    """In US dollars."""


class StopWhenSolved:
    """Submits when the true reward of the last turn is 1, as the experiments of 2023 did.

    Args:
        agent: The one that acts until then.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The agent's action, or ``submit``."""
        if history and history[-1].reward >= 1.0:
            return "submit"
        return self._agent.act(observation, history)


class Bounded:
    """Submits what there is when a limit is reached, or the dialogue is too long for the model.

    Args:
        agent: The one that acts within the limits.
        transcript: Of its talk with the model; it goes into the episode's metadata.
        limits: The limits.
    """

    def __init__(self, agent: Agent, transcript: Transcript, limits: EpisodeLimits) -> None:
        self._agent = agent
        self._transcript = transcript
        self._limits = limits
        self._began = time.monotonic()
        self._ended_by: str | None = None

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The agent's action, or ``submit``."""
        self._transcript.turn = len(history)
        self._ended_by = self._ended_by or self._reached()
        if self._ended_by is None:
            try:
                return self._agent.act(observation, history)
            except ContextLengthError:
                if not history:
                    raise  # it has never acted: that is no attempt, and no reward of 0
                self._ended_by = "context"
        return "submit"

    def leave_out(self, seconds: float) -> None:
        """So long it was made to wait."""
        self._began += seconds

    def episode_metadata(self) -> dict[str, Any]:
        """The transcript, and which limit ended the episode, if one did."""
        ended = {} if self._ended_by is None else {"ended_by": self._ended_by}
        return {"model": self._transcript.to_dict(), **ended}

    def _reached(self) -> str | None:
        """The limit that is reached."""
        limits, spent = self._limits, self._transcript
        took = time.monotonic() - self._began - spent.waited
        if limits.seconds is not None and took >= limits.seconds:
            return "seconds"
        if limits.tokens is not None and spent.usage.total >= limits.tokens:
            return "tokens"
        if limits.cost is None:
            return None
        if spent.cost is None:
            raise UsageError(f"the price of {spent.name} is unknown: no limit of cost can be kept")
        return "cost" if spent.cost >= limits.cost else None
