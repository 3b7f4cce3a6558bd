"""Views in notebooks: the HTML of environments, episodes, datasets, runs and comparisons.

The classes' methods ``_repr_html_`` reach these functions by `intercode.registry.NOTEBOOK`. The
Jinja file beside this module has the markup. Texts of agents and programs are untrusted, so the
Jinja environment escapes every value, and a view contains no script and no link.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from intercode.dialogues import agent_talk
from intercode.episode import Episode
from intercode.evaluate.progress import Progress
from intercode.evaluate.statistics import IntervalEstimate
from intercode.evaluate.summary import by_level, by_tag, by_turn
from intercode.lazy_names import import_name
from intercode.outcomes import OUTCOMES
from intercode.records import Outcome
from intercode.report.reward_reasons import explain_reward
from intercode.report.runs import PairedRunComparison, RecordedRun, find_judge, rate_name
from intercode.report.tables import (
    Kind,
    ReportTable,
    Row,
    format_value,
    group_table,
    known_interval,
    success_table,
)
from intercode.report.verdict import describe_drift
from intercode.task import Dataset
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.envs.episode_state import EpisodeEnv
    from intercode.evaluate.runner import RunResult
    from intercode.report.verdict import BaselineComparison

MAX_TEXT_LENGTH = 5_000
"""The maximum number of characters in a text of a view. Of a longer text, its ends remain."""
MAX_ROWS = 10
"""The maximum number of tasks or tags in a table of a view."""
MAX_ENTRIES = 20
"""The maximum number of reasons, and of parts of a score, in the view of an episode."""
_LINE_LENGTH = 120
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""An escape sequence that sets a terminal's colour."""
_CHART_WIDTH, _CHART_HEIGHT, _MAX_TICKS = 400, 120, 20
_REFRESH_SECONDS = 0.2


def episode_html(episode: Episode) -> str:
    """Return an episode with its turns, its reward and the reasons, which may quote gold.

    Of many turns, the first and the last ones remain; of many reasons, the first ones.
    """
    calls = (agent_talk(episode) or {}).get("calls", ())
    thoughts = {call.get("turn", 0): call["thought"] for call in calls if call.get("thought")}
    return _view(_macro("episode", episode, thoughts, explain_reward(episode), MAX_ENTRIES))


def env_html(env: EpisodeEnv) -> str:
    """Return an environment's name, tasks and turn limit, and its current episode."""
    facts = [
        env.name,
        env.traits.language,
        f"{env.dataset.name} ({format_count(len(env.dataset), 'task')})",
        format_count(env.max_turns, "turn"),
    ]
    has_episode = env.episode_state.is_begun
    detail = "" if has_episode else "There is no episode yet: call reset()."
    head = _macro("sections", [(" · ".join(dict.fromkeys(filter(None, facts))), detail)], [])
    return _view(head) + (episode_html(env.episode) if has_episode else "")


def dataset_html(dataset: Dataset) -> str:
    """Return the first tasks of a dataset, without gold."""
    rows = ((task.task_id, _line(task.query), ", ".join(task.tags)) for task in dataset)
    table = _text_table(repr(dataset), ("task", "query", "tags"), rows, len(dataset))
    return _view(_macro("sections", [], [table]))


def run_html(run: RunResult | RecordedRun) -> str:
    """Return the success of a run as tables and a chart, and the tasks that failed."""
    outcomes = run.outcomes
    if isinstance(run, RecordedRun):
        headline, judge = f"{run.env_label}: {run.label}", run.judge
        detail, label = run.unfinished_note, run.label
    else:
        headline = f"{len(outcomes)} of {format_count(run.planned, 'episode')}"
        judge, label = find_judge({}, outcomes), "the agent"
        detail = run.stopped or ("interrupted" if run.cut_short else "")
    rate, chart = rate_name(judge), _curve(by_turn(outcomes))
    tables = [
        success_table(outcomes, judge, [label] * run.shown_gold),
        *_group_tables(outcomes, rate),
        *_failure_tables(outcomes),
    ]
    return _view(_macro("sections", [(headline, detail)], tables, chart, rate))


