"""Check whether this machine can run sandboxes, and say what mends what is missing.

Examples:
  intercode doctor
  intercode doctor --json

exit code: 0 if sandboxes can be used, 1 if not.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec

from intercode import __version__
from intercode.cli._text import indented, print_json, safe
from intercode.evaluate.manifest import version
from intercode.sandbox.docker.doctor import DOCKER_SANDBOX
from intercode.sandbox.docker.doctor import check as check_docker
from intercode.sandbox.native.doctor import Check, check

_EXTRAS = {"yaml": "yaml"}
"""Module → the extra that brings it."""
_MARKS = {True: "ok  ", None: "note", False: "FAIL"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Run all checks and print them."""
    checks = [*_python(), *check(), *check_docker(), _bash(), *_extras()]
    usable = all(found.ok is not False for found in checks) or any(
        found.ok for found in checks if found.name == DOCKER_SANDBOX
    )
    if args.json:
        print_json({"usable": usable, "checks": [asdict(found) for found in checks]})
        return 0 if usable else 1
    width = max(len(found.name) for found in checks)
    for found in checks:
        detail = indented(safe(found.detail), " " * (width + 8)).lstrip()
        print(f"{_MARKS[found.ok]}  {found.name:{width}}  {detail}")
        if found.fix and not found.ok:
            print(f"{'':{width + 6}}  to mend it: {safe(found.fix)}")
    print()
    print("Sandboxes can be used." if usable else "Sandboxes cannot be used on this machine yet.")
    return 0 if usable else 1


def _python() -> list[Check]:
    good = sys.version_info >= (3, 10)
    return [
        Check("intercode", True, __version__),
        Check("python", good, platform.python_version(), "" if good else "install Python 3.10"),
        Check("gymnasium", True, version("gymnasium")),
    ]


def _bash() -> Check:
    path = shutil.which("bash")
    if path is None:
        return Check("bash", None, "not installed: the image 'host' has none", "apt install bash")
    return Check("bash", True, path)


def _extras() -> list[Check]:
    checks = []
    for module, extra in _EXTRAS.items():
        there = find_spec(module) is not None
        fix = "" if there else f"pip install 'intercode-gym[{extra}]'"
        detail = "installed" if there else f"not installed: no {extra.upper()} task files"
        checks.append(Check(f"extra {extra}", True if there else None, detail, fix))
    return checks
