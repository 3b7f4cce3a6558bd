"""Options that several commands share."""

from __future__ import annotations

import argparse
import re
from typing import Any

from intercode.rewards.judge import VOTES
from intercode.sandbox import PROVIDERS
from intercode.sandbox.base import Limits

ENVIRONMENT = (
    "provider",
    "image",
    "network",
    "attempts",
    "python",
    "repositories",
    "engine",
    "databases",
    "max_rows",
    "permute_columns",
    "max_turns",
    "reward",
)
"""The options that not every environment takes; each takes those that its constructor names."""

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def natural(text: str) -> int:
    """A whole number, 0 or above."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def size(text: str) -> int:
    """A number of bytes, as ``512M``, ``1GiB`` or ``1000000``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a size such as 512M or 1G, not {text!r}")
    return value


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Options that say where tasks are tried, and within what limits."""
    limits = Limits()
    group = parser.add_argument_group("where")
    group.add_argument(
        "--sandbox",
        choices=sorted(PROVIDERS),
        dest="provider",
        help="what runs the sandboxes: native (default), or docker: an engine with Docker's API",
    )
    group.add_argument(
        "--image", metavar="IMAGE", help="for all tasks (default: each task's own, else host)"
    )
    group.add_argument(
        "--network",
        action="store_true",
        default=None,
        help="let tasks reach this machine's network, and try those that need it",
    )
    group.add_argument(
        "--attempts",
        type=natural,
        metavar="N",
        help="for CTF: wrong flags that end an episode (default: 3; 0: any number may be tried)",
    )
    group.add_argument(
        "--python",
        metavar="PROGRAM",
        help="for Python: the image's own, as python3 (default: InterCode's, without packages)",
    )
    group.add_argument(
        "--engine",
        metavar="NAME|URL",
        help="for SQL: sqlite (default), duckdb, mysql, postgresql, or a server's URL",
    )
    group.add_argument(
        "--databases",
        metavar="PATH",
        help="for SQL: the folder, database file or dump that holds the tasks' databases",
    )
    group.add_argument(
        "--max-rows",
        type=positive,
        metavar="N",
        help="for SQL: rows of a result that are shown (default: 50)",
    )
    group.add_argument(
        "--permute-columns",
        action=argparse.BooleanOptionalAction,
        help="for SQL: whether an answer's columns may come in another order (default: as the data "
        "says; Spider's may)",
    )
    group.add_argument(
        "--reward",
        metavar="FILE:NAME",
        help="your own function, reward.py:score; for Bash also judge; for SQL also bird-ex, "
        "bird-soft-f1, bird-r-ves or spider-test-suite",
    )
    add_judge(group)
    group.add_argument(
        "--repositories",
        metavar="DIR|URL",
        help="for SWE: where the repositories are that tasks name and do not have",
    )
    group.add_argument(
        "--protocol",
        choices=("default", "paper"),
        default="default",
        help="'paper' has the semantics of 2023, quirks included",
    )
    group.add_argument(
        "--max-turns", type=positive, metavar="N", help="turns before an episode is cut off"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help=f"for each action (default: {limits.timeout:g})",
    )
    group.add_argument("--memory", type=size, metavar="SIZE", help="default: 1G")
    group.add_argument("--disk", type=size, metavar="SIZE", help="default: 1G")
    group.add_argument("--output", type=size, metavar="SIZE", help="kept of each action (1M)")
    group.add_argument(
        "--processes", type=positive, metavar="N", help=f"default: {limits.processes}"
    )


def add_judge(group: argparse._ActionsContainer) -> None:
    """Which model judges, and how often it is asked."""
    group.add_argument(
        "--judge-model",
        metavar="NAME",
        help="for --reward judge: PROVIDER/NAME of the model that says whether two outputs answer "
        "alike, where the files are as gold's",
    )
    group.add_argument("--judge-url", metavar="URL", help="of its server, if that is your own")
    group.add_argument(
        "--judge-votes",
        type=positive,
        metavar="N",
        help=f"how often it is asked, each time in both orders (default: {VOTES})",
    )


def limits(args: argparse.Namespace) -> Limits:
    """The limits that were asked for; the others are the defaults."""
    names = ("timeout", "memory", "disk", "output", "processes")
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Options that say which tasks."""
    group = parser.add_argument_group("which tasks")
    group.add_argument("--limit", type=positive, metavar="N", help="only the first N")
    group.add_argument(
        "--task",
        action="append",
        metavar="ID",
        dest="tasks",
        help="only this one; may be given several times",
    )
