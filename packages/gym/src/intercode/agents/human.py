"""The human agent: a person at a terminal, who reads observations and types actions.

`HumanAgents` makes the agents, and `HumanAgent` is the agent of one episode. `TaskConsole` shows
observations of one task on the terminal, and reads actions.
"""

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
    """An agent that shows observations to a person, and takes the person's input as actions."""

    def __init__(self, show: Callable[[str], None], ask: Callable[[], str | None]) -> None:
        """Create an agent that uses two functions for output and input.

        Args:
            show: Shows an observation.
            ask: Returns the person's next action; None when the person leaves.
        """
        self._show = show
        self._ask = ask

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the person's action; leaving skips the task."""
        self._show(observation)
        action = self._ask()
        return "skip" if action is None else action


class HumanAgents:
    """A factory of agents for the person at the terminal, one task after the other.

    The person sees no reward, like any agent. Observations and prompts go to standard error,
    because the run writes its results to standard output. If the person leaves, the run ends,
    without a record of the current task.
    """

    def check_run(self, tasks: Sequence[Task], workers: int) -> str:
        """Refuse a run of several tasks at a time.

        Raises:
            UsageError: The run has more than one worker.
        """
        if workers > 1:
            raise UsageError("agent human plays one task at a time: --workers must be 1")
        return ""

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse a run without a terminal: a file or a pipe as standard input or standard error.

        Raises:
            UsageError: One of the streams is not a terminal.
        """
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "agent human needs a person at a terminal: standard input and standard error "
                "must be a terminal"
            )

    def __call__(self, task: Task) -> HumanAgent:
        """Make the agent of one episode, for a caller that passes no environment."""
        return self.make_agent(None, task)

    def make_agent(self, env: object, task: Task) -> HumanAgent:
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
                # The exception stops the run, and does not count as an error of the episode.
                raise KeyboardInterrupt
            return action

        terminal.show(f"\n── {task.task_id} ── :help for help")
        return HumanAgent(terminal.show, ask)


def _read_line(prompt: str) -> str:
    """Read a line from standard input, in any thread.

    The function polls for input before it reads, because a thread that blocks in a read while
    Python exits crashes the process.

    Raises:
        EOFError: Standard input has ended.
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
    """Return a function that detects an incomplete action of a language."""
    return _is_open_python if language == "python" else _ends_in_backslash


def _ends_in_backslash(text: str) -> bool:
    return text.endswith("\\")


def _is_open_python(text: str) -> bool:
    """Return whether Python's prompt would request another line.

    A statement with a block, for example, is complete only after a blank line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the Python process in the sandbox shows the warnings
            return codeop.compile_command(text) is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def escape_controls(text: str) -> str:
    """Escape control characters, which a terminal would execute instead of displaying them."""
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


class TaskConsole:
    """A terminal dialogue about one task.

    Args:
        query: The task's query.
        output: The output stream.
        prompt: The prompt before an action.
        is_incomplete: Returns whether a text is an incomplete action, which needs further lines.
        read: Shows a prompt and returns a line; raises EOFError at the end of input.
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
        """Print an observation, with control characters escaped."""
        if text:
            print(escape_controls(text).rstrip("\n"), file=self._output, flush=True)

    def ask(self) -> str | None:
        """Read the next action; None when the person leaves."""
        lines: list[str] = []
        while True:
            try:
                line = self._read("> " if lines else self._prompt)
            except KeyboardInterrupt:  # Ctrl-C drops the typed line, as in a shell
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
        """Execute a command that begins with a colon; return whether the person leaves."""
        if line in (":q", ":quit", ":exit"):
            self.left = True
            return True
        self.show(self._query if line == ":task" else _HELP)
        return False
