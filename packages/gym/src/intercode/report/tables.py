"""The tables of reports, as plain values; `text` and `html` write them down.

First those of one run, then those of several side by side and task by task, then the tables
themselves and the form of their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from intercode.evaluate.comparison import ALPHA, POWER, holm
from intercode.evaluate.statistics import FEW_CLUSTERS, Estimate
from intercode.evaluate.summary import (
    Statistics,
    by_attempts,
    by_failure_mode,
    by_level,
    by_place,
    by_tag,
    by_turn,
    errors_by_type,
    spending,
    summarize,
    total,
)
from intercode.failure_modes import FAILURE_MODES
from intercode.records import LEVELS, Outcome
from intercode.report.runs import Judging, Paired, Run, judging, rate_name, with_judge
from intercode_sandbox.units import format_count

ALL = "all"
_MEANS = "Reward, turns and seconds are means over the scored episodes."
_SHOWN = 8
"""Entries of a list of facts."""

Kind = Literal[
    "text",
    "words",
    "count",
    "rate",
    "interval",
    "estimate",
    "points",
    "size",
    "range",
    "number",
    "precise",
    "p",
    "money",
    "gain",
    "paid",
]
"""The content of a column. ``text`` is flush left in the first column only, ``words`` in any; an
``interval`` of a rate and a ``range`` of points are pairs; ``points`` have a sign, a ``size`` has
none; an ``estimate`` is a rate and both ends of its interval; ``gain`` and
``paid`` are a number and dollars with a sign. Unknown values are None."""
Row = tuple[Any, ...]
_Column = tuple[str, Kind, Callable[[Any], Any]]
Link = Mapping[str, str]
"""A choice of episodes: names of the viewer's filters, and their values."""
_DIGITS = {"number": 1, "precise": 3, "money": 4}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns."""

    title: str
    columns: tuple[tuple[str, Kind], ...]
    """Name and kind of each column."""
    rows: tuple[Row, ...]
    note: str = ""
    """Remarks for the reader, one a line."""
    links: tuple[Link | Sequence[Link | None] | None, ...] = ()
    """The episodes of each row, or of each of its cells; empty: not known."""

    def cells(self) -> list[list[str]]:
        """Return the rows as people read them."""
        kinds = [kind for _, kind in self.columns]
        return [[shown(v, k) for v, k in zip(row, kinds, strict=True)] for row in self.rows]

    @property
    def left(self) -> int:
        """The number of columns, from the first on, that are flush left."""
        flush = [kind == "words" for _, kind in self.columns]
        flush[0] |= self.columns[0][1] == "text"
        return [*flush, False].index(False)


def _table(
    title: str,
    items: Iterable[Any],
    columns: Sequence[_Column],
    note: str = "",
    link: Callable[[Any], Link | Sequence[Link | None] | None] = lambda item: None,
) -> Table:
    """Make a table with a row for each item; a column is a name, a kind and a getter."""
    items = list(items)
    rows = tuple(tuple(get(item) for _, _, get in columns) for item in items)
    head = tuple((name, kind) for name, kind, _ in columns)
    return Table(title, head, rows, note, tuple(map(link, items)))


def shown(value: Any, kind: Kind) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    match kind:
        case "interval":
            return f"{100 * value[0]:.1f} - {100 * value[1]:.1f} %"
        case "estimate":
            return f"{shown(value[0], 'rate')} ({shown(value[1:], 'interval')})"
        case "range":
            return f"{shown(value[0], 'points')} to {shown(value[1], 'points')}"
        case "rate":
            return f"{100 * value:.1f} %"
        case "points":
            text = f"{100 * value:+.1f}"
            return text[1:] if text[1:] == "0.0" else text
        case "size":
            return f"{100 * value:.1f}"
        case "count":
            return f"{value:,}"
        case "gain" | "paid":
            return f"{value:+,.{1 if kind == 'gain' else 4}f}"
        case "p":
            return "< 0.001" if value < 0.001 else f"{value:.3f}"
        case "number" | "precise" | "money":
            return f"{value:,.{_DIGITS[kind]}f}"
    return str(value)


def interval(stats: Statistics) -> tuple[float, float] | None:
    """Return the interval of the success rate."""
    return _pair(stats.success_low, stats.success_high)


def _clustered(stats: Statistics) -> tuple[float, float] | None:
    """Return the interval with images or databases as clusters."""
    return _pair(stats.clustered_low, stats.clustered_high)


def _pair(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def groups(
    title: str,
    found: Mapping[str, Statistics],
    note: str = "",
    rate: str = "success",
    link: Callable[[str], Link | None] = lambda name: None,
) -> Table:
    """Make a table with a line for each group of episodes.

    Args:
        title: The table's.
        found: The statistics of each group, by its name.
        note: The table's.
        rate: The name of the groups' rate.
        link: Returns the choice of a group's episodes.
    """
    columns: list[_Column] = [
        ("", "text", lambda item: item[0]),
        ("episodes", "count", lambda item: item[1].episodes),
        (rate, "rate", lambda item: item[1].success_rate),
        ("95 % interval", "interval", lambda item: interval(item[1])),
        ("reward", "precise", lambda item: item[1].mean_reward),
        ("turns", "number", lambda item: item[1].mean_turns),
        ("seconds", "precise", lambda item: item[1].mean_seconds),
        ("errors", "count", lambda item: item[1].errors),
    ]
    return _table(title, found.items(), columns, note, lambda item: link(item[0]))


def of_run(run: Run, tags: int | None = None) -> list[Table]:
    """Make all tables of one run.

    Args:
        run: The run.
        tags: The number of tags, the most frequent ones; None: all.
    """
    outcomes, statistics = run.outcomes, summarize(run.outcomes)
    rate, by_judge = rate_name(run.judge), judging(run.judge, outcomes)
    remarks = [*statistics.remarks(), *filter(None, [in_words(by_judge)])]
    note = "\n".join([_MEANS, *remarks]) + _shown_gold([run])
    mine = {"run": run.name}
    tables = [groups("Success", {ALL: statistics}, note, rate, lambda name: mine)]
    tables.append(_coverage(run, statistics))
    tables += judge_tables({run.judge or "": by_judge})
    if levels := by_level(outcomes):
        levelled = groups("By hardness", levels, "", rate, lambda name: {**mine, "level": name})
        tables.append(levelled)
    if statistics.clusters:
        note, places = _cluster_note(statistics), by_place(outcomes)
        of_place = groups("By place", places, note, rate, lambda name: {**mine, "place": name})
        tables.append(of_place)
    tables += _attempts(run)
    if any(outcome.turns > 1 for outcome in outcomes):
        tables.append(_turns(run))
    if found := by_failure_mode(outcomes):
        tables.append(_failure_modes(run, found))
    if outcomes:
        tables.append(_spending(run))
    if named := list(by_tag(outcomes).items()):
        note = (
            ""
            if tags is None or len(named) <= tags
            else format_count(len(named) - tags, "more tag")
        )
        named = named[:tags]
        tagged = groups("By tag", dict(named), note, rate, lambda name: {**mine, "tag": name})
        tables.append(tagged)
    return tables


def _attempts(run: Run) -> list[Table]:
    columns: list[_Column] = [
        ("k", "count", attrgetter("k")),
        ("tasks", "count", attrgetter("tasks")),
        ("pass@k", "rate", attrgetter("pass_at_k")),
        ("pass^k", "rate", attrgetter("pass_hat_k")),
    ]
    note = "pass@k: at least one of k attempts succeeds. pass^k: all of them do."
    found = by_attempts(run.outcomes)
    title, mine = with_judge("Several attempts", run.judge), {"run": run.name}
    return [_table(title, found, columns, note, lambda item: mine)] if found else []


def _turns(run: Run) -> Table:
    columns: list[_Column] = [
        ("turns", "count", lambda point: point[0]),
        (rate_name(run.judge), "rate", lambda point: point[1].value),
        ("95 % interval", "interval", lambda point: (point[1].low, point[1].high)),
    ]
    mine = {"run": run.name, "sort": "turns"}
    title, points = "Success within so many turns", enumerate(by_turn(run.outcomes), 1)
    return _table(title, points, columns, "", lambda item: mine)


def _failure_modes(run: Run, found: Mapping[str, int]) -> Table:
    unsolved = sum(not outcome.failed and not outcome.success for outcome in run.outcomes)
    columns: list[_Column] = [
        ("", "text", lambda item: item[0]),
        ("episodes", "count", lambda item: item[1]),
        ("of those not solved", "rate", lambda item: item[1] / unsolved),
        ("", "words", lambda item: FAILURE_MODES[item[0]]),
    ]
    mine = {"run": run.name}
    note = "An episode can have several of them, or none."
    return _table("What went wrong", found.items(), columns, note, lambda item: mine)


def _spending(run: Run) -> Table:
    names = ("episodes", "turns", "invalid")
    columns: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        *((name, "count") for name in names),
        *((name, "number") for name in ("seconds", "in actions", "in replies")),
        *((name, "count") for name in ("tokens in", "tokens out")),
        ("dollars", "money"),
    )
    ends = spending(run.outcomes)
    rows = tuple((name, *astuple(found)) for name, found in ends.items())
    links = tuple({"run": run.name, "state": name} for name in ends)
    return Table("Where it went", columns, rows, "All are sums.", links)


_COVERAGE: Sequence[_Column] = (
    ("scored", "count", lambda item: item[0].scored),
    ("errors", "count", lambda item: item[0].errored),
    ("missing", "count", lambda item: item[0].missing),
    ("excluded tasks", "count", lambda item: item[0].excluded),
    ("coverage", "rate", lambda item: item[0].coverage),
    ("ended-by-agent", "count", lambda item: item[1].outcomes["ended-by-agent"]),
    ("restarts", "count", lambda item: item[1].restarts),
    ("invalid actions", "rate", lambda item: item[1].invalid_rate),
    ("not executed", "rate", lambda item: item[1].unexecuted_rate),
)


def _coverage(run: Run, statistics: Statistics) -> Table:
    coverage = run.coverage
    note = f"{format_count(coverage.tasks, 'task')} in the dataset"
    note += "." if coverage.epochs == 1 else f", {coverage.epochs} attempts at each."
    if statistics.reward_low is not None and statistics.reward_high is not None:
        note += (
            f" Mean reward {statistics.mean_reward:.3f}, 95 % interval "
            f"{statistics.reward_low:.3f} - {statistics.reward_high:.3f}."
        )
    mine = {"run": run.name}
    return _table("Coverage", [(coverage, statistics)], _COVERAGE, note, lambda item: mine)


def _cluster_note(statistics: Statistics) -> str:
    ends = shown(_clustered(statistics), "interval")
    text = f"Success with these {statistics.clusters} as clusters: {ends}."
    if statistics.few_clusters:
        text += f" They are fewer than {FEW_CLUSTERS}: the interval is likely to be too narrow."
    return text


def _shown_gold(runs: Iterable[Run]) -> str:
    """Return a line with the runs whose success is not a measure; empty if there are none."""
    names = dict.fromkeys(run.label for run in runs if run.shown_gold)
    return f"\nShown gold: {', '.join(names)}." if names else ""


def judge_tables(found: Mapping[str, Judging | None]) -> list[Table]:
    """Make a table with a line for each name that has a judge; no table if none has one."""
    names: dict[str, Kind] = {
        "": "text",
        **dict.fromkeys(("asked about", "the same", "disagreed", "steered", "malformed"), "count"),
        "by execution alone": "rate",
        **dict.fromkeys(("tokens in", "tokens out"), "count"),
        "dollars": "money",
    }
    note = (
        "Asked where the files are as gold's and the output is not. Disagreed: its votes, or the "
        "two orders of one. Steered: it called a decoy the same, and was not believed. Malformed: "
        "replies that were none.\nIts tokens and dollars are in no other table."
    )
    rows = tuple((name, *astuple(one)[1:]) for name, one in found.items() if one is not None)
    return [Table("The judge", tuple(names.items()), rows, note)] if rows else []


def in_words(found: Judging | None) -> str:
    """Return a sentence on a judge's share of a rate; empty without a judge."""
    if found is None:
        return ""
    alone = shown(found.success_by_execution, "rate")
    return f"Judged by {found.model}: {found.same} by its word; by execution alone {alone}."


