"""Try Again: code, its output, and code again, until the model submits.

In 2023 the model was shown the true reward of every turn, and the episode ended when that was 1:
feedback that only an oracle can give. That is an agent of another name here.
"""

from __future__ import annotations

from collections.abc import Sequence

from intercode.agents.language import Strategy
from intercode.agents.talk import Talk
from intercode.episode import Turn


class TryAgain:
    """Shows the output of every action, and its reward if the strategy sees it."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The model's next action."""
        if not history:
            self._talk.begin()
        else:
            self._talk.tell("observation", observation, reward=history[-1].reward)
        return self._talk.ask()


TRY_AGAIN = Strategy("try-again", "try_again", TryAgain)
TRY_AGAIN_ORACLE = Strategy("try-again-oracle", "try_again", TryAgain, sees_reward=True)
