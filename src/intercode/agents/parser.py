"""Finds the code that a model meant in what it said. The code itself is never changed.

In this order, what comes first is taken:

1. The first fenced block in the language that is asked for; else the first that names none.
   (A block in another language is no code: its output, or its configuration, would be run.)
2. Without a fence: a last line that is ``submit``, ``submit ANSWER`` or ``skip``.
3. The whole text, if it reads as code; else what follows a label such as ``Command:``.
4. The only piece of `inline code`, if it reads as code.

What a model thinks before it speaks (`said`) does not count. A block that is not closed reaches to
the text's end; of a reply that was cut off it is no code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

TAGS: Mapping[str, frozenset[str]] = {
    "bash": frozenset({"bash", "sh", "shell", "zsh", "console", "terminal", "command"}),
    "sql": frozenset(
        {"sql", "mysql", "mariadb", "sqlite", "sqlite3", "postgresql", "postgres", "psql", "duckdb"}
    ),
    "python": frozenset({"python", "python3", "py", "py3", "pycon"}),
}
"""Language → what fences call it."""

_OPEN = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
_ONE_LINE = re.compile(
    r"```(?!`)[ \t]*(?:(?P<tag>[A-Za-z0-9+#-]+)[ \t]+)?(?P<code>[^\n]*?)```(?!`)"
)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LABEL = re.compile(
    r"^[*_ \t]*(?:action|answer|bash|code|command|python|query|sql)[*_]*[ \t]*:[*_]*[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_ENDING = re.compile(r"(?:submit(?:[ \t]+\S.*)?|skip)")
_SQL = re.compile(
    r"\(*\s*(?:select|with|values|table|show|describe|desc|explain|pragma|use|set|insert|replace|"
    r"update|delete|merge|create|alter|drop|truncate|begin|start|commit|rollback|savepoint)\b",
    re.IGNORECASE,
)
_SHELL = re.compile(r"[a-z0-9_./~$({\[!:\"'-]")
_PROSE = re.compile(
    r"\w[.?!:]$|^(?:i|you|we|it|this|that|there|the|to|sorry|sure|here)\b[ ,']",
    re.IGNORECASE | re.MULTILINE,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced piece of a text."""

    tag: str
    """What the fence calls it, in small letters; empty if nothing."""
    code: str
    closed: bool = True


def said(text: str) -> str:
    """What a model says aloud, without the ``<think>…</think>`` before it."""
    if "</think>" in text:
        return text.rpartition("</think>")[2]
    return "" if text.lstrip().startswith("<think>") else text


def find_code(text: str, language: str, *, cut_off: bool = False) -> str | None:
    """The code that a model meant; None if there is none.

    Args:
        text: All that it said.
        language: ``bash``, ``sql`` or ``python``; of any other only blocks are code.
        cut_off: Whether the text ends where it ends because no more was allowed.
    """
    text = said(text)
    if found := list(blocks(text)):
        whole = [block for block in found if block.code.strip() and (block.closed or not cut_off)]
        known = [block for block in whole if block.tag in TAGS.get(language, {language})]
        unnamed = [block for block in whole if not block.tag or _is_ending(block.code)]
        return next((block.code for block in (*known, *unnamed)), None)
    if cut_off or not text.strip():
        return None
    last = text.strip().rsplit("\n", 1)[-1].strip()
    if _ENDING.fullmatch(last):
        return last
    return _unfenced(text.strip(), language)


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a text, as Markdown has them; also those on a single line."""
    lines = iter(text.split("\n"))
    for line in lines:
        if opening := _OPEN.match(line):
            yield _block(opening, lines)
        else:
            for match in _ONE_LINE.finditer(line):
                yield _on_one_line(match)


def _block(opening: re.Match[str], lines: Iterator[str]) -> Block:
    fence, indent = opening["fence"], len(opening["indent"])
    closing = re.compile(rf"(?P<code>.*?)(?<!{fence[0]}){fence[0]}{{{len(fence)},}}[ \t]*")
    taken: list[str] = []
    closed = False
    for line in lines:
        end = closing.fullmatch(line)
        if end is not None and (not end["code"].strip() or fence not in end["code"]):
            closed = True
            if end["code"].strip():  # the fence stands at the end of the last line
                taken.append(end["code"])
            break
        taken.append(line)
    words = opening["info"].split()
    tag = words[0].strip("{}.").lower() if words else ""
    # What a fence is indented by belongs to the list that it stands in, not to the code.
    return Block(tag, "\n".join(_outdented(line, indent) for line in taken), closed)


def _outdented(line: str, width: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, width) :]


def _on_one_line(match: re.Match[str]) -> Block:
    tag, code = (match["tag"] or "").lower(), match["code"]
    if tag and not any(tag in tags for tags in TAGS.values()):
        return Block("", match[0].strip("`").strip())  # its first word is no language
    return Block(tag, code.strip())


def _unfenced(text: str, language: str) -> str | None:
    reads_as_code = _READS_AS.get(language, _is_ending)
    if reads_as_code(text):
        return text
    if label := _LABEL.search(text):
        rest = text[label.end() :].strip()
        if rest and reads_as_code(rest):
            return rest
    inline = _INLINE.findall(text)
    if len(inline) == 1 and (_is_ending(inline[0]) or reads_as_code(inline[0])):
        return str(inline[0])
    return None


def _is_ending(code: str) -> bool:
    return _ENDING.fullmatch(code.strip()) is not None


def _is_shell(text: str) -> bool:
    """It begins as commands do, and no line is a sentence."""
    return _SHELL.match(text) is not None and _PROSE.search(text) is None


def _is_sql(text: str) -> bool:
    return _SQL.match(text) is not None


def _is_python(text: str) -> bool:
    # Without odd escapes, of which the parser would warn; warnings are silenced for all threads.
    plain = _ESCAPE.sub(lambda m: m[0] if m[1] in "\n'\"\\" else f"_{m[1]}", text)
    try:
        ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


_READS_AS: Mapping[str, Callable[[str], bool]] = {
    "bash": _is_shell,
    "sql": _is_sql,
    "python": _is_python,
}
