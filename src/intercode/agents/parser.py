"""Finds the code that a model meant in what it said. The code itself is never changed.

In this order, what comes first is taken:

1. The first fenced block in the language that is asked for; else the first that names none.
   (A block in another language is no code: its output, or its configuration, would be run.)
   Where there are no fences, ``<bash>…</bash>`` and ``<execute_bash>…</execute_bash>`` are blocks.
2. Without a fence, or outside of them: a last line that is ``submit``, ``submit ANSWER`` or
   ``skip``.
3. The whole text, if it reads as code; else what follows a label such as ``Command:``; else the
   only paragraph that is an SQL statement up to its semicolon.
4. The only piece of `inline code`, if it reads as code.

What a model thinks before it speaks (`said`) does not count. A block that is not closed reaches to
the text's end; of a reply that was cut off it is no code. A fence within a here-document or a
string of several lines is a part of the code, if it is closed by another one. In a session with
prompts what stands behind them is the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from intercode.agents.fences import INVISIBLE, TAGS, Block, blocks, elements, is_python

__all__ = ["TAGS", "Block", "blocks", "find_code", "said"]

_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
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


def said(text: str) -> str:
    """What a model says aloud, without the ``<think>…</think>`` before it."""
    if ends := [thought.end() for thought in _THOUGHT.finditer(text)]:
        return text[ends[-1] :]
    return "" if text.lstrip().startswith(("<think>", "<thinking>")) else text


def find_code(text: str, language: str, *, cut_off: bool = False) -> str | None:
    """The code that a model meant; None if there is none.

    Args:
        text: All that it said.
        language: ``bash``, ``sql`` or ``python``; of any other only blocks are code.
        cut_off: Whether the text ends where it ends because no more was allowed.
    """
    text = _with_plain_line_ends(said(text))
    found = list(blocks(text, language)) or list(elements(text))
    whole = [block for block in found if block.code.strip() and (block.closed or not cut_off)]
    known = [block for block in whole if block.tag in TAGS.get(language, {language})]
    unnamed = [block for block in whole if not block.tag or _is_ending(block.code)]
    for block in (*known, *unnamed):
        return _without_prompts(block.code, language)
    text = text.strip().strip(INVISIBLE)
    if cut_off or not text or not all(block.closed for block in found):
        return None
    last = text.rsplit("\n", 1)[-1].strip()
    if emphasised := _EMPHASIS.fullmatch(last):
        last = emphasised["inner"]
    if _ENDING.fullmatch(last):
        return last
    code = None if found else _unfenced(text, language)
    return None if code is None else _without_prompts(code, language)


def _with_plain_line_ends(text: str) -> str:
    """Without carriage returns, if they stand at the end of every line: they are not the code's."""
    return text.replace("\r\n", "\n") if text.count("\n") == text.count("\r\n") else text


def _without_prompts(code: str, language: str) -> str:
    """What was typed, of a session that shows prompts and output; all of any other code."""
    lines = code.strip("\n").split("\n")
    first, more = _PROMPTS.get(language, ("", ""))
    if not first or not lines[0].startswith(first):
        return code
    typed: list[str] = []
    told = False  # whether output has come since
    for line in lines:
        if line.startswith(first):
            typed.append(line[len(first) :])
            told = False
        elif line.startswith(more) and not told:
            typed.append(line[len(more) :])
        else:
            told = line.rstrip() != more.rstrip()
    return "\n".join(typed)


def _unfenced(text: str, language: str) -> str | None:
    if _is_json(text):
        return None  # the call of a tool, written out
    reads_as_code = _READS_AS.get(language, _is_ending)
    if reads_as_code(text):
        return text
    if label := _LABEL.search(text):
        rest = text[label.end() :].strip()
        if rest and reads_as_code(rest):
            return rest
    statements = [part for part in re.split(r"\n[ \t]*\n", text) if part.rstrip().endswith(";")]
    if language == "sql" and len(statements) == 1 and _is_sql(statements[0]):
        return statements[0].strip()
    inline = _INLINE.findall(text)
    if len(inline) == 1 and (_is_ending(inline[0]) or reads_as_code(inline[0])):
        return str(inline[0])
    return None


def _is_json(text: str) -> bool:
    """Whether it is a JSON object."""
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_ending(code: str) -> bool:
    return _ENDING.fullmatch(code.strip()) is not None


def _is_shell(text: str) -> bool:
    """It begins as commands do, and no line is a sentence."""
    return _SHELL.match(text) is not None and _PROSE.search(text) is None


def _is_sql(text: str) -> bool:
    """It begins as statements do, and does not end as sentences do."""
    return _SQL.match(text) is not None and _SENTENCE.search(text) is None


_READS_AS: Mapping[str, Callable[[str], bool]] = {
    "bash": _is_shell,
    "sql": _is_sql,
    "python": is_python,
}
