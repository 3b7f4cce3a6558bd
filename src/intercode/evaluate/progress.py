"""What a run tells about itself while it goes on."""

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
    """Does nothing: override what you want to know.

    All methods are called in the thread that called `evaluate`, except `action`.
    """

    def begin(self, total: int, earlier: Sequence[Outcome]) -> None:
        """The run starts: `total` episodes, of which `earlier` were finished before."""

    def action(self, task: Task, action: str) -> None:
        """An agent is about to act. Called in a worker's thread: keep it short."""

    def episode(self, episode: Episode) -> None:
        """An episode has ended and is recorded."""

    def tick(self) -> None:
        """Called every now and then, also when nothing happens."""

    def stopping(self, in_flight: int) -> None:
        """The run was interrupted; it stops when the episodes in flight have ended."""

    def end(self) -> None:
        """The run is over, one way or another."""

    def warn(self, text: str) -> None:
        """A reader should know something, before the run starts."""
        log.warning(text)

    def say(self, text: str) -> None:
        """Something that may take long is being built or started, before the run starts."""

    def built(self) -> None:
        """What was being built is there."""
