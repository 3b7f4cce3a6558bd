"""Pairs of an agent's answer and the reference solution (gold), for a comparison side by side.

The pairs are derived from the record of an episode, and from its task if the viewer has the task.
All texts quote gold.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from intercode.episode import Episode
from intercode.report.reward_reasons import MAX_QUOTED_ENTRIES
from intercode.task import Task

_BORDER = " │ "
"""The border between two columns of a row. The page's script also knows this text."""
_AMBIGUOUS = re.compile(r"\s.*|.*\s|\".*|[-+]?[\d.]+([eE][-+]?\d+)?|NULL|true|false|", re.DOTALL)
_DEFINITION = re.compile(r"^[ \t]*(def|class) ", re.MULTILINE)
_PATCH = re.compile(r"^diff --git .*", re.MULTILINE | re.DOTALL)
_NO_PATCH = (
    "No action applied or printed a patch. With --keep-diffs, a run records the files that each "
    "turn changes."
)
_MAX_CELL_LENGTH = 500
"""The maximum number of characters in a cell. A reward records less; a foreign record may not."""
_TRUNCATED = f"Only the first {MAX_QUOTED_ENTRIES} rows are recorded."
_SOLUTIONS = {
    "bash": ("commands", "bash"),
    "ctf": ("flag", ""),
    "python": ("code", "python"),
    "sql": ("statement", "sql"),
    "swe": ("patch", "diff"),
}
"""Short name of an environment → the name of what solves its tasks, and the language of it."""


class AnswerPair(NamedTuple):
    """Two texts that a reader compares: the agent's, and that of the reference solution (gold)."""

    title: str
    """The name of what is compared, such as ``output`` or ``rows``."""
    answer: str | None
    """The agent's text; None: the record has no such text."""
    gold: str
    is_result: bool
    """Whether the reward compares such texts. Otherwise they are two ways to a result, and may
    differ although both are right."""
    language: str = ""
    note: str = ""


def answer_pairs(episode: Episode, task: Task | None) -> list[AnswerPair]:
    """Return the pairs of an episode, first those that its reward compares.

    Args:
        episode: The episode.
        task: The task of the episode; None: the viewer does not have the task.
    """
    return [*_results(episode), *_solutions(episode, task)]


def _results(episode: Episode) -> Iterable[AnswerPair]:
    detail: dict[str, Any] = {} if episode.score is None else dict(episode.score.detail)
    if "gold_output" in detail and episode.score and "output" in episode.score.parts:
        output = detail.get("output")
        answer = None if output is None else str(output)
        note = "The agent ran no action with an output." if output is None else ""
        yield AnswerPair("output", answer, str(detail["gold_output"]), is_result=True, note=note)
    gold_rows, rows = detail.get("gold_rows"), detail.get("answer_rows")
    if isinstance(gold_rows, list) and not episode.success:
        yield _rows_pair(rows if isinstance(rows, list) else None, gold_rows)


def _solutions(episode: Episode, task: Task | None) -> Iterable[AnswerPair]:
    if task is None or not task.gold:
        return
    title, language = _SOLUTIONS.get(episode.env, ("solution", ""))
    others = len(task.gold) - 1
    note = f"Gold has {others} more alternative{'s' * (others > 1)}." if others else ""
    answer = _solution(episode)
    if answer is None and episode.env == "swe":
        note = _NO_PATCH
    yield AnswerPair(title, answer, task.gold[0], episode.env == "ctf", language, note)


def _solution(episode: Episode) -> str | None:
    """Return the agent's counterpart of gold; None if the record has none."""
    actions = [turn.action for turn in episode.turns if turn.action]
    if episode.answer is not None or episode.env == "ctf":
        return episode.answer
    detail = {} if episode.score is None else episode.score.detail
    if episode.env == "sql":
        return str(detail.get("answer") or (actions[-1] if actions else "")) or None
    if episode.env == "python":
        definitions = [action for action in actions if _DEFINITION.search(action)]
        return next(iter([*reversed(definitions), *reversed(actions)]), None)
    if episode.env == "swe":
        return _last_patch(episode)
    return "\n".join(actions) or None


def _last_patch(episode: Episode) -> str | None:
    """Return the last patch that an action printed or applied; None if there is none."""
    for turn in reversed(episode.turns):
        for text in (turn.observation, turn.action):
            if match := _PATCH.search(text):
                return match[0]
    return None


def _rows_pair(rows: Sequence[Any] | None, gold_rows: Sequence[Any]) -> AnswerPair:
    """Return rows as lines with aligned columns.

    If the results differ only in their order, the rows have this order. Otherwise the common rows
    come first. The others of gold follow in the order of those of the answer with the same first
    cell. Then a comparison by line finds exactly the rows that differ.
    """
    rows = None if rows is None else rows[:MAX_QUOTED_ENTRIES]
    gold_rows = gold_rows[:MAX_QUOTED_ENTRIES]
    texts = _lines([*(rows or ()), *gold_rows])
    answer_lines, gold_lines = texts[: len(rows or ())], texts[len(rows or ()) :]
    is_complete = max(len(answer_lines), len(gold_lines)) < MAX_QUOTED_ENTRIES
    missing, extra = Counter(gold_lines), Counter(answer_lines)
    missing, extra = missing - extra, extra - missing
    if is_complete and (missing or extra):
        common = [*(Counter(answer_lines) - extra).elements()]
        order = [_first_cell(line) for line in extra.elements()]
        answer_lines = [*common, *extra.elements()]
        gold_lines = [*common, *sorted(missing.elements(), key=lambda line: _rank(line, order))]
    answer = None if rows is None else "\n".join(answer_lines)
    note = "" if is_complete else _TRUNCATED
    if rows is None:
        note = "The record has no rows of the answer."
    return AnswerPair("rows", answer, "\n".join(gold_lines), is_result=True, note=note)


def _first_cell(line: str) -> str:
    return line.partition(_BORDER)[0]


def _rank(line: str, first_cells: Sequence[str]) -> int:
    """Return the index of a line's first cell among some first cells, or their number."""
    cell = _first_cell(line)
    return first_cells.index(cell) if cell in first_cells else len(first_cells)


def _lines(rows: Sequence[Any]) -> list[str]:
    """Format rows as lines, in which equal columns have equal widths."""
    table = [[_cell(cell) for cell in (row if isinstance(row, list) else [row])] for row in rows]
    widths: dict[int, int] = {}
    for cells in table:
        for column, cell in enumerate(cells):
            widths[column] = max(widths.get(column, 0), len(cell))
    return [
        _BORDER.join(cell.ljust(widths[column]) for column, cell in enumerate(cells)).rstrip()
        for cells in table
    ]


def _cell(value: object) -> str:
    """Return a cell as a text of one line, in which a text and a number never look alike."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        value = value[:_MAX_CELL_LENGTH]
        if not _AMBIGUOUS.fullmatch(value) and "\n" not in value:
            return value
    return json.dumps(value, ensure_ascii=False, default=str)[: 2 * _MAX_CELL_LENGTH]
