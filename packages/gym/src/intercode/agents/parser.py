"""Find the code that a model meant in what it said. The code itself is never changed.

In this order, the first that is found is taken:

1. The first fenced block in the language that is asked for; else the first that names none.
   (A block in another language is not code: its output, or its configuration, would be run.)
   Where there are no fences, ``<bash>…</bash>`` and ``<execute_bash>…</execute_bash>`` are blocks.
2. Without a fence, or outside of them: a last line that is ``submit``, ``submit ANSWER`` or
   ``skip``.
3. The whole text, if it reads as code; else the text after a label such as ``Command:``; else the
   only paragraph that is an SQL statement up to its semicolon.
4. The only piece of `inline code`, if it reads as code.

A model's thoughts before it speaks (`strip_thoughts`) do not count. A block that is not closed
reaches to the text's end; in a reply that was cut off it is not code. A fence within a
here-document or a string of several lines is a part of the code, if it is closed by another one: a
README has fences. In a session with prompts the code is the text behind them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent

from intercode.syntax import parse

__all__ = ["TAGS", "Block", "blocks", "find_code", "strip_thoughts"]

_INLINE_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LABEL = re.compile(
    r"^[*_ \t]*(?:action|answer|bash|code|command|python|query|sql)[*_]*[ \t]*:[*_]*[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_ENDING = re.compile(r"(?:submit(?:[ \t]+\S.*)?|skip)")
_EMPHASIS = re.compile(r"(\*\*|__|\*|_)(?P<inner>submit|skip)\1")
_THOUGHT = re.compile(r"</think(?:ing)?>")
_SQL = re.compile(
    r"(?:[\s(]|--[^\n]*\n|/\*(?:(?!\*/)[\s\S])*\*/)*"  # comments may stand before it
    r"(?:select|with|values|table|show|describe|desc|explain|pragma|use|set|insert|replace|update|"
    r"delete|merge|create|alter|drop|truncate|begin|start|commit|rollback|savepoint)\b",
    re.IGNORECASE,
)
_SHELL = re.compile(r"[a-z0-9_./~$({\[!:\"'-]")
_PROSE = re.compile(
    r"\w[.?!:]$|^(?:i|you|we|it|this|that|there|the|to|sorry|sure|here)\b[ ,']",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(r"\w[.?!:]$")
_PROMPTS = {"bash": ("$ ", "> "), "python": (">>> ", "... ")}
"""Before the lines of a session: no code begins like the first of them."""


def strip_thoughts(text: str) -> str:
    """Return what a model says aloud, without the ``<think>…</think>`` before it."""
    if ends := [thought.end() for thought in _THOUGHT.finditer(text)]:
        return text[ends[-1] :]
    return "" if text.lstrip().startswith(("<think>", "<thinking>")) else text


def find_code(text: str, language: str, *, cut_off: bool = False) -> str | None:
    """Find the code that a model meant; None if there is none.

    Args:
        text: All that it said.
        language: ``bash``, ``sql`` or ``python``; of any other only blocks are code.
        cut_off: Whether the text ends where it ends because no more was allowed.
    """
    text = _normalise_line_ends(strip_thoughts(text))
    candidate_blocks = list(blocks(text, language)) or list(elements(text))
    complete_blocks = [
        block for block in candidate_blocks if block.code.strip() and (block.closed or not cut_off)
    ]
    tagged_blocks = [
        block for block in complete_blocks if block.tag in TAGS.get(language, {language})
    ]
    untagged_blocks = [
        block for block in complete_blocks if not block.tag or _is_ending(block.code)
    ]
    for block in (*tagged_blocks, *untagged_blocks):
        return _strip_prompts(block.code, language)
    text = text.strip().strip(INVISIBLE)
    if cut_off or not text or not all(block.closed for block in candidate_blocks):
        return None
    last_line = text.rsplit("\n", 1)[-1].strip()
    if emphasis := _EMPHASIS.fullmatch(last_line):
        last_line = emphasis["inner"]
    if _ENDING.fullmatch(last_line):
        return last_line
    code = None if candidate_blocks else _find_unfenced_code(text, language)
    return None if code is None else _strip_prompts(code, language)


def _normalise_line_ends(text: str) -> str:
    """Remove carriage returns if every line ends in one: they are not the code's."""
    return text.replace("\r\n", "\n") if text.count("\n") == text.count("\r\n") else text


