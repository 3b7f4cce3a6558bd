"""The command line's main function, with the registry of commands and the exit codes.

Each command is a module or a class, which is imported when the user calls the command. The module
or class has two functions: ``configure(parser)`` adds options, and ``execute(args)`` returns the
exit code. ``--help`` prints the docstring of the module or class. For some commands, a module in
`intercode.cli.commands` has ``configure``, and the module of the same name in `intercode.cli` has
``execute``.

An installed package adds a command by an entry point of the group ``intercode.commands``.
``intercode path/to/file.py:name`` executes a command from a user's file.
"""

from __future__ import annotations

import argparse
import errno
import inspect
import os
import select
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Any

from intercode import __version__, register
from intercode.cli.parser import USAGE, CommandParser
from intercode.errors import (
    DockerfileError,
    InterCodeError,
    RecordError,
    RecordWriteError,
    TaskError,
    TaskNotFoundError,
    UsageError,
)
from intercode.registry import INTEGRATIONS, PAPER
from intercode_console import INTERRUPT_EXIT_CODE, allow_interrupts
from intercode_sandbox.lazy_imports import LazyRegistry
from intercode_sandbox.user_code import describe_error, is_reference

_DESCRIPTIONS = {
    "demo": "run three scripted agents on all bundled tasks",
    "new": "create a small benchmark of your own in a new folder",
    "run": "run an agent over tasks",
    "sweep": "run every agent with every model in every environment, and compare",
    "resume": "resume a run that was interrupted or has errors",
    "rescore": "score a recorded run again, with another reward",
    "score": "score a file of predictions from another program",
    "mcp": "serve tasks to a client of the Model Context Protocol",
    "play": "try tasks yourself, in the terminal",
    "report": "print the results of runs, or compare runs",
    "show": "print the episodes of a run, turn by turn",
    "view": "view runs in the browser, even while they are running",
    "export": "export a run in another format",
    "validate": "check that the tasks of a benchmark can be solved and scored",
    "serve": "serve environments over a network, by OpenEnv's WebSocket protocol",
    "gateway": "proxy, record and limit calls to a model",
    "replay": "repeat recorded runs of the 2023 paper, and compare the results",
    "datasets": "list, fetch, validate and export datasets",
    "models": "list, fetch and remove models that run on this machine",
    "agents": "list, install and remove external command-line agents",
    "images": "list, build and remove sandbox images",
    "doctor": "check whether this machine can run sandboxes",
    "clean": "remove the remains of killed runs",
}
"""Name of a command → its summary in ``--help``. The command's module is ``intercode.cli.NAME`` or
``intercode.cli.commands.NAME``, or belongs to a package of `_COMMAND_PACKAGES`."""
_DECLARED_NAMES = "demo doctor export play report rescore resume run score show sweep validate"
_COMMAND_PACKAGES = {
    **dict.fromkeys(("agents", "gateway", "mcp", "serve"), INTEGRATIONS),
    "replay": PAPER,
}
"""Name of a command that another package of InterCode has → that package."""
_DECLARATION_MODULES = {name: f"intercode.cli.commands.{name}" for name in _DECLARED_NAMES.split()}
"""Name of a command → separate module with its ``configure``. The module with ``execute`` is slow
to import, and ``--help`` does not need it."""
COMMANDS = LazyRegistry(
    "command",
    {name: f"intercode.cli.{name}" for name in _DESCRIPTIONS if name not in _COMMAND_PACKAGES}
    | _DECLARATION_MODULES,
    "intercode.commands",
    _COMMAND_PACKAGES,
)

_GROUPS = {
    "try": "demo play",
    "build": "new validate datasets images",
    "run": "run sweep resume score rescore replay",
    "read": "report show view export",
    "serve": "serve mcp gateway",
    "machine": "doctor models agents clean",
}
"""Title of a group in ``--help`` → names of its commands, in the order of ``--help``."""
FAILURE, PIPE = 1, 141
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Error numbers of a failed write: no space, quota exceeded, read-only file system, I/O error. An
OSError with another number is unexpected, and is printed with its traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments and run one command.

    Args:
        argv: The arguments; None: the arguments of the process.

    Returns:
        The exit code: 0 ok, 1 failed, 2 wrong usage, 130 interrupted, 141 closed output pipe.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command_index = next((n for n, word in enumerate(arguments) if not word.startswith("-")), None)
    top_parser = _parser()
    options = top_parser.parse_args(
        arguments if command_index is None else arguments[:command_index]
    )
    if options.version:
        print(f"intercode {__version__}")
        return 0
    if command_index is None:
        top_parser.print_help()
        return USAGE
    name = arguments[command_index]
    if name not in COMMANDS and not is_reference(name):
        top_parser.error(str(COMMANDS.unknown(name)))
    return run_command(name, arguments[command_index + 1 :], debug=options.debug)


