"""Repeat a recorded run of the 2023 paper under its protocol, and compare it turn by turn.

With --rescore, grade all recorded runs of a release by three rules: 2023's, the default, and the
default on reviewed data.

Examples:
  intercode replay --upstream ../release --suite nl2bash_fs_1 --results results_fs_1.json
  intercode replay --env bash --data tasks.json --results recorded.json --image nl2bash
  intercode replay --env sql --upstream ../release --results results.json --engine mysql
  intercode replay --env python --upstream ../release --results results.json --workers 2
  intercode replay --env ctf --upstream ../release --results results.json
  intercode replay ... --workers 4 --json > report.json
  intercode replay --upstream ../release --rescore --rows rows.json

exit code: 0 if the replay ran to its end, whatever it found.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.spec import RunSpec, add_options, list_section_options, positive


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``intercode replay`` to a parser."""
    parser.add_argument(
        "--env",
        choices=("bash", "sql", "python", "ctf"),
        help="default: bash; with --rescore: all",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="the recorded file of 2023; with --rescore a folder (default: the release)",
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="the tasks of the recorded run")
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="image of the tasks (default: each task's own, or nl2bash; host for Python and CTF)",
    )
    parser.add_argument(
        "--upstream", type=Path, metavar="DIR", help="a copy of the 2023 release, instead of --data"
    )
    parser.add_argument(
        "--suite", metavar="NAME", help="with --upstream: the suite, such as nl2bash_fs_1"
    )
    parser.add_argument(
        "--engine",
        metavar="NAME|URL",
        help="for SQL: the engine (default: mysql if its server is installed, else sqlite)",
    )
    parser.add_argument(
        "--databases",
        type=Path,
        metavar="PATH",
        help="for SQL, with --data: the folder or dump with the databases",
    )
    add_options(parser, list_section_options(RunSpec), "limit", "tasks")
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="parallel episodes (SQL has a single connection and keeps the order)",
    )
    parser.add_argument(
        "--rescore", action="store_true", help="grade all runs of --upstream by three rules"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="with --rescore: the JSON file of the counts; rows of other runs stay",
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="with --rescore: a Markdown page whose tables are rewritten",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Replay or rescore recorded runs, print the report, and return the exit code.

    Raises:
        InterCodeError: The command failed; `intercode_paper.replay.execute` and
            `intercode_paper.rescored_runs_report.execute` list the classes.
    """
    if args.rescore:
        from intercode_paper import rescored_runs_report

        return rescored_runs_report.execute(args)
    from intercode_paper import replay

    return replay.execute(args)
