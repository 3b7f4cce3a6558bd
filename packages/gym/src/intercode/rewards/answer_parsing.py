"""Parsers of outputs: for each type of answer, how gold's output is read and others are compared.

The task's declaration and gold's output determine how other outputs are read. Decorations by tools,
such as the columns of ``ls -l``, are recognised by the output's form alone, never by whether the
result would then equal gold's. All functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonpath
from pathlib import PurePosixPath

from intercode.rewards.file_links import is_within
from intercode.rewards.quantities import (
    Quantity,
    QuestionWords,
    is_doubt,
    is_unit,
    parse_choice,
    parse_quantity,
    quantities,
    tokens,
)

Reading = Callable[[Sequence[str]], bool]
"""A predicate of an output's lines: whether they give the same answer as gold's output."""

_LONG_LINE = re.compile(
    r"(?:\d{1,12}\s+)?(?:\d{1,12}\s+)?(?P<mode>[-dlbcps][-rwxsStT]{9})[.+@]?\s+\d+\s+(?P<user>\S+)\s+"
    r"(?P<group>\S+)\s+(?:\d+,\s+)?(?P<size>\d+(?:,\d+)*(?:\.\d+)?[KMGTP]?)\s+"
    r"(?:\S+\s+\S+\s+[\d:]+|[\d-]+\s+[\d:.]+(?:\s+[+-]\d{4})?)\s(?P<path>.+?)(?: -> .*)?"
)
"""A line of ``ls -l``, or of ``find -ls``."""
_HASH_LINE = re.compile(r"(?P<hash>[\da-f]{32,128})\s+\*?(?P<path>.+)")
_SIZE_LINE = re.compile(r"(?:[\d.,]+[KMGTP]?i?B?\s+)+(?P<path>.*\S.*)")
_COUNT_LINE = re.compile(r"(?P<path>.*[^\s:])(?:\s*:\s*|\s+)\d[\d.,]*[KMGTP]?i?B?")
"""A path before its count or size: ``grep -c``, ``stat``."""
_MATCH_LINE = re.compile(r"(?P<path>[^:]*/[^:]*):(?:\d{1,9}:.*|\S.*|)")
"""A path before a line of the file: ``grep``."""
_HEADING = re.compile(r"(?P<folder>[^\s:][^:]*):")
_PART = re.compile(r"==> .+ <==")
"""A heading of ``head`` and ``tail``."""
_BRANCH = re.compile(r"^[|`\s\u00a0\u2500-\u257f]*(?:(?:--|\u2500\u2500)[\s\u00a0]+|\|_{2,})")
"""The branches that ``tree`` draws before a name."""
_TOTAL = re.compile(
    r"total:? [\d.,]+(?:[^\W\d]\w*)?|(?:[\d.,]+[^\W\d]? )+total"
    r"|\d+ director(?:y|ies)(?:, \d+ files?)?",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r",(?!\d{3}(?!\d))|[;|]")
_PATH_PREFIX = re.compile(r"[\w./ @%+,-]*")
"""A text that can be the folders before a name."""
_ADDRESS = re.compile(r"0[\da-f]{6,7}(?:\s+|$)")
"""The offset before a line of ``od`` and ``hexdump``."""
_NUMBER_PREFIX = re.compile(r"\s*(?P<number>\d{1,9})[:\t ]\s*")
_FILE_PREFIX = re.compile(r"(?P<name>(?=[^\s:]*[/.])[^\s:]+):(?:(?P<number>\d{1,9}):)?")
"""The file name, and possibly the line number, that ``grep`` prints before a line."""


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """The name and type of a column of a table."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The properties of an answer's type that determine how an output is read."""

    columns: tuple[ParsedColumn, ...] = ()
    ordered: bool = False
    """Whether the order of paths, lines and rows counts."""
    repeated: bool = True
    """Whether the number of occurrences of each item counts."""
    names: bool = False
    """Whether only the last part of a path counts."""
    total: str = ""
    """The rule for a row with the total: ``""`` (none), ``optional`` or ``needed``."""
    question: QuestionWords = field(default=QuestionWords(), init=False)
    """The words of the task's question, some of which an answer may repeat."""


