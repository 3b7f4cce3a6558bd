"""Show the episodes of a run, turn by turn.

Each turn has the model's thought or reply, its action and the observation. The reward follows, and
below 1.0 its reasons, which may quote gold. Control characters are escaped.

Examples:
  intercode show runs/20250101-120000-bash-oracle
  intercode show RUN --task shop-03 --full
  intercode show RUN --task shop-03 --messages    (the complete dialogue with the model)
  intercode show RUN --failed --json
  intercode show runs                             (the runs in a folder)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.cli.terminal import LINES
from intercode.spec import positive


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, help="the run's folder, or a folder of runs")
    parser.add_argument(
        "--task", action="append", metavar="ID", dest="tasks", help="only this task"
    )
    parser.add_argument(
        "--failed", action="store_true", help="only episodes that were not solved, and errors"
    )
    parser.add_argument(
        "--lines",
        type=positive,
        default=LINES,
        metavar="N",
        help=f"maximum lines of each text (default: {LINES})",
    )
    parser.add_argument("--full", action="store_true", help="print every text in full")
    parser.add_argument(
        "--messages",
        action="store_true",
        help="print the whole dialogue with the model: system prompt, roles, tool calls, tokens",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of episodes")
