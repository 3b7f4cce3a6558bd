"""Blocks of a page: their commands, the outputs that they state, and the check of both.

A page states the output of

- a console block by the lines without a prompt;
- a Python block by comments on a ``print(…)`` or directly below it, and by a fenced block without a
  language directly below the Python block.

Each stated line must be among the printed lines; ``…`` stands for any text.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs import observed
from docs.observed import FAILED_ACTION

ROOT = Path(__file__).parents[2]
OBSERVED = Path(observed.__file__)
"""The program that runs a Python block, and reports its failed actions."""
MARK = re.compile(r"<!-- (file|not run|exit|failing actions):? (.+?) -->")
DURATION = re.compile(r" \[[^][]* s\]$")
"""Behind an action, where a machine is slow: `   [1.2 s]`."""


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    lines: list[str] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    """The comments directly above it: ``file``, ``not run``, ``exit``, ``failing actions``."""
    output: list[str] = field(default_factory=list)
    """The lines of the output block directly below a Python block."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    block: Block | None = None
    above: Block | None = None
    marks: dict[str, str] = {}
    read: list[Block] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if block is not None:
            if line.strip() == "```":
                if above is not None and not block.language:
                    above.output = block.lines
                above = block if block.language == "python" else None
                read.append(block)
                block = None
            else:
                block.lines.append(line)
        elif match := MARK.fullmatch(line):
            marks[match[1]] = match[2]
        elif match := re.fullmatch(r"```(\w*)", line):
            block, marks = Block(page, number, match[1], marks=marks), {}
        elif line.strip():
            marks, above = {}, None
    assert block is None, f"{page}: a block is not closed"
    yield from read


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """List command and stated output of a console block."""
    entries: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            entries.append((line[2:], []))
        elif line.startswith("> ") and entries and not entries[-1][1]:
            entries[-1] = (f"{entries[-1][0]}\n{line[2:]}", [])
        elif entries:
            entries[-1][1].append(line)
        else:
            raise AssertionError(f"{block.where}: output before any command")
    return entries


def stated_output(block: Block) -> list[str]:
    """List the lines that a Python block is said to print."""
    lines: list[str] = []
    begins, prints = True, False
    for token in tokenize.generate_tokens(io.StringIO(block.text).readline):
        if token.type == tokenize.COMMENT:
            lines += [token.string.removeprefix("#")] * prints
        elif token.type == tokenize.NEWLINE:
            begins = True
        elif token.type == tokenize.NL:
            prints = prints and bool(token.line.strip())  # a blank line ends the output
        elif begins and token.type not in (tokenize.INDENT, tokenize.DEDENT):
            begins, prints = False, token.string == "print"
    return lines + block.output


def check_output(shown: list[str], output: str, where: str) -> None:
    """Require each line that a page shows among the printed lines; runs of blanks count as one.

    The duration of an action is left out.
    """
    printed = [" ".join(DURATION.sub("", line).split()) for line in output.splitlines()]
    for line in shown:
        parts = [" ".join(part.split()) for part in line.split("…")]
        pattern = re.compile(".*".join(map(re.escape, parts)))
        if any(parts) and not any(pattern.fullmatch(text) for text in printed):
            raise AssertionError(f"{where}: nothing printed is like {line!r}:\n{output}")


def check_python(block: Block, output: str) -> None:
    """Require the stated output of a Python block, and success of each of its actions.

    A block whose actions are meant to fail is marked with their number:
    ``<!-- failing actions: 1 -->``.
    """
    failed = [line for line in output.splitlines() if line.startswith(FAILED_ACTION)]
    expected = int(block.marks.get("failing actions", "0"))
    assert len(failed) == expected, "\n".join(
        [f"{block.where}: {expected} actions may fail:", *failed]
    )
    check_output(stated_output(block), output, block.where)
