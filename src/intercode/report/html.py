"""A report as one HTML file that needs nothing else: no network, no other file.

The text of agents and programs is hostile. In the page's tables the template escapes it. The
episodes are in the page as Base64, which cannot end the element that holds it; the page's own
script, the only one that its policy allows to run, inserts them as text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from intercode import __version__
from intercode.episode import Episode
from intercode.errors import RecordWriteError
from intercode.evaluate.statistics import Estimate
from intercode.evaluate.summary import by_turn
from intercode.files import write_whole
from intercode.records import Key, key_of
from intercode.report.runs import Run
from intercode.report.tables import Table
from intercode.report.text import printable

CHUNK = 100
"""Episodes that are packed together."""
LONGEST = 20_000
"""Characters that are kept of each text: its head and its tail."""
LINE = 160
"""Characters of a query in the list."""
COLOURS = 8
"""Colours of the style sheet: ``c0`` … ``c7``, each with its own dashes."""
_STATES = ("solved", "not solved", "truncated", "skipped", "ended", "error")
_BESIDE = 3
"""Columns that have room for pictures beside their numbers; of more, they stand below."""
_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, _WIDTH - 16, 12, _HEIGHT - 44
_LINE = 20
_LONG_NAME = 52
"""Characters of a name that may stand beside another one."""

Section = tuple[str, Sequence[Table]]
"""A heading, and the tables under it."""


def write_page(
    path: Path,
    runs: Sequence[Run],
    sections: Sequence[Section],
    episodes: Episodes,
    warnings: Sequence[str] = (),
    details: Sequence[Section] = (),
) -> None:
    """Write the page.

    Args:
        path: The file.
        runs: The runs that it reports on.
        sections: The sections.
        episodes: The episodes of the runs.
        warnings: Warnings at the top; all but the first line is folded away.
        details: More sections, folded away if there are several.

    Raises:
        RecordWriteError: The file cannot be written.
    """
    style, script = _file("page.css"), f"{_file('list.js')}\n{_file('episode.js')}"
    from jinja2 import Environment, StrictUndefined

    labels = [f"{run.label}: {run.where}" for run in runs]
    blocks = [*sections, *(details if len(details) == 1 else ())]
    folded, figures = details if len(details) > 1 else (), [*_figures(runs)]
    contents = [(f"part-{number}", heading) for number, (heading, _) in enumerate(blocks)]
    contents[1:1] = [("turns", "Success against turns")] if figures else []
    contents += [("runs", "Each run")] if folded else []
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["printable"] = printable
    text = environment.from_string(_file("page.html")).render(
        version=__version__,
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'",
        title=labels[0] if len(labels) == 1 else f"{len(labels)} runs",
        count=f"{sum(len(run.outcomes) for run in runs):,}",
        contents=contents,
        style=style,
        warnings=[(first, rest) for first, _, rest in (w.partition("\n") for w in warnings)],
        blocks=[(heading, map(_table, tables)) for heading, tables in blocks],
        folded=[(heading, map(_table, tables)) for heading, tables in folded],
        figures=figures,
        labels=labels,
        states=_STATES,
        data=episodes.packed(),
        script=script,
    )
    try:
        write_whole(path, text)
    except OSError as error:
        raise RecordWriteError(f"cannot write {path}: {error.strerror}") from error


def _file(name: str) -> str:
    return (resources.files("intercode.report") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _table(table: Table) -> dict[str, Any]:
    """Prepare a table for the template."""
    kinds = [kind for _, kind in table.columns]
    left = [kind == "words" or number < table.left for number, kind in enumerate(kinds)]
    return {
        "title": table.title,
        "crowded": kinds.count("estimate") > _BESIDE,
        "head": [(name, flush) for (name, _), flush in zip(table.columns, left, strict=True)],
        "note": table.note,
        "rows": [
            [
                {"text": text, "left": flush, "head": flush and kind == "text", "at": at}
                for text, flush, kind, at in zip(
                    cells, left, kinds, _intervals(row, kinds), strict=True
                )
            ]
            for row, cells in zip(table.rows, table.cells(), strict=True)
        ],
    }


def _intervals(row: Sequence[Any], kinds: Sequence[str]) -> Iterator[Any]:
    """Yield for each cell the rate and the interval of its picture, or None."""
    rate: Any = None
    for value, kind in zip(row, kinds, strict=True):
        rate = value if kind == "rate" else rate
        known = kind in ("interval", "estimate") and value is not None
        yield ((rate, *value) if kind == "interval" else value) if known else None


def _figures(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield success against turns for each environment, in each with the same colours."""
    colours = {label: n for n, label in enumerate(dict.fromkeys(run.label for run in runs))}
    for where in dict.fromkeys(run.where for run in runs):
        series = {run.label: by_turn(run.outcomes) for run in runs if run.where == where}
        if series := {name: points for name, points in series.items() if points}:
            yield _figure(where, series, colours)


