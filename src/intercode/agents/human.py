"""A person as an agent."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from intercode.agents.terminal import Terminal, continues
from intercode.envs.traits import traits_in
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
        """What the person answers; who leaves skips the task."""
        self._show(observation)
        action = self._ask()
        return "skip" if action is None else action


class Humans:
    """Makes agents that are the person at the terminal, one task after the other.

    They see what any agent sees: no reward. Standard error is talked on, so that the output is the
    run's. Who leaves ends the run; the task at hand is then as if it had not been begun.
    """

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse to talk to a file or a pipe.

        Raises:
            UsageError: There is no terminal.
        """
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "agent human is a person at a terminal, and there is none: standard input and "
                "standard error must be one"
            )

    def __call__(self, task: Task) -> HumanAgent:
        """The agent of one episode, in an environment that nothing is known of."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> HumanAgent:
        """The agent of one episode in this environment."""
        terminal = Terminal(
            task.query,
            sys.stderr,
            getattr(env, "prompt", "$ "),
            continues(traits_in(env).language),
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
    """A line; to be called in any thread.

    It waits without reading: whoever blocks in a read at the interpreter's end makes it crash.
    """
    print(prompt, end="", file=sys.stderr, flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return decode(line).rstrip("\r\n")