def of_runs(runs: Sequence[Run]) -> list[Table]:
    """Make the tables of several runs side by side."""
    stats = [(run, summarize(run.outcomes)) for run in runs]
    return [
        _by_agent_and_place(stats),
        *_levels(runs),
        _overview(stats),
        _table("Coverage", stats, [_RUN, *map(_of_covered, _COVERAGE)], "", _linked),
        *_failure_modes_of(runs),
        _bill(stats),
        *judge_tables({_name(run): judging(run.judge, run.outcomes) for run in runs}),
    ]


_Summaries = Sequence[tuple[Run, Statistics]]
_RUN: _Column = ("run", "text", lambda item: _name(item[0]))


def _linked(item: tuple[Run, Statistics]) -> Link:
    return {"run": item[0].name}


def _name(run: Run) -> str:
    return f"{run.label}: {run.where}"


def _of_covered(column: _Column) -> _Column:
    name, kind, get = column
    return name, kind, lambda item: get((item[0].coverage, item[1]))


def _by_agent_and_place(stats: _Summaries) -> Table:
    """Make the paper's table: agents against environments."""
    where = list(dict.fromkeys(run.where for run, _ in stats))
    cells: dict[str, dict[str, Any]] = {}
    links: dict[str, dict[str, Link]] = {}
    for run, found in stats:
        ends = interval(found)
        cells.setdefault(run.label, {})[run.where] = ends and (found.success_rate, *ends)
        links.setdefault(run.label, {})[run.where] = {"run": run.name}
    rows = tuple((name, *(row.get(place) for place in where)) for name, row in cells.items())
    head: tuple[tuple[str, Kind], ...] = (("", "text"), *((place, "estimate") for place in where))
    note = "95 % intervals in brackets." + _shown_gold(run for run, _ in stats)
    linked = tuple([None, *map(row.get, where)] for row in links.values())
    return Table("Success by agent and environment", head, rows, note, linked)


