"""A line of text that is written over again and again, on a terminal."""

from __future__ import annotations

import shutil
import sys
import time

_CLEAR = "\r\x1b[K"
_LIVE_EVERY, _PLAIN_EVERY = 0.1, 5.0


class LiveLine:
    """What stands at the end of standard error while something goes on.

    Args:
        quiet: Whether nothing is to be shown; `say` is still heard.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._out = sys.stderr
        self.live = self._out.isatty() and not quiet
        """Whether it can be written over."""
        self._last = time.monotonic()

    @property
    def width(self) -> int:
        """How many characters there is room for."""
        return shutil.get_terminal_size().columns - 1

    def due(self) -> bool:
        """Whether it is time to show something new; now and then where it cannot be written over.

        True begins the next pause.
        """
        now = time.monotonic()
        if now - self._last < (_LIVE_EVERY if self.live else _PLAIN_EVERY):
            return False
        self._last = now
        return True

    def show(self, text: str) -> None:
        """Write over what stands there; nothing where that cannot be."""
        if self.live:
            self._write(_CLEAR + text[: self.width])

    def clear(self) -> None:
        """Make place for other text."""
        self.show("")

    def say(self, text: str) -> None:
        """Print a line that stays, in its place."""
        self._write(f"{_CLEAR if self.live else ''}{text}\n")

    def stopping(self, in_flight: int) -> None:
        """Say that an interrupt was heard."""
        self.say(f"interrupted: waiting for {in_flight} episodes in flight; again to stop at once")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