def _strip_prompts(code: str, language: str) -> str:
    """Return the lines that were typed in a session with prompts; all of any other code."""
    lines = code.strip("\n").split("\n")
    primary_prompt, continuation_prompt = _PROMPTS.get(language, ("", ""))
    if not primary_prompt or not lines[0].startswith(primary_prompt):
        return code
    typed_lines: list[str] = []
    has_output = False  # whether output has come since
    for line in lines:
        if line.startswith(primary_prompt):
            typed_lines.append(line[len(primary_prompt) :])
            has_output = False
        elif line.startswith(continuation_prompt) and not has_output:
            typed_lines.append(line[len(continuation_prompt) :])
        else:
            has_output = line.rstrip() != continuation_prompt.rstrip()
    return "\n".join(typed_lines)


def _find_unfenced_code(text: str, language: str) -> str | None:
    if _is_json(text):
        return None  # the call of a tool, written out
    is_code = _CODE_TESTS.get(language, _is_ending)
    if is_code(text):
        return text
    if label := _LABEL.search(text):
        labelled_code = text[label.end() :].strip()
        if labelled_code and is_code(labelled_code):
            return labelled_code
    statements = [part for part in re.split(r"\n[ \t]*\n", text) if part.rstrip().endswith(";")]
    if language == "sql" and len(statements) == 1 and _is_sql(statements[0]):
        return statements[0].strip()
    inline_codes = [code for code in _INLINE_CODE.findall(text) if code.strip()]
    if len(inline_codes) == 1 and (_is_ending(inline_codes[0]) or is_code(inline_codes[0])):
        return str(inline_codes[0])
    return None


def _is_json(text: str) -> bool:
    """Tell whether a text is a JSON object."""
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_ending(code: str) -> bool:
    return _ENDING.fullmatch(code.strip()) is not None


def _is_shell(text: str) -> bool:
    """Tell whether a text begins as commands do, and no line is a sentence."""
    return _SHELL.match(text) is not None and _PROSE.search(text) is None


def _is_sql(text: str) -> bool:
    """Tell whether a text begins as statements do, and does not end as sentences do."""
    return _SQL.match(text) is not None and _SENTENCE.search(text) is None


TAGS: Mapping[str, frozenset[str]] = {
    "bash": frozenset(
        {"bash", "sh", "shell", "zsh", "console", "terminal", "command", "shell-session"}
    ),
    "sql": frozenset(
        {"sql", "mysql", "mariadb", "sqlite", "sqlite3", "postgresql", "postgres", "psql", "duckdb"}
    ),
    "python": frozenset({"python", "python3", "py", "py3", "pycon", "ipython"}),
}
"""Language → its names in fences."""

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Invisible characters that some models put where a block begins."""
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
    """The fence's name for it, in small letters; empty if there is none."""
    code: str
    closed: bool = True


def blocks(text: str, language: str = "") -> Iterator[Block]:
    """Yield the fenced blocks of a text, as Markdown has them; also those on a single line.

    Args:
        text: The text.
        language: The language of blocks that do not name any.
    """
    lines = text.split("\n")
    row = 0
    while row < len(lines):
        opening = _OPEN.match(lines[row])
        row += 1
        if opening is None:
            for match in _ONE_LINE.finditer(lines[row - 1]):
                yield _parse_inline_block(match)
            continue
        block, row = _read_block(opening, lines, row, language)
        yield block


def elements(text: str) -> Iterator[Block]:
    """Yield the pieces of a text that are marked up, ``<bash>ls</bash>`` or ``<execute_bash>``.

    A piece without an end, as where the model was to stop there, reaches to the text's end.
    """
    for match in _ELEMENT.finditer(text):
        code = match["code"].removeprefix("\n").removesuffix("\n")
        yield Block(match["tag"].lower(), code, bool(match["end"]))


