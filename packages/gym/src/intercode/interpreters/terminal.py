"""Terminal of a sandbox: a shell that reads keys, and the screen that the shell draws.

The terminal device belongs to the sandbox's kernel. The host draws the screen with the package
`pyte`, from bytes that may be hostile. The screen sends nothing back to the programs. Each look at
the screen draws a bounded number of bytes.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import struct
import termios
import time
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intercode.errors import UsageError
from intercode.interpreters.base import cancellation_fd
from intercode_sandbox.base import SandboxBackend, SupportsTerminals
from intercode_sandbox.ownership import register_release

if TYPE_CHECKING:
    import pyte

ROWS, COLUMNS = 24, 80
_START = """exec 0<>"$0" 1>&0 2>&0; export PS1='\\w\\$ '; exec bash --norc --noprofile -i"""
# The two variables of history files prevent bash and less from writing such files.
_ENV = {"TERM": "linux", "HISTFILE": "", "LESSHISTFILE": "-"}
_QUIET_SECONDS = 0.15
"""Seconds without output after which the screen counts as finished and is read."""
_ECHO_SECONDS = 1.0
"""Seconds to wait for the first output after keys were typed."""
_BUSY_SECONDS = 2.0
"""Seconds of continuous output after which the screen is read while a program still draws."""
_MAX_DRAWN_BYTES = 1 << 18
"""Bytes that one look draws; further output waits for the next look."""
_CHUNK = 1 << 8
"""Bytes between two checks of the clock.

Five bytes may redraw the whole screen, which takes milliseconds.
"""
_TIOCGPTN, _TIOCSPTLCK = 0x80045430, 0x40045431  # Python has no names for these ioctls


@dataclass(frozen=True, slots=True)
class TerminalScreenView:
    """The screen at one moment."""

    text: str
    """Lines of the screen, without trailing blanks and trailing blank lines."""
    cursor: tuple[int, int]
    """Row and column, from 1."""
    busy: bool = False
    """Whether a program was still drawing."""
    ended: bool = False
    """Whether the shell, and with it the terminal, has ended."""


def check_installed() -> None:
    """Check that the package that draws screens is installed.

    Raises:
        UsageError: The package pyte is not installed.
    """
    try:
        import pyte  # noqa: F401
    except ImportError:
        raise UsageError(
            "keys=True needs the package pyte: pip install 'intercode-gym[keys]'"
        ) from None


class TerminalScreen:
    """The content of a terminal after arbitrary bytes."""

    def __init__(self) -> None:
        import pyte

        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream: pyte.Stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def draw(self, content: bytes) -> None:
        """Draw bytes on the screen."""
        import pyte

        text = self._decoder.decode(content)
        # Many combining marks in one cell cost pyte quadratic time, so they are removed.
        if not text.isascii():
            text = "".join(character for character in text if not unicodedata.combining(character))
        leading_text, *sequences = text.split("\x1b")
        for chunk in (leading_text, *("\x1b" + character for character in sequences)):
            try:
                self._stream.feed(chunk)
            except Exception:  # noqa: BLE001 - pyte raises any exception at malformed sequences
                self._stream = pyte.Stream(self._screen)

    def look(self, *, busy: bool = False, ended: bool = False) -> TerminalScreenView:
        """Return the screen as text, with these flags."""
        rows = [self._screen.buffer[row] for row in range(ROWS)]
        lines = ["".join(row[column].data for column in range(COLUMNS)).rstrip() for row in rows]
        screen_cursor = self._screen.cursor
        cursor = min(screen_cursor.y, ROWS - 1) + 1, min(screen_cursor.x, COLUMNS - 1) + 1
        return TerminalScreenView("\n".join(lines).rstrip("\n"), cursor, busy, ended)


class Terminal:
    """A terminal with an interactive bash, in the image's working directory.

    Args:
        sandbox: The sandbox, which supports terminals (`SupportsTerminals`).
        seconds: Seconds to wait for the first prompt.

    Raises:
        OSError: The sandbox has no terminal or no bash.
        SandboxError: The sandbox failed.
    """

    def __init__(self, sandbox: SandboxBackend, seconds: float) -> None:
        self._sandbox = sandbox
        assert isinstance(sandbox, SupportsTerminals)  # checked by the interpreter
        self._master = sandbox.terminal()
        self._release = register_release(self, os.close, self._master)
        try:
            terminal_number = struct.unpack("=i", fcntl.ioctl(self._master, _TIOCGPTN, bytes(4)))[0]
            fcntl.ioctl(self._master, _TIOCSPTLCK, bytes(4))
            size = struct.pack("=HHHH", ROWS, COLUMNS, 0, 0)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
            argv = ("bash", "-c", _START, f"/dev/pts/{terminal_number}")
            self._process = sandbox.popen(argv, channels={}, env=_ENV)
        except BaseException:
            self._release()
            raise
        self._screen = TerminalScreen()
        try:
            # The wait for the prompt is necessary: bash would echo earlier keys twice.
            self.first_screen = self.look(seconds)
        except BaseException:
            self.close()
            raise

    def send(self, keys: bytes) -> int:
        """Type keys; return the number of bytes that the terminal has accepted."""
        # The terminal's buffer may be full, or no program may have the terminal open.
        with suppress(OSError):
            return os.write(self._master, keys)
        return 0

    def look(self, seconds: float, *, has_sent_keys: bool = False) -> TerminalScreenView:
        """Wait until the programs draw nothing for `_QUIET_SECONDS`; return the screen.

        Args:
            seconds: The longest wait.
            has_sent_keys: Whether keys were sent; the wait for a first output is then short.

        Raises:
            SandboxError: The sandbox has ended.
        """
        with cancellation_fd() as wake_fd:
            return self._look(
                min(seconds, _ECHO_SECONDS) if has_sent_keys else seconds, seconds, wake_fd
            )

    def _look(self, patience: float, seconds: float, wake_fd: int | None) -> TerminalScreenView:
        poll = select.poll()
        for fd in (self._master, self._process.exit_fd, wake_fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        deadline, drawn_bytes = time.monotonic() + seconds, 0
        while ready_fds := {fd for fd, _ in poll.poll(patience * 1000)}:
            if wake_fd in ready_fds:
                break
            chunk = self._read() if self._master in ready_fds else b""
            if not chunk:
                self._sandbox.processes()  # the call raises if the sandbox has ended
                return self._screen.look(ended=True)
            if not drawn_bytes:
                deadline = min(deadline, time.monotonic() + _BUSY_SECONDS)
            self._screen.draw(chunk)
            drawn_bytes += len(chunk)
            if drawn_bytes > _MAX_DRAWN_BYTES or time.monotonic() > deadline:
                return self._screen.look(busy=True)
            patience = _QUIET_SECONDS
        return self._screen.look()

    def _read(self) -> bytes:
        try:
            return os.read(self._master, _CHUNK)
        except OSError:  # no program has the terminal open any more
            return b""

    def close(self) -> None:
        """End the shell and hang up the terminal."""
        self._process.close()
        self._release()
