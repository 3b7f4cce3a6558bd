"""What the conformance suite knows of each environment: tasks, actions, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intercode.task import Dataset, Task
from intercode_sandbox import SandboxBackend
from waiting import PATIENCE, becomes_readable

from . import python_tasks, sql_tasks, swe_tasks
from .conftest import TASKS as BASH_TASKS

FLAG = "flag{c0nf0rm}"
CTF_TASKS = Dataset(
    [
        Task("find", "Find it.", (FLAG, "flag{other}"), files={"note.txt": "nothing\n"}),
        Task("think", "Think of it.", (FLAG,), metadata={"solution": ["ls", "cat /etc/passwd"]}),
    ],
    "puzzles",
)
SHELL_ACTIONS = ("ls -la --time-style=+ /etc/passwd; false", "exit 3", "sleep 999")


@dataclass(frozen=True)
class Case:
    """An environment."""

    env: str
    data: Callable[[Path], Dataset]
    """Its tasks, given a folder to put things in."""
    shows: tuple[str, str]
    """An action, and its observation or a part of it."""
    actions: tuple[str, ...]
    """Actions of all kinds, the last of which meets the time limit."""
    protocol: str = "default"
    options: Mapping[str, Any] = field(default_factory=dict)
    by_state: bool = True
    """Whether the state is worth something without an answer."""
    task: str | None = None
    """A task that is graded by what is in the place; None: the first."""
    workspace: Callable[[Any], SandboxBackend] = lambda env: env.workspace
    """The sandbox of a running episode."""
    exit_fd: Callable[[Any], int] | None = None
    """What becomes readable when the process that runs actions is gone: its own end of a channel,
    if there is one, for process 1 lets go of what is its before the kernel ends the others."""

    @property
    def name(self) -> str:
        return self.env if self.protocol == "default" else f"{self.env}-{self.protocol}"

    def kill(self, env: Any) -> None:
        """Have the sandbox die under the episode, and wait until its process has."""
        fd = None if self.exit_fd is None else self.exit_fd(env)
        self.workspace(env).close()
        assert fd is None or becomes_readable(fd)

    def fail(self, env: Any) -> None:
        """Have the sandbox's process 1 fail, as by what runs in it, and wait until it has."""
        place = self.workspace(env)
        place._control.send(b"no request")  # type: ignore[attr-defined]
        assert place._process.wait(PATIENCE)  # type: ignore[attr-defined]


def shell_of(env: Any) -> int:
    return int(env._interpreter._shell._process.exit_fd)


def swe_dataset(folder: Path) -> Dataset:
    """Two tasks over a small repository."""
    repository = folder / "calc"
    swe_tasks.make_repository(repository)
    facts = {"repository": str(repository), "test_timeout": 20}
    return Dataset([swe_tasks.task(name, "unittest", **facts) for name in ("add", "again")], "calc")


CASES = (
    Case(
        "bash",
        lambda folder: BASH_TASKS,
        ("echo on", "on\n"),
        SHELL_ACTIONS,
        exit_fd=shell_of,
    ),
    Case(
        "sql",
        sql_tasks.dataset,
        ("SELECT 'on' AS word", "on"),
        (
            "SELECT * FROM customer",
            "SELECT nothing",
            "DROP TABLE purchase",
            "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT MAX(n) FROM r",
        ),
        task="move",
        workspace=lambda env: env.workspace._worker.sandbox,
        exit_fd=lambda env: int(env.workspace._worker.process.socket.fileno()),
    ),
    Case(
        "python",
        lambda folder: python_tasks.TASKS,
        ("print('on')", "on\n"),
        ("import sys\nsys.version", "1 / 0", "def (", "exit(3)", "while True: pass"),
        exit_fd=lambda env: int(env._interpreter._process.control),
    ),
    Case(
        "ctf",
        lambda folder: CTF_TASKS,
        ("echo on", "on\n"),
        ("submit x", *SHELL_ACTIONS),
        by_state=False,
        exit_fd=shell_of,
    ),
    Case("swe", swe_dataset, ("echo on", "on\n"), SHELL_ACTIONS, exit_fd=shell_of),
)
