"""Run three scripted agents on the bundled tasks of all environments.

The demo needs no model, key, Docker or network. The output begins with one episode, turn by turn.
A table, a chart, and the path of a page with every episode follow.

  oracle                 runs the reference solution (gold): the upper bound
  try-again (scripted)   simulates a language model: knows gold, and makes random errors
  random                 acts at random: the reward for luck

The first Ctrl-C waits for the episodes in flight, the second stops at once. The same --out resumes
the demo.

With --model, a language model tries ten starter tasks instead; a local model needs no key.

Examples:
  intercode demo
  intercode demo --model local/qwen2.5-coder-1.5b
  intercode demo --limit 5 --out runs/demo
  intercode demo --json --quiet | jq .turns

The demo skips an environment, with a message, if this machine lacks a requirement, such as git for
SWE.

exit code: 0 if every episode has a result, 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from intercode.spec import positive

MAX_WORKERS = 8


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--model", metavar="NAME", help="a language model on ten starter tasks: PROVIDER/NAME"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N tasks of each environment"
    )
    parser.add_argument(
        "--workers",
        type=positive,
        default=workers,
        metavar="N",
        help=f"parallel episodes (here: {workers})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the runs' folder (default: runs/demo-TIME)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
