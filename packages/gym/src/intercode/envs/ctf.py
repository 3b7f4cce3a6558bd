"""The CTF environment: a shell in a puzzle's folder, scored by the flag that is found there."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from intercode.datasets import load_seeded
from intercode.envs.base import InterCodeEnv
from intercode.envs.dockerfile_export import Service
from intercode.envs.options import CtfOptions, EnvOptions
from intercode.envs.stage import SandboxStage, resolve_task_path
from intercode.envs.traits import SHELL, Dice, Traits
from intercode.episode import Episode, decode, encode
from intercode.errors import TaskError
from intercode.interpreters.base import Execution, Interpreter
from intercode.interpreters.bash import open_shell
from intercode.rewards.custom import choose_reward
from intercode.rewards.flag import (
    NO_ATTEMPT_KEY,
    SUBMITTED_KEY,
    FlagReward,
    is_flag,
    solved_subtasks,
    subtasks,
)
from intercode.task import Dataset, Task
from intercode_sandbox.base import Completed, Limits, Provider, SandboxBackend
from intercode_sandbox.images.archive import pack
from intercode_sandbox.network import Network, Policy
from intercode_sandbox.scripts import SHELL as BASH, script
from intercode_sandbox.units import format_count

NETWORK = "network"
"""The tag of tasks that need the outside network."""
FOLDER = "/ctf"
"""A task's folder, unless it has another. Not a home directory: services may look into it."""

SERVICE_USER = "65534:65534"
"""The user of services: not the agent's, and a number, so that any image has it."""

HEALTH_TIMEOUT = 30.0
"""Seconds after which a service that is not healthy is given up."""


# A shell gives its background commands no input unless told to.
_BACKGROUND = 'exec 3<&0; exec setsid --fork "$@" <&3 3<&- >/dev/null 2>&1'
_FIELDS = {"service", "subtasks", "assets", "released_setup"}
"""The metadata that only puzzles have."""
_FLAG = re.compile(r"\w+\{[^{}\s]+\}")


def _recognises(tasks: Sequence[Task]) -> bool:
    golds = [gold for task in tasks for gold in task.gold]
    fields = {name for task in tasks for name in task.metadata}
    return bool(fields & _FIELDS) or bool(golds and all(map(_FLAG.fullmatch, golds)))


def _submit_prediction(text: str) -> str:
    """Hand in what was predicted."""
    return text if text.startswith("submit ") else f"submit {text.strip()}"


