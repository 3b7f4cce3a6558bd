"""Figures of pages: where a page names a number with a unit, and the row that has it.

A comment below a paragraph, a list or a table names the rows of its figures, in their order::

    A reset takes 3.9 ms, an action 0.8 ms.

    <!-- figures: bash.reset .action -->

``.action`` has the measurement of its predecessor, and ``layers.*`` means all of its rows. The page
chooses the unit and the precision. ``benchmarks/figures.toml`` lists the figures that are not
measured. In a table, a plain number has the unit of its column's head or of its row's first cell.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measurements import RESULTS, ROOT, TIMES, Figure, figures as all_rows, read

PAGES = (
    *("README.md", "CONTRIBUTING.md", "docs/**/*.md", "packages/*/*.md"),
    *("docs/**/*.html", "scripts/theme/**/*.html"),
)
"""Globs of the texts whose figures are checked."""
EXCEPTIONS = ROOT / "benchmarks" / "figures.toml"

UNITS: dict[str, tuple[str, float]] = {
    **{"ns": ("s", 1e-9), "µs": ("s", 1e-6), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1)},
    **{"seconds": ("s", 1), "minutes": ("s", 60), "hours": ("s", 3600)},
    **{"/s": ("/s", 1), "a second": ("/s", 1), "a minute": ("/s", 1 / 60)},
    **{"B": ("B", 1), "bytes": ("B", 1), "kB": ("B", 1e3), "MB": ("B", 1e6), "GB": ("B", 1e9)},
    **{"KiB": ("B", 2**10), "MiB": ("B", 2**20), "GiB": ("B", 2**30)},
    **{"%": ("", 1e-2), TIMES: ("", 1), "times": ("", 1)},
}
"""Unit → its dimension, and its size."""
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
RATE = r"(?P<rate>a (?:second|minute))\b"
SYMBOL = "|".join(sorted((unit for unit in UNITS if " " not in unit), key=len, reverse=True))
FIGURE = re.compile(
    rf"(?<![\w.,$/^-])(?P<times>(?<!\d ){TIMES} ?)?(?P<low>{NUMBER})"
    rf"(?:(?: %)? (?:to|-) (?P<high>{NUMBER}))?"
    rf"(?:\s?(?P<unit>{SYMBOL})(?![\w/]|\s?\d)|(?:\s+[A-Za-z-]+){{0,6}}?\s+{RATE})?"
)
"""A number or a range; it is a figure if it has a sign or a unit."""
CELL = re.compile(rf"\s*(?P<low>{NUMBER})(?: to (?P<high>{NUMBER}))?(?=\s*$|,\s)")
"""A table's cell that begins with a plain number."""
HEAD = re.compile(rf"{RATE}|, (?P<unit>ms|s|MiB|%)(?=\W*$|:)")
"""The unit in the head of a column, or in the first cell of a row."""
BOUND = re.compile(r"\b(?:less than|under|at most)\s+$")
MARK = re.compile(r"<!-- figures:(?P<rows>[^>]*)-->")
LITERAL = re.compile(
    r"^( *)(?P<fence>```|~~~).*?^\1(?P=fence)\s*$|`[^`]+`|<!--.*?-->|\]\([^)\s]*\)", re.M | re.S
)
"""Code, comments and addresses: texts without figures."""
BLOCK = re.compile(r"(?:^[^\S\n]*\S.*(?:\n|\Z))+", re.M)


@dataclass(frozen=True)
class Mention:
    """A figure of a page.

    Attributes:
        page: Path of the page, relative to the project.
        line: Its line.
        text: The figure as the page has it, or as the exceptions name it.
        spans: Begin and end of its numbers in the page.
        numbers: The numbers as the page has them: one, or the ends of a range.
        unit: A key of `UNITS`.
        is_bound: Whether the page says "less than".
        row: The row of its mark; empty without a mark.
    """

    page: str
    line: int
    text: str
    spans: Sequence[tuple[int, int]]
    numbers: Sequence[str]
    unit: str
    is_bound: bool
    row: str = ""


