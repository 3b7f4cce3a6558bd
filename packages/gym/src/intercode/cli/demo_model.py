"""The demo of a language model: the model tries at most ten starter tasks.

Each episode is printed when it ends, unless the output is quiet or JSON. An HTML page contains all
episodes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from intercode.cli import run_output
from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import print_json, safe
from intercode.evaluate.runner import run
from intercode.report.recorded_tasks import task_finder
from intercode.report.runs import read_runs
from intercode.report.tables import matrix
from intercode.report.viewer_page import CompressedEpisodes, write_page
from intercode.spec import RunSpec
from intercode_console import INTERRUPT_EXIT_CODE

TASKS: Mapping[str, int] = {"bash": 4, "sql": 4, "python": 2}
"""Environment → number of starter tasks that the demo uses."""
AGENT, MAX_TURNS, MAX_WORKERS = "try-again", 6, 2
REPLY_TOKENS = 256
"""The maximum number of tokens in a reply. Small models often do not end a reply by themselves."""


def demonstrate(
    model: str, output_folder: Path, limit: int | None, workers: int, *, quiet: bool, as_json: bool
) -> int:
    """Run a model on starter tasks; print each episode, a table and the page's path.

    Args:
        model: ``PROVIDER/NAME``.
        output_folder: The folder for the runs' folders.
        limit: The maximum number of tasks of each environment; None: ten in total.
        workers: The number of parallel episodes. The function lowers a number above `MAX_WORKERS`,
            because a local model needs the cores.
        quiet: Whether to print neither progress nor episodes.
        as_json: Whether to print one JSON object instead.

    Returns:
        The exit code: 0 if every episode has a result, 1 if not, 130 if interrupted.

    Raises:
        UsageError: The model does not exist, or its package, key or memory is missing.
    """
    is_live = not quiet and not as_json
    is_complete, folders = True, []
    for env, count in TASKS.items():
        folders.append(output_folder / f"{env}-{AGENT}")
        spec = RunSpec.from_layers(
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
        result = run(spec, ProgressPrinter(show=sys.stdout if is_live else None, quiet=quiet))
        is_complete &= result.complete
        if result.interrupted:
            print(f"stopped; what was finished is in {safe(str(output_folder))}", file=sys.stderr)
            return INTERRUPT_EXIT_CODE
    page = output_folder / "report.html"
    episodes = CompressedEpisodes(find_task=task_finder(folders))
    runs = read_runs(folders, episodes.add)
    write_page(page, runs, episodes)
    outcomes = [outcome for recorded_run in runs for outcome in recorded_run.outcomes]
    if as_json:
        print_json({"out": str(output_folder), "page": str(page), **run_output.as_json(outcomes)})
    else:
        print(f"\n{run_output.table_text(matrix(runs))}")
        print(run_output.as_text(outcomes, tags=0))
        print(f"\n{run_output.page_line(page)}")
    return 0 if is_complete else 1
