"""Readings of outputs: how an answer of each type stands in one, and what counts in it.

The reading of a task's answer is fixed by gold's output alone, and any other output is read by it.
What tools print around an answer, such as the columns of ``ls -l``, is recognized by the output's
form alone, never by whether the result would then agree. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonpath
from pathlib import PurePosixPath

from intercode.rewards.aliases import within
from intercode.rewards.quantities import (
    Quantity,
    Question,
    is_doubt,
    is_unit,
    parse_choice,
    parse_quantity,
    quantities,
    tokens,
)

Reading = Callable[[Sequence[str]], bool]
"""Whether lines give gold's answer."""

_LONG = re.compile(
    r"(?:\d{1,12}\s+)?(?:\d{1,12}\s+)?(?P<mode>[-dlbcps][-rwxsStT]{9})[.+@]?\s+\d+\s+(?P<user>\S+)\s+"
    r"(?P<group>\S+)\s+(?:\d+,\s+)?(?P<size>\d+(?:,\d+)*(?:\.\d+)?[KMGTP]?)\s+"
    r"(?:\S+\s+\S+\s+[\d:]+|[\d-]+\s+[\d:.]+(?:\s+[+-]\d{4})?)\s(?P<path>.+?)(?: -> .*)?"
)
"""A line of ``ls -l``, or of ``find -ls``."""
_HASHED = re.compile(r"(?P<hash>[\da-f]{32,128})\s+\*?(?P<path>.+)")
_SIZED = re.compile(r"(?:[\d.,]+[KMGTP]?i?B?\s+)+(?P<path>.*\S.*)")
_COUNTED = re.compile(r"(?P<path>.*[^\s:])(?:\s*:\s*|\s+)\d[\d.,]*[KMGTP]?i?B?")
"""A path before its count or size: ``grep -c``, ``stat``."""
_MATCHED = re.compile(r"(?P<path>[^:]*/[^:]*):(?:\d{1,9}:.*|\S.*|)")
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
_BETWEEN = re.compile(r",(?!\d{3}(?!\d))|[;|]")
_PLACE = re.compile(r"[\w./ @%+,-]*")
"""Folders before a name."""
_ADDRESS = re.compile(r"0[\da-f]{6,7}(?:\s+|$)")
"""The offset before a line of ``od`` and ``hexdump``."""
_NUMBERED = re.compile(r"\s*(?P<number>\d{1,9})[:\t ]\s*")
_NAMED = re.compile(r"(?P<name>(?=[^\s:]*[/.])[^\s:]+):(?:(?P<number>\d{1,9}):)?")
"""The file, and the number, that ``grep`` prints before a line."""


@dataclass(frozen=True, slots=True)
class Column:
    """A named value of each row."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The properties of an answer that decide how an output is read."""

    columns: tuple[Column, ...] = ()
    ordered: bool = False
    """Whether the order of paths, lines and rows counts."""
    repeated: bool = True
    """Whether it counts how often each comes."""
    names: bool = False
    """Whether only the last part of a path counts."""
    total: str = ""
    """Whether a table may (``optional``) or must (``needed``) have a row with the total."""
    question: Question = field(default=Question(), init=False)
    """The task's words, some of which an answer may repeat."""


def pack(line: str) -> str:
    """Return a line with single blanks between its words."""
    return " ".join(line.split())


def collect(answer: Form, items: Sequence[Hashable]) -> object:
    """Return what items are compared as: in order, by number, or as a set."""
    if answer.ordered:
        return list(items) if answer.repeated else [*dict.fromkeys(items)]
    return Counter(items) if answer.repeated else frozenset(items)


# -- numbers, yes and no ---------------------------------------------------------------------------


def read_number(answer: Form, gold: Sequence[str]) -> Reading:
    """Fix the number that gold prints; of a listing, the rows count."""
    numbers = quantities(gold)
    if len(numbers) != 1:
        return lambda lines: Counter(map(pack, gold)) == Counter(map(pack, lines))
    number, asked = numbers[0], answer.question.units

    def agrees(lines: Sequence[str]) -> bool:
        other = parse_quantity(lines, answer.question)
        if other is None or not number.equals(other):
            return False
        units = {number.unit, other.unit}
        return len(units) == 1 or ("" in units and units - {""} <= asked)  # asked, so left out

    return agrees


