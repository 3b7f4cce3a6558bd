"""How runs of several agents in one environment are going: one line of text for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from intercode.cli._live import LiveLine
from intercode.cli._text import duration, percent, safe
from intercode.episode import Episode
from intercode.evaluate import Outcome, Progress


class Board(Progress):
    """A line that lives on a terminal, and is printed once where there is none.

    Args:
        title: What the line begins with.
        quiet: Say nothing.
    """

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title = title
        self._quiet = quiet
        self._line = LiveLine(quiet)
        self._ended: list[str] = []
        self._agent = ""
        self._done = self._total = self._successes = self._errors = 0
        self._start = time.monotonic()

    def preparing(self) -> None:
        """Something is being done before the first run."""
        self._line.show(f"{safe(self.title)}  preparing …")

    def clear(self) -> None:
        """Make place for other text."""
        self._line.clear()

    def agent(self, name: str) -> None:
        """The next run is this agent's."""
        self._agent = name

    def begin(self, total: int, earlier: Sequence[Outcome]) -> None:
        """Start counting."""
        self._total, self._done = total, len(earlier)
        self._successes = sum(outcome.success for outcome in earlier)
        self._errors = 0
        self._refresh()

    def episode(self, episode: Episode) -> None:
        """Count it."""
        self._done += 1
        self._successes += episode.success
        self._errors += episode.status == "error"
        self._refresh()

    def tick(self) -> None:
        """Let the clock go on."""
        self._refresh()

    def stopping(self, in_flight: int) -> None:
        """Say that the interrupt was heard."""
        self._line.stopping(in_flight)

    def end(self) -> None:
        """Keep what came of it."""
        scored = self._done - self._errors
        errors = f" ({self._errors} errors)" if self._errors else ""
        rate = percent(self._successes / scored if scored else None)
        self._ended.append(f"{self._agent} {rate}{errors}")

    def close(self) -> None:
        """Leave the line on the screen, if any run has ended."""
        self.clear()
        if self._ended and not self._quiet:
            took = duration(time.monotonic() - self._start)
            self._line.say(safe("  ".join([self.title, *self._ended, took])))

    def _refresh(self) -> None:
        if self._line.live and self._line.due():
            counts = f"{self._agent} {self._done}/{self._total}"
            self._line.show(safe("  ".join([self.title, *self._ended, counts])))
