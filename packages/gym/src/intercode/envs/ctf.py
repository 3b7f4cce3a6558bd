"""The CTF environment: capture-the-flag puzzles in a shell, scored by the submitted flag."""

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
from intercode.envs.dockerfile_export import EpisodeService
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
from intercode_sandbox.images.tarballs import pack
from intercode_sandbox.network import Network, NetworkPolicy
from intercode_sandbox.script_arguments import SHELL as BASH, script
from intercode_sandbox.units import format_count

NETWORK = "network"
"""The tag of tasks that need the external network."""
FOLDER = "/ctf"
"""The default folder of a task; not a home directory, which a service's user may not enter."""

SERVICE_USER = "65534:65534"
"""The user and group ids of services, other than the agent's: the agent must not read a service's
secrets. The ids are numeric, because an image may lack user names."""

HEALTH_TIMEOUT = 30.0
"""Seconds within which a service must become healthy."""


# ``setsid --fork`` starts the service in the background, without the shell's terminal and output.
# Descriptor 3 passes the shell's standard input on to the service.
_BACKGROUND = 'exec 3<&0; exec setsid --fork "$@" <&3 3<&- >/dev/null 2>&1'
_FIELDS = {"service", "subtasks", "assets", "released_setup"}
"""The fields of a task's `metadata` by which CTF tasks are recognised."""
_FLAG = re.compile(r"\w+\{[^{}\s]+\}")


def _recognises(tasks: Sequence[Task]) -> bool:
    golds = [gold for task in tasks for gold in task.gold]
    fields = {name for task in tasks for name in task.metadata}
    return bool(fields & _FIELDS) or bool(golds and all(map(_FLAG.fullmatch, golds)))


def _submit_prediction(text: str) -> str:
    """Return the action that submits a predicted flag."""
    return text if text.startswith("submit ") else f"submit {text.strip()}"


