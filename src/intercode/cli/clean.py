"""Remove the remains of killed runs: control groups, containers, snapshots, half-built images.

What a living process uses is never touched, nor are finished images (see 'intercode images
prune') and runs.

Examples:
  intercode clean
  intercode clean --dry-run
"""

from __future__ import annotations

import argparse

from intercode.cli.terminal import print_json, safe
from intercode.sandbox import images
from intercode.sandbox.docker.provider import sweep_all
from intercode.sandbox.native.snapshot import sweep
from intercode.units import counted


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Sweep, and say what was found."""
    found = sweep(args.dry_run) + sweep_all(args.dry_run)
    # A half-built image is only told from one that is being built by taking its lock.
    found += [] if args.dry_run else [str(path) for path in images.sweep()]
    if args.json:
        print_json({"dry_run": args.dry_run, "removed": found})
        return 0
    for path in found:
        print(safe(path))
    what = counted(len(found), "thing")
    print(
        f"{'would remove' if args.dry_run else 'removed'} {what}" if found else "nothing was left"
    )
    return 0