def read_choice(answer: Form, gold: Sequence[str]) -> Reading:
    """Fix yes or no; of gold that says neither, its sentence counts."""
    choice = parse_choice(gold, answer.question)
    sentence = pack(" ".join(gold)).casefold()
    if choice is None:
        return lambda lines: pack(" ".join(lines)).casefold() == sentence
    return lambda lines: parse_choice(lines, answer.question) == choice


# -- paths -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """A path, and the hash beside it."""

    path: str
    hash: str = ""

    @property
    def parts(self) -> Sequence[_Listed]:
        """The paths that it is with a blank between each two."""
        if " " not in self.path:
            return [self]
        return [_Listed(_path(part), self.hash) for part in self.path.split()]


def read_paths(answer: Form, gold: Sequence[str]) -> Reading:
    """Fix the paths that gold prints; a blank divides two, unless gold's paths have blanks."""
    rows = _listing(answer, gold)
    blanks = any(" " in row.path for row in rows)

    def agrees(lines: Sequence[str]) -> bool:
        others = _listing(answer, lines)
        if not blanks:
            others = [part for row in others for part in row.parts]
        if all(row.hash for row in (*rows, *others)):
            sums, hashes = ({(_last(row.path), row.hash) for row in x} for x in (rows, others))
            if sums != hashes:
                return False
        return _are_same_paths(answer, [row.path for row in rows], [row.path for row in others])

    return agrees


def _listing(answer: Form, lines: Sequence[str]) -> list[_Listed]:
    """Read the paths of lines by the one form that all of them have."""
    rows = [line for line in lines if not _TOTAL.fullmatch(pack(line))]
    if any(map(_BRANCH.match, rows)):
        return [_Listed(_path(_BRANCH.sub("", row, count=1).replace("\\ ", " "))) for row in rows]
    headings = [match["folder"] for row in rows if (match := _HEADING.fullmatch(row))]
    if headings and all(one[0] == "/" or answer.question.explains(one) for one in headings):
        return [*_within_headings(rows)]
    for read in (
        *(_LONG.fullmatch, _HASHED.fullmatch, _SIZED.fullmatch),
        *(_COUNTED.fullmatch, _MATCHED.fullmatch),
    ):
        matches = [read(row.strip()) for row in rows]
        if all(matches):
            return [
                _Listed(_path(match["path"]), match.groupdict().get("hash", ""))
                for match in matches
                if match
            ]
    return [_Listed(_path(row)) for row in rows]


def _within_headings(rows: Sequence[str]) -> Iterator[_Listed]:
    """The names that ``ls`` lists for several folders, each with its folder."""
    folder = ""
    for row in rows:
        if match := _HEADING.fullmatch(row):
            folder = match["folder"]
        else:
            listed = _LONG.fullmatch(row)
            name = listed["path"] if listed else row
            yield _Listed(_path(f"{folder}/{name}" if folder else name))