def _levels(runs: Sequence[Run]) -> list[Table]:
    """Compare runs by the difficulty of tasks, as far as the tasks state it."""
    found = [(run, row) for run in runs if (row := by_level(run.outcomes))]
    levels = [level for level in LEVELS if any(level in row for _, row in found)]
    rows = tuple(
        (_name(run), *(_share(row[level]) if level in row else None for level in levels))
        for run, row in found
    )
    links = tuple(
        [None, *({"run": run.name, "level": level} for level in levels)] for run, _ in found
    )
    head: tuple[tuple[str, Kind], ...] = (("run", "text"), *((level, "text") for level in levels))
    return [Table("Success by hardness", head, rows, "", links)] if rows else []


def _share(found: Statistics) -> str:
    return f"{shown(found.success_rate, 'rate')} of {found.episodes:,}"


def _overview(stats: _Summaries) -> Table:
    columns: list[_Column] = [
        _RUN,
        ("episodes", "count", lambda item: item[1].episodes),
        ("success", "rate", lambda item: item[1].success_rate),
        ("95 % interval", "interval", lambda item: interval(item[1])),
        ("clusters", "count", lambda item: item[1].clusters),
        ("clustered interval", "interval", lambda item: _clustered(item[1])),
        ("reward", "precise", lambda item: item[1].mean_reward),
        ("turns", "number", lambda item: item[1].mean_turns),
        ("seconds", "precise", lambda item: item[1].mean_seconds),
    ]
    remarks = [f"{run.label}: {remark}" for run, found in stats for remark in found.remarks()]
    note = "\n".join([_MEANS, *remarks])
    if any(found.clusters for _, found in stats):
        note += "\nThe clusters are the images or databases that the episodes took place in."
    if any(found.few_clusters for _, found in stats):
        note += f" Intervals with fewer than {FEW_CLUSTERS} of them are likely to be too narrow."
    return _table("Runs", stats, columns, note, _linked)


