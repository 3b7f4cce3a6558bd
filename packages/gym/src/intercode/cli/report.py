"""Execution of ``intercode report``, which summarises and compares runs.

The report is text, JSON, CSV, charts or an HTML page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from intercode.cli import run_output
from intercode.cli.run_output import charts_by_environment
from intercode.cli.terminal import print_json, print_message, safe
from intercode.errors import UsageError
from intercode.evaluate.manifest_diff import ManifestDifference
from intercode.evaluate.summary import (
    by_attempts,
    by_image_or_database,
    by_level,
    by_turn,
    spending_by_outcome,
)
from intercode.records import read_manifest, run_folders
from intercode.registry import TABLES
from intercode.report.recorded_tasks import task_finder
from intercode.report.runs import RecordedRun, as_data, read_runs
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
from intercode.report.viewer_page import CompressedEpisodes, write_page
from intercode_sandbox.units import format_count

_MAX_LISTED_TASKS = 20
"""The maximum number of tasks in the list of those that one run solves better than another.
``--json`` lists all."""


def execute(args: argparse.Namespace) -> int:
    """Print the report. Warnings name differences between the runs that impair a comparison.

    Returns:
        The exit code 0.

    Raises:
        UsageError: No run is named, or the options contradict each other.
        RecordError: A run cannot be read.
    """
    if args.paper is not None:
        return _print_paper_tables(args)
    if not args.run:
        raise UsageError("name the folders of runs, or --paper DIR")
    args.run = run_folders(args.run)
    if args.hide_gold and not args.html:
        raise UsageError("--hide-gold needs --html FILE: no other output shows gold")
    if args.trust and not args.html:
        raise UsageError("--trust needs --html FILE: no other output shows tasks")
    shown_gold = [n for n, run in enumerate(args.run) if read_manifest(run).get("needs_gold")]
    find_task = task_finder(args.run, trust=args.trust)
    episodes = CompressedEpisodes(
        hide_gold=args.hide_gold, shown_gold=shown_gold, find_task=find_task
    )
    runs = read_runs(args.run, episodes.add if args.html else lambda run, episode: None)
    comparisons = compare_with_baselines(runs)
    if args.html:
        write_page(args.html, runs, episodes, comparisons)
    if args.json:
        print_json(_as_json(runs, comparisons))
        return 0
    print(_report_text(args, runs, comparisons), end="")
    for warning in (
        warning for comparison in comparisons for warning in describe_drift(comparison)
    ):
        print(f"\nintercode: warning: {safe(warning)}", file=sys.stderr)
    if args.html:
        print(f"written: {args.html}", file=sys.stderr)
    return 0


def _print_paper_tables(args: argparse.Namespace) -> int:
    if args.run or args.html or args.csv or args.plot:
        raise UsageError("--paper excludes runs, --html, --csv and --plot")
    paper = TABLES.get("paper")
    skipped_files: list[Any] = []
    rates = paper.rates(args.paper, skipped_files.append)
    for entry in skipped_files:
        print_message(f"intercode: skipped {entry.path}: {entry.reason}")
    if args.json:
        print_json(
            {
                "paper": str(args.paper),
                "rates": [entry.to_dict() for entry in rates],
                "skipped": [
                    {"path": str(entry.path), "reason": entry.reason} for entry in skipped_files
                ],
            }
        )
    else:
        format_table = to_markdown if args.markdown else run_output.table_text
        print("\n".join(format_table(table) for table in paper.tables(rates)), end="")
    return 0


def _report_text(
    args: argparse.Namespace, runs: Sequence[RecordedRun], comparisons: Sequence[BaselineComparison]
) -> str:
    if args.csv:
        return to_csv(runs)
    if args.plot:
        return charts_by_environment(runs)
    format_table = to_markdown if args.markdown else run_output.table_text
    format_list = to_list if args.markdown else str
    lead_text = _lead_text(runs, comparisons, format_list)
    if args.markdown:
        lead_text = f"## {escape_markdown(title(runs))}\n\n{lead_text}"
    if len(runs) == 1:
        run_facts = "\n".join(
            filter(None, (run_output.facts(runs[0].manifest), runs[0].unfinished_note))
        )
        errors = run_output.errors(runs[0].outcomes)
        return "\n".join(
            [
                lead_text,
                f"{format_list(safe(run_facts)).rstrip()}\n",
                *map(format_table, run_tables(runs[0])),
                format_list(errors),
            ]
        )
    heads = [
        f"{safe(str(run.folder))}: {run_output.facts(run.manifest)}\n"
        + safe(f"  {run.unfinished_note}\n" if run.unfinished_note else "")
        + run_output.errors(run.outcomes)
        for run in runs
    ]
    tables = [
        *side_by_side_tables(runs),
        *(table for comparison in comparisons for table in comparison.tables()),
    ]
    flips = "".join(f"{line}\n" for line in _flip_lines(comparisons))
    sections = [
        lead_text,
        format_list("".join(heads)),
        *map(format_table, tables),
        *([format_list(flips)] if flips else []),
    ]
    return "\n".join(sections)


def _flip_lines(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    """Yield lines about the tasks whose success rates differ between a baseline and another run.

    For each pair of runs, a line lists the tasks of which the baseline solves more attempts. A
    second line lists the tasks of which the other run solves more attempts.
    """
    for comparison in comparisons:
        for run, paired_result in comparison.pairs:
            for better_run, tasks in (
                (comparison.first, paired_result.better_first),
                (run, paired_result.better_second),
            ):
                if tasks:
                    worse_run = run if better_run is comparison.first else comparison.first
                    extra_count = len(tasks) - _MAX_LISTED_TASKS
                    remainder_text = (
                        f" and {extra_count} more (--json names all)" if extra_count > 0 else ""
                    )
                    task_count = format_count(len(tasks), "task")
                    text = f"{task_count} better by {better_run.label} than {worse_run.label}"
                    yield safe(f"{text}: {', '.join(tasks[:_MAX_LISTED_TASKS])}{remainder_text}")


def _lead_text(
    runs: Sequence[RecordedRun],
    comparisons: Sequence[BaselineComparison],
    format_list: Callable[[str], str],
) -> str:
    """Return the first lines of the report.

    The lines contain the dates and models of the runs. The verdict of each comparison follows:
    which run is better, and how certain the difference is.
    """
    lines = [f"{name} {text}" for name, text in facts(runs).items()]
    for verdict in verdicts(runs, comparisons):
        lines += [verdict.headline, f"  {verdict.detail}"]
    return format_list("".join(f"{safe(line)}\n" for line in lines))


def _as_json(
    runs: Sequence[RecordedRun], comparisons: Sequence[BaselineComparison]
) -> dict[str, Any]:
    if len(runs) == 1:
        return _run_facts(runs[0])
    return {
        "runs": [_run_facts(run) for run in runs],
        "comparisons": {
            str(run.folder): {"against": str(comparison.first.folder), **asdict(details)}
            for comparison in comparisons
            for run, details in comparison.pairs
        },
        "differences": {
            run: _difference_facts(details)
            for comparison in comparisons
            for run, details in comparison.differences_by_folder.items()
        },
    }


def _run_facts(run: RecordedRun) -> dict[str, Any]:
    outcomes, judge = run.outcomes, run.judge
    judge_prefix = "" if judge is None else "judged_"
    return {
        "run": str(run.folder),
        "manifest": run.manifest,
        "coverage": asdict(run.coverage),
        **run_output.as_json(outcomes, judge),
        "levels": {level: as_data(stats, judge) for level, stats in by_level(outcomes).items()},
        "places": {
            place: as_data(stats, judge) for place, stats in by_image_or_database(outcomes).items()
        },
        f"{judge_prefix}turns": [asdict(point) for point in by_turn(outcomes)],
        f"{judge_prefix}attempts": [asdict(entry) for entry in by_attempts(outcomes)],
        "spending": {end: asdict(entry) for end, entry in spending_by_outcome(outcomes).items()},
    }


def _difference_facts(differences: Sequence[ManifestDifference]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in asdict(difference).items() if name != "advice"}
        for difference in differences
    ]