def collapse_blanks(line: str) -> str:
    """Return a line with single blanks between its words."""
    return " ".join(line.split())


def collect(answer: AnswerForm, values: Sequence[Hashable]) -> object:
    """Return an answer's items in a comparable form: a list, a multiset, or a set."""
    if answer.ordered:
        return list(values) if answer.repeated else [*dict.fromkeys(values)]
    return Counter(values) if answer.repeated else frozenset(values)


# -- numbers, yes and no ---------------------------------------------------------------------------


def read_number(answer: AnswerForm, gold: Sequence[str]) -> Reading:
    """Return a reading that accepts outputs with gold's number.

    If gold's output has no number or several, the lines are compared, in any order.
    """
    gold_quantities = quantities(gold)
    if len(gold_quantities) != 1:
        return lambda lines: (
            Counter(map(collapse_blanks, gold)) == Counter(map(collapse_blanks, lines))
        )
    gold_quantity, expected_units = gold_quantities[0], answer.question.units

    def agrees(lines: Sequence[str]) -> bool:
        quantity = parse_quantity(lines, answer.question)
        if quantity is None or not gold_quantity.equals(quantity):
            return False
        units = {gold_quantity.unit, quantity.unit}
        # A unit that the question names may be omitted.
        return len(units) == 1 or ("" in units and units - {""} <= expected_units)

    return agrees


def read_choice(answer: AnswerForm, gold: Sequence[str]) -> Reading:
    """Return a reading that accepts outputs with gold's yes or no, or else with gold's text."""
    choice = parse_choice(gold, answer.question)
    sentence = collapse_blanks(" ".join(gold)).casefold()
    if choice is None:
        return lambda lines: collapse_blanks(" ".join(lines)).casefold() == sentence
    return lambda lines: parse_choice(lines, answer.question) == choice


# -- paths -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AnswerPath:
    """A path of an output, and the checksum that the output lists with the path."""

    path: str
    hash: str = ""

    @property
    def parts(self) -> Sequence[_AnswerPath]:
        """The entries that result if each blank separates two paths."""
        if " " not in self.path:
            return [self]
        return [_AnswerPath(_path(part), self.hash) for part in self.path.split()]


def read_paths(answer: AnswerForm, gold: Sequence[str]) -> Reading:
    """Return a reading that accepts outputs with gold's paths.

    A blank separates two paths, unless paths of gold contain blanks. If all paths have checksums,
    the checksums must agree, too.
    """
    rows = _read_listing(answer, gold)
    blanks = any(" " in row.path for row in rows)

    def agrees(lines: Sequence[str]) -> bool:
        output_rows = _read_listing(answer, lines)
        if not blanks:
            output_rows = [path_entry for row in output_rows for path_entry in row.parts]
        if all(row.hash for row in (*rows, *output_rows)):
            sums, hashes = (
                {(_base_name(row.path), row.hash) for row in x} for x in (rows, output_rows)
            )
            if sums != hashes:
                return False
        return _are_same_paths(
            answer, [row.path for row in rows], [row.path for row in output_rows]
        )

    return agrees


def _read_listing(answer: AnswerForm, lines: Sequence[str]) -> list[_AnswerPath]:
    """Parse the paths of lines; columns of a tool are removed if all lines have the tool's form."""
    rows = [line for line in lines if not _TOTAL.fullmatch(collapse_blanks(line))]
    if any(map(_BRANCH.match, rows)):
        return [
            _AnswerPath(_path(_BRANCH.sub("", row, count=1).replace("\\ ", " "))) for row in rows
        ]
    headings = [match["folder"] for row in rows if (match := _HEADING.fullmatch(row))]
    if headings and all(
        heading[0] == "/" or answer.question.explains(heading) for heading in headings
    ):
        return [*_read_grouped_listing(rows)]
    for matcher in (
        *(_LONG_LINE.fullmatch, _HASH_LINE.fullmatch, _SIZE_LINE.fullmatch),
        *(_COUNT_LINE.fullmatch, _MATCH_LINE.fullmatch),
    ):
        matches = [matcher(row.strip()) for row in rows]
        if all(matches):
            return [
                _AnswerPath(_path(match["path"]), match.groupdict().get("hash", ""))
                for match in matches
                if match
            ]
    return [_AnswerPath(_path(row)) for row in rows]


