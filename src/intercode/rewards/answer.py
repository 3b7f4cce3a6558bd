"""The type of a task's answer, and when two outputs give the same one.

A question has one answer, and many forms of it: ``8``, ``8 files``, ``/srv: 8``; absolute paths or
relative ones; a list with sizes or without. Where a task says of which type its answer is
(``metadata.answer``), outputs are compared as that type reads them. An output may often be
read in several ways: a line of ``du`` is a path beside a size, or a path with blanks in it. Two
outputs agree if they do in one of the readings, and each reading takes the whole output: a right
answer among others is none.

==========  ======================================================================================
``state``   the files are the answer, and the output does not count
``number``  one number; words, units and a path around it do not count, nor decimals that one has
            and the other does not; an address, a date or a hash beside it is another answer
``yes-no``  yes or no, in one of the ways to say so
``paths``   files; absolute or relative; what stands beside each does not count
``lines``   lines, whatever the blanks in them, and numbers or file names before all of them
``table``   rows with these columns, in any order and among others
``text``    text, up to blanks at line ends and empty lines at both ends
==========  ======================================================================================

Paths, lines and rows come in any order, and as often as they do, unless the task says otherwise.
Complaints of tools about files that they cannot read do not belong to an answer. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import combinations, islice
from pathlib import PurePosixPath
from typing import Any

from intercode.episode import Episode
from intercode.errors import TaskError
from intercode.rewards.archive import KINDS
from intercode.task import Task

TYPES = ("state", "number", "yes-no", "path", "paths", "lines", "table", "text")
_COLUMN_TYPES = ("number", "path", "text")
_TOTALS = ("", "optional", "needed")
_LONGEST, _LONGEST_LINE = 50_000, 1000
"""Characters from which on outputs are compared as text: an answer is made for people to read, and
reading it takes up to the square of a line's."""
_LINES_OF_ONE, _CHARACTERS_OF_ONE = 3, 200
"""The most lines and characters of an output that is taken for one number, or for yes or no."""
_DEPTH = 40
"""Folders above a path that are tried as the one that other paths are relative to."""
_READINGS = 60
"""Ways to read a table that are tried, at most."""
_SPARE = 5
"""Numbers and words beyond those asked for that are tried: all numbers are not an answer."""

_NUMBER = re.compile(
    r"(?<![\w./#@-])([+-]?(?:\d{1,3}(?:,\d{3}){1,9}|\d+)(?:\.\d+)?)(?:[KMGTP]i?B?|B|%)?(?![\w/]|[.,-]\w)"
)
_NO_NUMBER = re.compile(r"(?<!\S)\d{1,4}[.:-]\d{1,4}[.:-]\d|\b[\da-f]{32,128}\b")
"""An address, a date, a time, a hash: a number beside one is not the answer."""
_PERMISSIONS = r"[-dlbcps][-rwxsStT]{9}[.+@]?"
_LONG = re.compile(
    rf"(?:\d+\s+)?(?:\d+\s+)?{_PERMISSIONS}\s+\d+\s+\S+\s+\S+\s+(?:\d+,\s+)?"
    r"(?P<size>\d+(?:,\d+)*(?:\.\d+)?)[KMGTP]?\s+"
    r"(?:\S+\s+\S+\s+[\d:]+|[\d-]+\s+[\d:.]+(?:\s+[+-]\d{4})?)\s(?P<path>.+?)(?: -> .*)?"
)
"""A line of ``ls -l``, or of ``find -ls``."""
_SIZED = re.compile(r"(?:[\d.,]+[KMGTP]?i?B?\s+)+(?P<path>.*\S.*)")
_HASHED = re.compile(r"[0-9a-f]{32,128}\s+\*?(?P<path>.+)")
_BESIDE = re.compile(r"(?P<path>[^:]*?[^:\s]):.*|(?P<other>\S+)\s+(?:[(\d-].*|\S+)")
_DRAWN = re.compile(r"[|`\s\u00a0\u2500-\u257f_-]+")
"""The branches before a name that ``tree`` prints."""
_TOTAL = re.compile(
    r"total:? [\d.,]+(?:[^\W\d]\w*)?|(?:[\d.,]+[^\W\d]? )+total"
    r"|\d+ director(?:y|ies)(?:, \d+ files?)?",
    re.IGNORECASE,
)
_OF_INPUT = re.compile(r"([0-9a-f]{32,128})\s+(?:-|/dev/(?:stdin|fd/\d+))")
"""A sum of what a program read from a pipe, which has no name."""
_NOISE = re.compile(
    r"(?:\w+: )?[\w./-]+: .*(?:Permission denied|No such file or directory|Is a directory"
    r"|Not a directory|Operation not permitted|binary file matches|Invalid argument)"
)
_NO = re.compile(
    r"\b(?:no|not|false|none|isn't|doesn't|cannot|never|without)\b|n't\b", re.IGNORECASE
)
_YES = re.compile(r"\b(?:yes|true|is|are|exists?|found|does|has)\b", re.IGNORECASE)
_HEADING = re.compile(r"(?:==> (?P<file>.+) <==|(?P<folder>[^\s:][^:]*):)")

