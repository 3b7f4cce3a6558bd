"""Score predictions that were made elsewhere: a file of them goes in, scores come out.

Each is run as one action in a fresh place of its task, and submitted: plain seq2seq, without any
interaction. For CTF a prediction is the flag, for SWE a patch. The file has JSON Lines: objects
with task_id and prediction (or, as for SWE-bench, instance_id and model_patch). Tasks that it does
not have are not tried.

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
    """Add the command's options: those of ``run`` that have to do with tasks."""
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="JSON Lines")
    add_environment(parser)
    add_tasks(parser)
