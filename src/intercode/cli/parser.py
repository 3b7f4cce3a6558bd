"""A parser of arguments whose errors are two lines, and name the word that was meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from intercode.spelling import meant

USAGE = 2
"""The exit code for wrong usage."""


class Parser(argparse.ArgumentParser):
    """Parses the arguments of a command; its subcommands are parsed likewise.

    Options are written in full: an abbreviation would mean another option wherever a command has
    no such one, as ``--data`` would be ``--databases``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and where to read on; end with exit code 2."""
        print(f"{self.prog}: error: {message}\nsee '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(USAGE)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Parse arguments, and refuse unknown ones."""
        found, rest = self.parse_known_args(args, namespace)
        flag = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
        if flag is not None:
            self.error(f"there is no option {flag}{meant(flag, _options(self), listed=False)}")
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            message = f"there is no {value!r}{meant(str(value), known)}"
            raise argparse.ArgumentError(action, message)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of its subcommands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for other in action.choices.values():
                yield from _options(other)
