"""Print the summary of runs, or write it as a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from intercode.cli import results
from intercode.cli.results import of_each_environment
from intercode.cli.terminal import print_json, safe, tell
from intercode.errors import UsageError
from intercode.evaluate.drift import Difference
from intercode.evaluate.summary import by_attempts, by_level, by_place, by_turn, spending_by_outcome
from intercode.records import read_manifest, run_folders
from intercode.registry import TABLES
from intercode.report.page import Episodes, write_page
from intercode.report.runs import Run, as_data, read_runs
from intercode.report.tables import run_tables, side_by_side_tables
from intercode.report.text import escape_markdown, to_csv, to_list, to_markdown
from intercode.report.verdict import (
    BaselineComparison,
    compare_with_baselines,
    describe_drift,
    facts,
    title,
    verdicts,
)
from intercode_sandbox.units import format_count

_NAMED = 20
"""Tasks that are named where two runs differ; --json names all."""


def execute(args: argparse.Namespace) -> int:
    """Print the report, and warn of runs that cannot be compared."""
    if args.paper is not None:
        return _paper(args)
    if not args.run:
        raise UsageError("which runs? Give their folders, or --paper DIR")
    args.run = run_folders(args.run)
    if args.hide_gold and not args.html:
        raise UsageError("--hide-gold is for --html FILE: nothing else shows gold")
    shown_gold = [n for n, run in enumerate(args.run) if read_manifest(run).get("needs_gold")]
    episodes = Episodes(hide_gold=args.hide_gold, shown_gold=shown_gold)
    runs = read_runs(args.run, episodes.add if args.html else lambda run, episode: None)
    compared = compare_with_baselines(runs)
    if args.html:
        write_page(args.html, runs, episodes, compared)
    if args.json:
        print_json(_as_json(runs, compared))
        return 0
    print(_text(args, runs, compared), end="")
    for warning in (warning for one in compared for warning in describe_drift(one)):
        print(f"\nintercode: warning: {safe(warning)}", file=sys.stderr)
    if args.html:
        print(f"written: {args.html}", file=sys.stderr)
    return 0


def _paper(args: argparse.Namespace) -> int:
    if args.run or args.html or args.csv or args.plot:
        raise UsageError("--paper goes with no runs, no --html, no --csv and no --plot")
    paper = TABLES.get("paper")
    skipped: list[Any] = []
    found = paper.rates(args.paper, skipped.append)
    for one in skipped:
        tell(f"intercode: skipped {one.path}: {one.reason}")
    if args.json:
        print_json(
            {
                "paper": str(args.paper),
                "rates": [one.to_dict() for one in found],
                "skipped": [{"path": str(one.path), "reason": one.reason} for one in skipped],
            }
        )
    else:
        form = to_markdown if args.markdown else results.written
        print("\n".join(form(table) for table in paper.tables(found)), end="")
    return 0


def _text(
    args: argparse.Namespace, runs: Sequence[Run], compared: Sequence[BaselineComparison]
) -> str:
    if args.csv:
        return to_csv(runs)
    if args.plot:
        return of_each_environment(runs)
    form = to_markdown if args.markdown else results.written
    listed = to_list if args.markdown else str
    lead = _lead(runs, compared, listed)
    if args.markdown:
        lead = f"## {escape_markdown(title(runs))}\n\n{lead}"
    if len(runs) == 1:
        made = "\n".join(filter(None, (results.facts(runs[0].manifest), runs[0].unfinished_note)))
        errors = results.errors(runs[0].outcomes)
        return "\n".join(
            [
                lead,
                f"{listed(safe(made)).rstrip()}\n",
                *map(form, run_tables(runs[0])),
                listed(errors),
            ]
        )
    heads = [
        f"{safe(str(run.folder))}: {results.facts(run.manifest)}\n"
        + safe(f"  {run.unfinished_note}\n" if run.unfinished_note else "")
        + results.errors(run.outcomes)
        for run in runs
    ]
    tables = [*side_by_side_tables(runs), *(table for one in compared for table in one.tables())]
    flips = "".join(f"{line}\n" for line in _flips(compared))
    parts = [lead, listed("".join(heads)), *map(form, tables), *([listed(flips)] if flips else [])]
    return "\n".join(parts)


def _flips(compared: Sequence[BaselineComparison]) -> Iterator[str]:
    """Name the tasks at which two runs differ."""
    for one in compared:
        for run, found in one.pairs:
            for who, tasks in ((one.first, found.better_first), (run, found.better_second)):
                if tasks:
                    other = run if who is one.first else one.first
                    more = len(tasks) - _NAMED
                    rest = f" and {more} more (--json names all)" if more > 0 else ""
                    text = f"{format_count(len(tasks), 'task')} better by {who.label} than {other.label}"
                    yield safe(f"{text}: {', '.join(tasks[:_NAMED])}{rest}")


def _lead(
    runs: Sequence[Run], compared: Sequence[BaselineComparison], listed: Callable[[str], str]
) -> str:
    """Return when and by which model the runs were made, then who is better, and how sure."""
    lines = [f"{name} {text}" for name, text in facts(runs).items()]
    for verdict in verdicts(runs, compared):
        lines += [verdict.headline, f"  {verdict.detail}"]
    return listed("".join(f"{safe(line)}\n" for line in lines))


def _as_json(runs: Sequence[Run], compared: Sequence[BaselineComparison]) -> dict[str, Any]:
    if len(runs) == 1:
        return _run(runs[0])
    return {
        "runs": [_run(run) for run in runs],
        "comparisons": {
            str(run.folder): {"against": str(one.first.folder), **asdict(found)}
            for one in compared
            for run, found in one.pairs
        },
        "differences": {
            run: _plain(found)
            for one in compared
            for run, found in one.differences_by_folder.items()
        },
    }


def _run(run: Run) -> dict[str, Any]:
    outcomes, judge = run.outcomes, run.judge
    judged = "" if judge is None else "judged_"
    return {
        "run": str(run.folder),
        "manifest": run.manifest,
        "coverage": asdict(run.coverage),
        **results.as_json(outcomes, judge),
        "levels": {level: as_data(stats, judge) for level, stats in by_level(outcomes).items()},
        "places": {place: as_data(stats, judge) for place, stats in by_place(outcomes).items()},
        f"{judged}turns": [asdict(point) for point in by_turn(outcomes)],
        f"{judged}attempts": [asdict(found) for found in by_attempts(outcomes)],
        "spending": {end: asdict(found) for end, found in spending_by_outcome(outcomes).items()},
    }


def _plain(found: Sequence[Difference]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in asdict(one).items() if name != "advice"} for one in found
    ]
