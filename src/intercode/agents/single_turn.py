"""Single turn: one reply, which is run as it stands."""

from __future__ import annotations

from collections.abc import Sequence

from intercode.agents.language import Strategy
from intercode.agents.talk import Talk
from intercode.episode import Turn


class SingleTurn:
    """Asks once, and submits what came of it."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The model's action, then ``submit``."""
        if history:
            return "submit"
        self._talk.begin()
        return self._talk.ask()


SINGLE_TURN = Strategy("single-turn", "single_turn", SingleTurn)