def _figure(
    where: str, series: Mapping[str, Sequence[Estimate]], colours: Mapping[str, int]
) -> dict[str, Any]:
    turns = max(map(len, series.values()))
    columns = 2 if max(map(len, series)) <= _LONG_NAME else 1
    lines = -(-len(series) // columns)

    def at(turn: int, rate: float) -> tuple[float, float]:
        across = (turn - 1) / (turns - 1) if turns > 1 else 0.5
        x, y = _LEFT + (_RIGHT - _LEFT) * across, _TOP + (_BOTTOM - _TOP) * (1 - rate)
        return round(x, 1), round(y, 1)

    def curve(number: int, name: str, points: Sequence[Estimate]) -> dict[str, Any]:
        # An agent that has stopped stays where it is.
        known = [*enumerate([*points, *([points[-1]] * (turns - len(points)))], 1)]
        column, line = divmod(number, lines)
        dots = [at(turn, point.value) for turn, point in known]
        edge = [at(turn, point.high) for turn, point in known]
        edge += [at(turn, point.low) for turn, point in reversed(known)]
        return {
            "name": name,
            "colour": colours[name] % COLOURS,
            "dots": dots,
            "line": " ".join(f"{x},{y}" for x, y in dots),
            "band": " ".join(f"{x},{y}" for x, y in edge),
            "x": _LEFT + column * (_WIDTH - _LEFT) // 2,
            "y": _HEIGHT + _LINE * line + 8,
        }

    return {
        "where": where,
        "width": _WIDTH,
        "height": _HEIGHT + _LINE * lines,
        **{"left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM},
        "levels": [(at(1, step / 100)[1], step) for step in range(0, 101, 20)],
        "turns": [(at(n, 0)[0], n) for n in range(1, turns + 1, max(1, -(-turns // 15)))],
        "curves": [curve(number, *item) for number, item in enumerate(series.items())],
    }


class Episodes:
    """The episodes of a page: packed a hundred at a time, unpacked when they are looked at.

    So ten thousand of them are not a burden, neither for this program nor for the browser.
    """

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._open: list[dict[str, Any]] = []
        self._rows: dict[tuple[int, Key], dict[str, Any]] = {}

    def add(self, run: int, episode: Episode) -> None:
        """Add an episode; it replaces an earlier record of the same one."""
        key = (run, key_of(episode))
        self._rows.pop(key, None)
        self._rows[key] = {
            "run": run,
            "chunk": len(self._chunks),
            "offset": len(self._open),
            "task": episode.task_id,
            "epoch": episode.epoch,
            "query": _line(episode.query),
            "status": episode.status,
            "success": episode.success,
            "reward": episode.reward,
            "turns": len(episode.turns),
            "seconds": episode.seconds,
        }
        self._open.append(_shortened(episode))
        if len(self._open) == CHUNK:
            self._close()

    def packed(self) -> dict[str, str]:
        """Return the page's data: the id of each element that holds some, and its text."""
        self._close()
        names = next(iter(self._rows.values()), {"task": ""})
        columns = {name: [row[name] for row in self._rows.values()] for name in names}
        chunks = {f"chunk-{number}": text for number, text in enumerate(self._chunks)}
        return {"index": _packed(columns), **chunks}

    def _close(self) -> None:
        if self._open:
            self._chunks.append(_packed(self._open))
            self._open = []


def _packed(data: Any) -> str:
    # Level 5 is three times as fast as the best and hardly larger; no clock in it.
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 5, mtime=0)).decode("ascii")


def _shortened(episode: Episode) -> dict[str, Any]:
    score, names = episode.score, ("reward", "ok", "exit_code", "seconds")
    return {
        "query": _cut(episode.query),
        "turns": [
            {
                "action": _cut(turn.action),
                "observation": _cut(turn.observation),
                **{name: getattr(turn, name) for name in names},
                "info": _cut(turn.info),
                **({} if turn.changes is None else {"changes": _cut(asdict(turn.changes))}),
            }
            for turn in episode.turns
        ],
        "answer": _cut(episode.answer),
        "error": _cut(episode.error),
        "score": score
        and {"value": score.value, "parts": dict(score.parts), "detail": _cut(score.detail)},
        "metadata": _cut(episode.metadata),
    }


def _cut(value: Any) -> Any:
    """Cut the texts in a value, which becomes one that JSON has."""
    if isinstance(value, str) and len(value) > LONGEST:
        head, tail = value[: LONGEST - LONGEST // 3], value[-(LONGEST // 3) :]
        left = len(value) - len(head) - len(tail)
        return f"{head}\n… {left} characters more: see 'intercode show' …\n{tail}"
    if isinstance(value, dict):
        return {str(key): _cut(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _line(text: str) -> str:
    """Return the beginning of a text, for the list."""
    line = " ".join(text[: 2 * LINE].split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"
