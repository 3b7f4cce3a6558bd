"""Check that gold solves every task, twice with the same result, and that no wrong answer does.

Examples:
  intercode validate ./shop              (a folder that 'intercode new' made)
  intercode validate tasks.json --env bash --json
  intercode validate mbpp --workers 2 --write-exclude broken.json

'intercode datasets validate' is the same.

exit code: 0 if all tasks are valid; 1 if a task is not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.spec import (
    EnvSpec,
    RunSpec,
    add_environment_options,
    add_options,
    list_section_options,
    positive,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="parallel tasks (default: 1)"
    )
    parser.add_argument(
        "--write-exclude",
        type=Path,
        metavar="FILE",
        help="write the invalid tasks to a file, for 'intercode run --exclude'",
    )
    parser.add_argument(
        "--also-on",
        action="append",
        metavar="SANDBOX",
        help="also check that gold has the same result with this provider of sandboxes: native, "
        "docker, or your own; may be given several times",
    )
    add_tasks(parser)


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add the options that select tasks and their environment."""
    parser.add_argument("data", metavar="NAME|FILE|FOLDER")
    parser.add_argument(
        "--data",
        dest="data_option",
        metavar="FILE",
        help="the tasks, if the first argument is their environment, as for 'intercode run'",
    )
    parser.add_argument(
        "--env",
        metavar="ENV",
        help=("environment of the tasks (default: derived from their fields)"),
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, list_section_options(RunSpec), "limit", "tasks")
    environment_group = parser.add_argument_group("environment")
    add_options(environment_group, list_section_options(EnvSpec), excluded_names="data secret")
    add_environment_options(environment_group)
