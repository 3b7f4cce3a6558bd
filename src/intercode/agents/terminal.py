"""A person's side of the conversation, on a terminal."""

from __future__ import annotations

import codeop
import warnings
from collections.abc import Callable
from typing import TextIO

_HELP = """\
  submit   end the task                           :task    show the task again
  skip     give the task up                       :help    this
  A line that ends in \\ goes on in the next,      :quit    leave (also Ctrl-D)
  and a block of Python until an empty line.
"""


def continues(language: str) -> Callable[[str], bool]:
    """What says whether a text is the beginning of an action, which goes on in the next line."""
    return _is_open_python if language == "python" else _ends_in_backslash


def _ends_in_backslash(text: str) -> bool:
    return text.endswith("\\")


def _is_open_python(text: str) -> bool:
    """Whether Python's own prompt would ask for more: of a block, until there is an empty line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the person's source: the sandbox shows them
            return codeop.compile_command(text) is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def plain(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


class Terminal:
    """Talks about one task.

    Args:
        query: What is asked.
        out: Where to talk.
        prompt: What asks for an action.
        goes_on: Whether a text is the beginning of an action, which goes on in the next line.
        read: Shows a prompt and gives a line; raises EOFError at the end.
    """

    def __init__(
        self,
        query: str,
        out: TextIO,
        prompt: str = "$ ",
        goes_on: Callable[[str], bool] = _ends_in_backslash,
        *,
        read: Callable[[str], str] = input,
    ) -> None:
        self._query = query
        self._out = out
        self._prompt = prompt
        self._goes_on = goes_on
        self._read = read
        self.left = False

    def show(self, text: str) -> None:
        """Print what was observed."""
        if text:
            print(plain(text).rstrip("\n"), file=self._out, flush=True)

    def ask(self) -> str | None:
        """The next action; None when the person leaves."""
        lines: list[str] = []
        while True:
            try:
                line = self._read("> " if lines else self._prompt)
            except KeyboardInterrupt:  # as in a shell: drop the line
                self.show("^C")
                lines = []
                continue
            except EOFError:
                line, lines = ":quit", []
            if not lines and line.startswith(":"):
                if self._command(line):
                    return None
                continue
            lines.append(line)
            action = "\n".join(lines)
            if not action.strip():
                lines = []
            elif not self._goes_on(action):
                return action

    def _command(self, line: str) -> bool:
        """Obey a line that begins with a colon; whether it means to leave."""
        if line in (":q", ":quit", ":exit"):
            self.left = True
            return True
        self.show(self._query if line == ":task" else _HELP)
        return False
