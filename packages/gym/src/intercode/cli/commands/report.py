"""Report a run in detail, or several side by side, each compared with the first task by task.

Examples:
  intercode report runs/20250101-120000-bash-oracle
  intercode report RUN --json | jq .statistics.success_rate
  intercode report RUN OTHER             (with a warning if their conditions differ)
  intercode report runs/sweep            (all runs in a folder)
  intercode report RUN OTHER --html report.html
  intercode report RUN OTHER --plot      (success against turns, in the terminal)
  intercode report --paper DIR           (the success rates of 2023 from its recorded files)
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "run", type=Path, nargs="*", metavar="RUN", help="a run's folder, or a folder of runs"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write an HTML page with all tables and episodes"
    )
    parser.add_argument(
        "--hide-gold", action="store_true", help="omit everything that may quote gold from the page"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="read the data files that the runs name, so the page shows their tasks (no code of a "
        "run is executed)",
    )
    format_group = parser.add_mutually_exclusive_group()
    format_group.add_argument("--json", action="store_true", help="print one JSON object")
    format_group.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    format_group.add_argument(
        "--csv", action="store_true", help="print a line for each group of episodes"
    )
    format_group.add_argument(
        "--plot", action="store_true", help="print a chart of success against turns"
    )
    parser.add_argument(
        "--paper",
        type=Path,
        metavar="DIR",
        help="report the recorded files of 2023 instead of runs",
    )