def run_command(
    name: str, arguments: Sequence[str], *, debug: bool = False, prog: str | None = None
) -> int:
    """Parse a command's arguments, execute the command, and return its exit code.

    An `InterCodeError`, an interrupt, a broken pipe or a full disk is reported, and determines the
    exit code. Other exceptions are unexpected, and propagate.

    Args:
        name: The command's name, or a reference to a user's code: ``file.py:name``.
        arguments: The command's arguments.
        debug: Whether to raise errors instead of printing them.
        prog: The program's name in messages; None: ``intercode NAME``.
    """
    _escape_unprintable()
    parser = CommandParser(prog=prog or f"intercode {name}")
    try:
        if COMMANDS.is_foreign(name):
            register()
        command = COMMANDS.resolve(name)
        parser = _command_parser(command, parser.prog)
        args = parser.parse_args(arguments)
        debug = debug or args.debug
        with allow_interrupts():
            return _execute(command, args, debug)
    except InterCodeError as error:
        if debug:
            raise
        _print_error(error)
        if isinstance(error, UsageError):
            print(f"see '{parser.prog} --help'", file=sys.stderr)
        return _exit_code(error)
    except KeyboardInterrupt:
        if debug:
            raise
        print(file=sys.stderr)
        return INTERRUPT_EXIT_CODE
    except BrokenPipeError:
        if not _reader_has_gone():
            if debug:
                raise
            print(f"intercode: error: {_BROKEN_PIPE_MESSAGE}", file=sys.stderr)
            return FAILURE
        _drop_output()
        return PIPE
    except OSError as error:
        if debug or error.errno not in _DISK_ERRORS:
            raise
        _drop_output()
        path_text = "" if error.filename is None else f" {error.filename}"
        _print_error(f"cannot write{path_text}: {error.strerror}")
        return FAILURE


def _execute(command: Any, args: argparse.Namespace, debug: bool) -> int:
    """Execute a command with its parsed arguments; return its exit code."""
    from intercode.cli.terminal import reserve_stdout

    register()
    # The command `gateway` has `args.command`, a program of the user, which the gateway starts. The
    # program writes to standard output, which is therefore not reserved for JSON.
    is_json = getattr(args, "json", False) and not getattr(args, "command", None)
    try:
        with reserve_stdout() if is_json else nullcontext():
            code = int(_executor(command).execute(args))
    except SystemExit as error:
        if debug or error.code:
            raise
        # Code of the user, such as a reward, has called exit(0). The command has not finished, so
        # exit code 0 would be wrong.
        print(f"intercode: error: not finished: {describe_error(error)}", file=sys.stderr)
        return FAILURE
    sys.stdout.flush()
    return code


def _is_declared(command: Any) -> bool:
    """Return whether a command is a module of `intercode.cli.commands`, which lacks ``execute``."""
    return getattr(command, "__name__", "") in _DECLARATION_MODULES.values()


def _executor(command: Any) -> Any:
    """Return the module or class with a command's ``execute``, and import it if necessary."""
    if not _is_declared(command):
        return command
    return import_module(command.__name__.replace(".commands.", "."))


def _print_error(error: object) -> None:
    """Print an error to standard error. Control characters in data that it quotes are escaped."""
    from intercode.cli.terminal import print_message

    print_message(f"intercode: error: {error}")


_BROKEN_PIPE_MESSAGE = (
    "a sandbox or a server closed its connection (broken pipe). 'intercode doctor' checks this "
    "machine; --debug shows the traceback"
)


def _reader_has_gone() -> bool:
    """Return whether a `BrokenPipeError` comes from standard output or standard error.

    The result is true if the program that reads one of the two streams, such as ``head``, has
    closed its end of the pipe. Otherwise a sandbox or a server has closed a connection.
    """
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a stream that tests replace may have no descriptor
            poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _drop_output() -> None:
    """Redirect standard output to the null device.

    At exit, Python flushes standard output, which would otherwise fail again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(error: InterCodeError) -> int:
    """Return the exit code for an error: 2 for unusable arguments or files, 1 for others."""
    usage_errors = UsageError | TaskError | TaskNotFoundError | RecordError | DockerfileError
    return (
        FAILURE
        if isinstance(error, RecordWriteError) or not isinstance(error, usage_errors)
        else USAGE
    )


def _escape_unprintable() -> None:
    """Make output streams escape characters that they cannot encode, instead of raising an error.

    The outputs of programs, which commands print, may contain arbitrary characters.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _command_parser(command: Any, prog: str) -> CommandParser:
    required_functions = ("configure",) if _is_declared(command) else ("configure", "execute")
    if not all(callable(getattr(command, name, None)) for name in required_functions):
        raise UsageError(f"{prog}: a command has configure(parser) and execute(args)")
    parser = CommandParser(
        prog=prog,
        description=inspect.getdoc(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.configure(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, _DESCRIPTIONS))
    groups = [
        "\n".join(
            [f"{title}:", *(f"  {name:{width}}  {_DESCRIPTIONS[name]}" for name in names.split())]
        )
        for title, names in _GROUPS.items()
    ]
    commands = "\n\n".join(groups)
    parser = CommandParser(
        prog="intercode",
        usage="intercode [--debug] COMMAND [...]",
        description="Interactive coding with execution feedback, in sandboxes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{commands}\n\n"
        "'intercode COMMAND --help' describes a command. First steps:\n"
        "  intercode doctor\n"
        "  intercode demo\n"
        "  intercode run bash --limit 10\n"
        "  intercode run bash --agent try-again --model openai/gpt-4o --limit 10",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
