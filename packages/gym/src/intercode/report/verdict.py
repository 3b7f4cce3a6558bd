"""The first lines of a report: what was run, when, by which model; who is better, how sure.

The sentences are the same in the terminal, in Markdown and on the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from intercode.evaluate.comparison import holm
from intercode.evaluate.drift import Difference, differences, of_versions
from intercode.evaluate.statistics import Estimate
from intercode.evaluate.summary import summarize
from intercode.report.runs import Paired, Run, baselines, compare, rate_name
from intercode.report.tables import Link, Table, interval, of_pairs, shown
from intercode.spec import recorded_options
from intercode_sandbox.units import format_count, format_names

_COMPARED_ON_PURPOSE = ("agent", "seed")
_NAMED = 3
"""Agents that a title names."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer to "who is better, by how much, how sure?"."""

    headline: str
    detail: str
    kind: Literal["rate", "better", "worse", "open"]
    """A run alone; a second run that is better or worse than the first; or no difference shown."""
    links: tuple[tuple[str, Link], ...] = ()
    """Texts, and the episodes or tasks that each is about."""


class Held:
    """Runs that are held against a first one.

    Args:
        first: That one.
        others: Those.
    """

    def __init__(self, first: Run, others: Sequence[Run]) -> None:
        self.first = first
        self.apart: dict[str, list[Difference]] = {
            str(run.folder): differences(first.manifest, run.manifest, _COMPARED_ON_PURPOSE)
            for run in others
        }
        self.refused: dict[str, list[Difference]] = {
            folder: [] if self._is_rescoring(run) else of_versions(self.apart[folder])
            for run in others
            if (folder := str(run.folder))
        }
        """Folder of a run that is not compared → the versions that differ."""
        alike = [run for run in others if not self.refused[str(run.folder)]]
        self.pairs = [
            (run, found)
            for run in alike
            if (found := compare(first.outcomes, run.outcomes, len(alike)))
        ]

    def _is_rescoring(self, run: Run) -> bool:
        """Tell whether one run is the other scored again, to see what the new rule changes."""
        both = ((self.first, run), (run, self.first))
        return any(
            (origin := (one.manifest.get("rescored") or {}).get("run")) is not None
            and Path(origin) == other.folder.absolute()
            for one, other in both
        )

    def tables(self) -> list[Table]:
        """Make the tables that compare them task by task."""
        return of_pairs(self.first, self.pairs)

    def verdicts(self) -> Iterator[Verdict]:
        """Yield a verdict on each of the others; p values are corrected for their number."""
        corrected = iter(holm([found.test.p for _, found in self.pairs if found.test]))
        several = sum(found.test is not None for _, found in self.pairs)
        for run, found in self.pairs:
            p = next(corrected) if found.test else None
            yield _of_pair(self.first, run, found, p, several)


def held(runs: Sequence[Run]) -> list[Held]:
    """Hold each run against the first one on its tasks."""
    return [Held(first, others) for first, others in baselines(runs) if others]


def verdicts(runs: Sequence[Run], compared: Sequence[Held]) -> list[Verdict]:
    """Return what a report says first: a verdict on each pair, and on each run that has none."""
    paired = {id(run) for one in compared for run in (one.first, *(r for r, _ in one.pairs))}
    alone = [_of_run(run) for run in runs if id(run) not in paired]
    return [*(verdict for one in compared for verdict in one.verdicts()), *alone]


def title(runs: Sequence[Run]) -> str:
    """Name what was run: the environments, and the agents with their models."""
    places = list(dict.fromkeys(run.where for run in runs))
    agents = list(dict.fromkeys(run.label for run in runs))
    return f"{', '.join(places)}: {format_names(agents, _NAMED)}" if runs else "no runs"


def facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return when runs were made, by which models, and with which version."""
    sessions = [one for run in runs for one in run.manifest.get("sessions") or ()]
    times = sorted(str(one[name]) for one in sessions for name in _TIMES if one.get(name))
    when = "" if not times else times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    found = {
        "made": when.replace("T", " ").replace("Z", " UTC"),
        "model": ", ".join(dict.fromkeys(run.model for run in runs if run.model)),
        "version": ", ".join(dict.fromkeys(filter(None, map(_version, sessions)))),
    }
    return {name: text for name, text in found.items() if text}


def warnings(runs: Sequence[Run], compared: Sequence[Held]) -> list[str]:
    """Return what stands in the way of conclusions; lines after the first say more."""
    halves = [f"{run.folder}: {run.unfinished}" for run in runs if run.unfinished]
    return [*halves, *(warning for one in compared for warning in drifted(one))]


def drifted(one: Held) -> list[str]:
    """Return of what the runs were not made alike; those that differ alike are named together."""
    alike: dict[str, list[str]] = {}
    for folder, found in one.apart.items():
        if found:
            refused = one.refused[folder]
            found = [*refused, *(d for d in found if d not in refused)]
            lines = [f"  {d.what}: {_said(d.recorded)} and {_said(d.now)}" for d in found[:_SHOWN]]
            if len(found) > _SHOWN:
                lines.append(f"  … and {len(found) - _SHOWN} more (--json has them all)")
            secret = recorded_options(one.first.manifest).get("secret")
            if secret is not None and any(d.what == "dataset.digest" for d in found):
                lines.append("  each run draws flags of its own, unless --secret names the same")
            advice = dict.fromkeys(difference.advice for difference in refused)
            lines += [f"  not compared, as versions differ: {text}" for text in advice]
            alike.setdefault("\n".join(lines), []).append(folder)
    return [
        f"{one.first.folder} and {', '.join(folders)} were not made of the same:\n{what}"
        for what, folders in alike.items()
    ]


_TIMES = ("started", "finished")
_SHOWN = 10
"""Differences that a warning lists."""
_DIGEST = 32
"""The least length of a digest, of which the beginning says enough."""


def _version(session: dict[str, Any]) -> str:
    versions = session.get("versions") or {}
    commit = str(versions.get("commit", ""))[:12]
    own = versions.get("intercode")
    return f"intercode {own}{f' ({commit})' if commit else ''}" if own else ""


def _said(value: object) -> str:
    text = "nothing" if value is None else str(value)
    is_digest = len(text) >= _DIGEST and not set(text) - set("0123456789abcdef")
    return f"{text[:12]}…" if is_digest else text


def _of_run(run: Run) -> Verdict:
    stats = summarize(run.outcomes)
    rate, ends = shown(stats.success_rate, "rate"), shown(interval(stats), "interval")
    mine = {"run": run.name}
    links: list[tuple[str, Link]] = [
        (
            f"{format_count(stats.episodes - stats.successes, 'episode')} failed",
            {**mine, "state": _BAD},
        )
    ]
    if stats.errors:
        links.append((format_count(stats.errors, "error"), {**mine, "state": "error"}))
    remarks = [f"95 % interval {ends}"]
    remarks += ["the agent was shown gold: no measure"] if run.shown_gold else []
    remarks += [f"{format_count(stats.errors, 'error')}, not counted"] if stats.errors else []
    if run.coverage.missing:
        remarks.append(f"{run.coverage.missing} of {run.coverage.planned} episodes are missing")
    said = rate_name(run.judge)
    return Verdict(
        f"{run.label} in {run.where}: {said} {rate} of {format_count(stats.episodes, 'episode')}",
        "; ".join(remarks),
        "rate",
        tuple(links),
    )


_BAD = "failed"
"""The viewer's name of all outcomes without success or error."""


def _of_pair(first: Run, run: Run, found: Paired, p: float | None, several: int) -> Verdict:
    gain, tasks = found.difference.value, format_count(found.tasks, "task")
    points = shown(abs(gain), "size")
    if found.shows(p):
        kind: Literal["better", "worse", "open"] = "better" if gain > 0 else "worse"
        one, other = (run, first) if gain > 0 else (first, run)
        headline = f"{one.label} is better than {other.label} by {points} points"
    elif gain == 0 and not (found.better_first or found.better_second):
        kind, headline = "open", f"{run.label} and {first.label} solve the same"
    else:
        kind = "open"
        headline = f"No difference between {run.label} and {first.label} is detected"
    rates, seen = (found.second, found.first), found.difference
    if kind == "worse":  # told of the better one
        rates, seen = (found.first, found.second), Estimate(-gain, -seen.high, -seen.low)
    said = [f"{first.where}, {tasks}: {' against '.join(shown(rate, 'rate') for rate in rates)}"]
    said.append(f"{shown(seen.value, 'points')} points{_ends(seen)}")
    if found.test is not None and p is not None:
        correction = f", corrected for {several} comparisons" if several > 1 else ""
        text = shown(p, "p")
        said.append(f"p {text if text.startswith('<') else f'= {text}'} (McNemar{correction})")
    if kind == "open":
        if found.detectable is not None:
            said.append(f"detectable difference {shown(found.detectable, 'size')} points")
        if found.needed is not None:
            said.append(f"tasks needed for the observed one {found.needed:,}")
    if told := [one.label for one in (first, run) if one.shown_gold]:
        said.append(f"{' and '.join(told)} was shown gold: no measure")
    both = {"first": first.name, "second": run.name}
    texts = (("first", found.better_first, first), ("second", found.better_second, run))
    links = [
        (f"{format_count(len(names), 'task')} better by {who.label}", {**both, "only": only})
        for only, names, who in texts
        if names
    ]
    return Verdict(headline, "; ".join(said), kind, tuple(links))


def _ends(seen: Estimate) -> str:
    known = 0 < seen.high - seen.low < math.inf
    return f" (95 % interval {shown((seen.low, seen.high), 'range')})" if known else ""