def _bill(stats: _Summaries) -> Table:
    columns: list[_Column] = [
        _RUN,
        ("turns", "count", lambda item: sum(outcome.turns for outcome in item[0].outcomes)),
        ("seconds", "number", lambda item: total(o.seconds for o in item[0].outcomes)),
        ("tokens in", "count", lambda item: item[1].tokens_in),
        ("tokens out", "count", lambda item: item[1].tokens_out),
        ("dollars", "money", lambda item: item[1].cost),
        ("a success", "money", lambda item: _price(item[1])),
    ]
    note = "Totals include episodes that ended in an error."
    return _table("What it took", stats, columns, note, _linked)


def _failure_modes_of(runs: Sequence[Run]) -> list[Table]:
    """Count failure modes side by side; no table where there are none."""
    counts = [(run, by_failure_mode(run.outcomes)) for run in runs]
    modes = [mode for mode in FAILURE_MODES if any(mode in found for _, found in counts)]
    head: tuple[tuple[str, Kind], ...] = (("run", "text"), *((mode, "count") for mode in modes))
    rows = tuple((_name(run), *(found.get(mode, 0) for mode in modes)) for run, found in counts)
    links = tuple({"run": run.name} for run in runs)
    note = "Episodes that were not solved; one can have several failure modes."
    return [Table("What went wrong", head, rows, note, links)] if modes else []


def _price(found: Statistics) -> float | None:
    return found.cost / found.successes if found.successes and found.cost is not None else None


