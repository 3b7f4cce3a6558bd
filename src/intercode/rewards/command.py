"""The verification reward: a command that the task names says whether it was solved.

It must judge what the agent *left*, and must not be steered by it. So, in this order:

1. Everything that the agent started is killed: what could flip files while they are looked at,
   trace the command, or wait for it. An episode that still goes on (a reward in every turn) keeps
   its processes: the command then runs in another sandbox, begun from a snapshot of the files.
2. If the agent changed a file that decides how *any* command runs (programs, libraries, the
   loader's configuration: `SYSTEM_PATHS`), no command's word is worth anything, and the score is
   0 with the paths in its detail. What the task's own setup changed there is no offence.
3. The command runs in a new process of the sandbox's clean environment, not in the agent's shell:
   functions, aliases, variables, ``BASH_ENV`` and the working directory do not reach it. No
   start-up file is read. ``PATH`` is fixed, with the image's own directories first, so that
   nothing in ``/usr/local/bin``, the one place for programs that may be written, hides a program
   of the image. Python finds no modules in the working or home directory.

What the command itself opens is its author's matter: it should not run a program of the agent's
unless that is what is being judged. Its exit code comes from the kernel, not from its output.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

from intercode.episode import Episode, Score, decode
from intercode.errors import InterCodeError, TaskError
from intercode.rewards.at_rest import at_rest
from intercode.rewards.gold import differing
from intercode.sandbox.base import Change, Completed, Provider, Sandbox
from intercode.task import Task

SYSTEM_PATHS = re.compile(
    r"/(bin|sbin|lib(32|64|x32)?|usr|etc/(alternatives|ld\.so\.(cache|preload)|ld-musl-[^/]*|perl"
    r"|python3[^/]*|ssl/openssl\.cnf))(/|$)"
)
"""Files, and directories with all that is in them, that decide how any command runs."""

OPEN_PATHS = re.compile(r"/usr/(local/(bin|etc|src)|src)(/|$)")
"""Exceptions to them, for new files: a program there is found only if no other has its name."""

ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_OUTPUT = 2000
"""Bytes of the command's output that a score's detail quotes."""


class CommandReward:
    """Runs a task's verification: 1.0 if it exits with 0, else 0.0.

    Args:
        provider: Starts the sandbox for an episode that still goes on.
        start: Starts a sandbox in which the task's files and setup are done.
        network: Whether the command may use the network.
    """

    def __init__(
        self, provider: Provider, start: Callable[[Task], Sandbox], network: bool = False
    ) -> None:
        self._provider = provider
        self._start = start
        self._network = network

    def __call__(self, task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        """The score. A verification that runs into the time limit has not succeeded.

        Raises:
            TaskError: The task has no verification.
            SandboxError: The sandbox died.
        """
        if task.verification is None:
            raise TaskError(f"task {task.task_id!r}: field 'verification' is missing")
        found: dict[str, Change] = {}

        def look() -> None:
            found.clear()
            found.update(_system_changes(sandbox))

        try:
            with at_rest(self._provider, self._network, episode, sandbox, look) as quiet:
                if tampered := self._tampered(task, found):
                    return Score(0.0, {"verification": 0.0}, {"tampered": tampered[:20]})
                done = self._verify(task, quiet)
        except OSError as error:
            if isinstance(error, InterCodeError):
                raise
            # In the place of the directory where everything starts is now something else.
            return Score(0.0, {"verification": 0.0}, {"reason": str(error)})
        value = 1.0 if done.ok else 0.0
        detail = {
            "exit_code": done.exit_code,
            "timed_out": done.timed_out,
            "output": decode((done.stdout + done.stderr)[-_OUTPUT:]),
        }
        return Score(value, {"verification": value}, detail)

    def _tampered(self, task: Task, found: dict[str, Change]) -> list[str]:
        """The system paths that the agent changed. To have one as in the image is no offence.

        Args:
            task: The task.
            found: Those at which the sandbox differs from the image, new programs among them: where
                there are none, a program of the setup's that is gone has nothing in its place.
        """
        before: dict[str, Change] = {}
        if found and (task.setup or task.files):
            with closing(self._start(task)) as prepared:
                before = _system_changes(prepared)
        changed = differing(found, before)
        # Where a program of the setup's is gone, a new one of its name is found in its place.
        undone = {_name(path) for path in changed - found.keys()}
        return sorted(
            path
            for path in changed & found.keys()
            if path in before or not _hides_nothing(found[path]) or _name(path) in undone
        )

    def _verify(self, task: Task, sandbox: Sandbox) -> Completed:
        assert task.verification is not None
        return sandbox.exec(
            ["/bin/bash", "--norc", "--noprofile", "-c", task.verification],
            env=ENVIRONMENT,
            timeout=task.timeout,
        )


def _system_changes(sandbox: Sandbox) -> dict[str, Change]:
    changes = sandbox.changes()
    return {change.path: change for change in changes if SYSTEM_PATHS.match(change.path)}


def _hides_nothing(change: Change) -> bool:
    return change.kind == "added" and OPEN_PATHS.match(change.path) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