def comparison_html(comparison: PairedRunComparison) -> str:
    """Return the difference of two runs, with its interval, and their consumption."""
    gain, test = comparison.difference, comparison.test
    if comparison.is_significant():
        better = "second" if gain.value > 0 else "first"
        headline = f"The {better} run is better by {format_value(abs(gain.value), 'size')} points"
    else:
        headline = "No difference is detected"
    columns: tuple[tuple[str, Kind], ...] = (
        ("tasks", "count"),
        *(("first run", "rate"), ("second run", "rate")),
        *(("difference", "points"), ("95 % interval", "range"), ("McNemar's p", "p")),
    )
    row = (
        *(comparison.tasks, comparison.first, comparison.second),
        *(gain.value, known_interval(gain), test and test.p),
    )
    consumptions = {
        "turns": comparison.turns,
        "tokens": comparison.tokens,
        "dollars": comparison.cost,
    }
    consumption_columns: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        *(("first run", "precise"), ("second run", "precise"), ("difference", "precise")),
    )
    consumption_rows = tuple(
        (name, means.first, means.second, means.difference.value)
        for name, means in consumptions.items()
        if means is not None
    )
    tables = [
        ReportTable("Task by task", columns, (row,)),
        ReportTable("Consumption per task", consumption_columns, consumption_rows),
    ]
    for title, task_ids in (
        ("Better in the first run", comparison.better_first),
        ("Better in the second run", comparison.better_second),
    ):
        rows = ((task_id,) for task_id in task_ids)
        tables += [_text_table(title, ("task",), rows, len(task_ids))] if task_ids else []
    return _view(_macro("sections", [(headline, "")], tables))


def baseline_html(comparison: BaselineComparison) -> str:
    """Return the verdicts on the runs of a comparison, the warnings, and the tables."""
    paragraphs = [(verdict.headline, verdict.detail) for verdict in comparison.verdicts()]
    for warning in describe_drift(comparison):
        headline, _, detail = warning.partition("\n")
        paragraphs.append((headline, detail))
    return _view(_macro("sections", paragraphs, comparison.tables()))


class NotebookProgress(Progress):
    """The progress of a run as a bar below the notebook's cell, updated in place."""

    def __init__(self) -> None:
        """Prepare an empty bar, which appears at the first event."""
        self._total = self._success_count = self._error_count = self._episode_count = 0
        self._note = ""
        self._handle: Any = None
        self._last_time = 0.0

    def begin(self, total: int, outcomes: Sequence[Outcome]) -> None:
        """Draw the bar, with the finished episodes of earlier sessions."""
        self._total, self._episode_count = total, len(outcomes)
        self._success_count = sum(outcome.success for outcome in outcomes)
        self._draw()

    def episode(self, episode: Episode) -> None:
        """Count an ended episode."""
        self._episode_count += 1
        self._success_count += episode.success
        self._error_count += episode.status == "error"
        self.tick()

    def tick(self) -> None:
        """Draw the bar if its last update is long enough ago."""
        if time.monotonic() - self._last_time >= _REFRESH_SECONDS:
            self._draw()

    def report_interrupt(self, running_count: int) -> None:
        """Show that the run stops after the episodes in flight."""
        self._note = "stopping after the running episodes; a second interrupt stops at once"
        self._draw()

    def announce(self, text: str) -> None:
        """Show the start of long work."""
        self._note = text
        self._draw()

    def end_preparation(self) -> None:
        """Remove the text of the work that has ended."""
        self._note = ""

    def end(self) -> None:
        """Draw the final state."""
        self._note = ""
        self._draw()

    def _draw(self) -> None:
        self._last_time = time.monotonic()
        texts = [
            f"{self._episode_count}/{self._total}",
            f"{self._success_count} solved",
            format_count(self._error_count, "error") if self._error_count else "",
            self._note,
        ]
        text = " · ".join(filter(None, texts))
        html = _view(_macro("progress", self._episode_count, self._total, text))
        output = {"text/html": html, "text/plain": text}
        if self._handle is None:
            display = import_name("IPython.display:display")
            self._handle = display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)


def _group_tables(outcomes: Sequence[Outcome], rate: str) -> list[ReportTable]:
    """Return the success by difficulty, or by tag if no task has a level of difficulty."""
    levels = by_level(outcomes)
    groups = levels or by_tag(outcomes)
    if not groups:
        return []
    title, shown_groups = "By difficulty" if levels else "By tag", [*groups.items()][:MAX_ROWS]
    return [group_table(title, dict(shown_groups), _omission_note(len(groups)), rate)]