def _wrong_flag(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    yield f"submit intercode{{{dice.randrange(16**6):06x}}}"


class CtfEnv(InterCodeEnv[SandboxBackend]):
    """An environment with one persistent Bash per episode; ``submit FLAG`` submits a flag.

    The shell starts in the task's folder. The correct flag ends the episode. A wrong flag uses up
    an attempt, and the last attempt ends the episode. A subtask's answer uses up no attempt. Turns
    with a flag or an answer count towards `max_turns`. ``submit`` alone ends the episode with the
    score reached so far. `CtfStage` lists the metadata for a task's files and service.

    Without the network, tasks tagged ``network`` are excluded. The option `reward` replaces
    `FlagReward`.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object. `seed` also generates the bundled puzzles, for which
            None is equivalent to 0.
        **changes: Single options by name, which override `options`: see `CtfOptions`.

    Raises:
        TaskError: The data is malformed, a task has no flag, or all tasks need the network.
        UsageError: An option is unknown or invalid.
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
        options = CtfOptions.merge(options, changes)
        tasks = load_seeded(data, options.seed or 0, options.secret)
        _check(tasks)
        self.attempts = options.attempts or None
        available_tasks = (
            tasks if NetworkPolicy.parse(options.network).reaches_out else filter_offline(tasks)
        )
        self._excluded_ids = {task.task_id for task in tasks} - {
            task.task_id for task in available_tasks
        }
        self._folders = CtfStage.from_options(options, self.traits)
        env_reward = choose_reward("ctf", options.reward, FlagReward)
        super().__init__(
            available_tasks, self._folders, self._open_shell, env_reward, options=options
        )

    @classmethod
    def filter_tasks(cls, tasks: Dataset, options: Mapping[str, Any]) -> tuple[Dataset, str]:
        """Exclude the tasks that need an unavailable network: see `InterCodeEnv.filter_tasks`."""
        available_tasks = (
            tasks
            if NetworkPolicy.parse(options.get("network") or False).reaches_out
            else filter_offline(tasks)
        )
        excluded_count = len(tasks) - len(available_tasks)
        need = "needs" if excluded_count == 1 else "need"
        note = f"{excluded_count} of {len(tasks)} tasks {need} the network (--network tries them)"
        return available_tasks, note if excluded_count else ""

    def solution(self, task: Task) -> list[str]:
        """Return the commands of ``metadata.solution``, if any, and the submission of the flag."""
        return [*task.metadata.get("solution", ()), f"submit {task.gold[0]}"]

    def select_task(self, options: Mapping[str, Any]) -> Task | None:
        """Return the selected task: see `InterCodeEnv.select_task`.

        Raises:
            TaskError: The task was excluded, because it needs the network.
        """
        if (name := str(options.get("task_id"))) in self._excluded_ids:
            raise TaskError(
                f"task {name!r} needs the network, which this environment does not have"
            )
        return super().select_task(options)

    def _open_shell(self, sandbox: SandboxBackend) -> Interpreter:
        return open_shell(sandbox, self._folders.directory(self.episode_state.task))

    def _attempt(self, task: Task, sandbox: SandboxBackend, output: str | None) -> Episode:
        """Return an episode for an attempt, from the flag that the agent found."""
        return replace(super()._attempt(task, sandbox, None), answer=output)

    def _reply(self, answer: str | None) -> Execution | None:
        task, submissions = self.episode_state.task, self.episode_state.submissions
        if self.attempts is not None and submissions.wrong >= self.attempts:
            # Forks of the episode share the attempts, and used up all of them.
            self.episode.metadata[NO_ATTEMPT_KEY] = True
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
        self.episode.answer = None  # the answer does not end the episode: its turn holds the answer
        return reply


def filter_offline(tasks: Dataset) -> Dataset:
    """Return the tasks that can be solved without the network.

    Raises:
        TaskError: All tasks need the network.
    """
    offline_tasks = tasks.filter(lambda task: NETWORK not in task.tags)
    if tasks and not offline_tasks:
        raise TaskError(f"dataset {tasks.name!r}: every task needs the network")
    return offline_tasks


def _check(tasks: Dataset) -> None:
    """Refuse tasks without a flag, or with malformed subtasks or solutions in `metadata`.

    Raises:
        TaskError: A task is invalid; the message names the task and the reason.
    """
    for task in tasks:
        if not task.gold:
            raise TaskError(f"{tasks.where(task)} has no flag under 'gold'")
        subtasks(task)
        solution = task.metadata.get("solution", [])
        if not isinstance(solution, list) or not all(
            isinstance(action, str) for action in solution
        ):
            raise TaskError(f"task {task.task_id!r}: 'metadata.solution' must be a list of texts")


_LOOKS_INTO_OTHERS = ("chown", "dac_override", "fowner", "setgid", "setuid")


class CtfStage(SandboxStage):
    """A stage that adds assets and a service to a task's sandbox.

    A task's `metadata` describes both in the following fields. Values are texts unless the entry
    names another type.

    - ``assets``: a folder on the host whose files, including binary ones, belong to the task. The
      files are a layer of the task's image, so a reset copies nothing. ``assets_without`` is a list
      of top-level names in that folder that the task does not get.
    - ``binary_files``: an object of path → base64 content, for binary `files`. Each reset writes
      these files, which suits small files of generated tasks.
    - ``directory``: the absolute path of the task's folder, created if missing. Default: ``/ctf``.
      The folder holds assets and relative `files`, and is the working directory of setup, service
      and shell.
    - ``service``: a command that starts in the background after the setup and ends with the
      episode. The service runs as a separate user, whose processes and files the agent cannot
      read. If InterCode itself runs as an ordinary user, the sandbox has only one user.
    - ``service_input``: the service's standard input, for the service's secrets. The input is in
      no file, no environment variable and no command line.
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
        limits = replace(limits or Limits(), debugger=True)  # some puzzles need gdb
        super().__init__(provider, image, limits, network, default_image)
        self._asset_archives: dict[tuple[Path, str, tuple[str, ...]], Path] = {}

    def check(self, task: Task) -> None:
        """Refuse a task with invalid `metadata` or an invalid image.

        Raises:
            TaskError: A value has the wrong type, or the assets are missing.
            ImageError: The image's name is invalid, or names a missing file.
        """
        if not self.directory(task).startswith("/"):
            raise TaskError(f"task {task.task_id!r}: 'metadata.directory' must be absolute")
        for name in ("service", "service_input", "health"):
            _text(task, name)
        _names(task, "assets_without")
        _binary_files(task)
        super().check(task)

    def limits(self, task: Task) -> Limits:
        """Return the resource limits of the task's sandbox.

        Raises:
            TaskError: As for `SandboxStage.limits`. Or, with the task's capabilities, the agent
                could read the service's secrets.
        """
        limits = super().limits(task)
        inspection_capabilities = [
            name for name in limits.capabilities if name in _LOOKS_INTO_OTHERS
        ]
        if inspection_capabilities and _text(task, "service") is not None:
            raise TaskError(
                f"task {task.task_id!r}: with the capabilities "
                f"{', '.join(inspection_capabilities)} the agent could read the processes or "
                "files of the task's service: omit these capabilities"
            )
        return limits

    def image(self, task: Task) -> str:
        """Return the name of the task's image with its assets as a layer."""
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
        """Return the name of the image without the assets, which several tasks may share."""
        return "+".join([super().image(task), *self.layers])

    def directory(self, task: Task) -> str:
        """Return the absolute path of the task's folder."""
        return _text(task, "directory") or FOLDER

    def file_contents(self, task: Task) -> dict[str, bytes]:
        """Return the contents of the task's files by path, binary files first."""
        return {**_binary_files(task), **super().file_contents(task)}

    def service(self, task: Task) -> EpisodeService | None:
        """Return the task's service; None if the task has none."""
        if (command := _text(task, "service")) is None:
            return None
        stdin = encode(_text(task, "service_input") or "")
        return EpisodeService(command, stdin, SERVICE_USER, _text(task, "health"))

    def _lay(self, sandbox: SandboxBackend, task: Task) -> None:
        # Assets contain the task's folder, and writing a relative file creates the folder. Only
        # without both does a ``mkdir`` have to run.
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

    def _serve(self, sandbox: SandboxBackend, task: Task, service: EpisodeService) -> None:
        argv = [*BASH, _BACKGROUND, "service", *BASH, service.command]
        stdin, directory = service.stdin, self.directory(task)
        try:
            result = sandbox.exec(argv, stdin=stdin, cwd=directory, user=service.user)
        except LookupError:  # the sandbox has only one user, because InterCode does not run as root
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
        # The last check, too, has the full time limit, because the check's output explains the
        # failure.
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
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(name_value, str) for name_value in value
    ):
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
