"""The command ``intercode replay --rescore``: rows of rescored runs, as tables, JSON and a page.

A file of rows keeps the rows of runs that a rescoring does not include. A page has its tables
between `BEGIN` and `END`.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path

import msgspec

from intercode.cli.run_output import table_text
from intercode.cli.terminal import print_json, print_message
from intercode.errors import RecordError, RecordWriteError, UsageError
from intercode.evaluate.statistics import IntervalEstimate, wilson
from intercode.report.tables import ReportTable, format_value
from intercode.report.text import to_markdown
from intercode_paper.paper_tables import SkippedResultsFile
from intercode_paper.rescored_runs import (
    GRADINGS,
    GradeCounts,
    RescoredRun,
    RescoreOptions,
    rescore,
)
from intercode_sandbox.host_files import write_atomically

BEGIN, END = "<!-- begin: rescored runs -->", "<!-- end: rescored runs -->"
"""Lines of a page, between which the tables are written."""
_RECORDED = "recorded"
_SAME_TASKS = "2023, tasks of reviewed"
_ENV_NAMES = {"bash": "Bash", "sql": "SQL", "python": "Python", "ctf": "CTF"}


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The content of a file of rows."""

    what: str
    runs: list[RescoredRun]


_CONTENT = (
    "Recorded runs of the 2023 release, as recorded and under each grading: counts of episodes "
    "with a reward of 1. Written by: intercode replay --rescore --rows FILE"
)


def execute(args: argparse.Namespace) -> int:
    """Rescore all recorded runs, write rows and page, print the tables, and return the exit code.

    Raises:
        UsageError: The options are inconsistent, or the page lacks the lines of its tables.
        RecordError: No run can be read or scored, or `--rows` is malformed.
        RecordWriteError: `--rows` cannot be written.
        SandboxError, ImageError, DatabaseError: The infrastructure failed.
    """
    if args.upstream is None:
        raise UsageError("--rescore needs the data of the runs: --upstream DIR")
    if args.data or args.suite or args.image or args.databases or args.tasks:
        raise UsageError("--rescore excludes --data, --suite, --image, --databases and --task")
    # Errors in files are found before the rescoring, which takes long.
    earlier_runs = [] if args.rows is None else _earlier_runs(args.rows, args.limit)
    if args.page is not None:
        _split_page(args.page)

    def warn(file: SkippedResultsFile) -> None:
        print_message(f"intercode: left out {file.path}: {file.reason}")

    options = RescoreOptions(args.upstream.resolve(), args.engine, args.workers, args.limit)
    runs = rescore(
        options,
        args.results,
        [args.env] if args.env else [],
        warn,
        (lambda line: None) if args.quiet else print_message,
    )
    runs = merge(earlier_runs, runs)
    if args.rows is not None:
        document = msgspec.json.format(msgspec.json.encode(RowsFile(_CONTENT, runs)), indent=1)
        try:
            write_atomically(args.rows, document + b"\n")
        except OSError as error:
            raise RecordWriteError(f"cannot write {args.rows}: {error.strerror}") from error
    if args.page is not None:
        write_page(args.page, runs)
    if args.json:
        print_json(asdict(RowsFile(_CONTENT, runs)))
    else:
        print("\n".join(table_text(table) for table in tables(runs)), end="")
    return 0


def _earlier_runs(path: Path, limit: int | None) -> list[RescoredRun]:
    """Return the runs of a file of rows, which may not exist yet, and will be written."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RecordWriteError(f"cannot write {path}: its folder is missing or not writable")
    if not path.exists():
        return []
    if limit is not None:
        raise UsageError(f"--limit would replace rows of whole runs in {path}: name a new file")
    return read_rows(path)


def read_rows(path: Path) -> list[RescoredRun]:
    """Read a file of rows.

    Raises:
        RecordError: The file cannot be read, or has another format.
    """
    try:
        runs = msgspec.json.decode(path.read_bytes(), type=RowsFile).runs
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise RecordError(f"{path}: not a file of rescored runs: {error}") from error
    for run in runs:
        if not _is_valid(run):
            raise RecordError(f"{path}: not a row of rescored runs: {run.env}, {run.model}")
    return runs


def _is_valid(run: RescoredRun) -> bool:
    """Return whether a run has only known names, and no more successes than episodes."""
    gradings = {*run.counts, *(change.grading for change in run.changes)}
    return (
        run.env in _ENV_NAMES
        and gradings <= {*GRADINGS}
        and all(
            0 <= success_count <= counts.episodes and counts.episodes > 0
            for counts in (GradeCounts(run.recorded, run.episodes), *run.counts.values())
            for success_count in (counts.success_count, counts.success_count_2023 or 0)
        )
    )


def merge(earlier_runs: Sequence[RescoredRun], runs: Sequence[RescoredRun]) -> list[RescoredRun]:
    """Return all runs in the order of the tables; a new run replaces the earlier run."""
    run_table = {(run.env, run.strategy, run.model): run for run in (*earlier_runs, *runs)}
    envs = list(_ENV_NAMES)
    return sorted(
        run_table.values(), key=lambda run: (envs.index(run.env), run.strategy, run.model)
    )


def write_page(page: Path, runs: Sequence[RescoredRun]) -> None:
    """Write the tables of runs between the lines `BEGIN` and `END` of a page.

    Raises:
        UsageError: The page cannot be read, or lacks the lines.
    """
    head, tail = _split_page(page)
    page.write_text(head + page_text(runs) + tail, encoding="utf-8")


def page_text(runs: Sequence[RescoredRun]) -> str:
    """Return the generated part of a page, with the lines `BEGIN` and `END`."""
    return "\n".join([BEGIN, "", *map(to_markdown, tables(runs)), END])


def _split_page(page: Path) -> tuple[str, str]:
    """Return the texts of a page before and after the generated part."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {page}: {error.strerror or error}") from error
    head, begin, body = text.partition(BEGIN)
    _, end, tail = body.partition(END)
    if not begin or not end:
        raise UsageError(f"{page} has no place for tables: add the lines {BEGIN} and {END}")
    return head, tail