def _wrong_flag(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    yield f"submit intercode{{{dice.randrange(16**6):06x}}}"


class CtfEnv(InterCodeEnv[SandboxBackend]):
    """One persistent Bash per episode, in the task's folder; ``submit FLAG`` hands in a flag.

    The right flag ends the episode. A wrong flag costs an attempt, and the last attempt ends the
    episode, too; a subtask's answer is free. Turns with either count among `max_turns`. ``submit``
    alone ends the episode with what was reached. See `CtfStage` for what a task can have.

    Without the network, tasks that are tagged ``network`` are left out. The option `reward`
    replaces `FlagReward`.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: The options, as one value. Of the bundled puzzles `seed` decides, too; None: for
            these 0.
        **changes: Single options by their names: see `CtfOptions`.

    Raises:
        TaskError: The data is malformed, a task has no flag, or all need the network.
        UsageError: There is no such option, or it makes no sense.
        SandboxUnavailableError: This machine does not permit the sandbox.
    """

    name: ClassVar[str] = "ctf"
    takes_answer: ClassVar[bool] = True
    Options: ClassVar[type[EnvOptions]] = CtfOptions
    traits: Traits = replace(
        SHELL,
        fields=(
            *("solution", "directory", "assets", "assets_without", "binary_files"),
            *("service", "service_input", "health", "flag_in", "subtasks"),
        ),
        rules=("flag",),
        briefing="You work in a shell ({setting}), in the folder of a capture-the-flag puzzle. "
        "Somewhere there is a flag to find.",
        answer="flag",
        looks=("ls -la", "head -c 200 *"),
        mistakes=_wrong_flag,
        wrong=("submit intercode{42}",),
        prediction=_submit_prediction,
        secret_gold=True,
        pure_reward=FlagReward,
        recognises=_recognises,
    )

    def __init__(
        self,
        data: str | Path | Dataset = "ctf",
        *,
        options: CtfOptions | None = None,
        **changes: Any,
    ) -> None:
        options = CtfOptions.of(options, changes)
        tasks = load_seeded(data, options.seed or 0, options.secret)
        _check(tasks)
        self.attempts = options.attempts or None
        available_tasks = tasks if Policy.of(options.network).reaches_out else filter_offline(tasks)
        self._excluded_ids = {task.task_id for task in tasks} - {
            task.task_id for task in available_tasks
        }
        self._folders = CtfStage.of(options, self.traits)
        env_reward = choose_reward("ctf", options.reward, FlagReward)
        super().__init__(
            available_tasks, self._folders, self._open_shell, env_reward, options=options
        )

    @classmethod
    def narrowed(cls, tasks: Dataset, options: Mapping[str, Any]) -> tuple[Dataset, str]:
        """Leave out the tasks that need a network that there is not: see `InterCodeEnv`."""
        available_tasks = (
            tasks
            if Policy.of(options.get("network") or False).reaches_out
            else filter_offline(tasks)
        )
        excluded_count = len(tasks) - len(available_tasks)
        need = "needs" if excluded_count == 1 else "need"
        note = f"{excluded_count} of {len(tasks)} tasks {need} the network (--network tries them)"
        return available_tasks, note if excluded_count else ""

    def solution(self, task: Task) -> list[str]:
        """Return the commands of ``metadata.solution``, if the task has any, and the flag."""
        return [*task.metadata.get("solution", ()), f"submit {task.gold[0]}"]

    def select_task(self, options: Mapping[str, Any]) -> Task | None:
        """See `InterCodeEnv.named`; a task that was left out is refused in words."""
        if (name := str(options.get("task_id"))) in self._excluded_ids:
            raise TaskError(
                f"task {name!r} needs the network, which this environment does not have"
            )
        return super().select_task(options)

    def _open_shell(self, sandbox: SandboxBackend) -> Interpreter:
        return open_shell(sandbox, self._folders.directory(self.episode_state.task))

    def _attempt(self, task: Task, place: SandboxBackend, output: str | None) -> Episode:
        """Record an attempt from the flag that was found."""
        return replace(super()._attempt(task, place, None), answer=output)

    def _reply(self, answer: str | None) -> Execution | None:
        task, submissions = self.episode_state.task, self.episode_state.submissions
        if self.attempts is not None and submissions.wrong >= self.attempts:
            self.episode.metadata[NO_ATTEMPT_KEY] = True  # its forks have used up all
            return None
        if answer is None or is_flag(task, answer):
            return None
        info = {SUBMITTED_KEY: answer, "executed": False}
        if solved_names := solved_subtasks(task, {answer}):
            text = f"That is right, for a part of the task ({', '.join(solved_names)}). Go on."
            reply = Execution(f"{text}\n".encode(), ok=True, info=info)
        else:
            text = "That is not the flag."
            submissions.add(wrong=True)
            if self.attempts is not None:
                remaining_attempts = self.attempts - submissions.wrong
                if remaining_attempts <= 0:
                    return None
                text += f" {format_count(remaining_attempts, 'more attempt')}."
            reply = Execution(f"{text}\n".encode(), ok=False, info=info)
        self.episode.answer = None  # it is in the turn
        return reply


def filter_offline(tasks: Dataset) -> Dataset:
    """Keep the tasks that can be solved without the network.

    Raises:
        TaskError: There are none.
    """
    offline_tasks = tasks.filter(lambda task: NETWORK not in task.tags)
    if tasks and not offline_tasks:
        raise TaskError(f"dataset {tasks.name!r}: every task needs the network")
    return offline_tasks


def _check(tasks: Dataset) -> None:
    """Refuse tasks that cannot be solved, or whose `metadata` is malformed.

    Raises:
        TaskError: It names the task and what is wrong with it.
    """
    for task in tasks:
        if not task.gold:
            raise TaskError(f"{tasks.where(task)} has no flag under 'gold'")
        subtasks(task)
        solution = task.metadata.get("solution", [])
        if not isinstance(solution, list) or not all(isinstance(part, str) for part in solution):
            raise TaskError(f"task {task.task_id!r}: 'metadata.solution' must be a list of texts")


_LOOKS_INTO_OTHERS = ("chown", "dac_override", "fowner", "setgid", "setuid")


class CtfStage(SandboxStage):
    """Adds to a sandbox what a task's `metadata` asks for, a text if not said otherwise.

    - ``assets``: a folder of this machine, whose files, binary ones too, the task has. They are a
      layer of its image, so that a reset copies nothing. ``assets_without``: names at its top that
      the task does not have.
    - ``binary_files``: an object of path → content in base64, for binary `files`. They
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
        image: str | Path | None = None,
        limits: Limits | None = None,
        network: Network = False,
        default_image: str | None = None,
    ) -> None:
        limits = replace(limits or Limits(), debugger=True)  # puzzles are taken apart with gdb
        super().__init__(provider, image, limits, network, default_image)
        self._asset_archives: dict[tuple[Path, str, tuple[str, ...]], Path] = {}

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

    def limits(self, task: Task) -> Limits:
        """Return what the task's sandbox may use.

        Raises:
            TaskError: The agent could look into the task's service.
        """
        limits = super().limits(task)
        looks = [name for name in limits.capabilities if name in _LOOKS_INTO_OTHERS]
        if looks and _text(task, "service") is not None:
            raise TaskError(
                f"task {task.task_id!r}: with the capabilities {', '.join(looks)} the agent could "
                "read the processes or files of the task's service: omit these capabilities"
            )
        return limits

    def image(self, task: Task) -> str:
        """The image that the task runs in, its assets laid over it."""
        image = super().image(task)
        assets = _text(task, "assets")
        if assets is None:
            return image
        folder = resolve_task_path(task, "metadata.assets", assets)
        if not folder.is_dir():
            raise TaskError(f"task {task.task_id!r}: 'metadata.assets': there is no {folder}")
        key = folder, self.directory(task), _names(task, "assets_without")
        if key not in self._asset_archives:
            self._asset_archives[key] = pack(*key)
        return f"{image}+{self._asset_archives[key]}"

    def base(self, task: Task) -> str:
        """The image below the assets."""
        return "+".join([super().image(task), *self.layers])

    def directory(self, task: Task) -> str:
        """The task's folder."""
        return _text(task, "directory") or FOLDER

    def file_contents(self, task: Task) -> dict[str, bytes]:
        """The content of the task's files, binary ones first."""
        return {**_binary_files(task), **super().file_contents(task)}

    def service(self, task: Task) -> Service | None:
        """The task's service."""
        if (command := _text(task, "service")) is None:
            return None
        stdin = encode(_text(task, "service_input") or "")
        return Service(command, stdin, SERVICE_USER, _text(task, "health"))

    def _lay(self, sandbox: SandboxBackend, task: Task) -> None:
        # Assets have it in the image, and files make it: that saves a process.
        if _text(task, "assets") is None and not any(
            map(_is_inside_folder, self.file_contents(task))
        ):
            _require_success(
                task, "directory", sandbox.exec(["mkdir", "-p", "--", self.directory(task)])
            )
        super()._lay(sandbox, task)

    def _prepare(self, sandbox: SandboxBackend, task: Task) -> None:
        super()._prepare(sandbox, task)
        if (service := self.service(task)) is not None:
            self._serve(sandbox, task, service)

    def _serve(self, sandbox: SandboxBackend, task: Task, service: Service) -> None:
        argv = [*BASH, _BACKGROUND, "service", *BASH, service.command]
        stdin, directory = service.stdin, self.directory(task)
        try:
            result = sandbox.exec(argv, stdin=stdin, cwd=directory, user=service.user)
        except LookupError:  # the sandbox has one user only
            result = sandbox.exec(argv, stdin=stdin, cwd=directory)
        except PermissionError as error:
            raise TaskError(
                f"task {task.task_id!r}: its service is not permitted to enter the task's folder: "
                f"{error}"
            ) from error
        _require_success(task, "service", result)
        if service.health is not None:
            _await(sandbox, task, service.health, directory)


def _await(sandbox: SandboxBackend, task: Task, health: str, directory: str) -> None:
    argv, stdin = script(health)
    deadline = time.monotonic() + HEALTH_TIMEOUT
    pause = 0.005
    while True:
        # With its whole time limit, also the last one: it says what is wrong with the service.
        result = sandbox.exec(argv, stdin=stdin, cwd=directory)
        if result.ok:
            return
        if time.monotonic() > deadline:
            _require_success(task, "health", result)
        time.sleep(pause)
        pause = min(2 * pause, 0.2)


def _require_success(task: Task, field_name: str, result: Completed) -> None:
    if not result.ok:
        output = decode(result.stderr or result.stdout).strip()[-500:] or "(no output)"
        reason = "timed out" if result.timed_out else f"exit code {result.exit_code}"
        raise TaskError(
            f"task {task.task_id!r}: 'metadata.{field_name}' failed: {reason}: {output}"
        )


def _text(task: Task, name: str) -> str | None:
    value = task.metadata.get(name)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise TaskError(f"task {task.task_id!r}: 'metadata.{name}' must be text")
    return value or None


def _names(task: Task, name: str) -> tuple[str, ...]:
    value = task.metadata.get(name) or ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TaskError(f"task {task.task_id!r}: 'metadata.{name}' must be a list of texts")
    return tuple(value)


def _is_inside_folder(path: str) -> bool:
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
