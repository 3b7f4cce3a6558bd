"""Report runs: one in detail; several side by side, and task by task against the first.

Examples:
  intercode report runs/20250101-120000-bash-oracle
  intercode report RUN --json | jq .statistics.success_rate
  intercode report RUN OTHER             (warns if they were not made of the same)
  intercode report RUN OTHER --html report.html
  intercode report RUN OTHER --plot      (success against turns, in the terminal)
  intercode report --paper DIR           (the success rates of 2023 from their recorded files)
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.cli import results
from intercode.cli.results import of_each_environment
from intercode.cli.terminal import print_json, safe, tell
from intercode.errors import UsageError
from intercode.evaluate.drift import Difference, differences
from intercode.evaluate.summary import by_attempts, by_level, by_place, by_turn, spending
from intercode.report.html import Episodes
from intercode.report.runs import Run, as_data, baselines, compare, read_runs
from intercode.report.tables import Table, errors_of, made_of, of_pairs, of_run, of_runs
from intercode.report.text import to_csv, to_list, to_markdown

_COMPARED_ON_PURPOSE = ("agent", "seed")
_SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, nargs="*", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with everything, and each episode"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    form.add_argument("--csv", action="store_true", help="print a line for each group of episodes")
    form.add_argument("--plot", action="store_true", help="print a chart of success against turns")
    parser.add_argument(
        "--paper", type=Path, metavar="DIR", help="instead of runs: the recorded files of 2023"
    )


def execute(args: argparse.Namespace) -> int:
    """Print the report, and warn of runs that cannot be compared."""
    if args.paper is not None:
        return _paper(args)
    if not args.run:
        raise UsageError("which runs? Give their folders, or --paper DIR")
    episodes = Episodes()
    runs = read_runs(args.run, episodes.add if args.html else lambda run, episode: None)
    held = [_Held(first, others) for first, others in baselines(runs) if others]
    warnings = [warning for one in held for warning in one.warnings()]
    if args.html:
        halves = [f"{run.folder}: {run.unfinished}" for run in runs if run.unfinished]
        _write(args.html, runs, held, episodes, [*halves, *warnings])
    if args.json:
        print_json(_as_json(runs, held))
        return 0
    print(_text(args, runs, held), end="")
    for warning in warnings:
        print(f"\nintercode: warning: {safe(warning)}", file=sys.stderr)
    if args.html:
        print(f"written: {args.html}", file=sys.stderr)
    return 0


class _Held:
    """Runs that are held against a first one.

    Args:
        first: That one.
        others: Those.
    """

    def __init__(self, first: Run, others: Sequence[Run]) -> None:
        self.first = first
        self.pairs = [
            (run, found) for run in others if (found := compare(first.outcomes, run.outcomes))
        ]
        self.apart = {
            str(run.folder): differences(first.manifest, run.manifest, _COMPARED_ON_PURPOSE)
            for run in others
        }

    def tables(self) -> list[Table]:
        """Task by task."""
        return of_pairs(self.first, self.pairs)

    def warnings(self) -> list[str]:
        """Of what they were not made of alike; those that differ in the same are named together."""
        alike: dict[str, list[str]] = {}
        for folder, found in self.apart.items():
            if found:
                alike.setdefault(_listed(found), []).append(folder)
        return [
            f"{self.first.folder} and {', '.join(folders)} were not made of the same:\n{what}"
            for what, folders in alike.items()
        ]


def _paper(args: argparse.Namespace) -> int:
    if args.run or args.html or args.csv or args.plot:
        raise UsageError("--paper goes with no runs, no --html, no --csv and no --plot")
    from intercode.paper.tables import Skipped, rates, tables

    skipped: list[Skipped] = []
    found = rates(args.paper, skipped.append)
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
        print("\n".join(form(table) for table in tables(found)), end="")
    return 0


def _text(args: argparse.Namespace, runs: Sequence[Run], held: Sequence[_Held]) -> str:
    if args.csv:
        return to_csv(runs)
    if args.plot:
        return of_each_environment(runs)
    form = to_markdown if args.markdown else results.written
    listed = to_list if args.markdown else str
    if len(runs) == 1:
        facts = "\n".join(filter(None, (results.facts(runs[0].manifest), runs[0].unfinished)))
        errors = results.errors(runs[0].outcomes)
        return "\n".join(
            [f"{listed(safe(facts)).rstrip()}\n", *map(form, of_run(runs[0])), listed(errors)]
        )
    heads = [
        f"{safe(str(run.folder))}: {results.facts(run.manifest)}\n"
        + safe(f"  {run.unfinished}\n" if run.unfinished else "")
        + results.errors(run.outcomes)
        for run in runs
    ]
    tables = [*of_runs(runs), *(table for one in held for table in one.tables())]
    return "\n".join([listed("".join(heads)), *map(form, tables)])


def _write(
    path: Path,
    runs: Sequence[Run],
    held: Sequence[_Held],
    episodes: Episodes,
    warnings: Sequence[str],
) -> None:
    from intercode.report.html import write_page

    sections: list[tuple[str, Sequence[Table]]] = []
    if len(runs) > 1:
        sections.append(("Side by side", of_runs(runs)))
    if compared := [table for one in held for table in one.tables()]:
        sections.append(("Compared", compared))
    details = [
        (
            f"{run.label}: {run.where}" if len(runs) > 1 else "The run",
            [*of_run(run), *errors_of(run), made_of(run)],
        )
        for run in runs
    ]
    write_page(path, runs, sections, episodes, warnings, details)


def _as_json(runs: Sequence[Run], held: Sequence[_Held]) -> dict[str, Any]:
    if len(runs) == 1:
        return _run(runs[0])
    return {
        "runs": [_run(run) for run in runs],
        "comparisons": {
            str(run.folder): {"against": str(one.first.folder), **asdict(found)}
            for one in held
            for run, found in one.pairs
        },
        "differences": {run: _plain(found) for one in held for run, found in one.apart.items()},
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
        "spending": {end: asdict(found) for end, found in spending(outcomes).items()},
    }


def _plain(found: Sequence[Difference]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in asdict(one).items() if name != "advice"} for one in found
    ]


def _listed(found: Sequence[Difference]) -> str:
    lines = [f"  {one.what}: {_said(one.recorded)} and {_said(one.now)}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  … and {len(found) - _SHOWN} more (--json has them all)")
    return "\n".join(lines)


def _said(value: object) -> str:
    """A value; of a digest the beginning."""
    text = "nothing" if value is None else str(value)
    return f"{text[:12]}…" if re.fullmatch(r"[0-9a-f]{32,}", text) else text
