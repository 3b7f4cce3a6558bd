"""Observation of a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intercode.episode import Episode
from intercode.records import Outcome

if TYPE_CHECKING:
    from intercode.task import Task


log = logging.getLogger(__name__)


class Progress:
    """An observer of a run that does nothing: override the methods that you want.

    All methods are called in the thread that called `evaluate`, except `action`.
    """

    def begin(self, total: int, outcomes: Sequence[Outcome]) -> None:
        """Handle the start of the run: `total` episodes, of which `outcomes` are finished."""

    def action(self, task: Task, action: str) -> None:
        """Handle an action before it is taken. Called in a worker's thread: keep it short."""

    def episode(self, episode: Episode) -> None:
        """Handle an episode that has ended and is recorded."""

    def tick(self) -> None:
        """Handle the passing of time; called every now and then, also when nothing happens."""

    def nodes(self, count: int, change: str) -> None:
        """Handle a change of the machines that a run has, if it is on a cluster.

        Args:
            count: The number of those that take episodes.
            change: What has happened, in words.
        """
        log.info(change)

    def waiting(self, text: str) -> None:
        """Handle a model's server that has not answered for long."""
        log.warning(text)

    def stopping(self, running_count: int) -> None:
        """Handle an interrupt; the run stops when the episodes in flight have ended."""

    def end(self) -> None:
        """Handle the end of the run, also by an exception."""

    def warn(self, text: str) -> None:
        """Warn of something, before the run starts."""
        log.warning(text)

    def say(self, text: str) -> None:
        """Handle the start of work that may take long (building, starting), before the run."""

    def built(self) -> None:
        """Handle the end of that work."""