Forms = Sequence[Sequence[str]]
"""The items of an output, once for each way to read it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A named value of each row."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The type of an answer, and the properties that count in it."""

    VERSION = 1
    """Raise it when any score can differ."""

    type: str
    columns: tuple[Column, ...] = ()
    ordered: bool = False
    """Whether the order of paths, lines and rows counts."""
    repeated: bool = True
    """Whether it counts how often each comes."""
    names: bool = False
    """Whether only the last part of a path counts."""
    total: str = ""
    """Whether a table may (``optional``) or must (``needed``) have a row with the total."""
    both: bool = False
    """Whether both the files and the output count."""
    archives: Mapping[str, str] = field(default_factory=dict)
    """Path → kind (`intercode.rewards.archive`): files that are compared by their content."""

    @classmethod
    def of(cls, task: Task) -> Answer | None:
        """Return the type of a task's answer; None if the task does not say it.

        Raises:
            TaskError: It is malformed.
        """
        given = task.metadata.get("answer")
        if given is None:
            return None
        fields = {"type": given} if isinstance(given, str) else given
        try:
            return cls._read(dict(fields))
        except (TypeError, ValueError, KeyError) as error:
            raise TaskError(
                f"task {task.task_id!r}: 'metadata.answer': {error}; it is one of "
                f"{', '.join(TYPES)}, or an object with that as 'type' (docs/reference/rewards.md)"
            ) from None

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> Answer:
        columns = tuple(Column(one["name"], one["type"]) for one in fields.pop("columns", ()))
        answer = cls(columns=columns, **fields)
        known = (
            answer.type in TYPES,
            answer.total in _TOTALS,
            {*answer.archives.values()} <= {*KINDS},
        )
        if not all(known) or any(column.type not in _COLUMN_TYPES for column in columns):
            raise ValueError("a word that is not known")
        if (answer.type == "table") != bool(columns):
            raise ValueError("'columns' are what a table has")
        return answer

    @property
    def printed(self) -> bool:
        """Whether the output counts."""
        return self.type != "state" or self.both

    def agree(self, gold: str, given: str) -> bool:
        """Whether an output gives the same answer as gold's."""
        if normalise(gold).strip("\n") == normalise(given).strip("\n"):
            return True
        if max(len(gold), len(given)) > _LONGEST:
            return False
        ours, theirs = _readable(gold), _readable(given)
        if max(map(len, (*ours, *theirs)), default=0) > _LONGEST_LINE:
            return False
        compare = _COMPARE.get(self.type)
        return compare is not None and compare(self, ours, theirs)


def _readable(text: str) -> list[str]:
    """Return the lines that are not empty, without names of pipes and complaints of tools."""
    lines = [line.rstrip() for line in text.split("\n")]
    kept = [line for line in lines if line and not _NOISE.fullmatch(line)]
    return [found[1] if (found := _OF_INPUT.fullmatch(line)) else line for line in kept]


# -- numbers, yes and no ---------------------------------------------------------------------------


def _same_number(answer: Answer, gold: list[str], given: list[str]) -> bool:
    wanted, found = _numbers(gold), _numbers(given)
    if len(wanted) != 1:  # gold is a listing: its rows are what counts
        return Counter(map(_packed, gold)) == Counter(map(_packed, given))
    # In more text than that, it would have to be looked for.
    told = len(given) <= _LINES_OF_ONE and sum(map(len, given)) <= _CHARACTERS_OF_ONE
    alone = len(found) == 1 and not any(map(_NO_NUMBER.search, given))
    # A share is not a count; but it can be told without its sign.
    share = "%" in "".join(given) and "%" not in "".join(gold)
    return told and alone and not share and _is_same(wanted[0], found[0])


