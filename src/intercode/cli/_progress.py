"""How a run is going: a living line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from intercode.cli._episode import render
from intercode.cli._live import LiveLine
from intercode.cli._patience import Patience
from intercode.cli._text import duration, one_line, percent, safe
from intercode.episode import Episode
from intercode.evaluate import Outcome, Progress
from intercode.evaluate.statistics import wilson

if TYPE_CHECKING:
    from intercode.task import Task


class Bill:
    """What models have taken, as far as it is known."""

    def __init__(self) -> None:
        self._cost = 0.0
        self._tokens = 0
        self._asked = False
        self._priced = True

    def add(self, outcome: Outcome) -> None:
        """Add what an episode took, and who judged it."""
        for one in (outcome, outcome.judged):
            if one is None or one.tokens_in is None or one.tokens_out is None:
                continue
            self._asked = True
            self._tokens += one.tokens_in + one.tokens_out
            self._priced = self._priced and one.cost is not None
            self._cost += one.cost or 0.0

    def __str__(self) -> str:
        """Dollars; where a price is not known, tokens; empty if no model was asked."""
        if not self._asked:
            return ""
        if self._priced:
            return f"${self._cost:.4f}" if self._cost < 1 else f"${self._cost:.2f}"
        return _tokens(self._tokens)


class Watcher(Progress):
    """Counts, and tells `report` what there is to say about it."""

    def __init__(
        self, *, show: TextIO | None = None, quiet: bool = False, rate: str = "success"
    ) -> None:
        """Watch a run.

        Args:
            show: Where each episode is printed when it has ended; None prints none.
            quiet: Say nothing of the progress.
            rate: What the rate of success is called.
        """
        self._rate = rate
        self._show = show
        self._quiet = quiet
        self._line = LiveLine(quiet)
        self._total = self._done = self._earlier = self._successes = self._errors = 0
        self._bill = Bill()
        self._start = time.monotonic()
        self._glimpse = ""
        self._note = ""
        self._patience = Patience(lambda text: None if quiet else self.tell(text))

    def warn(self, text: str) -> None:
        """Print it, also if the rest is to be quiet."""
        self.tell(f"intercode: {text}")

    def say(self, text: str) -> None:
        """Print it if the work takes long."""
        self._patience(text)

    def built(self) -> None:
        """Forget what did not take long."""
        self._patience.done()

    @staticmethod
    def tell(text: str) -> None:
        """Print a line on standard error."""
        print(safe(text), file=sys.stderr, flush=True)

    def begin(self, total: int, earlier: Sequence[Outcome]) -> None:
        """Start counting."""
        self._total, self._done, self._earlier = total, len(earlier), len(earlier)
        self._successes = sum(outcome.success for outcome in earlier)
        for outcome in earlier:
            self._bill.add(outcome)
        self._start = time.monotonic()
        if earlier and not self._quiet:
            self._line.say(f"going on with a run: {len(earlier)} of {total} episodes are done")

    def action(self, task: Task, action: str) -> None:
        """Remember what is being tried. (One assignment: safe from any thread.)"""
        if action != "submit":
            self._glimpse = f"{task.task_id}: {action[:200]}"

    def episode(self, episode: Episode) -> None:
        """Count it, and show it."""
        self._done += 1
        self._successes += episode.success
        self._errors += episode.status == "error"
        self._bill.add(Outcome.of(episode))
        if self._show is not None:
            self._line.clear()
            print(render(episode), file=self._show, flush=True)
        if self._line.due() or (self._show is not None and self._line.live):
            self._refresh()

    def tick(self) -> None:
        """Let the clock go on."""
        if self._line.due():
            self._refresh()

    def stopping(self, in_flight: int) -> None:
        """Say that the interrupt was heard."""
        self._note = "stopping"
        self._line.stopping(in_flight)

    def end(self) -> None:
        """Make place for what is printed next."""
        if self._line.live:
            self._line.clear()
        elif not self._quiet and self._done > self._earlier:
            self._line.say(self.status())

    def status(self, width: int | None = None) -> str:
        """Counts, success, rate, what models took, errors, the time left.

        Args:
            width: So many characters at most, where the less important is left out; None: any.
        """
        parts = self._parts()
        line = "  ".join(text for text, _ in parts)
        while width is not None and len(line) > width and any(spare for _, spare in parts):
            parts.remove(max(parts, key=lambda part: part[1]))
            line = "  ".join(text for text, _ in parts)
        return line

    def _parts(self) -> list[tuple[str, int]]:
        """What there is to say, and how readily it is left out; 0: never."""
        ran = self._done - self._earlier
        elapsed = time.monotonic() - self._start
        rate = ran / elapsed if elapsed > 0 else 0.0
        parts = [(f"{self._done}/{self._total}", 0), (self.result(), 0)]
        parts.append((f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s", 2))
        if bill := str(self._bill):
            parts.append((bill, 0))
        if self._errors:
            parts.append((f"errors {self._errors}", 0))
        if rate and self._done < self._total:
            left = max(1.0, (self._total - self._done) / rate)
            parts.append((f"{duration(left)} left", 1))
        if self._note:
            parts.append((self._note, 0))
        return parts

    def result(self) -> str:
        """What has come of it so far, and within what the rate is likely to be (95 %)."""
        scored = self._done - self._errors
        if not scored:
            return f"{self._rate} {percent(None)}"
        low, high = wilson(self._successes, scored)
        # Outwards, so that it is never said to be narrower than it is.
        within = f"{math.floor(100 * low)}-{math.ceil(100 * high)}"
        return f"{self._rate} {percent(self._successes / scored)} ({within})"

    def _refresh(self) -> None:
        if self._quiet:
            return
        if not self._line.live:
            self._line.say(self.status())
            return
        status = self.status(self._line.width)
        if (room := self._line.width - len(status) - 3) >= 20 and self._glimpse:
            status += " │ " + one_line(self._glimpse, room)
        self._line.show(status)


def _tokens(count: int) -> str:
    """A number of tokens, with the digits that matter."""
    if count < 10_000:
        return f"{count} tokens"
    return f"{count / 1e3:.0f}k tokens" if count < 1e6 else f"{count / 1e6:.1f}M tokens"