@dataclass(frozen=True)
class Exceptions:
    """Figures that are not measured.

    Attributes:
        pages: Page → the reason why its figures need no row.
        figures: Page → figure → the reason.
    """

    pages: Mapping[str, str]
    figures: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, path: Path = EXCEPTIONS) -> Exceptions:
        """Read the list of exceptions."""
        fields = tomllib.loads(path.read_text())
        pages: dict[str, str] = {}
        figures: dict[str, dict[str, str]] = {}
        for group in fields["pages"]:
            pages |= dict.fromkeys(group["pages"], group["reason"])
        for group in fields["figures"]:
            for page, texts in group["pages"].items():
                figures.setdefault(page, {}).update(dict.fromkeys(texts, group["reason"]))
        return cls(pages, figures)


class MarkError(ValueError):
    """A mark that does not fit the figures of its block."""


def pages(root: Path = ROOT) -> list[str]:
    """Return the pages whose figures are checked."""
    files = {path for glob in PAGES for path in root.glob(glob)}
    return sorted(str(path.relative_to(root)) for path in files)


def expand(mark: str, rows: Iterable[str]) -> list[str]:
    """Return the full names of a mark's rows."""
    names: list[str] = []
    measurement = ""
    for word in mark.split():
        measurement = word.partition(".")[0] or measurement
        row = word.partition(".")[2]
        prefix = f"{measurement}."
        names += (
            [name for name in rows if name.startswith(prefix)] if row == "*" else [prefix + row]
        )
    return names


def mentions(
    page: str, text: str, rows: Iterable[str] = (), exceptions: Container[str] = ()
) -> list[Mention]:
    """Return the figures of a page, with the rows of its marks; its exceptions have none.

    Raises:
        MarkError: A mark names more or fewer rows than its block has figures.
    """
    prose = LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    literals = LITERAL.finditer(text)
    marks = [mark for literal in literals if (mark := MARK.fullmatch(text, *literal.span()))]
    entries: list[Mention] = []
    for block in BLOCK.finditer(prose):
        successor = BLOCK.search(prose, block.end())
        end = successor.start() if successor else len(text)
        block_marks = [mark["rows"] for mark in marks if block.end() <= mark.start() < end]
        names = expand(" ".join(block_marks), rows)
        block_mentions = sorted(_block(page, prose, block), key=lambda mention: mention.spans[0])
        measurements = [mention for mention in block_mentions if mention.text not in exceptions]
        if names and len(names) != len(measurements):
            texts = ", ".join(mention.text for mention in measurements)
            line = text.count("\n", 0, block.start()) + 1
            raise MarkError(
                f"{page}:{line}: the comment names {len(names)} rows, and the block has "
                f"{len(measurements)} figures: {texts}. Name a row for each, in their order"
            )
        for mention in block_mentions:
            is_measured = names and mention.text not in exceptions
            entries.append(replace(mention, row=names.pop(0)) if is_measured else mention)
    return entries


def _block(page: str, prose: str, block: re.Match[str]) -> Iterator[Mention]:
    """Yield the figures of a block, those of a table's plain numbers last."""
    ends = set()
    for match in FIGURE.finditer(prose, block.start(), block.end()):
        unit = match["unit"] or match["rate"] or (match["times"] and TIMES)
        if unit:
            ends.add(match.start("low"))
            yield _mention(page, prose, match, unit, " ".join(match[0].split()))
    head: list[str] = []
    for line in re.finditer(r"^\|.*", block[0], re.M):
        cells = list(re.finditer(r"[^|]+", line[0]))
        head = head or [cell[0] for cell in cells]
        for position, cell in enumerate(cells[1:], start=1):
            begin = block.start() + line.start() + cell.start()
            number = CELL.match(prose, begin, begin + len(cell[0]))
            titles = (head[position] if position < len(head) else "", cells[0][0])
            unit = next(filter(None, map(HEAD.search, titles)), None)
            if number and unit and number.start("low") not in ends:
                text = f"{number[0].strip()} {unit['rate'] or unit['unit']}"
                yield _mention(page, prose, number, unit["rate"] or unit["unit"], text)


def _mention(page: str, prose: str, match: re.Match[str], unit: str, text: str) -> Mention:
    groups = [name for name in ("low", "high") if match[name]]
    return Mention(
        page=page,
        line=prose.count("\n", 0, match.start()) + 1,
        text=text,
        spans=[match.span(name) for name in groups],
        numbers=[match[name] for name in groups],
        unit=unit,
        is_bound=bool(BOUND.search(prose, max(0, match.start() - 20), match.start())),
    )


