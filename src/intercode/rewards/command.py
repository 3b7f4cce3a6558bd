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
   of the image. So it is with Python's modules: see `python_path`.
   Limits are a fresh sandbox's: no program can change those of process 1, and an agent that has
   filled the disk gets 0.
4. If the agent changed files that may configure a tool, the command must succeed a second time, in
   a copy in which these are as before: see `configuration`. Honest work passes there as well.

A task whose answer is such a file names it in `may_change`. What the command itself opens is its
author's matter: it should not run a program of the agent's unless that is what is being judged.
Its exit code comes from the kernel, not from its output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from intercode.episode import Episode, Score, decode
from intercode.errors import InterCodeError, TaskError
from intercode.rewards import python_path
from intercode.rewards.at_rest import at_rest, copied
from intercode.rewards.configuration import put_back, settings_of
from intercode.rewards.gold import differing
from intercode.sandbox.base import MIB, Change, Completed, Provider, Sandbox
from intercode.task import Task

SYSTEM_PATHS = re.compile(
    r"/(bin|sbin|lib(32|64|x32)?|usr(?!/local/etc(/|$))|etc/(alternatives|ld\.so\.(cache|preload)|ld-musl-[^/]*|perl"
    r"|python3[^/]*|ssl/openssl\.cnf))(/|$)"
)
"""Files, and directories with all that is in them, that decide how any command runs."""

OPEN_PATHS = re.compile(r"/usr/(local/(bin|src)|src)(/|$)")
"""Exceptions to them, for new files: a program there is found only if no other has its name."""

ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_OUTPUT = 2000
"""Bytes of the command's output that a score's detail quotes."""
_PATHS = 20
"""How many paths it names."""
_ROOM, _FILES = 16 * MIB, 64
"""The bytes and the number of files that a verification must be able to write."""
_NO_ROOM = "the agent has left no room on the disk: nothing that writes a file could be believed"
_TAMPERED = "these files decide how any command runs, and are not in the task's may_change"
_STEERED = "it fails with these files as before; if the answer is there, name it in may_change"


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
        self._prepared: dict[Task, dict[str, Change]] = {}

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
            found.update(_unexpected(task, sandbox))

        try:
            with at_rest(self._provider, self._network, episode, sandbox, look) as quiet:
                return self._judge(task, quiet, found)
        except OSError as error:
            if isinstance(error, InterCodeError):
                raise
            # In the place of the directory where everything starts is now something else.
            return _refused(str(error))

    def _judge(self, task: Task, sandbox: Sandbox, found: dict[str, Change]) -> Score:
        """The score of what the agent left, and of a copy without the settings that it made.

        Args:
            task: The task.
            sandbox: Where nothing of the agent's runs.
            found: The unexpected differences to the image.
        """
        before = self._before(task)
        changed = differing(found, before)
        if tampered := _tampered(changed, found, before):
            return _refused(_TAMPERED, tampered)
        if not _has_room(sandbox):
            return _refused(_NO_ROOM)
        settings = sorted(path for path in changed if not SYSTEM_PATHS.match(path))
        if not settings:
            return _score(self._verify(task, sandbox))
        with copied(self._provider, self._network, sandbox.limits, sandbox.snapshot()) as copy:
            with closing(self._start(task)) as original:
                if not put_back(copy, original, settings, found, before, ENVIRONMENT):
                    return _refused(_TAMPERED, settings)
            done = self._verify(task, sandbox)
            if not done.ok:
                return _score(done)
            done = self._verify(task, copy)
            why = {} if done.ok else {"reason": _STEERED, "as_before": settings[:_PATHS]}
            return _score(done, why)

    def _before(self, task: Task) -> dict[str, Change]:
        """Changes by the task's files and setup, other than those expected of an answer.

        Needed also where the agent has none of it left: it may have put something in its place.
        """
        if not task.setup and not task.files:
            return {}
        if task not in self._prepared:
            with closing(self._start(task)) as prepared:
                self._prepared[task] = _unexpected(task, prepared)
        return self._prepared[task]

    def _verify(self, task: Task, sandbox: Sandbox) -> Completed:
        assert task.verification is not None
        with python_path.written(sandbox, ENVIRONMENT) as path:
            return sandbox.exec(
                ["/bin/bash", "--norc", "--noprofile", "-c", task.verification],
                env={**ENVIRONMENT, "PYTHONPATH": path},
                timeout=task.timeout,
            )


def _score(done: Completed, detail: Mapping[str, Any] | None = None) -> Score:
    value = 1.0 if done.ok else 0.0
    ran = {
        "exit_code": done.exit_code,
        "timed_out": done.timed_out,
        "output": decode((done.stdout + done.stderr)[-_OUTPUT:]),
    }
    return Score(value, {"verification": value}, {**(detail or {}), **ran})


def _refused(reason: str, tampered: Sequence[str] = ()) -> Score:
    paths = {"tampered": [*tampered[:_PATHS]]} if tampered else {}
    return Score(0.0, {"verification": 0.0}, {"reason": reason, **paths})


def _has_room(sandbox: Sandbox) -> bool:
    """Whether the command can write: else it would judge the little that it could.

    Every tool that fails for want of room is silent, and silence may be a good sign.
    """
    done = sandbox.exec(["stat", "-f", "-c", "%a %S %c %d", "/"], env=ENVIRONMENT)
    numbers = [int(word) for word in done.stdout.split() if word.isdigit()]
    if not done.ok or len(numbers) != 4:
        return True  # the image has no such program
    blocks, size, files, free = numbers
    room = min(_ROOM, sandbox.limits.disk // 16)
    return blocks * size >= room and (free >= _FILES or not files)


def _unexpected(task: Task, sandbox: Sandbox) -> dict[str, Change]:
    """By path, the system files and settings that differ from the image, but no expected ones."""
    changes = sandbox.changes()
    settings = settings_of(changes, sandbox.env.get("HOME", "/"))
    return {
        change.path: change
        for change in changes
        if (change.path in settings or SYSTEM_PATHS.match(change.path))
        and not task.expects(change.path)
    }


def _tampered(
    changed: Collection[str], found: Mapping[str, Change], before: Mapping[str, Change]
) -> list[str]:
    """The system paths that the agent changed. To have one as in the image is no offence.

    Args:
        changed: Those at which the next two differ.
        found: How the sandbox differs from the image.
        before: How it did so before the agent came.
    """
    system = [path for path in changed if SYSTEM_PATHS.match(path)]
    # Where a program of the setup's is gone, a new one of its name is found in its place.
    undone = {_name(path) for path in system if path not in found}
    return sorted(
        path
        for path in system
        if path in found
        and (path in before or not _hides_nothing(found[path]) or _name(path) in undone)
    )


def _hides_nothing(change: Change) -> bool:
    return change.kind == "added" and OPEN_PATHS.match(change.path) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
