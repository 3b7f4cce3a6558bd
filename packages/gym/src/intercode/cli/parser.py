"""An argument parser for commands, whose help fits on one screen.

``--help`` omits rare options, which ``--help-all`` shows. An error has two lines, and suggests the
correct spelling of a misspelt word.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from intercode_sandbox.spelling_suggestions import hint_text

USAGE = 2
"""The exit code for wrong usage."""
_EXAMPLES = 5
"""The maximum number of lines of examples in ``--help``, if the command has rare options."""


class _HelpAllAction(argparse.Action):
    """The action of ``--help-all``: print the help with all options, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        assert isinstance(parser, CommandParser)
        print(parser.format_all(), end="")
        raise SystemExit(0)


class CommandParser(argparse.ArgumentParser):
    """An argument parser for a command and its subcommands.

    Options must be written in full. Otherwise ``--data`` would be an abbreviation of
    ``--databases`` in commands that have no option ``--data``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        # The list of options omits --help-all: the last line of --help mentions the option if the
        # command has rare options.
        self.add_argument("--help-all", action=_HelpAllAction, nargs=0, help=argparse.SUPPRESS)

    def format_help(self) -> str:
        """Return the text of ``--help``, without rare options.

        If the command has no rare options, the text is the full help.
        """
        if not any(map(_is_rare, self._actions)):
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), [], [])
        summary, _, examples = (self.description or "").partition("\nExamples:\n")
        first_examples = "\n".join(examples.partition("\n\n")[0].splitlines()[:_EXAMPLES])
        formatter.add_text(
            summary.partition("\n\n")[0] + (first_examples and f"\n\nExamples:\n{first_examples}")
        )
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if not _is_rare(action)])
        formatter.end_section()
        count = sum(bool(a.option_strings and a.help != argparse.SUPPRESS) for a in self._actions)
        formatter.add_text(f"'{self.prog} --help-all' shows all {count} options, in groups.")
        return formatter.format_help()

    def format_all(self) -> str:
        """Return the text of ``--help-all``: the help with all options."""
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), [], [])
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        return formatter.format_help()

    def _usage(self) -> str:
        words = []
        for action in self._get_positional_actions():
            name = str(action.metavar or action.dest)
            words.append(
                {"?": f"[{name}]", "+": f"{name} ...", "*": f"[{name} ...]"}.get(
                    str(action.nargs), name
                )
            )
        return " ".join([self.prog, *words, "[options]"])

    def error(self, message: str) -> NoReturn:
        """Print an error, and the command that prints the help, to standard error.

        Raises:
            SystemExit: Always, with exit code 2.
        """
        print(f"{self.prog}: error: {message}\nsee '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(USAGE)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Parse arguments.

        An unknown option or a superfluous argument ends the process with an error. For an unknown
        option, the error suggests the option with the most similar name.
        """
        arguments, unknown_words = self.parse_known_args(args, namespace)
        flag = next(
            (word.partition("=")[0] for word in unknown_words if word.startswith("-")), None
        )
        if flag is not None:
            self.error(f"there is no option {flag}{hint_text(flag, _options(self), listed=False)}")
        if unknown_words:
            self.error(f"unexpected argument {unknown_words[0]!r}")
        return arguments

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            message = f"there is no {value!r}{hint_text(str(value), choices)}"
            raise argparse.ArgumentError(action, message)


def add_action(
    actions: argparse._SubParsersAction[Any], name: str, text: str
) -> argparse.ArgumentParser:
    """Add a subcommand that has the option ``--json``, and return the subcommand's parser."""
    action: argparse.ArgumentParser = actions.add_parser(name, help=text)
    action.add_argument("--json", action="store_true", help="print one JSON object")
    return action


def _is_rare(action: argparse.Action) -> bool:
    """Return whether only ``--help-all`` shows an option (see `intercode.spec.add_options`)."""
    return bool(getattr(action, "is_rare", False))


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of its subcommands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _options(subparser)
