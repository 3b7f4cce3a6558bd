"""The observer interface of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intercode.episode import Episode
from intercode.records import Outcome
from intercode.registry import NOTEBOOK

if TYPE_CHECKING:
    from intercode.task import Task


log = logging.getLogger(__name__)


class Progress:
    """An observer of a run, whose methods do nothing or write a log line; subclasses override them.

    The thread that called `evaluate` calls all methods except `action`.
    """

    def begin(self, total: int, outcomes: Sequence[Outcome]) -> None:
        """Handle the start of the run: `total` episodes, of which `outcomes` are finished."""

    def action(self, task: Task, action: str) -> None:
        """Handle an action before the environment takes it.

        Worker threads call this method: keep it short.
        """

    def episode(self, episode: Episode) -> None:
        """Handle an ended and recorded episode."""

    def tick(self) -> None:
        """Handle the passing of time; called repeatedly while the run waits for episodes."""

    def nodes(self, count: int, change: str) -> None:
        """Handle a change of the machines of a run on a cluster.

        Args:
            count: The number of machines that take episodes.
            change: A description of the change.
        """
        log.info(change)

    def report_wait(self, text: str) -> None:
        """Handle a long wait for an answer of a model's server."""
        log.warning(text)

    def report_interrupt(self, running_count: int) -> None:
        """Handle the first interrupt; the run stops after the episodes in flight.

        Args:
            running_count: The number of workers, or of episodes on a cluster, that still run.
        """

    def end(self) -> None:
        """Handle the end of the run, even after an exception."""

    def warn(self, text: str) -> None:
        """Handle a warning, before the run starts."""
        log.warning(text)

    def announce(self, text: str) -> None:
        """Handle the start of long work (building, starting), before the run."""

    def end_preparation(self) -> None:
        """Handle the end of the work whose start `announce` reported."""


def default_progress() -> Progress:
    """Return the observer of a run without an explicit one: in a notebook, a bar below the cell."""
    ipython = sys.modules.get("IPython")
    # Only the shell of a notebook has a kernel; a shell in a terminal has none.
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return Progress()
    progress: Progress = NOTEBOOK.get("progress")()
    return progress