def of_pairs(first: Run, pairs: Sequence[tuple[Run, Paired]]) -> list[Table]:
    """Make the table of runs that are compared with the first one, task by task."""
    if not pairs:
        return []
    tested = [found.test.p for _, found in pairs if found.test]
    corrected = iter(holm(tested))
    columns: list[_Column] = [
        (f"against {first.label}", "text", lambda item: item[0].label),
        ("tasks", "count", lambda item: item[1].tasks),
        ("first", "rate", lambda item: item[1].first),
        ("this", "rate", lambda item: item[1].second),
        ("difference", "points", lambda item: item[1].difference.value),
        ("95 % interval", "range", lambda item: _known(item[1].difference)),
        ("over places", "range", lambda item: _known(item[1].drawn)),
        ("detectable difference", "size", lambda item: item[1].detectable),
        ("tasks needed", "count", lambda item: item[1].needed),
        ("only first", "count", lambda item: item[1].test and item[1].test.only_first),
        ("only this", "count", lambda item: item[1].test and item[1].test.only_second),
        ("McNemar's p", "p", lambda item: item[1].test and item[1].test.p),
    ]
    if len(tested) > 1:  # else there is nothing to correct for
        columns.append(("Holm's p", "p", lambda item: next(corrected) if item[1].test else None))
    note = (
        "Differences are in points. Detectable difference: the smallest that so many tasks would "
        f"detect ({100 * POWER:.0f} % power, level {ALPHA}). Tasks needed: to detect the one that "
        "was observed."
    )
    if any(found.drawn and found.drawn.few for _, found in pairs):
        note += (
            f"\nThere are fewer than {FEW_CLUSTERS} images or databases: the intervals over them "
            "are t intervals, and may still be too narrow."
        )
    names = [name for name, _, _ in columns]

    def link(item: tuple[Run, Paired]) -> list[Link | None]:
        found: dict[str, Link] = {name: {"run": item[0].name} for name in ("tasks", "this")}
        found["first"] = {"run": first.name}
        both = {"first": first.name, "second": item[0].name}
        found |= {"only first": {**both, "only": "first"}, "only this": {**both, "only": "second"}}
        return [None, *(found.get(name, both) for name in names[1:])]

    table = _table(f"Task by task: {first.where}", pairs, columns, note, link)
    return [table, *_spent(first, pairs)]


def _spent(first: Run, pairs: Sequence[tuple[Run, Paired]]) -> list[Table]:
    """Make the table of what the others took, against the first; no table without a model."""
    kinds: dict[str, tuple[Kind, Kind]] = {
        "turns": ("number", "gain"),
        "tokens": ("number", "gain"),
        "cost": ("money", "paid"),
    }
    rows, links = [], []
    for run, found in pairs:
        if found.tokens is None:
            continue
        both = {"first": first.name, "second": run.name}
        for name, kind in kinds.items():
            if (spent := getattr(found, name)) is None:
                continue
            plain, signed = kind
            ends = _known(spent.difference)
            links.append(both)
            rows.append(
                (
                    run.label,
                    "dollars" if name == "cost" else name,
                    spent.tasks,
                    *(shown(value, plain) for value in (spent.first, spent.second)),
                    shown(spent.difference.value, signed),
                    " to ".join(shown(end, signed) for end in ends) if ends else "-",
                )
            )
    names = ("first", "this", "difference", "95 % interval")
    columns: tuple[tuple[str, Kind], ...] = (
        (f"against {first.label}", "text"),
        ("of a task", "words"),
        ("tasks", "count"),
        *((name, "text") for name in names),
    )
    note = "Of the tasks that both have tried without an error; intervals are those of paired t."
    title = f"What a task took: {first.where}"
    return [Table(title, columns, tuple(rows), note, tuple(links))] if rows else []


def _known(seen: Estimate | None) -> tuple[float, float] | None:
    """Return an interval; None where one task, or equal tasks, say nothing of it."""
    known = seen is not None and 0 < seen.high - seen.low < math.inf
    return (seen.low, seen.high) if known and seen else None


def matrix(runs: Sequence[Run]) -> Table:
    """Make a table with a column for each environment, one for all, and lines for each agent.

    It is narrow enough for a terminal, where that of `of_runs` is not.
    """
    places = list(dict.fromkeys(run.where for run in runs))
    head: tuple[tuple[str, Kind], ...] = (("", "text"), *((p, "text") for p in (*places, ALL)))
    sizes = [
        len({o.task_id for run in runs if run.where == place for o in run.outcomes})
        for place in places
    ]
    rows: list[Row] = [("tasks", *map(str, (*sizes, sum(sizes))))]
    for label, everywhere in by_agent(runs).items():
        found = {run.where: summarize(run.outcomes) for run in runs if run.label == label}
        found[ALL] = summarize(everywhere)
        rows += _lines(label, [found.get(place) for place in (*places, ALL)])
    return Table("", head, tuple(rows), "Success, and mean turns of an episode.")


