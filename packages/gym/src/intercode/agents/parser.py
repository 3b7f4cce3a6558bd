"""The parser of model replies: `find_code` extracts the code, without corrections.

The parser returns the first match in this order:

1. The first fenced block in the requested language. Otherwise the first block without a language,
   or with only ``submit``, ``submit ANSWER`` or ``skip``. (A block in another language may be
   output or configuration, which must not be executed.)
   In a text without fences, ``<bash>…</bash>`` and ``<execute_bash>…</execute_bash>`` are blocks.
2. Outside of fences, a last line that is ``submit``, ``submit ANSWER`` or ``skip``.
3. In a text without blocks, the whole text, if the text reads as code. Otherwise the text after a
   label such as ``Command:``. Otherwise the only paragraph that ends in a semicolon, if that
   paragraph is an SQL statement.
4. In a text without blocks, the only piece of inline code (between single backticks), if the piece
   reads as code.

The parser ignores a model's reasoning (`strip_thoughts`). A block without a closing fence extends
to the end of the text. In a truncated reply, such a block is not code. Code that writes a README,
for example, contains fences. A fence within a here-document or a multi-line string therefore
belongs to the code, if a later fence closes the block. In a copied terminal session, only the text
after the prompts is code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent

from intercode.python_source import parse

__all__ = ["TAGS", "FencedBlock", "blocks", "find_code", "strip_thoughts"]

_INLINE_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LABEL = re.compile(
    r"^[*_ \t]*(?:action|answer|bash|code|command|python|query|sql)[*_]*[ \t]*:[*_]*[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_ENDING = re.compile(r"(?:submit(?:[ \t]+\S.*)?|skip)")
_EMPHASIS = re.compile(r"(\*\*|__|\*|_)(?P<inner>submit|skip)\1")
_THOUGHT = re.compile(r"</think(?:ing)?>")
_SQL = re.compile(
    r"(?:[\s(]|--[^\n]*\n|/\*(?:(?!\*/)[\s\S])*\*/)*"  # comments before the statement
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
"""Language → the prompts of a terminal session: before the first line of an action, and before
further lines. No code begins with the first prompt."""


def strip_thoughts(text: str) -> str:
    """Return a model's reply without its reasoning, ``<think>…</think>``.

    The reasoning extends to the last end tag. Without an end tag, a reply that begins with
    reasoning gives an empty text.
    """
    if ends := [match.end() for match in _THOUGHT.finditer(text)]:
        return text[ends[-1] :]
    return "" if text.lstrip().startswith(("<think>", "<thinking>")) else text


def find_code(text: str, language: str, *, cut_off: bool = False) -> str | None:
    """Find the code in a model's reply; None: the reply has no code.

    Args:
        text: The whole reply.
        language: ``bash``, ``sql`` or ``python``. For any other language, the code is only a block,
            or ``submit``, ``submit ANSWER`` or ``skip``.
        cut_off: Whether the reply hit the token limit.
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
    if emphasis_match := _EMPHASIS.fullmatch(last_line):
        last_line = emphasis_match["inner"]
    if _ENDING.fullmatch(last_line):
        return last_line
    code = None if candidate_blocks else _find_unfenced_code(text, language)
    return None if code is None else _strip_prompts(code, language)


def _normalise_line_ends(text: str) -> str:
    """Remove the carriage returns at line ends if every line ends in one.

    Such carriage returns come from the reply's format, and do not belong to the code.
    """
    return text.replace("\r\n", "\n") if text.count("\n") == text.count("\r\n") else text


def _strip_prompts(code: str, language: str) -> str:
    """Return the lines that were typed in a copied terminal session with prompts.

    Code without prompts is returned unchanged.
    """
    lines = code.strip("\n").split("\n")
    primary_prompt, continuation_prompt = _PROMPTS.get(language, ("", ""))
    if not primary_prompt or not lines[0].startswith(primary_prompt):
        return code
    typed_lines: list[str] = []
    is_after_output = False  # whether output follows the last typed line
    for line in lines:
        if line.startswith(primary_prompt):
            typed_lines.append(line[len(primary_prompt) :])
            is_after_output = False
        elif line.startswith(continuation_prompt) and not is_after_output:
            typed_lines.append(line[len(continuation_prompt) :])
        else:
            is_after_output = line.rstrip() != continuation_prompt.rstrip()
    return "\n".join(typed_lines)


def _find_unfenced_code(text: str, language: str) -> str | None:
    if _is_json(text):
        return None  # the reply is probably a tool call, written as text
    is_code = _CODE_TESTS.get(language, _is_ending)
    if is_code(text):
        return text
    if label := _LABEL.search(text):
        labelled_code = text[label.end() :].strip()
        if labelled_code and is_code(labelled_code):
            return labelled_code
    statements = [
        block_text
        for block_text in re.split(r"\n[ \t]*\n", text)
        if block_text.rstrip().endswith(";")
    ]
    if language == "sql" and len(statements) == 1 and _is_sql(statements[0]):
        return statements[0].strip()
    inline_codes = [code for code in _INLINE_CODE.findall(text) if code.strip()]
    if len(inline_codes) == 1 and (_is_ending(inline_codes[0]) or is_code(inline_codes[0])):
        return str(inline_codes[0])
    return None