def _numbers(lines: Sequence[str]) -> list[str]:
    return [match[1].replace(",", "") for line in lines for match in _NUMBER.finditer(line)]


def _is_same(one: str, other: str) -> bool:
    """Return whether two numbers are equal, or one is the other with fewer decimals."""
    try:
        first, second = Decimal(one), Decimal(other)
        decimals = [len(text.partition(".")[2]) for text in (one, other)]
        if min(decimals) == max(decimals) or 0 in decimals:
            return first == second
        return abs(first - second) <= Decimal(10) ** -min(decimals)
    except InvalidOperation:
        return one == other


def _same_choice(answer: Answer, gold: list[str], given: list[str]) -> bool:
    return len(given) <= _LINES_OF_ONE and _said(gold) == _said(given) is not None


def _said(lines: Sequence[str]) -> bool | None:
    text = " ".join(lines)
    if text.startswith("bash: "):
        return None  # the shell's own word of a command that failed
    # A bare 0 or 1 says neither: as a truth value and as an exit code it means opposite things.
    return False if _NO.search(text) else True if _YES.search(text) else None


# -- paths -----------------------------------------------------------------------------------------


def _same_paths(answer: Answer, gold: list[str], given: list[str]) -> bool:
    ours, theirs = _paths(gold), _paths(given)
    return any(_are_same_paths(answer, one, other) for one in ours for other in theirs)


def _paths(lines: Sequence[str]) -> Forms:
    """Read paths out of lines, in each of the ways to do so."""
    rows = [line for line in lines if not _TOTAL.fullmatch(_packed(line))]
    found = [
        rows,
        [*map(_listed, rows)],
        [*map(_beside, rows)],
        [*_within_headings(rows)],
        [*map(_drawn, rows)],
        [token for row in rows for token in row.split()],
    ]
    # Where there is a number for each path, it is the numbers that were taken for paths.
    return [
        [*map(_path, paths)]
        for paths in found
        if not paths or not all(map(_NUMBER.fullmatch, paths))
    ]


def _listed(line: str) -> str:
    """The path in a line of ``ls -l``, ``du``, ``wc``, ``md5sum`` and their like."""
    line = line.strip()
    for form in (_LONG.fullmatch, _HASHED.fullmatch, _SIZED.fullmatch):
        if match := form(line):
            return match["path"]
    return line


def _beside(line: str) -> str:
    """The path before a colon, a number or a word."""
    match = _BESIDE.fullmatch(line.strip())
    return line if match is None else match["path"] or match["other"]


def _within_headings(lines: Sequence[str]) -> Iterator[str]:
    """The names that ``ls`` lists for several folders, each with its folder."""
    folder = ""
    for line in lines:
        if match := _HEADING.fullmatch(line):
            folder = match["folder"] or match["file"]
        else:
            yield f"{folder}/{_listed(line)}" if folder else _listed(line)


def _drawn(line: str) -> str:
    """The name in a line of ``tree``."""
    branches = _DRAWN.match(line)
    return line if branches is None else line[branches.end() :].replace("\\ ", " ")