def leading_block(text: str, language: str = "") -> str | None:
    """Return a text's leading block with its fences; None if there is none, or no end of it."""
    lines = text.split("\n")
    row = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if (opening := _OPEN.match(lines[row])) is None:
        return None
    block, end = _read_block(opening, lines, row + 1, language)
    return "\n".join(lines[:end]) if block.closed else None


def _read_block(
    opening: re.Match[str], lines: Sequence[str], row: int, language: str
) -> tuple[Block, int]:
    """Read the block whose code begins in a row; return also the row after it."""
    fence, indent = opening["fence"], len(opening["indent"])
    info = opening["info"].strip(INVISIBLE + " \t")
    words = re.split(r"[\s:,]+", info, maxsplit=1)
    tag = words[0].strip("{}.").lower()
    block_language = next((name for name, tags in TAGS.items() if tag in tags), language)
    end, code = _find_block_end(fence, lines, row, _OPEN_TESTS.get(block_language))
    # A fence's indentation belongs to the list that it stands in, not to the code.
    text = "\n".join(_remove_indent(line, indent) for line in [*lines[row:end], *code])
    closed = end < len(lines)
    if closed and len(words) > 1 and not text.strip():  # the code stands behind the fence
        is_known_tag = any(tag in tags for tags in TAGS.values())
        tag, text = (tag, words[1]) if is_known_tag else ("", info)
    return Block(tag, text, closed), end + 1


def _find_block_end(
    fence: str, lines: Sequence[str], row: int, is_open: Callable[[Sequence[str]], bool] | None
) -> tuple[int, list[str]]:
    """The row of the fence that closes a block, and the code before it in that row.

    That is the first one, unless the code is in the middle of a text there and a later one is not.
    """
    closing_pattern = re.compile(rf"(?P<code>.*?)(?<!{fence[0]}){fence[0]}{{{len(fence)},}}[ \t]*")
    first_end: tuple[int, list[str]] | None = None
    tries = 0
    for number in range(row, len(lines)):
        match = closing_pattern.fullmatch(lines[number])
        if match is None or (match["code"].strip() and fence in match["code"]):
            continue
        # The fence may stand at the end of the last line.
        block_end = number, [match["code"]] if match["code"].strip() else []
        first_end = first_end or block_end
        tries += 1
        if is_open is None or tries > _TRIES:
            break
        if not is_open([*lines[row:number], *block_end[1]]):
            return block_end
    return first_end or (len(lines), [])


def _is_in_here_document(lines: Sequence[str]) -> bool:
    """Tell whether a here-document has not ended; one in which it begins again never has."""
    delimiters: list[str] = []
    for line in lines:
        if delimiters:
            if line.strip() == delimiters[0]:
                delimiters.pop(0)
            elif any(word == delimiters[0] for _, word in _HERE_DOCUMENT.findall(line)):
                return True
        else:
            delimiters = [word for _, word in _HERE_DOCUMENT.findall(line)]
    return bool(delimiters)


def _is_in_string(lines: Sequence[str]) -> bool:
    """Tell whether a string of several lines has not ended."""
    text = dedent("\n".join(lines))
    return any(quotes in text for quotes in _QUOTES) and not is_python(text)


_TRIES = 50
"""Fences that are looked at as a block's end: a reply may consist of nothing else."""
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
_QUOTES = ('"""', "'''")
_OPEN_TESTS: Mapping[str, Callable[[Sequence[str]], bool]] = {
    "bash": _is_in_here_document,
    "python": _is_in_string,
}


def _remove_indent(line: str, width: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, width) :]


def _parse_inline_block(match: re.Match[str]) -> Block:
    tag, code = (match["tag"] or "").lower(), match["code"]
    if tag and not any(tag in tags for tags in TAGS.values()):
        return Block("", match[0].strip("`").strip())  # its first word is not a language
    return Block(tag, code.strip())


def is_python(text: str) -> bool:
    """Tell whether a text is Python from its beginning to its end."""
    try:
        parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


_CODE_TESTS: Mapping[str, Callable[[str], bool]] = {
    "bash": _is_shell,
    "sql": _is_sql,
    "python": is_python,
}
