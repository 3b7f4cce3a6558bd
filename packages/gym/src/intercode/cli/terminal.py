"""Terminal output of commands: escaped text, numbers, JSON, tables and a progress line.

`safe` escapes texts of programs, models and data, which could otherwise control the terminal. The
package rich prints tables and the progress line. Each text is passed to rich as a ``Text`` object,
in which rich does not interpret markup. Without a terminal, all output is plain text. Only
functions that need rich import it, because most commands do not need it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from rich.live import Live

    from intercode.downloads import Progress

_LIVE_SECONDS, _PLAIN_SECONDS = 0.1, 30.0
"""The seconds between two progress updates: first on a terminal, second without a terminal."""
_MILESTONE_SECONDS = 5.0
"""Minimum seconds between updates at milestones without a terminal. A milestone is another tenth of
the work. Without this minimum, the log of a short run would have a line for each tenth."""
_MAX_WIDTH = 10_000
LINES = 12
"""The default of the maximum number of lines that are printed of each text in an episode."""


# Text and numbers


def safe(text: str) -> str:
    """Return a text that cannot control a terminal.

    Printable escapes replace all characters that `str.isprintable` rejects, except newlines and
    tabs. Examples are control characters, bytes that are not UTF-8, and characters that reorder or
    hide other characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # the character stands for a byte (`surrogateescape`)
        code -= 0xDC00
    if code <= 0xFF:
        return {"\r": "\\r", "\b": "\\b"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def one_line(text: str, width: int) -> str:
    """Return a text as a single escaped line of at most `width` characters.

    A longer text is cut, and ends in ``…``.
    """
    line = safe(text).replace("\n", "⏎").replace("\t", " ")
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def shorten(text: str, lines: int) -> str:
    """Return the first and the last lines of a text, with escapes.

    Args:
        text: The text.
        lines: The maximum number of lines. Between the first and the last lines, a further line has
            the number of omitted lines.
    """
    all_lines = safe(text).rstrip("\n").split("\n")
    if len(all_lines) <= lines:
        return "\n".join(all_lines)
    head, tail = all_lines[: lines - lines // 3], all_lines[len(all_lines) - lines // 3 :]
    omitted_count = len(all_lines) - len(head) - len(tail)
    return "\n".join([*head, f"… {format_count(omitted_count, 'more line')} …", *tail])


def indent(text: str, prefix: str) -> str:
    """Return a text with `prefix` before every line."""
    return "\n".join(prefix + line for line in text.split("\n"))


def percent(value: float | None) -> str:
    """Return a share from 0 to 1 in percent, with one decimal; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with `digits` decimals; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Return a duration as text: ms, seconds, minutes with seconds, or hours with minutes."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {remaining_seconds:02} s"


def dollars(amount: float) -> str:
    """Return an amount of US dollars as text: below one dollar with four decimals, else two."""
    return f"${amount:.4f}" if amount < 1 else f"${amount:.2f}"


def size(count: float) -> str:
    """Return a number of bytes as text, in the unit B, KiB, MiB, GiB or TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def print_json(document: Any) -> None:
    """Print a JSON value in ASCII, which every terminal and pipe can transmit.

    NaN and infinite numbers become null, because JSON can represent neither. Infinite numbers are,
    for instance, the bounds of a confidence interval from a single value.
    """
    print(json.dumps(_replace_infinities(document), indent=2, ensure_ascii=True), file=output())


_json_output: list[TextIO] = []
"""The stream for JSON, as long as `reserve_stdout` is active; otherwise the list is empty."""


def output() -> TextIO:
    """Return the stream for a command's output: standard output, even within `reserve_stdout`."""
    return _json_output[-1] if _json_output else sys.stdout


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve standard output for a command's JSON, which other programs read.

    Within the block, standard output is redirected to standard error. Code of a user, such as an
    agent, a reward or a dataset, and programs that it starts, therefore print to standard error.
    `output` returns the stream for the JSON.
    """
    stdout = sys.stdout
    stdout.flush()
    saved_descriptor = None
    with suppress(OSError, ValueError):  # in tests, the stream may have no descriptor
        if stdout.fileno() == 1:
            saved_descriptor = os.dup(1)
    stream = stdout
    if saved_descriptor is not None:
        os.dup2(_error_descriptor(), 1)
        stream = open(saved_descriptor, "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: PTH123
    sys.stdout = sys.stderr
    _json_output.append(stream)
    try:
        yield
        stream.flush()
    finally:
        _json_output.remove(stream)
        sys.stdout = stdout
        if saved_descriptor is not None:
            os.dup2(saved_descriptor, 1)
            with suppress(OSError):  # the flush above has already raised the same error
                stream.close()


def _error_descriptor() -> int:
    """Return the descriptor of standard error; of the null device if standard error is closed."""
    try:
        os.fstat(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return 2


def _replace_infinities(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {name: _replace_infinities(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [_replace_infinities(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


# Tables


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    left_columns: int = 1,
    width: int | None = None,
) -> str:
    """Return a table as text, with bold column names on a terminal.

    Args:
        header: The columns' names.
        rows: The cells of each row, as many as `header` has names.
        left_columns: The number of left-aligned columns; the others are right-aligned.
        width: The maximum width in characters; None: no limit. A wider table is split into parts,
            which are printed below each other. Each part begins with the first column.
    """
    from rich.cells import cell_len

    widths = [
        max(cell_len(row[column]) for row in [header, *rows]) for column in range(len(header))
    ]
    blocks = [
        _render_columns(header, rows, left_columns, columns)
        for columns in _fold_columns(widths, width)
    ]
    return "\n\n".join(blocks)


def _render_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], left_columns: int, columns: Sequence[int]
) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rich_table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "left" if column < left_columns else "right"
        rich_table.add_column(Text(header[column]), justify=justify, no_wrap=True)
    for row in rows:
        rich_table.add_row(*(Text(row[column]) for column in columns))
    console = Console(file=sys.stdout, width=_MAX_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(rich_table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _fold_columns(widths: Sequence[int], max_width: int | None) -> list[list[int]]:
    """Split the columns of a wide table into parts that are printed below each other.

    Args:
        widths: The width of each column in characters.
        max_width: The maximum width of a part; None: no limit.

    Returns:
        The indices of the columns of each part. Each part begins with the first column.
    """
    blocks = [[0]]
    for column in range(1, len(widths)):
        needed_width = sum(widths[index] + 2 for index in blocks[-1]) + widths[column]
        if max_width is not None and needed_width > max_width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def terminal_width() -> int | None:
    """Return the terminal's width in characters; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# Progress


class ProgressLine:
    """A progress line on standard error that each update overwrites.

    Args:
        quiet: Whether `show` prints nothing; `announce` still prints.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.live = sys.stderr.isatty() and not quiet
        """Whether the line is shown: standard error is a terminal, and `quiet` is false."""
        self._last_time = time.monotonic()
        self._live_display: Live | None = None

    @property
    def width(self) -> int:
        """The maximum length of the line in characters."""
        return shutil.get_terminal_size().columns - 1

    def is_due(self, milestone: bool = False) -> bool:
        """Return whether enough time has passed since the last update for another update.

        If the result is True, the current time counts as the time of the last update.

        Args:
            milestone: Whether another tenth of the work is done. Without a terminal, a shorter time
                is then enough.
        """
        now = time.monotonic()
        plain_seconds = _MILESTONE_SECONDS if milestone else _PLAIN_SECONDS
        if now - self._last_time < (_LIVE_SECONDS if self.live else plain_seconds):
            return False
        self._last_time = now
        return True

    def show(self, text: str) -> None:
        """Replace the text of the line on a terminal. Without a terminal, nothing is printed."""
        if not self.live:
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        line = Text(text[: self.width], no_wrap=True)
        if self._live_display is None:
            console = Console(file=sys.stderr, highlight=False)
            self._live_display = Live(
                line,
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live_display.start()
            # `Live` hides the cursor, which would stay hidden if the process were killed.
            console.show_cursor(True)
        self._live_display.update(line, refresh=True)

    def clear(self) -> None:
        """Remove the line from the terminal, so other text can be printed."""
        if self._live_display is not None:
            self._live_display.stop()
            self._live_display = None

    def announce(self, text: str) -> None:
        """Print a line that later updates do not overwrite."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def report_interrupt(self, running_count: int) -> None:
        """Print that the run stops after Ctrl-C, with the number of episodes that still run."""
        wait_text = f"waiting for {format_count(running_count, 'episode')} in flight"
        self.announce(f"interrupted: {wait_text}; again to stop at once")


def show_bytes(line: ProgressLine) -> Progress:
    """Return a callback that shows the progress of a download.

    On a terminal, the callback updates the live line; elsewhere, it prints a line for each 10 %.
    """
    from intercode.downloads import tenth_progress

    if not line.live:
        return tenth_progress(line.announce)

    def progress(byte_count: int, total: int | None) -> None:
        share = f" of {size(total)}" if total else ""
        (line.announce if byte_count == total else line.show)(f"{size(byte_count)}{share}")

    return progress


def print_message(text: str) -> None:
    """Print a text to standard error as a line, with escapes."""
    print(safe(text), file=sys.stderr, flush=True)


class DelayedMessages:
    """A callback that prints messages about some work only if the work takes longer than a delay.

    At the end of the work, the caller discards the messages by `discard`.

    Args:
        print_line: A function that prints a message.
        seconds: The delay in seconds after the first message.
    """

    def __init__(self, print_line: Callable[[str], None], seconds: float = 1.0) -> None:
        self._print_line = print_line
        self._seconds = seconds
        self._lock = threading.Lock()
        self._pending_lines: list[str] = []
        self._due = 0.0
        self._timer: threading.Timer | None = None

    def __call__(self, line: str) -> None:
        """Print a message when the delay has passed, or at once if it has passed already."""
        with self._lock:
            self._pending_lines.append(line)
            if self._timer is None:
                self._due = time.monotonic() + self._seconds
                self._timer = threading.Timer(self._seconds, self._release)
                self._timer.daemon = True
                self._timer.start()
            # The clock decides, because the timer's thread may be late.
            if time.monotonic() >= self._due:
                self._print_pending()

    def discard(self) -> None:
        """Discard the messages that are not printed yet, because the work is done."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            self._pending_lines.clear()

    def _release(self) -> None:
        with self._lock:
            # Otherwise `discard` was called meanwhile, and a new delay may have started.
            if self._timer is threading.current_thread():
                self._print_pending()

    def _print_pending(self) -> None:
        for line in self._pending_lines:
            self._print_line(line)
        self._pending_lines.clear()
