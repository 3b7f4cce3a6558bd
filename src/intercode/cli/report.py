"""The summary of a finished run, or of one that is going on.

Examples:
  intercode report runs/20250101-120000-bash-oracle
  intercode report RUN --json | jq .statistics.success_rate
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.cli import _summary
from intercode.cli._text import print_json
from intercode.evaluate.log import latest, read_manifest
from intercode.evaluate.report import Outcome


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print the summary."""
    manifest = read_manifest(args.run)
    outcomes = list(latest(args.run, Outcome.of).values())
    if args.json:
        print_json({"run": str(args.run), "manifest": manifest, **_summary.as_json(outcomes)})
    else:
        print(_summary.facts(manifest), _summary.as_text(outcomes), sep="\n\n")
    return 0
