"""How a run is going: a living line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from intercode.cli._episode import render
from intercode.cli._text import duration, one_line, percent
from intercode.episode import Episode
from intercode.evaluate import Outcome, Progress

if TYPE_CHECKING:
    from intercode.task import Task

CLEAR = "\r\x1b[K"
LIVE_EVERY, PLAIN_EVERY = 0.1, 5.0


class Watcher(Progress):
    """Counts, and tells `report` what there is to say about it."""

    def __init__(self, *, show: TextIO | None = None, quiet: bool = False) -> None:
        """Watch a run.

        Args:
            show: Where each episode is printed when it has ended; None prints none.
            quiet: Say nothing of the progress.
        """
        self._show = show
        self._quiet = quiet
        self._out = sys.stderr
        self._live = self._out.isatty() and not quiet
        self._total = self._done = self._earlier = self._successes = self._errors = 0
        self._start = self._last = time.monotonic()
        self._glimpse = ""
        self._note = ""

    def begin(self, total: int, earlier: Sequence[Outcome]) -> None:
        """Start counting."""
        self._total, self._done, self._earlier = total, len(earlier), len(earlier)
        self._successes = sum(outcome.success for outcome in earlier)
        self._start = self._last = time.monotonic()
        if earlier and not self._quiet:
            self._line(f"going on with a run: {len(earlier)} of {total} episodes are done")

    def action(self, task: Task, action: str) -> None:
        """Remember what is being tried. (One assignment: safe from any thread.)"""
        if action != "submit":
            self._glimpse = f"{task.task_id}: {action[:200]}"

    def episode(self, episode: Episode) -> None:
        """Count it, and show it."""
        self._done += 1
        self._successes += episode.success
        self._errors += episode.status == "error"
        if self._show is not None:
            if self._live:
                self._out.write(CLEAR)
                self._out.flush()
            print(render(episode), file=self._show, flush=True)
        self._refresh(force=self._show is not None and self._live)

    def tick(self) -> None:
        """Let the clock go on."""
        self._refresh()

    def stopping(self, in_flight: int) -> None:
        """Say that the interrupt was heard."""
        self._note = "stopping"
        self._line(
            f"interrupted: waiting for {in_flight} episodes in flight; again to stop at once"
        )

    def end(self) -> None:
        """Make place for what is printed next."""
        if self._live:
            self._out.write(CLEAR)
            self._out.flush()
        elif not self._quiet and self._done > self._earlier:
            self._line(self.status())

    def status(self) -> str:
        """The counts, the rate and the time left."""
        ran = self._done - self._earlier
        elapsed = time.monotonic() - self._start
        rate = ran / elapsed if elapsed > 0 else 0.0
        parts = [f"{self._done}/{self._total}"]
        parts.append(self.result())
        parts.append(f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s")
        if self._errors:
            parts.append(f"errors {self._errors}")
        if rate and self._done < self._total:
            left = max(1.0, (self._total - self._done) / rate)
            parts.append(f"{duration(left)} left")
        if self._note:
            parts.append(self._note)
        return "  ".join(parts)

    def result(self) -> str:
        """What has come of it so far."""
        scored = self._done - self._errors
        return f"success {percent(self._successes / scored if scored else None)}"

    def _refresh(self, force: bool = False) -> None:
        now = time.monotonic()
        pause = LIVE_EVERY if self._live else PLAIN_EVERY
        if self._quiet or (now - self._last < pause and not force):
            return
        self._last = now
        if not self._live:
            self._line(self.status())
            return
        width = shutil.get_terminal_size().columns - 1
        status = self.status()
        if (room := width - len(status) - 3) >= 20 and self._glimpse:
            status += " │ " + one_line(self._glimpse, room)
        self._out.write(CLEAR + status[:width])
        self._out.flush()

    def _line(self, text: str) -> None:
        self._out.write(f"{CLEAR if self._live else ''}{text}\n")
        self._out.flush()
