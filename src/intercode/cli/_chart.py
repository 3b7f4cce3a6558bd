"""The chart of success against turns, as wide as the terminal, in characters that it has."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from intercode.cli._text import safe
from intercode.evaluate.statistics import Estimate
from intercode.evaluate.summary import by_turn
from intercode.report.runs import Run
from intercode.report.text import LEAST, chart

WIDEST = 80


def for_terminal(series: Mapping[str, Sequence[Estimate]]) -> str:
    """The chart for standard output.

    Args:
        series: Name → the rates within 1, 2, … turns.
    """
    width = shutil.get_terminal_size((WIDEST, 24)).columns
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return chart(
        {safe(name): points for name, points in series.items()},
        width=max(LEAST, min(WIDEST, width) - 1),
        ascii_only=encoding != "utf8",
    )


def of_each_environment(runs: Sequence[Run]) -> str:
    """A chart for each environment, of the runs in it."""
    texts = []
    for where in dict.fromkeys(run.where for run in runs):
        series = {run.label: by_turn(run.outcomes) for run in runs if run.where == where}
        drawn = for_terminal(series) or "no episode has a result yet\n"
        # A name that is too long is cut, and with it who judged.
        judges = dict.fromkeys(run.judge for run in runs if run.where == where and run.judge)
        notes = "".join(f"successes judged by {safe(judge)} are among them\n" for judge in judges)
        texts.append(f"{safe(where)}: success within so many turns\n\n{drawn}{notes}")
    return "\n".join(texts)