def _failure_tables(outcomes: Sequence[Outcome]) -> list[ReportTable]:
    """Return the counts of outcome kinds, and the tasks of the episodes that were not solved."""
    failures = [outcome for outcome in outcomes if not outcome.success]
    if not failures:
        return []
    counts = Counter(outcome.kind for outcome in failures)
    columns: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        ("meaning", "words"),
        ("episodes", "count"),
    )
    kind_rows = tuple(
        (kind, meaning, counts[kind]) for kind, meaning in OUTCOMES.items() if counts[kind]
    )
    task_rows = (
        (
            outcome.task_id,
            _line(": ".join(filter(None, (outcome.kind, outcome.error, *outcome.modes)))),
            str(outcome.turns),
        )
        for outcome in failures
    )
    return [
        ReportTable("Failures by outcome", columns, kind_rows),
        _text_table("Tasks not solved", ("task", "outcome", "turns"), task_rows, len(failures)),
    ]


def _text_table(
    title: str, names: Sequence[str], rows: Iterable[Row], row_count: int
) -> ReportTable:
    """Return a table of texts with at most `MAX_ROWS` of the rows."""
    columns: tuple[tuple[str, Kind], ...] = tuple((name, "words") for name in names)
    return ReportTable(title, columns, tuple(islice(rows, MAX_ROWS)), _omission_note(row_count))


def _omission_note(row_count: int) -> str:
    """Return the number of rows that a table omits as text; empty if it omits none."""
    return f"… {row_count - MAX_ROWS:,} more" if row_count > MAX_ROWS else ""


def _curve(estimates: Sequence[IntervalEstimate]) -> dict[str, Any] | None:
    """Return the SVG paths of success against turns; None if all episodes have one turn."""
    if len(estimates) < 2:
        return None
    step = _CHART_WIDTH / (len(estimates) - 1)

    def path(rates: Sequence[float]) -> list[str]:
        return [
            f"{index * step:.1f} {_CHART_HEIGHT * (1 - rate):.1f}"
            for index, rate in enumerate(rates)
        ]

    high_points = path([estimate.high for estimate in estimates])
    low_points = path([estimate.low for estimate in estimates])
    stride = -(-len(estimates) // _MAX_TICKS)
    return {
        "line": "M" + "L".join(path([estimate.value for estimate in estimates])),
        "band": "M" + "L".join([*high_points, *reversed(low_points)]) + "Z",
        "ticks": [(index + 1, f"{index * step:.1f}") for index in range(0, len(estimates), stride)],
    }


def _position(value: float, start: float) -> str:
    """Return a value's position on an axis from `start` to 1 that is 100 units long."""
    return f"{100 * (min(1.0, max(start, value)) - start) / (1 - start):.1f}"


def _line(text: str) -> str:
    """Return the beginning of a text as a single line."""
    line = " ".join(text[: 4 * _LINE_LENGTH].split())
    return line if len(line) <= _LINE_LENGTH else f"{line[: _LINE_LENGTH - 1]}…"


def _to_text(value: object) -> Markup | str:
    """Return a value as text for HTML: short, without colours, and with unprintable escapes.

    Only the markup of a macro stays as it is. Any other object loses a method ``__html__``, by
    which the object could avoid the escaping.
    """
    if type(value) is Markup:
        return value
    text = _COLOUR.sub("", str(value))
    if len(text) > MAX_TEXT_LENGTH:
        end_length = MAX_TEXT_LENGTH // 2
        omitted_count = len(text) - 2 * end_length
        text = f"{text[:end_length]}\n… {omitted_count:,} characters …\n{text[-end_length:]}"
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


@cache
def _macros() -> Any:
    """Return the module of the Jinja file, whose attributes are the macros."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_to_text,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["zip"] = zip
    environment.globals |= {"number": "{:g}".format, "position": _position}
    return environment.get_template("notebook.html").module


def _macro(name: str, *arguments: object) -> Markup:
    content: Markup = getattr(_macros(), name)(*arguments)
    return content


def _view(content: Markup) -> str:
    """Return content in an element that has its own style."""
    return str(_macro("view", content))