def _is_json(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_ending(code: str) -> bool:
    return _ENDING.fullmatch(code.strip()) is not None


def _is_shell(text: str) -> bool:
    """Return whether a text begins like a command, and no line is a sentence."""
    return _SHELL.match(text) is not None and _PROSE.search(text) is None


def _is_sql(text: str) -> bool:
    """Return whether a text begins like an SQL statement, and does not end like a sentence."""
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
"""Language → the names by which fences name the language."""

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Invisible characters that some models insert at the beginning of a block."""
_OPEN = re.compile(
    rf"[{INVISIBLE}]*(?P<indent>[ \t]*)(?P<fence>`{{3,}}|~{{3,}})[ \t]*"
    r"(?P<info>([^` \t\n][^`\n]*)?)$"
)
_LONGEST_LINE = 10_000
"""The maximum length of the code in a block on a single line, in characters."""
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
class FencedBlock:
    """A fenced block of a text."""

    tag: str
    """The language name at the fence, in lower case; empty without a name."""
    code: str
    closed: bool = True
    """Whether the text has the block's closing fence."""


def blocks(text: str, language: str = "") -> Iterator[FencedBlock]:
    """Yield the fenced blocks of a text in Markdown, including blocks on a single line.

    Args:
        text: The text.
        language: The language of blocks without a tag.
    """
    lines = text.split("\n")
    row = 0
    while row < len(lines):
        opening_match = _OPEN.match(lines[row])
        row += 1
        if opening_match is None:
            for match in _ONE_LINE.finditer(lines[row - 1]):
                yield _parse_inline_block(match)
            continue
        block, row = _read_block(opening_match, lines, row, language)
        yield block


def elements(text: str) -> Iterator[FencedBlock]:
    """Yield the elements of a text, such as ``<bash>ls</bash>`` or ``<execute_bash>``, as blocks.

    An element without an end tag, which may be a stop sequence, reaches to the text's end.
    """
    for match in _ELEMENT.finditer(text):
        code = match["code"].removeprefix("\n").removesuffix("\n")
        yield FencedBlock(match["tag"].lower(), code, bool(match["end"]))


def leading_block(text: str, language: str = "") -> str | None:
    """Return the block at the beginning of a text, with its fences; None: no closed block there."""
    lines = text.split("\n")
    row = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if (opening_match := _OPEN.match(lines[row])) is None:
        return None
    block, end = _read_block(opening_match, lines, row + 1, language)
    return "\n".join(lines[:end]) if block.closed else None


def _read_block(
    opening_match: re.Match[str], lines: Sequence[str], row: int, language: str
) -> tuple[FencedBlock, int]:
    """Parse a fenced block.

    Args:
        opening_match: The match of the opening fence.
        lines: The lines of the text.
        row: The index of the line after the opening fence.
        language: The language of a block without a tag.

    Returns:
        The block, and the index of the line after the block.
    """
    fence, indent = opening_match["fence"], len(opening_match["indent"])
    info = opening_match["info"].strip(INVISIBLE + " \t")
    words = re.split(r"[\s:,]+", info, maxsplit=1)
    tag = words[0].strip("{}.").lower()
    block_language = next((name for name, tags in TAGS.items() if tag in tags), language)
    end, code = _find_block_end(fence, lines, row, _OPEN_TESTS.get(block_language))
    # The indentation of a fence belongs to the Markdown list that contains the fence, not to the
    # code.
    text = "\n".join(_remove_indent(line, indent) for line in [*lines[row:end], *code])
    closed = end < len(lines)
    # The code may follow the opening fence on the same line.
    if closed and len(words) > 1 and not text.strip():
        is_known_tag = any(tag in tags for tags in TAGS.values())
        tag, text = (tag, words[1]) if is_known_tag else ("", info)
    return FencedBlock(tag, text, closed), end + 1


def _find_block_end(
    fence: str, lines: Sequence[str], row: int, is_open: Callable[[Sequence[str]], bool] | None
) -> tuple[int, list[str]]:
    """Return the row of the fence that closes a block, and the code before the fence in that row.

    The first fence closes the block, unless that fence is within a here-document or string. In that
    case the first later fence outside of both closes the block, if the text has such a fence.
    """
    closing_pattern = re.compile(rf"(?P<code>.*?)(?<!{fence[0]}){fence[0]}{{{len(fence)},}}[ \t]*")
    first_end: tuple[int, list[str]] | None = None
    syntax_checks = 0
    for index in range(row, len(lines)):
        match = closing_pattern.fullmatch(lines[index])
        if match is None or (match["code"].strip() and fence in match["code"]):
            continue
        # The closing fence may follow the code on its last line.
        block_end = index, [match["code"]] if match["code"].strip() else []
        first_end = first_end or block_end
        syntax_checks += 1
        if is_open is None or syntax_checks > _TRIES:
            break
        if not is_open([*lines[row:index], *block_end[1]]):
            return block_end
    return first_end or (len(lines), [])


def _is_in_here_document(lines: Sequence[str]) -> bool:
    """Return whether a Bash here-document is still open after the last line.

    A line that begins the same here-document again does not close it.
    """
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
    """Return whether a multi-line Python string may still be open after the last line.

    The string counts as open if the lines have triple quotes, and are not valid Python.
    """
    text = dedent("\n".join(lines))
    return any(quotes in text for quotes in _QUOTES) and not is_python(text)


_TRIES = 50
"""The maximum number of fences that the parser tries as the end of a block. The limit bounds the
time for a reply that consists of fences only."""
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
_QUOTES = ('"""', "'''")
_OPEN_TESTS: Mapping[str, Callable[[Sequence[str]], bool]] = {
    "bash": _is_in_here_document,
    "python": _is_in_string,
}


def _remove_indent(line: str, width: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, width) :]


def _parse_inline_block(match: re.Match[str]) -> FencedBlock:
    tag, code = (match["tag"] or "").lower(), match["code"]
    if tag and not any(tag in tags for tags in TAGS.values()):
        # The first word is not a language, so it belongs to the code.
        return FencedBlock("", match[0].strip("`").strip())
    return FencedBlock(tag, code.strip())


def is_python(text: str) -> bool:
    """Return whether a whole text is valid Python."""
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
