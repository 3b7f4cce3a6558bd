"""CTF as in 2023: a shell in the task's folder, and how a flag was judged.

An action was pasted between single quotes, so that a single quote inside it ended the quoting;
what began with ``python -c`` or ``python3 -c`` was split as it stood, without a shell. What the
recordings do not tell is here as in the Bash environment of 2023: every action a new process,
``cd``, the time limit, ``Malformed command``, and what is shown after a flag that is right.
"""

from __future__ import annotations

from dataclasses import replace

from intercode.envs.ctf import FOLDER
from intercode.errors import TaskError
from intercode.interpreters.base import Execution
from intercode.paper.action import words_of
from intercode.paper.bash import AGENT_HOST, PaperBash, variables
from intercode.sandbox.base import Sandbox
from intercode.task import Task

WRONG = "Submitted flag is incorrect. Keep trying!"
"""What was said to a wrong flag."""

_AS_IT_STANDS = ("python -c", "python3 -c")


def split(command: str) -> tuple[bytes, ...] | None:
    """The process of a command's text, or None for a text that is malformed.

    >>> split('echo "a b" c')
    (b'/bin/bash', b'-c', b'echo "a b" c')
    >>> split("echo 'a b' c")
    (b'/bin/bash', b'-c', b'echo a', b'b c')
    >>> split('python3 -c "print(1)"')
    (b'python3', b'-c', b'print(1)')
    """
    command = command.strip()
    return words_of(command if command.startswith(_AS_IT_STANDS) else f"/bin/bash -c '{command}'")


def submitted(action: str) -> str | None:
    """The flag that an action submits, its second word; None: it has only one.

    >>> submitted("submit flag{a} at last")
    'flag{a}'
    """
    words = action.split()
    return words[1] if len(words) > 1 else None


def is_flag(task: Task, answer: str | None) -> bool:
    """Whether an answer is a flag of the task's, in capitals or not."""
    return answer is not None and answer.lower() in {flag.strip().lower() for flag in task.gold}


def in_its_folder(task: Task) -> Task:
    """The task with the folder that it had, ``/ctf/ID``, unless it names one, and all its files."""
    facts = {"directory": f"{FOLDER}/{task.task_id}", **task.metadata, "assets_without": ()}
    return replace(task, metadata=facts)


def check(task: Task) -> None:
    """Refuse what 2023 knew nothing of.

    Raises:
        TaskError: It names the task and the field.
    """
    if not task.gold:
        raise TaskError(f"task {task.task_id!r}, field 'gold': the flag is missing")
    unknown = [name for name in ("service", "subtasks") if task.metadata.get(name)]
    unknown += ["verification"] if task.verification else []
    if unknown:
        raise TaskError(
            f"task {task.task_id!r}, field {unknown[0]!r}: the paper protocol has no such thing"
        )


def shell(sandbox: Sandbox, image: str, directory: str) -> PaperBash:
    """Opens an interpreter of actions in a sandbox.

    Args:
        sandbox: Where.
        image: The image's name.
        directory: The first action's directory.
    """
    return PaperBash(sandbox, variables(AGENT_HOST, image), directory, split)


class PaperCtf:
    """One episode: what its actions show, and what they are worth.

    Args:
        task: What is asked.
        bash: Runs what is no flag.
    """

    def __init__(self, task: Task, bash: PaperBash) -> None:
        self._task = task
        self._bash = bash
        self.observation = task.query
        self.last: Execution | None = None
        """What the last action gave, if it was executed."""

    def step(self, action: str) -> float:
        """Take an action; the observation is then `observation`.

        Returns:
            Its reward: 1 for the flag, else 0.

        Raises:
            SandboxError: The sandbox failed.
        """
        self.last = None
        if action == "skip":
            return 0.0
        if action.startswith("submit"):
            if is_flag(self._task, submitted(action)):
                return 1.0
            self.observation = WRONG
            return 0.0
        self.last = self._bash.execute(action)
        self.observation = self.last.output.decode("utf-8")
        return 0.0
