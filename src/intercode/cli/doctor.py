"""Check whether this machine can run sandboxes, and say what mends what is missing.

What works is marked ok; note: it works, with a restriction; FAIL: it does not. Sandboxes can be
used if one back end works, native or docker; whatever else is missing is a note.

Examples:
  intercode doctor
  intercode doctor --json

exit code: 0 if sandboxes can be used, 1 if not.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from intercode import __version__
from intercode.cli import _programs
from intercode.cli._text import indented, print_json, safe
from intercode.evaluate.manifest import version
from intercode.evaluate.provenance import own_versions
from intercode.sandbox.doctor import DOCKER_SANDBOX, Check, check_docker, check_native

_MARKS = {True: "ok  ", None: "note", False: "FAIL"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Run all checks and print them."""
    groups = {
        "python": _python(),
        "native": check_native(),
        "docker": check_docker(),
        "machine": _programs.check(),
    }
    backends = {
        "native": all(found.ok is not False for found in groups["native"]),
        "docker": any(found.ok for found in groups["docker"] if found.name == DOCKER_SANDBOX),
    }
    usable = any(backends.values()) and all(found.ok is not False for found in groups["python"])
    if args.json:
        checks = [{"group": name, **asdict(found)} for name, of in groups.items() for found in of]
        print_json({"usable": usable, "sandboxes": backends, "checks": checks})
    else:
        _print(groups)
        print(_verdict(usable, backends))
    return 0 if usable else 1


def _print(groups: Mapping[str, Sequence[Check]]) -> None:
    width = max(len(found.name) for checks in groups.values() for found in checks)
    for checks in groups.values():
        for found in checks:
            detail = indented(safe(found.detail), " " * (width + 8)).lstrip()
            print(f"{_MARKS[found.ok]}  {found.name:{width}}  {detail}")
            if found.fix and not found.ok:
                print(f"{'':{width + 6}}  to mend it: {safe(found.fix)}")
        print()


def _verdict(usable: bool, backends: Mapping[str, bool]) -> str:
    if not usable:
        return "Sandboxes cannot be used on this machine yet."
    how = " or ".join(f"--sandbox {name}" for name, works in backends.items() if works)
    return f"Sandboxes can be used: {how}."


def _python() -> list[Check]:
    good = sys.version_info >= (3, 10)
    commit = own_versions().get("commit", "")
    return [
        Check("intercode", True, f"{__version__}{commit and f', commit {commit[:12]}'}"),
        Check("python", good, platform.python_version(), "" if good else "install Python 3.10"),
        Check("gymnasium", True, version("gymnasium")),
    ]