def _path(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return str(PurePosixPath(text.rstrip("*@=|"))) if text else text


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _are_same_paths(answer: Answer, ours: Sequence[str], theirs: Sequence[str]) -> bool:
    gathered = _gathered(answer)
    names, others = ([*map(_last, paths)] for paths in (ours, theirs))
    if answer.names:
        return gathered(names) == gathered(others)
    if gathered(ours) == gathered(theirs):
        return True
    if "." not in (*names, *others) and gathered(names) != gathered(others):
        return False
    # "." alone would be every path.
    pairs = _aligned(ours, theirs)
    return any({*one} != {"."} and gathered(one) == gathered(other) for one, other in pairs)


def _aligned(
    ours: Sequence[str], theirs: Sequence[str]
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield both lists; then each relative to folders that all its paths are in, with the other."""
    yield ours, theirs
    yield from ((one, theirs) for one in _relative(ours, theirs))
    yield from ((ours, other) for other in _relative(theirs, ours))


def _relative(paths: Sequence[str], others: Sequence[str]) -> Iterator[list[str]]:
    """Yield paths relative to the folder that all are in, and to those above it."""
    if not paths or any(path.startswith("/") for path in others):
        return
    parents = islice(map(str, PurePosixPath(paths[0]).parents), _DEPTH)
    for folder in (paths[0], *parents):
        start = folder if folder.endswith("/") else f"{folder}/"
        if all(path == folder or path.startswith(start) for path in paths):
            yield ["." if path == folder else path[len(start) :] for path in paths]


def _gathered(answer: Answer) -> Callable[[Sequence[Hashable]], object]:
    """Return what items are gathered in to be compared: by order, by number, or as a set."""
    if answer.ordered:
        return list if answer.repeated else lambda items: [*dict.fromkeys(items)]
    return Counter if answer.repeated else frozenset


# -- lines -----------------------------------------------------------------------------------------


def _same_lines(answer: Answer, gold: list[str], given: list[str]) -> bool:
    gathered = _gathered(answer)
    # What stands before gold's lines may be asked for, but for offsets.
    ours, theirs = _forms(gold, _BEFORE[:1]), _forms(given, _BEFORE)
    return any(gathered(one) == gathered(other) for one in ours for other in theirs)


_BEFORE = (
    re.compile(r"0[\da-f]{6,7}(?:\s+|$)"),  # od, hexdump
    re.compile(r"\s*\d+[:\t ]\s*(?=\S)|\s*\d+[:-]"),  # grep -n, cat -n, nl, uniq -c
    re.compile(r"(?=\d*[^\s:\d])[^\s:]+:(?:\d+:)?"),  # grep -H, grep -Hn
)


def _forms(lines: Sequence[str], beside: Sequence[re.Pattern[str]]) -> Forms:
    """Return the lines, and the rest of them without the text that stands before each."""
    rows = [line for line in lines if not _HEADING.fullmatch(line)]
    found = [[*map(_packed, lines)], [*map(_packed, rows)]]
    for before in beside:
        if rows and all(before.match(row) for row in rows):
            left = [_packed(before.sub("", row, count=1)) for row in rows]
            found.append([row for row in left if row])
    if all(len(row.split()) <= 1 for row in rows) or len(rows) == 1:
        found.append([token for row in rows for token in row.split()])  # in a line, or one each
    return found


def _packed(line: str) -> str:
    return " ".join(line.split())


# -- tables ----------------------------------------------------------------------------------------

_Cells = tuple[Hashable, ...]
_Rows = Sequence[tuple[str, _Cells]]


def _same_table(answer: Answer, gold: list[str], given: list[str]) -> bool:
    ours = next(_tables(answer, gold), None)  # its columns come first, and are in their order
    if ours is None:
        return False
    for theirs in _tables(answer, given):
        pairs: list[tuple[_Rows, _Rows]] = [(ours, theirs)]
        if answer.total == "optional":
            pairs += [(_without_folder(ours), theirs), (ours, _without_folder(theirs))]
        if any(_are_same_rows(answer, *pair) for pair in pairs):
            return True
    return False


def _without_folder(rows: _Rows) -> _Rows:
    """Return the rows but for that of the folder that holds all others: the total of `du`."""
    folder = min((path for path, _ in rows), key=lambda path: (path != ".", len(path)), default="")
    start = "" if folder == "." else f"{folder.rstrip('/')}/"
    inside = [(path, cells) for path, cells in rows if path != folder]
    return inside if inside and all(path.startswith(start) for path, _ in inside) else rows


def _are_same_rows(answer: Answer, ours: _Rows, theirs: _Rows) -> bool:
    gathered = _gathered(answer)
    if gathered([cells for _, cells in ours]) != gathered([cells for _, cells in theirs]):
        return False
    paths, others = ([path for path, _ in rows] for rows in (ours, theirs))
    if answer.names:
        paths, others = ([*map(_last, one)] for one in (paths, others))

    def placed(paths: Sequence[str], rows: _Rows) -> object:
        return gathered([(path, cells) for path, (_, cells) in zip(paths, rows, strict=True)])

    pairs = [(paths, others)] if answer.names else _aligned(paths, others)
    return any(placed(one, ours) == placed(other, theirs) for one, other in pairs)


def _tables(answer: Answer, lines: Sequence[str]) -> Iterator[list[tuple[str, _Cells]]]:
    """Yield paths and other cells, for each way to take the columns from the words of the lines."""
    totals = [line for line in lines if answer.total and _TOTAL.fullmatch(_packed(line))]
    no_rows = frozenset(totals)
    rows = [_Row.of(line) for line in lines if line not in no_rows]
    count = Counter(column.type for column in answer.columns)
    if not rows:
        return
    kept: list[tuple[str, _Cells]] = []
    if answer.total == "needed":
        kept = [("total", tuple(map(Decimal, _numbers([line])[:1]))) for line in totals]
    most = (
        min(count["number"] + _SPARE, *(len(row.numbers) for row in rows)),
        min(count["text"] + _SPARE, *(len(row.words) for row in rows)),
    )
    ways = (
        (words, numbers)
        for words in combinations(range(most[1]), count["text"])
        for numbers in combinations(range(most[0]), count["number"])
    )
    for words, numbers in islice(ways, _READINGS):
        found = [row.taken(numbers, words, bool(count["path"])) for row in rows]
        if all(cells is not None for cells in found):
            yield [*(cells for cells in found if cells is not None), *kept]


@dataclass(frozen=True, slots=True)
class _Row:
    """The words of a line, by kind."""

    numbers: tuple[Decimal, ...]
    words: tuple[str, ...]
    path: str

    @classmethod
    def of(cls, line: str) -> _Row:
        listed = _LONG.fullmatch(line.strip())
        path = listed["path"] if listed else ""
        tokens = line[: listed.start("path")].split() if listed else _tokens(line)
        numbers = [match[1] for token in tokens if (match := _NUMBER.fullmatch(token))]
        if listed:  # who asks for a number of it asks for this one
            numbers.insert(0, listed["size"])
        words = [token for token in tokens if not _NUMBER.fullmatch(token)]
        if not path and words:
            path = next((word for word in reversed(words) if "/" in word), words[-1])
        return cls(
            tuple(Decimal(number.replace(",", "")) for number in numbers), tuple(words), _path(path)
        )

    def taken(
        self, numbers: Sequence[int], words: Sequence[int], path: bool
    ) -> tuple[str, _Cells] | None:
        """Return the path, if one is asked for, and the cells; None if the path is among them."""
        found = [self.words[index] for index in words]
        if path and (not self.path or self.path in map(_path, found)):
            return None
        return self.path if path else "", (*found, *(self.numbers[index] for index in numbers))


def _tokens(line: str) -> list[str]:
    """Return the words of a line, without the separators."""
    words = re.split(r"[\s,;|=]+|:(?=\s|\d|$)", line)
    return [token for word in words if (token := word.strip("()[]\"'"))]


_COMPARE: Mapping[str, Callable[[Answer, list[str], list[str]], bool]] = {
    "number": _same_number,
    "yes-no": _same_choice,
    "path": _same_paths,
    "paths": _same_paths,
    "lines": _same_lines,
    "table": _same_table,
}


# -- texts -----------------------------------------------------------------------------------------


def normalise(text: str) -> str:
    """Return a text without the characters that a terminal does not show.

    Windows line ends become plain ones; spaces and tabs at the end of a line go, and so do empty
    lines at the end of the text. Case, order, and space within a line count.
    """
    lines = [line.rstrip(" \t\r\v\f") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)


def similarity(one: str, other: str) -> float:
    """Return the share of words that two texts have in common, in [0, 1], counted with repeats.

    It is Dice's coefficient, 2·|common| / (|one| + |other|), which takes time linear in the
    texts. Only for partial credit: equal values do not mean equal texts.
    """
    if one == other:
        return 1.0
    ours, theirs = Counter(one.split()), Counter(other.split())
    total = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / total if total else 0.0


def last_output(episode: Episode) -> str | None:
    """Return the output of the last action, without notes to the agent; None: no action has run."""
    for turn in reversed(episode.turns):
        if turn.info.get("executed", True):
            return str(turn.info.get("output", turn.observation))
    return None
