"""Check whether this machine can run sandboxes, and print a fix for each failure.

Each check is marked ok, note (works with a restriction) or FAIL (does not work). With each provider
that starts a sandbox, native or docker, a task of each environment is played to its reward.
Sandboxes can be used if the tasks work with one provider; anything else that is missing is a note.

Examples:
  intercode doctor
  intercode doctor --json
  intercode doctor --apparmor

exit code: 0 if sandboxes can be used, 1 if not.
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--apparmor",
        action="store_true",
        help="print an AppArmor profile that permits sandboxes to this Python, and check nothing",
    )
