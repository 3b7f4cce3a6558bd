"""Run a command in a fresh sandbox, or check this machine: ``python -m intercode_sandbox``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing

from intercode_sandbox import Limits, __version__, get_provider
from intercode_sandbox.errors import InterCodeError

_LIMITS = ("timeout", "memory", "disk", "processes", "output")
"""The fields of `Limits` that are options of the command ``run``."""
_TIMEOUT_EXIT_CODE = 124
"""The exit code if the program reached its time limit: the program ``timeout`` has the same."""
_INTERRUPT_EXIT_CODE = 130
_WHOLE_NETWORK = "all"
"""The value of ``--network`` by which the sandbox gets the machine's whole network."""
_MARKS = {True: "ok  ", None: "note", False: "FAIL"}
"""`intercode_sandbox.doctor.MachineCheck.ok` → the first word of the printed line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line's ``run`` or ``doctor``.

    Args:
        argv: Command-line arguments; default: the arguments of this process.

    Returns:
        The exit code. ``run``: the program's, or 124 at the time limit. ``doctor``: 1 if native
        sandboxes do not work. Both: 2 after an error, such as a machine that permits no sandbox;
        130 after Ctrl-C.

    Raises:
        SystemExit: The arguments are invalid (exit code 2), or request a help text or the version.
    """
    arguments = _make_parser().parse_args(argv)
    try:
        return doctor() if arguments.command == "doctor" else run(arguments)
    except (InterCodeError, OSError, LookupError) as error:
        print(f"intercode_sandbox: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPT_EXIT_CODE


def run(arguments: argparse.Namespace) -> int:
    """Run a program in a sandbox, write its raw output, and return the exit code.

    With ``--changes``, the changed files are listed on standard error after the output.

    Args:
        arguments: The parsed command-line arguments.

    Returns:
        The program's exit code; 124 if the program reached its time limit.
    """
    limit_options = {
        name: value for name in _LIMITS if (value := getattr(arguments, name)) is not None
    }
    limits, provider = Limits.merge(limit_options), get_provider(arguments.sandbox)
    network = arguments.network == _WHOLE_NETWORK or arguments.network or False
    with closing(provider.start(arguments.image, limits, network)) as sandbox:
        stdin = sys.stdin.buffer.read() if arguments.stdin else None
        result = sandbox.exec(arguments.program, stdin=stdin, user=arguments.user)
        for stream, output in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
            stream.buffer.write(output)
            stream.flush()
        if arguments.changes:
            for change in sandbox.changes():
                path = os.fsencode(change.path)
                sys.stderr.buffer.write(f"{change.kind} {change.type} ".encode() + path + b"\n")
    if not result.timed_out:
        return result.exit_code
    reason = f"stopped at the time limit of {limits.timeout:g} s, which --timeout changes"
    print(f"intercode_sandbox: {reason}", file=sys.stderr)
    return _TIMEOUT_EXIT_CODE


def doctor() -> int:
    """Print whether this machine runs native and Docker sandboxes, and the fix of each problem.

    Returns:
        The exit code: 1 if native sandboxes do not work, otherwise 0.
    """
    from intercode_sandbox.doctor import check_docker, check_native

    native_checks, docker_checks = check_native(), check_docker()
    for check in (*native_checks, *docker_checks):
        detail = check.detail + (f"\nto fix it: {check.fix}" if check.fix and not check.ok else "")
        printable_detail = "".join(
            character if character.isprintable() or character == "\n" else "?"
            for character in detail
        )
        print(
            f"{_MARKS[check.ok]}  {check.name:20}  {printable_detail}".replace("\n", f"\n{'':28}")
        )
    return int(any(check.ok is False for check in native_checks))


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m intercode_sandbox", description=__doc__)
    parser.add_argument("--version", action="version", version=f"intercode_sandbox {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("doctor", help="check whether this machine runs sandboxes")
    add_option = commands.add_parser("run", help="run a program in a fresh sandbox").add_argument
    add_option(
        "--image", default="host", help="the files that it sees (default: this machine's /usr)"
    )
    add_option("--sandbox", default="native", help="the provider: native (the default) or docker")
    add_option("--user", help="the user that it runs as; default: the image's")
    add_option(
        "--network",
        metavar="HOST[:PORT],…",
        help=f"what it may reach, or {_WHOLE_NETWORK!r}; default: nothing",
    )
    add_option(
        "-i",
        "--stdin",
        action="store_true",
        help="hand over this process's standard input; default: an empty one",
    )
    add_option(
        "--changes",
        action="store_true",
        help="list changed files on standard error; default: no list",
    )
    for limit_name in _LIMITS:
        unit = {"timeout": "seconds", "processes": "a number"}.get(limit_name, "bytes, or 512M")
        default = getattr(Limits(), limit_name)
        default_text = f"{default >> 20}M" if unit.startswith("bytes") else f"{default:g}"
        add_option(
            f"--{limit_name}",
            type=int if limit_name == "processes" else str,
            metavar="N",
            help=f"limit: {unit}; default: {default_text}",
        )
    add_option("program", nargs="+", help="the program and its arguments, after --")
    return parser
