"""The blocks of code in a text: fenced as Markdown has them, or marked up as models also write.

A fence within a here-document or a string of several lines is a part of the code, if it is closed
by another one: who writes a README writes fences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent

from intercode.syntax import parse

TAGS: Mapping[str, frozenset[str]] = {
    "bash": frozenset(
        {"bash", "sh", "shell", "zsh", "console", "terminal", "command", "shell-session"}
    ),
    "sql": frozenset(
        {"sql", "mysql", "mariadb", "sqlite", "sqlite3", "postgresql", "postgres", "psql", "duckdb"}
    ),
    "python": frozenset({"python", "python3", "py", "py3", "pycon", "ipython"}),
}
"""Language → what fences call it."""

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""What some models put where a block begins."""
_OPEN = re.compile(
    rf"[{INVISIBLE}]*(?P<indent>[ \t]*)(?P<fence>`{{3,}}|~{{3,}})[ \t]*"
    r"(?P<info>([^` \t\n][^`\n]*)?)$"
)
_LONGEST_LINE = 10_000
"""Characters of the code of a block on one line."""
_ONE_LINE = re.compile(
    r"```(?!`)[ \t]*(?:(?P<tag>[A-Za-z0-9+#-]+)[ \t]+)?"
    rf"(?P<code>([^ \t\n][^\n]{{0,{_LONGEST_LINE}}}?)?)```(?!`)"
)
_NAMES = "|".join(sorted(tag for tags in TAGS.values() for tag in tags))
_ELEMENT = re.compile(
    rf"^[ \t]*<(?P<name>(?:execute_)?(?P<tag>{_NAMES}))>"
    r"(?P<code>.*?)(?P<end></(?P=name)>[ \t]*$|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced piece of a text."""

    tag: str
    """What the fence calls it, in small letters; empty if nothing."""
    code: str
    closed: bool = True


def blocks(text: str, language: str = "") -> Iterator[Block]:
    """The fenced blocks of a text, as Markdown has them; also those on a single line.

    Args:
        text: What was said.
        language: Of blocks that do not name any.
    """
    lines = text.split("\n")
    row = 0
    while row < len(lines):
        opening = _OPEN.match(lines[row])
        row += 1
        if opening is None:
            for match in _ONE_LINE.finditer(lines[row - 1]):
                yield _on_one_line(match)
            continue
        block, row = _block(opening, lines, row, language)
        yield block


def elements(text: str) -> Iterator[Block]:
    """The pieces of a text that are marked up, ``<bash>ls</bash>`` or ``<execute_bash>``.

    What is not closed, as where the model was to stop at its end, reaches to the text's end.
    """
    for match in _ELEMENT.finditer(text):
        code = match["code"].removeprefix("\n").removesuffix("\n")
        yield Block(match["tag"].lower(), code, bool(match["end"]))


def leading_block(text: str, language: str = "") -> str | None:
    """The block that a text begins with, and its fences; None if there is none, or no end of it."""
    lines = text.split("\n")
    row = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if (opening := _OPEN.match(lines[row])) is None:
        return None
    block, end = _block(opening, lines, row + 1, language)
    return "\n".join(lines[:end]) if block.closed else None


def _block(
    opening: re.Match[str], lines: Sequence[str], row: int, language: str
) -> tuple[Block, int]:
    """The block whose code begins in a row, and the row after it."""
    fence, indent = opening["fence"], len(opening["indent"])
    info = opening["info"].strip(INVISIBLE + " \t")
    words = re.split(r"[\s:,]+", info, maxsplit=1)
    tag = words[0].strip("{}.").lower()
    named = next((name for name, tags in TAGS.items() if tag in tags), language)
    end, code = _end(fence, lines, row, _OPEN_ENDED.get(named))
    # What a fence is indented by belongs to the list that it stands in, not to the code.
    text = "\n".join(_outdented(line, indent) for line in [*lines[row:end], *code])
    closed = end < len(lines)
    if closed and len(words) > 1 and not text.strip():  # the code stands behind the fence
        known = any(tag in tags for tags in TAGS.values())
        tag, text = (tag, words[1]) if known else ("", info)
    return Block(tag, text, closed), end + 1


def _end(
    fence: str, lines: Sequence[str], row: int, is_open: Callable[[Sequence[str]], bool] | None
) -> tuple[int, list[str]]:
    """The row of the fence that closes a block, and the code before it in that row.

    That is the first one, unless the code is in the middle of a text there and a later one is not.
    """
    closing = re.compile(rf"(?P<code>.*?)(?<!{fence[0]}){fence[0]}{{{len(fence)},}}[ \t]*")
    first: tuple[int, list[str]] | None = None
    tries = 0
    for number in range(row, len(lines)):
        match = closing.fullmatch(lines[number])
        if match is None or (match["code"].strip() and fence in match["code"]):
            continue
        # The fence may stand at the end of the last line.
        found = number, [match["code"]] if match["code"].strip() else []
        first = first or found
        tries += 1
        if is_open is None or tries > _TRIES:
            break
        if not is_open([*lines[row:number], *found[1]]):
            return found
    return first or (len(lines), [])


def _in_here_document(lines: Sequence[str]) -> bool:
    """Whether a here-document is not at its end; one in which it begins again never is."""
    waiting: list[str] = []
    for line in lines:
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            elif any(word == waiting[0] for _, word in _HERE.findall(line)):
                return True
        else:
            waiting = [word for _, word in _HERE.findall(line)]
    return bool(waiting)


def _in_string(lines: Sequence[str]) -> bool:
    """Whether a string of several lines is not at its end."""
    text = dedent("\n".join(lines))
    return any(quotes in text for quotes in _QUOTES) and not is_python(text)


_TRIES = 50
"""Fences that are looked at as a block's end: a reply may consist of nothing else."""
_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
_QUOTES = ('"""', "'''")
_OPEN_ENDED: Mapping[str, Callable[[Sequence[str]], bool]] = {
    "bash": _in_here_document,
    "python": _in_string,
}


def _outdented(line: str, width: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, width) :]


def _on_one_line(match: re.Match[str]) -> Block:
    tag, code = (match["tag"] or "").lower(), match["code"]
    if tag and not any(tag in tags for tags in TAGS.values()):
        return Block("", match[0].strip("`").strip())  # its first word is no language
    return Block(tag, code.strip())


def is_python(text: str) -> bool:
    """Whether it is Python from its beginning to its end."""
    try:
        parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
