"""The prose of source files and pages: passages, each with its sentences and their lines.

A passage is a paragraph, an item of a list, or an entry of a section such as ``Args:``. Code blocks
are left out. Code in backticks becomes one word of underscores: no rule reads its words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
QUOTATION = re.compile(r"'[\w/.-]+'|\"[^\"\n]{0,100}\"")
"""A quoted word or phrase: an example, which is not the writer's English."""
LINK = re.compile(r"\]\([^)\s]*\)|https?://\S+")
DIRECTIVE = re.compile(r"!|:|noqa|type:|pragma:|pylint:|mypy:|ruff:|fmt:|allow \w+:|-\*-")
"""The beginning of a comment for a tool."""
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Examples?|Notes?|Todo):$")
ENTRY = re.compile(r"\*{0,2}[\w.]+(, [\w.]+)*( \([^)]*\))?: ")
"""The beginning of a section's entry: the name that the entry describes."""
ITEM = re.compile(r"([-*+]|\d+[.)]) +")
COLUMN = re.compile(r"\S+( \S+)* {2,}(?=\S)")
"""The first column of a row of a help text, in which spaces align the second."""
MARKER = re.compile(r"#+ |> ?|\|")
END = re.compile(r"[.!?][\"')\]*_]*$")
"""The end of a sentence's last word."""
BEGINNING = re.compile(r"[\"'(\[*_]*[A-Z`\d]")
ABBREVIATIONS = {"e.g.", "i.e.", "cf.", "vs.", "etc.", "approx.", "al.", "fig.", "p.", "dr."}
"""Words whose full stop ends no sentence."""


class Sentence(NamedTuple):
    """A sentence: the line of each of its words, and the words without code and quotations."""

    kind: str
    """Name of the text's kind.

    - of docstrings: module, command (a module whose docstring is a help text), class, function,
      generator, truth (a function that returns a bool), property, value (an attribute), callable
      (an attribute that is called)
    - of other texts: comment, page
    """
    is_opening: bool
    """Whether its docstring begins with it."""
    lines: tuple[int, ...]
    words: tuple[str, ...]

    @property
    def line(self) -> int:
        """The line of the first word."""
        return self.lines[0]


class Passage(NamedTuple):
    """Lines of prose that belong together, with their numbers."""

    kind: str
    is_opening: bool
    lines: list[tuple[int, str]]


def mask(match: re.Match[str]) -> str:
    """Replace code by a word of the same length, in backticks."""
    return f"`{'_' * (len(match[0]) - 2)}`"


def sentences(passage: Passage) -> Iterator[Sentence]:
    """Yield the sentences of a passage."""
    text = "\n".join(line for _, line in passage.lines)
    numbers = [number for number, _ in passage.lines]
    prose = CODE.sub(mask, text)
    prose = LINK.sub(lambda link: "]" + "_" * (len(link[0]) - 1), prose)
    prose = QUOTATION.sub(mask, prose)
    words = [match for match in re.finditer(r"\S+", prose) if re.search(r"[\w→]", match[0])]
    start = 0
    for position, word in enumerate(words, start=1):
        is_end = END.search(word[0]) and word[0].lower().lstrip("(") not in ABBREVIATIONS
        is_last = position == len(words)
        if is_last or (is_end and BEGINNING.match(words[position][0])):
            parts = words[start:position]
            lines = tuple(numbers[text.count("\n", 0, part.start())] for part in parts)
            is_opening = passage.is_opening and not start
            yield Sentence(passage.kind, is_opening, lines, tuple(part[0] for part in parts))
            start = position


