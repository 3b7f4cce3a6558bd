"""Text for a terminal: untrusted output made harmless, numbers made readable, tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def safe(text: str) -> str:
    """Text that a terminal shows and does not obey.

    Control characters, byte values that are no UTF-8, and characters that reorder or hide others
    are written as escapes; newlines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that `surrogateescape` has kept
        code -= 0xDC00
    if code <= 0xFF:
        return {"\r": "\\r", "\b": "\\b"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def one_line(text: str, width: int) -> str:
    """Text as a single line of at most `width` characters."""
    line = safe(text).replace("\n", "⏎").replace("\t", " ")
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def shortened(text: str, lines: int) -> str:
    """The first and last lines of a text, `lines` in all, and how many are missing."""
    every = safe(text).rstrip("\n").split("\n")
    if len(every) <= lines:
        return "\n".join(every)
    head, tail = every[: lines - lines // 3], every[len(every) - lines // 3 :]
    cut = len(every) - len(head) - len(tail)
    return "\n".join([*head, f"… {cut} more lines …", *tail])


def indented(text: str, prefix: str) -> str:
    """Every line after a prefix."""
    return "\n".join(prefix + line for line in text.split("\n"))


def percent(value: float | None) -> str:
    """A share, with one decimal; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, width: int | None = None
) -> str:
    """Columns; the first `left` of them flush left, the others flush right.

    Args:
        header: The columns' names.
        rows: Their cells.
        left: How many are flush left.
        width: Of the terminal: columns that it has no room for stand below, each part with the
            first column; None: as wide as it comes.
    """
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(row: Sequence[str], columns: Sequence[int]) -> str:
        cells = [
            row[column].ljust(widths[column])
            if column < left
            else row[column].rjust(widths[column])
            for column in columns
        ]
        return "  ".join(cells).rstrip()

    parts = _folded(widths, width)
    return "\n\n".join("\n".join(line(row, part) for row in [header, *rows]) for part in parts)


def _folded(widths: Sequence[int], room: int | None) -> list[list[int]]:
    """Which columns stand beside each other; one at least beside the first."""
    parts = [[0]]
    for column in range(1, len(widths)):
        needed = sum(widths[other] + 2 for other in parts[-1]) + widths[column]
        if room is not None and needed > room and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(column)
    return parts


def print_json(data: Any) -> None:
    """One JSON value on standard output, in ASCII so that it survives every terminal and pipe."""
    print(json.dumps(data, indent=2, ensure_ascii=True))