def _read_grouped_listing(rows: Sequence[str]) -> Iterator[_AnswerPath]:
    """Yield the names that ``ls`` lists for several folders, each with its folder."""
    folder = ""
    for row in rows:
        if match := _HEADING.fullmatch(row):
            folder = match["folder"]
        else:
            listing_match = _LONG_LINE.fullmatch(row)
            name = listing_match["path"] if listing_match else row
            yield _AnswerPath(_path(f"{folder}/{name}" if folder else name))


def _path(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    # POSIX gives two leading slashes a meaning, so `PurePosixPath` would keep them.
    text = re.sub(r"^//+", "/", text.rstrip("*@=|"))
    return str(PurePosixPath(text)) if text else text


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _are_same_paths(answer: AnswerForm, paths: Sequence[str], output_paths: Sequence[str]) -> bool:
    if answer.names:
        return _are_same_names(answer, paths, output_paths)
    if collect(answer, paths) == collect(answer, output_paths):
        return True
    # The paths [.] could be relative to every folder, so they would equal any single path.
    pairs = _align_paths(answer, paths, output_paths)
    return any(
        {*gold_side} != {"."} and collect(answer, gold_side) == collect(answer, output_side)
        for gold_side, output_side in pairs
    )


def _are_same_names(answer: AnswerForm, paths: Sequence[str], output_paths: Sequence[str]) -> bool:
    """Return whether two lists have the same names, and the folders before equal names agree."""
    if collect(answer, [*map(_base_name, paths)]) != collect(
        answer, [*map(_base_name, output_paths)]
    ):
        return False
    paths_by_name: dict[str, set[str]] = {}
    for path in paths:
        paths_by_name.setdefault(_base_name(path), set()).add(path)
    return all(
        any(
            _ends_with(gold_path, path) or _ends_with(path, gold_path)
            for gold_path in paths_by_name[_base_name(path)]
        )
        for path in {*output_paths}
    )


def _ends_with(path: str, suffix: str) -> bool:
    prefix = path.removesuffix(suffix)
    return path == suffix or (
        path.endswith(f"/{suffix}") and _PATH_PREFIX.fullmatch(prefix) is not None
    )


_Pair = tuple[Sequence[str], Sequence[str]]


def _align_paths(
    answer: AnswerForm, paths: Sequence[str], output_paths: Sequence[str]
) -> Iterator[_Pair]:
    """Yield the pair of lists; if only one is absolute, also pairs in which it is relative."""
    yield paths, output_paths
    for absolute_paths, relative_paths, is_swapped in (
        (paths, output_paths, False),
        (output_paths, paths, True),
    ):
        absolute_flags = [path.startswith("/") for path in absolute_paths]
        if (
            not absolute_flags
            or not all(absolute_flags)
            or any(path.startswith("/") for path in relative_paths)
        ):
            continue
        for folder in _base_folders(answer, absolute_paths):
            rebased_paths = [
                str(PurePosixPath(path).relative_to(folder)) for path in absolute_paths
            ]
            yield (relative_paths, rebased_paths) if is_swapped else (rebased_paths, relative_paths)


def _base_folders(answer: AnswerForm, paths: Sequence[str]) -> Iterator[str]:
    """Yield the folders to which an answer's relative paths may refer, the deepest folder first.

    The first folder is the deepest folder of the question that holds all paths, and its parents
    follow. If the question names no folder, the first is the deepest folder that holds all paths,
    or ``/`` for a single path.
    """
    start = commonpath(paths)
    if answer.question.folders or len({*paths}) == 1:
        question_folders = [
            folder for folder in answer.question.folders if is_within(start, folder)
        ]
        start = max(question_folders, key=len, default="/")
    yield from dict.fromkeys([start, *map(str, PurePosixPath(start).parents)])


# -- lines -----------------------------------------------------------------------------------------


def read_lines(answer: AnswerForm, gold: Sequence[str]) -> Reading:
    """Return a reading that accepts outputs with gold's lines.

    If each line of gold is one word, words are compared regardless of line breaks.
    """
    rows = [*map(collapse_blanks, _drop_headings(gold))]
    are_single_words = all(len(row.split()) <= 1 for row in rows)
    has_prefixes = any(
        all(map(matcher, gold)) for matcher in (_NUMBER_PREFIX.match, _FILE_PREFIX.match)
    )
    gold_items = collect(answer, rows)

    def agrees(lines: Sequence[str]) -> bool:
        output_rows: Sequence[str] = _drop_headings(lines)
        if not has_prefixes:
            output_rows = _drop_prefixes(answer, output_rows)
        output_items = [*map(collapse_blanks, output_rows)]
        if are_single_words:
            output_items = [word for row in output_items for word in row.split()]
        return collect(answer, output_items) == gold_items

    return agrees


def _drop_headings(lines: Sequence[str]) -> list[str]:
    """Return lines without the headings of ``head`` and the offsets of ``od``."""
    rows = [line for line in lines if not _PART.fullmatch(line)]
    if rows and all(map(_ADDRESS.match, rows)):
        rows = [_ADDRESS.sub("", row, count=1) for row in rows]
    return [row for row in rows if row]


def _drop_prefixes(answer: AnswerForm, rows: Sequence[str]) -> Sequence[str]:
    """Return rows without their file names or line numbers, if all rows have such prefixes."""
    for match_prefix in (_FILE_PREFIX.match, _NUMBER_PREFIX.match):
        prefixes = [match for row in rows if (match := match_prefix(row))]
        if rows and len(prefixes) == len(rows) and _are_line_prefixes(answer, prefixes):
            return [match.string[match.end() :] for match in prefixes]
    return rows


def _are_line_prefixes(answer: AnswerForm, prefixes: Sequence[re.Match[str]]) -> bool:
    """Return whether prefixes are line numbers or files of the question, not parts of the answer.

    The question must name each file, and the numbers of each file must rise, from at least 1.
    """
    file_names = [match.groupdict().get("name", "") for match in prefixes]
    line_numbers = [int(match["number"]) if match["number"] else None for match in prefixes]
    question_names = answer.question.words | answer.question.folders
    if not all(
        not name or any(is_within(name, folder) for folder in question_names)
        for name in {*file_names}
    ):
        return False
    last_number_by_name: dict[str, int] = {}
    for name, line_number in zip(file_names, line_numbers, strict=True):
        if line_number is not None and line_number <= last_number_by_name.get(name, 0):
            return False
        last_number_by_name[name] = line_number or 0
    return True


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AnswerRow:
    """A row of a table: its path, the cells that the task requests, and further cells."""

    path: str
    cells: tuple[Hashable, ...]
    extra_cells: tuple[Hashable, ...] = ()


def read_table(answer: AnswerForm, gold: Sequence[str]) -> Reading:
    """Return a reading that accepts outputs with gold's rows.

    An output must have either only the requested cells, or all cells of gold's rows.
    """
    rows, total = _rows(answer, gold), _total(answer, gold)

    def agrees(lines: Sequence[str]) -> bool:
        output_rows, sums = _rows(answer, lines), _total(answer, lines)
        if rows is None or output_rows is None or (total and sums and total != sums):
            return False
        if answer.total == "needed" and total != sums:
            return False
        return _are_same_rows(answer, rows, output_rows)

    return agrees


def _total(answer: AnswerForm, lines: Sequence[str]) -> frozenset[Hashable]:
    """Return the numbers in the rows that hold totals."""
    totals = [line for line in lines if answer.total and _TOTAL.fullmatch(collapse_blanks(line))]
    return frozenset(map(_cell, quantities(totals)))


def _rows(answer: AnswerForm, lines: Sequence[str]) -> list[_AnswerRow] | None:
    """Parse the rows of a table; None: the table is empty, or a line lacks a requested cell."""
    rows = [
        _row(answer, x)
        for x in lines
        if not (answer.total and _TOTAL.fullmatch(collapse_blanks(x)))
    ]
    return None if not rows or None in rows else [row for row in rows if row is not None]


def _row(answer: AnswerForm, line: str) -> _AnswerRow | None:
    """Parse a line of a table; None: the line lacks a requested cell.

    The first numbers and the first words of the line are the requested cells. The last path is the
    row's path.
    """
    types = [column.type for column in answer.columns]
    column_counts = types.count("number"), types.count("text")
    if match := _LONG_LINE.fullmatch(line.strip()):
        words = [match["mode"], match["user"], match["group"]][: column_counts[1]]
        size_quantities, path = (
            quantities([match["size"]])[: column_counts[0]],
            _path(match["path"]),
        )
    else:
        size_quantities, words = _words(_BRANCH.sub("", line, count=1))
        path, extra_words = "", words[column_counts[1] :]
        if extra_words and (
            "path" in types or len(extra_words) == 1 or any("/" in word for word in extra_words)
        ):
            name = next((word for word in reversed(words) if "/" in word), words[-1])
            words.remove(name)
            path = _path(name)
    if (
        len(size_quantities) < column_counts[0]
        or len(words) < column_counts[1]
        or ("path" in types and not path)
    ):
        return None
    if types == ["path"]:  # any words may describe the path
        if not all(word.isalpha() and not is_doubt(word) for word in words):
            return None
        words = []
    cells = [*map(_cell, size_quantities)]
    extra_cells = (*words[column_counts[1] :], *cells[column_counts[0] :])
    return _AnswerRow(path, (*words[: column_counts[1]], *cells[: column_counts[0]]), extra_cells)


def _words(line: str) -> tuple[list[Quantity], list[str]]:
    """Return the numbers and words of a line; a unit after a number is not a word: "3 files"."""
    line_quantities, words = quantities([_SEPARATOR.sub(" ", line)]), []
    is_after = False
    for token in tokens(_SEPARATOR.sub(" ", line)):
        is_number = Quantity.parse(token) is not None
        if not is_number and not (is_after and is_unit(token)):
            words.append(token)
        is_after = is_number
    return line_quantities, words


def _cell(quantity: Quantity) -> Hashable:
    return quantity.value, quantity.unit


def _drop_folder_total(rows: Sequence[_AnswerRow]) -> Sequence[_AnswerRow]:
    """Return the rows without the folder that holds all others: the total that ``du`` prints."""
    folder = min((row.path for row in rows), key=lambda path: (path != ".", len(path)), default="")
    inner_rows = [row for row in rows if row.path != folder]
    return (
        inner_rows
        if folder == "." or all(is_within(row.path, folder) for row in inner_rows)
        else rows
    )


def _are_same_rows(
    answer: AnswerForm, rows: Sequence[_AnswerRow], output_rows: Sequence[_AnswerRow]
) -> bool:
    if answer.total == "optional":
        inner_rows, inner_output_rows = _drop_folder_total(rows), _drop_folder_total(output_rows)
        if len(inner_rows) == len(output_rows) and inner_rows:
            rows = inner_rows
        elif len(inner_output_rows) == len(rows) and inner_output_rows:
            output_rows = inner_output_rows
    if not any(row.path for row in output_rows) and not any(
        "path" in c.type for c in answer.columns
    ):
        rows = [replace(row, path="") for row in rows]
    if not any(row.extra_cells for row in output_rows):
        rows = [replace(row, extra_cells=()) for row in rows]

    def collect_rows(paths: Sequence[str], rows: Sequence[_AnswerRow]) -> object:
        cells = [(path, row.cells, row.extra_cells) for path, row in zip(paths, rows, strict=True)]
        return collect(answer, cells)

    paths, output_paths = ([row.path for row in table] for table in (rows, output_rows))
    if answer.names:
        return _are_same_names(answer, paths, output_paths) and (
            collect_rows([*map(_base_name, paths)], rows)
            == collect_rows([*map(_base_name, output_paths)], output_rows)
        )
    pairs = _align_paths(answer, paths, output_paths)
    return any(
        collect_rows(gold_side, rows) == collect_rows(output_side, output_rows)
        for gold_side, output_side in pairs
    )


READINGS: Mapping[str, Callable[[AnswerForm, Sequence[str]], Reading]] = {
    "number": read_number,
    "yes-no": read_choice,
    "path": read_paths,
    "paths": read_paths,
    "lines": read_lines,
    "table": read_table,
}
