"""A person at a terminal as an agent."""

from __future__ import annotations

import codeop
import select
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from intercode.envs.traits import resolve_traits
from intercode.episode import Turn, decode
from intercode.errors import UsageError

if TYPE_CHECKING:
    from intercode.task import Task


class HumanAgent:
    """Shows each observation to a person and takes what they answer."""

    def __init__(self, show: Callable[[str], None], ask: Callable[[], str | None]) -> None:
        """Talk through the two functions.

        Args:
            show: Shows an observation.
            ask: The person's next action, or None when they leave.
        """
        self._show = show
        self._ask = ask

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return what the person answers; leaving skips the task."""
        self._show(observation)
        action = self._ask()
        return "skip" if action is None else action


class HumanAgents:
    """Makes agents that are the person at the terminal, one task after the other.

    They see what any agent sees: no reward. They talk on standard error, so that standard output
    is the run's. Leaving ends the run; the task at hand is then as if it had not been begun.
    """

    def check_run(self, tasks: Sequence[Task], workers: int) -> str:
        """Refuse a run of several tasks at a time."""
        if workers > 1:
            raise UsageError("agent human plays one task at a time: --workers must be 1")
        return ""

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse to talk to a file or a pipe.

        Raises:
            UsageError: There is no terminal.
        """
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "agent human needs a person at a terminal: standard input and standard error "
                "must be a terminal"
            )

    def __call__(self, task: Task) -> HumanAgent:
        """Make the agent of one episode, in an environment of which nothing is known."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> HumanAgent:
        """Make the agent of one episode in this environment."""
        terminal = TaskConsole(
            task.query,
            sys.stderr,
            getattr(env, "prompt", "$ "),
            continuation_test(resolve_traits(env).language),
            read=_read_line,
        )

        def ask() -> str:
            action = terminal.ask()
            if action is None:
                raise KeyboardInterrupt  # no fault in the episode: the run is stopped
            return action

        terminal.show(f"\n── {task.task_id} ── :help for help")
        return HumanAgent(terminal.show, ask)


def _read_line(prompt: str) -> str:
    """Read a line, in any thread.

    It waits without reading: a thread that blocks in a read when Python ends makes it crash.
    """
    print(prompt, end="", file=sys.stderr, flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return decode(line).rstrip("\r\n")


_HELP = """\
  submit   end the task                           :task    show the task again
  skip     give the task up                       :help    this
  A line that ends in \\ goes on in the next,      :quit    leave (also Ctrl-D)
  and a block of Python until an empty line.
"""


def continuation_test(language: str) -> Callable[[str], bool]:
    """Return the test for a text that is only the beginning of an action."""
    return _is_open_python if language == "python" else _ends_in_backslash


def _ends_in_backslash(text: str) -> bool:
    return text.endswith("\\")


def _is_open_python(text: str) -> bool:
    """Tell whether Python's own prompt would ask for more: in a block, until an empty line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the person's source: the sandbox shows them
            return codeop.compile_command(text) is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def escape_controls(text: str) -> str:
    """Escape all that a terminal would obey rather than show."""
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


class TaskConsole:
    """Talks about one task.

    Args:
        query: The task's query.
        output: The stream to talk on.
        prompt: The text that asks for an action.
        is_incomplete: Tells whether a text is only the beginning of an action.
        read: Shows a prompt and gives a line; raises EOFError at the end.
    """

    def __init__(
        self,
        query: str,
        output: TextIO,
        prompt: str = "$ ",
        is_incomplete: Callable[[str], bool] = _ends_in_backslash,
        *,
        read: Callable[[str], str] = input,
    ) -> None:
        self._query = query
        self._output = output
        self._prompt = prompt
        self._is_incomplete = is_incomplete
        self._read = read
        self.left = False

    def show(self, text: str) -> None:
        """Print an observation."""
        if text:
            print(escape_controls(text).rstrip("\n"), file=self._output, flush=True)

    def ask(self) -> str | None:
        """Ask for the next action; None when the person leaves."""
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
            elif not self._is_incomplete(action):
                return action

    def _command(self, line: str) -> bool:
        """Obey a line that begins with a colon; return whether it means to leave."""
        if line in (":q", ":quit", ":exit"):
            self.left = True
            return True
        self.show(self._query if line == ":task" else _HELP)
        return False