def split(kind: str, lines: Iterable[tuple[int, str]]) -> Iterator[Passage]:
    """Split a docstring's, a comment's or a page's lines into passages, without code blocks."""
    passage: list[tuple[int, str]] = []
    is_opening, section, code_indent, first_indent, fence = True, "", -1, 0, ""
    for number, line in lines:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if fence or text.startswith(("```", "<!--")):
            is_closed = fence and text.endswith(fence)
            fence = fence or ("-->" if text.startswith("<!--") else "```")
            is_one_line = fence == "-->" and text.endswith(fence)
            fence = "" if is_closed or is_one_line else fence
            text = ""
        is_code = text.startswith((">>>", "... ")) or 0 <= code_indent < indent
        header, item, entry = SECTION.match(text), ITEM.match(text), ENTRY.match(text)
        marker = MARKER.match(text) or (COLUMN.match(text) if indent else None)
        is_boundary = not text or is_code or header or item or marker
        is_entry = entry and section in ("Args", "Attributes", "Raises")
        if passage and (is_boundary or is_entry):
            if not text and passage[-1][1].endswith("::"):
                code_indent = first_indent
            yield Passage(kind, is_opening, passage)
            is_opening, passage = False, []
        if text and not is_code:
            code_indent = -1
        section = header[1] if header else "" if text and not indent else section
        if not text or is_code or header or section.startswith("Example"):
            continue
        if text.startswith("|"):  # a row of a table, whose cells are passages
            for cell in text.strip("|").split("|"):
                yield Passage(kind, False, [(number, cell)])
            continue
        beginning = item or marker or (entry if is_entry else None)
        first_indent = indent if not passage else first_indent
        passage.append((number, text[beginning.end() :] if beginning else text))
    if passage:
        yield Passage(kind, is_opening, passage)


def kind_of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return what a function's docstring describes: an action, or the values that it gives."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    returns = ast.unparse(node.returns) if node.returns else ""
    if re.search(r"property\b", decorators):
        return "property"
    if re.match(r"(Async)?(Iterator|Generator|Iterable)\b", returns):
        return "generator"
    return "truth" if returns == "bool" else "function"


def strings(tree: ast.AST) -> Iterator[tuple[str, ast.Constant]]:
    """Yield the docstrings of modules, classes, functions and attributes, with their kinds."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        match node:
            case ast.Module():
                names = {
                    getattr(child, "name", getattr(child, "id", "")) for child in ast.walk(node)
                }
                kind = "command" if names & {"configure", "__doc__"} else "module"
            case ast.ClassDef():
                kind = "class"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                kind = kind_of_function(node)
            case _:
                kind = ""
        for predecessor, statement in pairwise((None, *body)):
            is_value = isinstance(predecessor, ast.Assign | ast.AnnAssign)
            is_callable = is_value and re.search(r"\bCallable\b", ast.unparse(predecessor))
            value_kind = "callable" if is_callable else "value"
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as string):
                    if is_value or (kind and predecessor is None):
                        yield value_kind if is_value else kind, string


def comments(source: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the comments of a module as numbered lines; lines below each other are one comment."""
    block: list[tuple[int, str]] = []
    column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string[1:].lstrip()):
            continue
        number, start = token.start
        is_alone = not token.line[:start].strip()
        if block and not (is_alone and start == column and number == block[-1][0] + 1):
            yield block
            block = []
        block.append((number, token.string.lstrip("#").removeprefix(" ")))
        column = start if is_alone else -1
    if block:
        yield block


def passages(path: Path) -> Iterator[Passage]:
    """Yield the passages of a page, or of a module's docstrings and comments."""
    source = path.read_text()
    if path.suffix != ".py":
        yield from split("page", enumerate(source.splitlines(), start=1))
        return
    for kind, node in strings(ast.parse(source)):
        headline, *rows = str(node.value).split("\n")
        margin = node.col_offset
        rows = [
            headline.strip(),
            *(row[min(margin, len(row) - len(row.lstrip())) :] for row in rows),
        ]
        yield from split(kind, enumerate(rows, start=node.lineno))
    for block in comments(source):
        yield from split("comment", block)


def files(path: Path) -> Iterator[Path]:
    """Yield the modules and pages of a folder, without templates, or the file itself."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.suffix in (".py", ".md") and not {"templates", "repository"} & {*file.parts}:
            yield file
