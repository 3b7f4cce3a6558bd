"""Export tasks as folders for another framework, each with its own checks.

Examples:
  intercode datasets export bash --to harbor --out tasks
  intercode datasets export ./shop --to harbor --out tasks --base python:3.13
  intercode datasets export swe --to harbor --out tasks --task swe-taskline

exit code: 0 if all tasks were exported; 1 if some were omitted; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.cli.commands.validate import add_tasks
from intercode.registry import TASK_EXPORTERS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--to",
        choices=sorted({*TASK_EXPORTERS.homes, *TASK_EXPORTERS.names()}),
        required=True,
        help="the framework",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder for the tasks' folders"
    )
    parser.add_argument(
        "--base",
        default="host",
        metavar="IMAGE",
        help="the image after FROM, where a task has this machine's programs (default: host, "
        "which only InterCode builds)",
    )
    add_tasks(parser)
