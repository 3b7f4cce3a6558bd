"""The types of tasks' answers, and the equivalence of two outputs under a type.

A question has one answer in many forms: ``8``, ``8 files``, ``/srv: 8``; absolute or relative
paths; a list with or without sizes. A task may declare the type of its answer
(``metadata.answer``). The declaration and gold's output then determine how the agent's output is
read (`answer_parsing`). The whole output counts: a right answer among wrong ones is not an answer.

==========  ======================================================================================
``state``   the files are the answer, and the output does not count
``number``  one number, in its unit; beside it only words of the question and paths
``yes-no``  one line with yes, no, true or false; or gold's own sentence
``path``    as for ``paths``
``paths``   files; absolute or relative to one folder; columns printed by tools do not count
``lines``   lines, whatever the blanks in them, and numbers or file names before all of them
``table``   rows with these columns; beside them only cells that gold's rows have
``text``    text, up to blanks at line ends and empty lines at both ends
==========  ======================================================================================

Paths, lines and rows may have any order, with the same multiplicities, unless the task declares
otherwise. A message of a tool is not a part of an answer (`error_messages`), unless gold prints
it, too. All functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intercode.episode import Episode
from intercode.errors import TaskError
from intercode.rewards.answer_parsing import READINGS, AnswerForm, ParsedColumn, collapse_blanks
from intercode.rewards.digest_archive import KINDS
from intercode.rewards.error_messages import drop_complaints, is_message
from intercode.rewards.quantities import QuestionWords
from intercode.task import Task

TYPES = ("state", "number", "yes-no", "path", "paths", "lines", "table", "text")
_COLUMN_TYPES = ("number", "path", "text")
_TOTALS = ("", "optional", "needed")
_MAX_CHARACTERS, _MAX_LINE_CHARACTERS = 50_000, 1000
"""Limits above which outputs are compared as text.

Answers are written for people, and parsing takes up to the square of a line's length.
"""
_PIPE_CHECKSUM = re.compile(r"([0-9a-f]{32,128})\s+(?:-|/dev/(?:stdin|fd/\d+))")
"""A checksum of a pipe's data, and the name that the tool prints instead of a file's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerType(AnswerForm):
    """The type of an answer, and the properties that count in the comparison."""

    VERSION = 1
    """The version of the scores: raise the number when any score can differ."""

    type: str
    both: bool = False
    """Whether both the files and the output count."""
    archives: Mapping[str, str] = field(default_factory=dict)
    """Path → kind (`intercode.rewards.digest_archive`) of archives, compared by their members."""

    @classmethod
    def parse(cls, task: Task) -> AnswerType | None:
        """Return the type of a task's answer; None if the task declares no type.

        Raises:
            TaskError: The declaration is malformed.
        """
        specification = task.metadata.get("answer")
        if specification is None:
            return None
        fields = {"type": specification} if isinstance(specification, str) else specification
        try:
            return cls._read(dict(fields), QuestionWords.parse(task.query))
        except (TypeError, ValueError, KeyError) as error:
            raise TaskError(
                f"task {task.task_id!r}: 'metadata.answer': {error}; it must be one of "
                f"{', '.join(TYPES)}, or an object with one of them as 'type' "
                "(docs/gym/rewards.md)"
            ) from None

    @classmethod
    def _read(cls, fields: dict[str, Any], question: QuestionWords) -> AnswerType:
        columns = tuple(
            ParsedColumn(entry["name"], entry["type"]) for entry in fields.pop("columns", ())
        )
        answer = cls(columns=columns, **fields)
        checks = (
            answer.type in TYPES,
            answer.total in _TOTALS,
            {*answer.archives.values()} <= {*KINDS},
        )
        if not all(checks) or any(column.type not in _COLUMN_TYPES for column in columns):
            raise ValueError("an unknown type")
        if (answer.type == "table") != bool(columns):
            raise ValueError("'columns' needs the type 'table'")
        object.__setattr__(answer, "question", question)
        return answer

    @property
    def is_printed(self) -> bool:
        """Whether the agent's output counts."""
        return self.type != "state" or self.both

    def is_equivalent(self, gold: str, output: str) -> bool:
        """Return whether an output gives the same answer as gold's output."""
        if normalise(gold).strip("\n") == normalise(output).strip("\n"):
            return True
        if self.type not in READINGS or max(len(gold), len(output)) > _MAX_CHARACTERS:
            return False
        lines, output_lines = _lines(gold), _lines(output)
        if (
            not lines
            or not output_lines
            or max(map(len, (*lines, *output_lines))) > _MAX_LINE_CHARACTERS
        ):
            return False
        packed_lines = {*map(collapse_blanks, lines)}
        if any(
            is_message(line) and collapse_blanks(line) not in packed_lines for line in output_lines
        ):
            return False
        return READINGS[self.type](self, lines)(output_lines)


def _lines(text: str) -> list[str]:
    """Return the lines of an output that may hold the answer.

    Empty lines, and complaints of tools about unreadable files, are removed. A checksum of a pipe's
    data loses the name of the pipe.
    """
    rows = drop_complaints([line.rstrip() for line in text.split("\n") if line.strip()])
    return [match[1] if (match := _PIPE_CHECKSUM.fullmatch(row)) else row for row in rows]


# -- texts -----------------------------------------------------------------------------------------


def normalise(text: str) -> str:
    """Return a text without trailing whitespace, which a terminal does not show.

    Whitespace at the end of each line is removed, including the carriage return of a Windows line
    end. Empty lines at the end of the text are removed, too. Case, the order of lines, and
    whitespace within a line are unchanged.
    """
    lines = [line.rstrip(" \t\r\v\f") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)


def similarity(first_text: str, second_text: str) -> float:
    """Return the share of words that two texts have in common, in [0, 1], counted with repeats.

    The formula is Dice's coefficient, 2·|common| / (|first| + |second|), in time linear in the
    texts. The value is for partial credit only: texts with the value 1.0 need not be equal.
    """
    if first_text == second_text:
        return 1.0
    first_counts, second_counts = Counter(first_text.split()), Counter(second_text.split())
    total = first_counts.total() + second_counts.total()
    return 2 * (first_counts & second_counts).total() / total if total else 0.0


def last_output(episode: Episode) -> str | None:
    """Return the last executed action's output, without notes to the agent; None: no action ran."""
    for turn in reversed(episode.turns):
        if turn.info.get("executed", True):
            return str(turn.info.get("output", turn.observation))
    return None