def by_agent(runs: Iterable[Run]) -> dict[str, list[Outcome]]:
    """Map each agent to its episodes in all environments, whose names become part of tasks'."""
    found: dict[str, list[Outcome]] = {}
    for run in runs:
        found.setdefault(run.label, []).extend(
            replace(outcome, task_id=f"{run.where}/{outcome.task_id}") for outcome in run.outcomes
        )
    return found


def _lines(label: str, cells: Sequence[Statistics | None]) -> Iterator[Row]:
    stats = [cell or summarize(()) for cell in cells]
    yield label, *(shown(cell.success_rate, "rate") for cell in stats)
    ends = [interval(cell) for cell in stats]
    yield "  95 % interval", *(f"{100 * e[0]:.0f} - {100 * e[1]:.0f}" if e else "-" for e in ends)
    yield "  turns", *(shown(cell.mean_turns, "number") for cell in stats)
    yield "  errors", *("-" if cell is None else str(cell.errors) for cell in cells)


def errors_of(run: Run) -> list[Table]:
    """Make the table of errors; no table if all episodes have a result."""
    first: dict[str, str] = {}
    for outcome in run.outcomes:
        if outcome.failed:
            first.setdefault(outcome.error_type or "unknown", outcome.error or "")
    columns: list[_Column] = [
        ("kind", "text", lambda item: item[0]),
        ("episodes", "count", lambda item: item[1]),
        ("the first of them", "words", lambda item: " ".join(first[item[0]].split())),
    ]
    counts = errors_by_type(run.outcomes).items()
    note = "They count in no rate or mean."

    def link(item: tuple[str, int]) -> Link:
        return {"run": run.name, "state": "error", "kind": item[0]}

    return [_table("Errors", counts, columns, note, link)] if counts else []


def made_of(run: Run) -> Table:
    """Make the table of settings, versions and times in a run's record."""
    rows = tuple((name, text) for name, text in _facts(run) if text)
    return Table("What was run", (("", "text"), ("", "words")), rows)


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    made = run.manifest
    env, dataset, agent = (made.get(name, {}) for name in ("env", "dataset", "agent"))
    yield "folder", str(run.folder)
    yield "environment", f"{env.get('env')}, protocol {env.get('protocol')}"
    yield "reward", str(env.get("reward", ""))
    yield "judge", _listed(env.get("judge", {}))
    yield "turns at most", str(env.get("max_turns") or "the environment's default")
    yield "limits", _listed(env.get("limits", {}))
    yield "dataset", f"{dataset.get('name')}, {format_count(dataset.get('tasks', 0), 'task')}"
    yield "its digest", str(dataset.get("digest", ""))
    yield "history of repositories", str(env.get("history", ""))
    yield "images", _few(list(env.get("images", {})))
    yield "excluded", _listed(made.get("excluded", {}))
    yield "agent", str(agent.get("name"))
    yield "its options", _listed(agent.get("options", {}))
    for name, value in agent.get("language_model", {}).items():
        yield name, _listed(value) if isinstance(value, Mapping) else _said(value)
    yield "seed", str(made.get("seed"))
    sessions = made.get("sessions", [])
    for session in sessions[-1:]:
        yield "attempts at each task", str(session.get("settings", {}).get("epochs", ""))
        yield "workers", str(session.get("settings", {}).get("workers", ""))
        yield "sandbox", str(env.get("sandbox", ""))
        yield "versions", _listed(session.get("versions", {}))
        yield "machine", _listed(session.get("host", {}))
    yield "started", str(sessions[0].get("started", "")) if sessions else ""
    yield "finished", str(sessions[-1].get("finished") or "not yet") if sessions else ""
    yield "sessions", str(len(sessions)) if len(sessions) > 1 else ""


def _listed(found: Mapping[str, Any]) -> str:
    return _few([f"{name} {text}" for name, value in found.items() if (text := _said(value))])


def _few(texts: list[str]) -> str:
    more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join(texts[:_SHOWN] + more)


def _said(value: object) -> str:
    """Return a value as text; empty where it is not set."""
    return "" if value is None or value == [] or value == "" else str(value)
