"""Try tasks yourself: type commands, SQL or Python, see what the agent would see, and submit.

Examples:
  intercode play bash
  intercode play sql --engine postgresql
  intercode play python
  intercode play bash --task shop-03
  intercode play bash --data tasks.json --image debian:bookworm
"""

from __future__ import annotations

import argparse
import codeop
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from intercode.agents.human import HumanAgent
from intercode.cli import _environment, _options
from intercode.cli._episode import ending
from intercode.cli._text import print_json, safe
from intercode.episode import Episode
from intercode.evaluate import run_episode
from intercode.evaluate.loop import EpisodeEnv
from intercode.evaluate.runner import select
from intercode.task import Task

_HELP = """\
  submit   end the task and see its reward        :task    show the task again
  skip     give the task up                       :help    this
  A line that ends in \\ goes on in the next,      :quit    leave (also Ctrl-D)
  and a block of Python until an empty line.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    _environment.add_name(parser)
    _options.add_selection(parser)
    parser.add_argument(
        "--seed", type=_options.natural, default=0, metavar="N", help="of the bundled puzzles"
    )
    _options.add_environment(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the episodes as a JSON list at the end"
    )


def ends_in_backslash(text: str) -> bool:
    """Whether a command goes on in the next line."""
    return text.endswith("\\")


def is_open_python(text: str) -> bool:
    """Whether Python's own prompt would ask for more: of a block, until there is an empty line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the person's source: the sandbox shows them
            return codeop.compile_command(text) is None
    except (SyntaxError, ValueError, OverflowError):
        return False


class Terminal:
    """The person's side of the conversation."""

    def __init__(
        self,
        query: str,
        aside: bool,
        prompt: str = "$ ",
        goes_on: Callable[[str], bool] = ends_in_backslash,
    ) -> None:
        """Talk about one task.

        Args:
            query: What is asked.
            aside: Talk on standard error, as the output is for a program.
            prompt: What asks for an action.
            goes_on: Whether a text is the beginning of an action, which goes on in the next line.
        """
        self._query = query
        self._prompt = prompt
        self._goes_on = goes_on
        self._out = sys.stderr if aside else sys.stdout
        self.left = False

    def show(self, text: str) -> None:
        """Print what was observed."""
        if text:
            print(safe(text).rstrip("\n"), file=self._out, flush=True)

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

    def _read(self, prompt: str) -> str:
        if self._out is sys.stdout:
            return input(prompt)  # so that readline knows of the prompt
        print(prompt, end="", file=self._out, flush=True)
        return input()

    def _command(self, line: str) -> bool:
        """Obey a line that begins with a colon; whether it means to leave."""
        if line in (":q", ":quit", ":exit"):
            self.left = True
            return True
        self.show(self._query if line == ":task" else _HELP)
        return False


def execute(args: argparse.Namespace) -> int:
    """One task after the other, until there is none left or the person leaves."""
    name, dataset = _environment.load(args)
    tasks = select(dataset, args.tasks, args.limit)
    setting = _environment.prepare(args, name, dataset, tasks)
    with suppress(ImportError):  # line editing and history, where Python has them
        import readline  # noqa: F401
    goes_on = is_open_python if name == "python" else ends_in_backslash
    episodes: list[Episode] = []
    env = setting.make()
    try:
        for number, task in enumerate(tasks, 1):
            prompt = getattr(env, "prompt", "$ ")
            terminal = Terminal(task.query, args.json, prompt, goes_on)
            terminal.show(f"── {safe(task.task_id)} ({number} of {len(tasks)}) ── :help for help")
            episode = _try(env, task, terminal)
            if terminal.left:
                break
            episodes.append(episode)
    finally:
        env.close()
    if args.json:
        print_json([episode.to_dict() for episode in episodes])
    return 0


def _try(env: EpisodeEnv, task: Task, terminal: Terminal) -> Episode:
    """One task, to its end."""
    agent = HumanAgent(terminal.show, terminal.ask)
    episode = run_episode(env, lambda task: agent, task, name="human")
    if episode.status == "truncated":  # then there was no one left to show it to
        terminal.show(episode.turns[-1].observation)
    terminal.show("left" if terminal.left else f"{ending(episode)}\n")
    return episode
