"""Where CTF tasks are tried: a sandbox with the task's folder in it, and its service running."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

from intercode.envs.stage import SandboxStage
from intercode.episode import decode
from intercode.errors import TaskError
from intercode.sandbox.base import Completed, Limits, Provider, Sandbox
from intercode.sandbox.images.archive import pack
from intercode.task import Task

FOLDER = "/ctf"
"""A task's folder, unless it has another. Not a home directory: services may look into it."""

SERVICE_USER = "65534:65534"
"""Who a service runs as: a user that is not the agent's, by number, so that any image has it."""

HEALTH_TIMEOUT = 30.0
"""Seconds after which a service that is not healthy is given up."""

_SHELL = ("/bin/bash", "--norc", "--noprofile", "-c")

# A shell gives its background commands no input unless told to.
_BACKGROUND = 'exec 3<&0; exec setsid --fork "$@" <&3 3<&- >/dev/null 2>&1'


class CtfStage(SandboxStage):
    """Adds to a sandbox what a task's `metadata` asks for, a text if not said otherwise.

    - ``assets``: a folder of this machine, whose files, binary ones too, the task has. They are a
      layer of its image, so that a reset copies nothing. ``assets_without``: names at its top that
      the task does not have.
    - ``binary_files``: an object of path → content in base64, for `files` that are no text. They
      are written at each reset: for the small ones, of tasks that are made and thrown away.
    - ``directory``: the absolute path of the task's folder, made if need be: there assets and
      relative `files` lie, and setup, service and shell begin. Default: ``/ctf``.
    - ``service``: a command that is started after the setup, in the background, and ends with the
      episode. It runs as a user of its own, whose processes and files the agent cannot look into;
      but where InterCode itself runs as an ordinary user, a sandbox has only one.
    - ``service_input``: the service's standard input. What only the service may know goes here:
      it is in no file, no variable and no command line.
    - ``health``: a command that exits with 0 when the service is ready.
    """

    def __init__(
        self,
        provider: str | Provider,
        image: str | None = None,
        limits: Limits | None = None,
        network: bool = False,
    ) -> None:
        limits = replace(limits or Limits(), debugger=True)  # puzzles are taken apart with gdb
        super().__init__(provider, image, limits, network)
        self._packed: dict[tuple[Path, str, tuple[str, ...]], Path] = {}

    def check(self, task: Task) -> None:
        """Refuse a task whose `metadata` or image makes no sense.

        Raises:
            TaskError: A value has the wrong type, or there are no such assets.
            ImageError: The image's name means nothing, or names a file that is not there.
        """
        if not self.directory(task).startswith("/"):
            raise TaskError(f"task {task.task_id!r}: 'metadata.directory' must be absolute")
        for name in ("service", "service_input", "health"):
            _text(task, name)
        _names(task, "assets_without")
        _binary_files(task)
        super().check(task)

    def image(self, task: Task) -> str:
        """The image that the task runs in, its assets laid over it."""
        image = super().image(task)
        assets = _text(task, "assets")
        if assets is None:
            return image
        folder = Path(assets).absolute()
        if not folder.is_dir():
            raise TaskError(f"task {task.task_id!r}: 'metadata.assets': there is no {folder}")
        key = folder, self.directory(task), _names(task, "assets_without")
        if key not in self._packed:
            self._packed[key] = pack(*key)
        return f"{image}+{self._packed[key]}"

    def directory(self, task: Task) -> str:
        """The task's folder."""
        return _text(task, "directory") or FOLDER

    def _prepare(self, sandbox: Sandbox, task: Task) -> None:
        binary = _binary_files(task)
        # Assets have it in the image, and files make it: that saves a process.
        if _text(task, "assets") is None and not any(map(_lies_within, (*binary, *task.files))):
            _must(task, "directory", sandbox.exec(["mkdir", "-p", "--", self.directory(task)]))
        try:
            for path, data in binary.items():
                sandbox.write_file(PurePosixPath(self.directory(task), path), data)
        except OSError as error:
            raise TaskError(
                f"task {task.task_id!r}: file {path!r} cannot be written: {error}"
            ) from error
        super()._prepare(sandbox, task)
        if (service := _text(task, "service")) is not None:
            self._serve(sandbox, task, service)

    def _serve(self, sandbox: Sandbox, task: Task, service: str) -> None:
        argv = [*_SHELL, _BACKGROUND, "service", *_SHELL, service]
        given = (_text(task, "service_input") or "").encode("utf-8", "surrogateescape")
        directory = self.directory(task)
        try:
            done = sandbox.exec(argv, stdin=given, cwd=directory, user=SERVICE_USER)
        except LookupError:  # the sandbox has one user only
            done = sandbox.exec(argv, stdin=given, cwd=directory)
        except PermissionError as error:
            raise TaskError(
                f"task {task.task_id!r}: its service may not enter the task's folder: {error}"
            ) from error
        _must(task, "service", done)
        if (health := _text(task, "health")) is not None:
            _await(sandbox, task, [*_SHELL, health], directory)


def _await(sandbox: Sandbox, task: Task, health: list[str], directory: str) -> None:
    deadline = time.monotonic() + HEALTH_TIMEOUT
    pause = 0.005
    while True:
        # With its whole time limit, also the last one: it says what is wrong with the service.
        done = sandbox.exec(health, cwd=directory)
        if done.ok:
            return
        if time.monotonic() > deadline:
            _must(task, "health", done)
        time.sleep(pause)
        pause = min(2 * pause, 0.2)


def _must(task: Task, what: str, done: Completed) -> None:
    if not done.ok:
        said = decode(done.stderr or done.stdout).strip()[-500:] or "(no output)"
        why = "timed out" if done.timed_out else f"exit code {done.exit_code}"
        raise TaskError(f"task {task.task_id!r}: 'metadata.{what}' failed: {why}: {said}")


def _text(task: Task, name: str) -> str | None:
    value = task.metadata.get(name)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise TaskError(f"task {task.task_id!r}: 'metadata.{name}' must be text")
    return value or None


def _names(task: Task, name: str) -> tuple[str, ...]:
    value = task.metadata.get(name) or ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise TaskError(f"task {task.task_id!r}: 'metadata.{name}' must be a list of texts")
    return tuple(value)


def _lies_within(path: str) -> bool:
    return not path.startswith("/") and ".." not in PurePosixPath(path).parts


def _binary_files(task: Task) -> dict[str, bytes]:
    rows = task.metadata.get("binary_files") or {}
    try:
        if not isinstance(rows, dict) or not all(isinstance(path, str) for path in rows):
            raise TypeError("not an object")
        return {path: base64.b64decode(text, validate=True) for path, text in rows.items()}
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"task {task.task_id!r}: 'metadata.binary_files' must be an object of path → content "
            f"in base64: {error}"
        ) from error
