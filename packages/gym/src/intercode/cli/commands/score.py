"""Score a file of predictions from another program.

Each prediction is executed as one action in a fresh workspace of its task, and submitted: seq2seq,
without interaction. For CTF, a prediction is the flag; for SWE, a patch. The file is JSON Lines:
objects with task_id and prediction, or with SWE-bench's instance_id and model_patch. Tasks without
a prediction are not tried.

Examples:
  intercode score predictions.jsonl bash
  intercode score predictions.jsonl sql --data spider --workers 4 --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.cli.commands.run import add_tasks
from intercode.spec import add_environment


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: the options of ``run`` without those of the agent and model."""
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="JSON Lines")
    add_environment(parser)
    add_tasks(parser)
