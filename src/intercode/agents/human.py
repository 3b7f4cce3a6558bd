"""A person as an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from intercode.episode import Turn


class HumanAgent:
    """Shows each observation to a person and takes what they answer."""

    def __init__(self, show: Callable[[str], None], ask: Callable[[], str | None]) -> None:
        """Talk through the two functions.

        Args:
            show: Shows an observation.
            ask: The person's next action, or None when they leave.
        """
        self._show = show
        self._ask = ask

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """What the person answers; who leaves skips the task."""
        self._show(observation)
        action = self._ask()
        return "skip" if action is None else action