def _path(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    text = re.sub(r"^//+", "/", text.rstrip("*@=|"))  # two slashes are a root of their own
    return str(PurePosixPath(text)) if text else text


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _are_same_paths(answer: Form, paths: Sequence[str], others: Sequence[str]) -> bool:
    if answer.names:
        return _are_same_names(answer, paths, others)
    if collect(answer, paths) == collect(answer, others):
        return True
    pairs = _aligned(answer, paths, others)  # "." alone would be every path
    return any(
        {*one} != {"."} and collect(answer, one) == collect(answer, two) for one, two in pairs
    )


def _are_same_names(answer: Form, paths: Sequence[str], others: Sequence[str]) -> bool:
    """Whether the names are the same, and no folder before one is another."""
    if collect(answer, [*map(_last, paths)]) != collect(answer, [*map(_last, others)]):
        return False
    places: dict[str, set[str]] = {}
    for path in paths:
        places.setdefault(_last(path), set()).add(path)
    return all(
        any(_ends_with(one, path) or _ends_with(path, one) for one in places[_last(path)])
        for path in {*others}
    )


def _ends_with(path: str, end: str) -> bool:
    before = path.removesuffix(end)
    return path == end or (path.endswith(f"/{end}") and _PLACE.fullmatch(before) is not None)


_Pair = tuple[Sequence[str], Sequence[str]]


def _aligned(answer: Form, paths: Sequence[str], others: Sequence[str]) -> Iterator[_Pair]:
    """Yield both lists; then, where one is absolute, it relative to a stated folder."""
    yield paths, others
    for absolute, relative, turned in ((paths, others, False), (others, paths, True)):
        rooted = [path.startswith("/") for path in absolute]
        if not rooted or not all(rooted) or any(path.startswith("/") for path in relative):
            continue
        for folder in _stated(answer, absolute):
            below = [str(PurePosixPath(path).relative_to(folder)) for path in absolute]
            yield (relative, below) if turned else (below, relative)


def _stated(answer: Form, paths: Sequence[str]) -> Iterator[str]:
    """Yield the folders that paths may be relative to: one that the question names, and above.

    If the question names no path, it is the deepest folder that holds several paths.
    """
    start = commonpath(paths)
    if answer.question.folders or len({*paths}) == 1:
        named = [folder for folder in answer.question.folders if within(start, folder)]
        start = max(named, key=len, default="/")
    yield from dict.fromkeys([start, *map(str, PurePosixPath(start).parents)])


# -- lines -----------------------------------------------------------------------------------------


def read_lines(answer: Form, gold: Sequence[str]) -> Reading:
    """Fix gold's lines; of lines of one word each, the words, on however many lines they stand."""
    rows = [*map(pack, _bare(gold))]
    words = all(len(row.split()) <= 1 for row in rows)
    has_places = any(all(map(read, gold)) for read in (_NUMBERED.match, _NAMED.match))
    wanted = collect(answer, rows)

    def agrees(lines: Sequence[str]) -> bool:
        others: Sequence[str] = _bare(lines)
        if not has_places:
            others = _without_places(answer, others)
        found = [*map(pack, others)]
        if words:
            found = [word for row in found for word in row.split()]
        return collect(answer, found) == wanted

    return agrees


def _bare(lines: Sequence[str]) -> list[str]:
    """Return lines without the headings of ``head`` and the offsets of ``od``."""
    rows = [line for line in lines if not _PART.fullmatch(line)]
    if rows and all(map(_ADDRESS.match, rows)):
        rows = [_ADDRESS.sub("", row, count=1) for row in rows]
    return [row for row in rows if row]


def _without_places(answer: Form, rows: Sequence[str]) -> Sequence[str]:
    """Return rows without the file and the rising number that stand before all of them."""
    for read in (_NAMED.match, _NUMBERED.match):
        places = [match for row in rows if (match := read(row))]
        if rows and len(places) == len(rows) and _are_places(answer, places):
            return [match.string[match.end() :] for match in places]
    return rows


def _are_places(answer: Form, places: Sequence[re.Match[str]]) -> bool:
    """Whether names are those of files that the question speaks of, and numbers rise from 1."""
    files = [match.groupdict().get("name", "") for match in places]
    numbers = [int(match["number"]) if match["number"] else None for match in places]
    known = answer.question.words | answer.question.folders
    if not all(not name or any(within(name, folder) for folder in known) for name in {*files}):
        return False
    last: dict[str, int] = {}
    for name, number in zip(files, numbers, strict=True):
        if number is not None and number <= last.get(name, 0):
            return False
        last[name] = number or 0
    return True


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """The path, the other cells that are asked for, and what is beside them."""

    path: str
    cells: tuple[Hashable, ...]
    beside: tuple[Hashable, ...] = ()


def read_table(answer: Form, gold: Sequence[str]) -> Reading:
    """Fix gold's rows; an answer has the cells that are asked for, or all cells of gold's rows."""
    rows, total = _rows(answer, gold), _total(answer, gold)

    def agrees(lines: Sequence[str]) -> bool:
        others, sums = _rows(answer, lines), _total(answer, lines)
        if rows is None or others is None or (total and sums and total != sums):
            return False
        if answer.total == "needed" and total != sums:
            return False
        return _are_same_rows(answer, rows, others)

    return agrees


def _total(answer: Form, lines: Sequence[str]) -> frozenset[Hashable]:
    """Return the numbers in the rows with totals."""
    totals = [line for line in lines if answer.total and _TOTAL.fullmatch(pack(line))]
    return frozenset(map(_cell, quantities(totals)))


def _rows(answer: Form, lines: Sequence[str]) -> list[_Row] | None:
    """Read the rows of a table; None: a line lacks a cell."""
    rows = [_row(answer, x) for x in lines if not (answer.total and _TOTAL.fullmatch(pack(x)))]
    return None if not rows or None in rows else [row for row in rows if row is not None]


def _row(answer: Form, line: str) -> _Row | None:
    """Read a line: of each type, the cells that are asked for come first, and the path last."""
    types = [column.type for column in answer.columns]
    wanted = types.count("number"), types.count("text")
    if match := _LONG.fullmatch(line.strip()):
        words = [match["mode"], match["user"], match["group"]][: wanted[1]]
        numbers, path = quantities([match["size"]])[: wanted[0]], _path(match["path"])
    else:
        numbers, words = _words(_BRANCH.sub("", line, count=1))
        path, beyond = "", words[wanted[1] :]
        if beyond and ("path" in types or len(beyond) == 1 or any("/" in word for word in beyond)):
            name = next((word for word in reversed(words) if "/" in word), words[-1])
            words.remove(name)
            path = _path(name)
    if len(numbers) < wanted[0] or len(words) < wanted[1] or ("path" in types and not path):
        return None
    if types == ["path"]:  # any words may tell of it
        if not all(word.isalpha() and not is_doubt(word) for word in words):
            return None
        words = []
    cells = [*map(_cell, numbers)]
    beside = (*words[wanted[1] :], *cells[wanted[0] :])
    return _Row(path, (*words[: wanted[1]], *cells[: wanted[0]]), beside)


def _words(line: str) -> tuple[list[Quantity], list[str]]:
    """Return the numbers and the words of a line; "3 files" is a number."""
    numbers, words = quantities([_BETWEEN.sub(" ", line)]), []
    is_after = False
    for token in tokens(_BETWEEN.sub(" ", line)):
        is_number = Quantity.of(token) is not None
        if not is_number and not (is_after and is_unit(token)):
            words.append(token)
        is_after = is_number
    return numbers, words


def _cell(quantity: Quantity) -> Hashable:
    return quantity.value, quantity.unit


def _without_folder(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return the rows but for that of the folder that holds all others: the total of `du`."""
    folder = min((row.path for row in rows), key=lambda path: (path != ".", len(path)), default="")
    inside = [row for row in rows if row.path != folder]
    return inside if folder == "." or all(within(row.path, folder) for row in inside) else rows


def _are_same_rows(answer: Form, rows: Sequence[_Row], others: Sequence[_Row]) -> bool:
    if answer.total == "optional":
        inside, inside_others = _without_folder(rows), _without_folder(others)
        if len(inside) == len(others) and inside:
            rows = inside
        elif len(inside_others) == len(rows) and inside_others:
            others = inside_others
    if not any(row.path for row in others) and not any("path" in c.type for c in answer.columns):
        rows = [replace(row, path="") for row in rows]
    if not any(row.beside for row in others):
        rows = [replace(row, beside=()) for row in rows]

    def placed(paths: Sequence[str], rows: Sequence[_Row]) -> object:
        cells = [(path, row.cells, row.beside) for path, row in zip(paths, rows, strict=True)]
        return collect(answer, cells)

    paths, places = ([row.path for row in table] for table in (rows, others))
    if answer.names:
        return _are_same_names(answer, paths, places) and (
            placed([*map(_last, paths)], rows) == placed([*map(_last, places)], others)
        )
    pairs = _aligned(answer, paths, places)
    return any(placed(one, rows) == placed(other, others) for one, other in pairs)


READINGS: Mapping[str, Callable[[Form, Sequence[str]], Reading]] = {
    "number": read_number,
    "yes-no": read_choice,
    "path": read_paths,
    "paths": read_paths,
    "lines": read_lines,
    "table": read_table,
}
