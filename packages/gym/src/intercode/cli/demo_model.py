"""The demo of a language model: ten starter tasks, each shown as it ends, and the page of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from intercode.cli import results
from intercode.cli.results import Watcher
from intercode.cli.terminal import print_json, safe
from intercode.evaluate.runner import run
from intercode.report.page import Episodes, write_page
from intercode.report.runs import read_runs
from intercode.report.tables import matrix
from intercode.spec import RunSpec
from intercode_console import INTERRUPT_EXIT_CODE

TASKS: Mapping[str, int] = {"bash": 4, "sql": 4, "python": 2}
"""Environment → how many of its starter tasks."""
AGENT, MAX_TURNS, MAX_WORKERS = "try-again", 6, 2
REPLY_TOKENS = 256
"""Tokens of a reply: a small model that does not stop by itself costs no more."""


def demonstrate(
    model: str, output_folder: Path, limit: int | None, workers: int, *, quiet: bool, as_json: bool
) -> int:
    """Run a model on starter tasks, and show each episode, a table and the page's path.

    Args:
        model: ``PROVIDER/NAME``.
        output_folder: The folder of the runs' folders.
        limit: Only so many tasks of each environment; None: ten in all.
        workers: Episodes at a time, of which a local model's cores allow few.
        quiet: Show no progress.
        as_json: Print one JSON object instead.

    Returns:
        The exit code.

    Raises:
        UsageError: There is no such model, or it lacks its package, its key or memory.
    """
    live = not quiet and not as_json
    complete, folders = True, []
    for env, count in TASKS.items():
        folders.append(output_folder / f"{env}-{AGENT}")
        spec = RunSpec.of(
            {
                "env": env,
                "data": f"{env}-starter",
                "split": "test",
                "agent": AGENT,
                "model": model,
                "max_turns": MAX_TURNS,
                "reply_tokens": REPLY_TOKENS,
                "workers": min(workers, MAX_WORKERS),
                "limit": min(count, limit or count),
                "out": str(folders[-1]),
            }
        )
        result = run(spec, Watcher(show=sys.stdout if live else None, quiet=quiet))
        complete &= result.complete
        if result.interrupted:
            print(f"stopped; what was finished is in {safe(str(output_folder))}", file=sys.stderr)
            return INTERRUPT_EXIT_CODE
    episodes, page = Episodes(), output_folder / "report.html"
    runs = read_runs(folders, episodes.add)
    write_page(page, runs, episodes)
    outcomes = [outcome for recorded_run in runs for outcome in recorded_run.outcomes]
    if as_json:
        print_json({"out": str(output_folder), "page": str(page), **results.as_json(outcomes)})
    else:
        print(f"\n{results.table_text(matrix(runs))}")
        print(results.as_text(outcomes, tags=0))
        print(f"\nthe page with every episode, to open in a browser: {safe(str(page))}")
    return 0 if complete else 1
