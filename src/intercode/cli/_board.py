"""How runs of several agents in one environment are going: one line of text for all of them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from intercode.cli._text import duration, percent, safe
from intercode.episode import Episode
from intercode.evaluate import Outcome, Progress

CLEAR = "\r\x1b[K"
EVERY = 0.1


class Board(Progress):
    """A line that lives on a terminal, and is printed once where there is none.

    Args:
        title: What the line begins with.
        quiet: Say nothing.
    """

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title = title
        self._quiet = quiet
        self._out = sys.stderr
        self._live = self._out.isatty() and not quiet
        self._ended: list[str] = []
        self._agent = ""
        self._done = self._total = self._successes = self._errors = 0
        self._start = self._last = time.monotonic()

    def preparing(self) -> None:
        """Something is being done before the first run."""
        if self._live:
            self._out.write(f"{CLEAR}{safe(self.title)}  preparing …")
            self._out.flush()

    def clear(self) -> None:
        """Make place for other text."""
        if self._live:
            self._out.write(CLEAR)
            self._out.flush()

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
        start = CLEAR if self._live else ""
        self._out.write(
            f"{start}interrupted: waiting for {in_flight} episodes in flight; "
            "again to stop at once\n"
        )
        self._out.flush()

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
            line = "  ".join([self.title, *self._ended, took])
            self._out.write(f"{safe(line)}\n")
            self._out.flush()

    def _refresh(self) -> None:
        now = time.monotonic()
        if not self._live or now - self._last < EVERY:
            return
        self._last = now
        line = "  ".join([self.title, *self._ended, f"{self._agent} {self._done}/{self._total}"])
        width = shutil.get_terminal_size().columns - 1
        self._out.write(CLEAR + safe(line)[:width])
        self._out.flush()