# Tables


def tables(runs: Sequence[RescoredRun]) -> list[ReportTable]:
    """Return the tables: success for each environment, order of models, changes by reason."""
    envs = [env for env in _ENV_NAMES if any(run.env == env for run in runs)]
    result_tables = [_success_table(env, [run for run in runs if run.env == env]) for env in envs]
    if order_rows := tuple(_order_rows(runs)):
        result_tables.append(
            ReportTable(
                "Order of models",
                (("", "text"), ("grading", "words"), ("order", "words"), ("exchanged", "text")),
                order_rows,
                "Sign >: the intervals do not overlap. Comma: they do.\n"
                "Exchanged: pairs of models whose order differs from the row above.",
            )
        )
    if change_rows := tuple(_change_rows(runs)):
        result_tables.append(
            ReportTable(
                "Changes by reason",
                (
                    ("", "text"),
                    ("to", "words"),
                    ("change", "words"),
                    ("reason", "words"),
                    ("episodes", "count"),
                ),
                change_rows,
                "All runs of an environment with counted changes together: "
                + "; ".join(f"{_ENV_NAMES[env]}: {_counted_runs(env, runs)}" for env in envs),
            )
        )
    return result_tables


def _success_table(env: str, runs: Sequence[RescoredRun]) -> ReportTable:
    gradings = [_RECORDED, *(name for name in GRADINGS if any(name in run.counts for run in runs))]
    names = [*gradings, *[_SAME_TASKS] * ("reviewed" in gradings), "rescored"]
    rows = []
    for run in runs:
        cells = [_cell(_counts(run, grading)) for grading in gradings]
        if "reviewed" in gradings:
            cells.append(_same_tasks_cell(run.counts.get("reviewed")))
        rows.append((f"{run.model}, {run.strategy}", *cells, run.source.partition(",")[0]))
    return ReportTable(
        f"{_ENV_NAMES[env]}: success rate (95 % interval) of episodes",
        (("", "text"), *((name, "text") for name in names)),
        tuple(rows),
    )


def _counts(run: RescoredRun, grading: str) -> GradeCounts | None:
    return (
        GradeCounts(run.recorded, run.episodes) if grading == _RECORDED else run.counts.get(grading)
    )


def estimate(counts: GradeCounts) -> IntervalEstimate:
    """Return the success rate of counts, with Wilson's interval."""
    return IntervalEstimate(
        counts.success_count / counts.episodes, *wilson(counts.success_count, counts.episodes)
    )


def _cell(counts: GradeCounts | None) -> str:
    if counts is None:
        return "-"
    rate = estimate(counts)
    text = format_value((rate.value, rate.low, rate.high), "estimate")
    return f"{text} of {counts.episodes}"


def _same_tasks_cell(counts: GradeCounts | None) -> str:
    """Return the success rate under ``2023`` of the episodes that a grading can grade."""
    if counts is None or counts.success_count_2023 is None:
        return "-"
    return format_value(counts.success_count_2023 / counts.episodes, "rate")


def _order_rows(runs: Sequence[RescoredRun]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each environment, strategy and grading with at least two models."""
    for env, strategy in dict.fromkeys((run.env, run.strategy) for run in runs):
        group = [run for run in runs if (run.env, run.strategy) == (env, strategy)]
        earlier_order: list[str] = []
        for grading in (_RECORDED, *GRADINGS):
            estimates = {
                run.model: estimate(counts)
                for run in group
                if (counts := _counts(run, grading)) is not None
            }
            if len(estimates) < 2:
                continue
            order = sorted(estimates, key=lambda model: -estimates[model].value)
            text = order[0]
            for better, worse in pairwise(order):
                is_clear = estimates[better].low > estimates[worse].high
                text += f"{' >' if is_clear else ','} {worse}"
            count = _count_exchanged(earlier_order, order)
            yield f"{_ENV_NAMES[env]}, {strategy}", grading, text, count
            earlier_order = order


def _count_exchanged(earlier_order: Sequence[str], order: Sequence[str]) -> str:
    """Return the number of pairs of models in another order, of all pairs in both orders."""
    pairs = list(combinations([model for model in earlier_order if model in order], 2))
    count = sum(order.index(leader) > order.index(follower) for leader, follower in pairs)
    return f"{count} of {len(pairs)}" if pairs else "-"


def _change_rows(runs: Sequence[RescoredRun]) -> Iterator[tuple[str, str, str, str, int]]:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for run in runs:
        for change in run.changes:
            counts[run.env, change.grading, change.kind, change.reason] += change.episodes
    envs = list(_ENV_NAMES)
    for (env, grading, kind, reason), count in sorted(
        counts.items(),
        key=lambda item: (
            envs.index(item[0][0]),
            GRADINGS.index(item[0][1]),
            item[0][2],
            -item[1],
        ),
    ):
        yield _ENV_NAMES[env], grading, kind, reason, count


def _counted_runs(env: str, runs: Sequence[RescoredRun]) -> str:
    counted_runs = [run for run in runs if run.env == env and run.changes]
    names = ", ".join(f"{run.model} {run.strategy}" for run in counted_runs) or "none"
    return f"{names} ({sum(run.episodes for run in counted_runs)} episodes)"