def values(mention: Mention, figure: Figure) -> list[float]:
    """Return a row's values in the unit of a page: its median, or the ends of its range.

    Raises:
        MarkError: The row has another dimension, or lacks the values.
    """
    (dimension, size), (row_dimension, row_size) = UNITS[mention.unit], UNITS[figure.unit]
    ends = [figure.value] if len(mention.numbers) == 1 else [figure.low, figure.high]
    if dimension != row_dimension or None in ends:
        raise MarkError(
            f"{mention.page}:{mention.line}: {mention.text!r} does not fit {mention.row}, "
            f"which has {figure.value}, {figure.low} to {figure.high}, in {figure.unit!r}"
        )
    return [value * row_size / size for value in ends if value is not None]


def style(number: str, value: float) -> str:
    """Return a value as precise as a number of a page: its decimals, or its digits.

    Zeros at the end of an integer do not count, but the first two digits do: 8,300 has two digits,
    and so has 10.
    """
    integer, point, decimals = number.partition(".")
    text = f"{value:,.{len(decimals)}f}"
    if point and float(text.replace(",", "")):
        return text
    integer_digits = integer.replace(",", "")
    digits = max(min(2, len(integer_digits)), len(integer_digits.rstrip("0")))
    number_value = float(f"{value:.{digits}g}")
    return f"{number_value:,.12f}".rstrip("0").rstrip(".")


def differences(
    page: str, text: str, rows: Mapping[str, Figure], exceptions: Exceptions
) -> list[str]:
    """Return what is wrong with the figures of a page: each with its line and the remedy."""
    reasons = exceptions.figures.get(page, {})
    problems: list[str] = []
    try:
        entries = mentions(page, text, rows, reasons)
        for mention in entries:
            place = f"{page}:{mention.line}: {mention.text!r}"
            if not mention.row:
                if mention.text in reasons or page in exceptions.pages:
                    continue
                problems.append(
                    f"{place} names no row: add <!-- figures: … --> below its paragraph, or an "
                    f"exception to {EXCEPTIONS.name}"
                )
            elif mention.row not in rows:
                problems.append(f"{place}: no row {mention.row} in benchmarks/results")
            elif current := _current(mention, rows[mention.row]):
                problems.append(f"{place}: {mention.row} is {current}: scripts/figures --write")
    except MarkError as error:
        return [str(error)]
    texts = {mention.text for mention in entries}
    problems += [
        f"{page}: the exception {name!r} is not on the page" for name in reasons.keys() - texts
    ]
    return problems


def _current(mention: Mention, figure: Figure) -> str:
    """Return the row's figure in the style of the page, or nothing if the page has it."""
    present = values(mention, figure)
    if mention.is_bound and present[0] < float(mention.numbers[0].replace(",", "")):
        return ""
    texts = [style(*pair) for pair in zip(mention.numbers, present, strict=True)]
    return "" if texts == list(mention.numbers) else f"{' to '.join(texts)} {mention.unit}"


def rewrite(page: str, text: str, rows: Mapping[str, Figure], exceptions: Exceptions) -> str:
    """Return a page with the figures of its rows, in its own units and precision."""
    for mention in reversed(mentions(page, text, rows, exceptions.figures.get(page, {}))):
        if mention.row in rows and not mention.is_bound:
            present = values(mention, rows[mention.row])
            for (begin, end), number, value in reversed(
                [*zip(mention.spans, mention.numbers, present, strict=True)]
            ):
                text = text[:begin] + style(number, value) + text[end:]
    return text


def problems(root: Path = ROOT) -> list[str]:
    """Return what is wrong with the figures of all pages."""
    rows, exceptions = all_rows(read(root / RESULTS.relative_to(ROOT))), Exceptions.read()
    return [
        problem
        for page in pages(root)
        for problem in differences(page, (root / page).read_text(), rows, exceptions)
    ]


def rewrite_pages(root: Path = ROOT) -> list[str]:
    """Write the figures of all rows into the pages; return the pages that differ."""
    rows, exceptions = all_rows(read(root / RESULTS.relative_to(ROOT))), Exceptions.read()
    texts = {page: (root / page).read_text() for page in pages(root)}
    results = {page: rewrite(page, text, rows, exceptions) for page, text in texts.items()}
    rewritten_pages = [page for page, text in texts.items() if results[page] != text]
    for page in rewritten_pages:
        (root / page).write_text(results[page])
    return rewritten_pages
