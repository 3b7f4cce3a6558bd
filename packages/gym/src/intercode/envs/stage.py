"""Stages: factories of the workspaces in which an environment's tasks run.

`Stage` is the protocol. `SandboxStage` starts sandboxes with a task's image, files, setup, limits
and network. `NoWorkspaceRecipe` is a mixin for stages whose workspaces no Dockerfile can describe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from intercode.envs.dockerfile_export import (
    OWN_START,
    EpisodeService,
    ImageStartSettings,
    WorkspaceRecipe,
    WorkspaceRecipeWriter,
)
from intercode.envs.program_checks import try_programs
from intercode.episode import decode, encode
from intercode.errors import ImageError, TaskError, UsageError
from intercode.interpreters.base import Workspace
from intercode.interpreters.bash import image_start_error
from intercode.task import SANDBOX_LIMITS, Task
from intercode_sandbox import Limits, Provider, SandboxBackend, get_provider
from intercode_sandbox.base import Completed, SupportsCapabilityCheck
from intercode_sandbox.extensions import is_packaged
from intercode_sandbox.images.base import parse
from intercode_sandbox.images.resolve import admit, check
from intercode_sandbox.network import Network, NetworkPolicy
from intercode_sandbox.path_containment import resolve_data_path
from intercode_sandbox.privileges import is_root
from intercode_sandbox.script_arguments import SHELL, script

if TYPE_CHECKING:
    from intercode.envs.options import EnvOptions
    from intercode.envs.traits import Traits

SETUP_TIMEOUT = 120.0
"""Time limit of a task's setup in seconds. The time limit of actions applies instead, if longer."""


_AGES = """
set -eu; export LC_ALL=C
now=$(date +%s)
while [ $# -gt 0 ]; do
    [ -e "$1" ] || { echo "$1 is not there" >&2; exit 1; }
    newest=$(find "$1" -xdev -printf '%T@\\n' | sort -n | tail -n 1)
    shift_by=$((now - $2 - ${newest%.*}))
    time='' && files=()
    while IFS=' ' read -r -d '' at file; do
        if [ "$time" != "${at%.*}" ]; then
            [ -z "$time" ] || touch -h -d "@$((time + shift_by))" -- "${files[@]}"
            time=${at%.*} && files=()
        fi
        files+=("$file")
    done < <(find "$1" -xdev -printf '%T@ %p\\0' | sort -zn)
    touch -h -d "@$((time + shift_by))" -- "${files[@]}"
    shift 2
done
"""
"""The script that sets the ages of the image's files below each folder, with a precision of one
second. The arguments alternate: a folder, and the desired age of the newest file below the folder,
in seconds. One ``touch`` sets the time of all files whose times are in the same second."""


@runtime_checkable
class SupportsAsyncTermination(Protocol):
    """A workspace whose processes the kernel ends asynchronously."""

    def kill_all(self) -> None:
        """Begin to end all processes, and return without waiting, so a later `close` is faster."""


WorkspaceT = TypeVar("WorkspaceT", bound=Workspace)
StagedWorkspaceT = TypeVar("StagedWorkspaceT", bound=Workspace)


class Stage(Protocol[StagedWorkspaceT]):
    """A factory of workspaces. Agent and gold receive equal workspaces."""

    def image(self, task: Task) -> str:
        """Return the name of the task's image or database."""

    def check(self, task: Task) -> None:
        """Refuse a task whose workspace cannot be opened, if this is known before any work.

        Raises:
            TaskError, ImageError: The task or its image is invalid or missing.
        """

    def digest(self, task: Task) -> str:
        """Return the digest of the image's content, for a run's record.

        If the image is missing, the call builds it first, which may be slow.
        """

    def changed(self, task: Task, workspace: StagedWorkspaceT) -> bool:
        """Return whether the image has changed since the workspace was opened."""

    def open(self, task: Task) -> StagedWorkspaceT:
        """Open a fresh workspace with everything that the task needs.

        Raises:
            TaskError: A resource of the task is not available; the message names the task.
            SandboxError: The workspace cannot be opened.
        """

    def recipe(self, task: Task, base: str | None = None) -> WorkspaceRecipe:
        """Return a Dockerfile that describes the workspace, for other tools.

        Args:
            task: The task.
            base: The name after ``FROM``, which replaces the base image.

        Raises:
            TaskError, ImageError: The task or its image is invalid or missing.
            UsageError: No Dockerfile can describe the workspace.
        """


class NoWorkspaceRecipe:
    """A mixin for stages whose workspaces hold more than an image's files."""

    def recipe(self, task: Task, base: str | None = None) -> WorkspaceRecipe:
        """Refuse to return a Dockerfile.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"task {task.task_id!r}: a Dockerfile cannot describe its workspace, which is a "
            "database session or an environment of 2023: open a workspace by stage.open(task)"
        )


CEILINGS = {"memory": 16 << 30, "disk": 16 << 30, "processes": 4096}
"""Upper bounds for a task's own limits where the options set none. Memory and disk: 16 GiB."""


def resolve_limits(task: Task, limits: Limits | None) -> Limits:
    """Merge a task's own limits with the configured ones.

    If a limit is configured explicitly, the lower of the task's value and the configured value
    applies. Otherwise the task's value applies, and a value above `CEILINGS` is refused. The task's
    capabilities replace the configured ones, and must be among them if these are explicit.

    Args:
        task: The task.
        limits: The configured limits; None: the defaults.

    Raises:
        TaskError: A limit of the task exceeds `CEILINGS`, or its capabilities exceed the
            explicitly configured ones.
    """
    limits = limits or Limits()
    overrides = limits.overrides or ()
    task_limits: dict[str, Any] = {}
    for name in SANDBOX_LIMITS:
        if (requested_value := getattr(task, name)) is None:
            continue
        configured_value = getattr(limits, name)
        if name == "capabilities":
            missing_capabilities = [
                capability for capability in requested_value if capability not in configured_value
            ]
            if name in overrides and missing_capabilities:
                raise TaskError(
                    f"task {task.task_id!r}, field 'capabilities': "
                    f"{', '.join(missing_capabilities)} are not among the configured ones: "
                    f"{', '.join(configured_value) or 'none'}; add them, or set none"
                )
        elif name in overrides:
            requested_value = min(requested_value, configured_value)
        elif requested_value > CEILINGS[name]:
            raise TaskError(
                f"task {task.task_id!r}, field {name!r}: {requested_value} is above the limit of "
                f"tasks from data, {CEILINGS[name]}; to allow it, set --{name}"
            )
        task_limits[name] = requested_value
    return replace(limits, **task_limits, overrides=limits.overrides)


def resolve_task_path(task: Task, field: str, path: str) -> Path:
    """Return the absolute path of a file or folder that a task names.

    Raises:
        TaskError: The path is outside the folder of the task's data.
    """
    if task.folder is None:
        return Path(path).expanduser().absolute()
    try:
        return resolve_data_path(task.folder, path)
    except ValueError as error:
        raise TaskError(f"task {task.task_id!r}, field {field!r}: {error}") from None


def _resolve_image(task: Task, name: str) -> str:
    """Return the name of a task's own image, with paths relative to its data's folder resolved.

    Raises:
        TaskError: The image is built from files outside the folder of the task's data.
        ImageError: The name is invalid.
    """
    if task.folder is None:
        return name
    try:
        return _image_within(task.folder, name)
    except ValueError as error:
        raise TaskError(f"task {task.task_id!r}, field 'image': {error}") from None


@lru_cache(maxsize=1024)  # each reset resolves the image's name several times
def _image_within(folder: Path, name: str) -> str:
    spec = parse(name, folder)
    data_paths = [path for path in spec.paths if not is_packaged(path)]
    for path in data_paths:
        resolve_data_path(folder, path)
        # If `path` is a folder, the build reads the folder's Dockerfile, which may be a link.
        resolve_data_path(folder, path / "Dockerfile")
    return str(spec) if data_paths else name


class SandboxStage:
    """A stage that starts sandboxes. Agent and gold receive equal sandboxes.

    Args:
        provider: The sandbox provider, or its name.
        image: The image of all tasks. If a task's own image adds layers to ``host``, these layers
            are added to this image. None: each task has its own image.
        limits: The resource limits of a sandbox; None: the defaults.
        network: The network policy.
        default_image: The image of tasks without one; None: ``host``.
    """

    DEFAULT = "host"
    """The image of a task if neither the options nor the task name an image."""
    layers: Sequence[str] = ()
    """Names of archives with files that the agent needs, such as skills, which are added to every
    image. The digest of an image in a run's record does not include these archives."""
    programs: Sequence[str] = ()
    """The programs that the environment runs in every image."""

    def __init__(
        self,
        provider: str | Provider,
        image: str | Path | None = None,
        limits: Limits | None = None,
        network: Network = False,
        default_image: str | None = None,
    ) -> None:
        self.provider = get_provider(provider) if isinstance(provider, str) else provider
        self.network = network
        self._image = str(image.absolute()) if isinstance(image, Path) else image
        if self._image is not None:
            admit(self._image)
        self._default_image = default_image or self.DEFAULT
        self._limits = limits

    @classmethod
    def from_options(cls, options: EnvOptions, traits: Traits, **arguments: Any) -> Self:
        """Construct the stage from an environment's options.

        Raises:
            UsageError: The provider is unknown.
        """
        sandbox = options.sandbox
        return cls(
            traits.provider(sandbox) if isinstance(sandbox, str) else sandbox,
            getattr(options, "image", None),
            options.limits,
            getattr(options, "network", False),
            getattr(options, "default_image", None),
            **arguments,
        )

    def image(self, task: Task) -> str:
        """Return the name of the task's image.

        Raises:
            TaskError: The task's own image is built from files outside its data's folder.
            ImageError: The image's name is invalid.
        """
        task_image = self._default_image if task.image is None else _resolve_image(task, task.image)
        if self._image is None:
            return task_image
        base, separator, additions = task_image.partition("+")
        return f"{self._image}{separator}{additions}" if base == "host" else self._image

    def layered_image(self, task: Task) -> str:
        """Return the name of the task's image with the agent's `layers` added."""
        return "+".join([self.image(task), *self.layers])

    def base(self, task: Task) -> str:
        """Return the name of the image in which programs are tested.

        The image has all programs of the task. A subclass may omit the task's own files, because
        several tasks can then share the image, and its programs are tested only once.
        """
        return self.layered_image(task)

    def needs(self, task: Task) -> list[str]:
        """List the programs that the image must have for the task.

        For a task with a setup, only the shell that runs the setup is required, because the setup
        may install the other programs.
        """
        scripts = (task.setup, task.ages, task.verification, self.service(task))
        shell = [SHELL[0]] if any(scripts) else []
        return shell if task.setup else [*self.programs, *shell]

    def try_programs(self, task: Task) -> None:
        """Test the programs that the task needs, once per image.

        Raises:
            ImageError: A program does not run in the image.
            SandboxError: The sandbox cannot be started.
        """
        try_programs(self.provider, self.base(task), self.needs(task))

    def limits(self, task: Task) -> Limits:
        """Return the resource limits of the task's sandbox.

        Raises:
            TaskError: As for `resolve_limits`, or the provider does not support the task's
                capabilities.
        """
        limits, provider = resolve_limits(task, self._limits), self.provider
        capabilities = limits.capabilities
        if isinstance(provider, SupportsCapabilityCheck) and (
            reason := provider.capability_problem(capabilities, self.network)
        ):
            raise TaskError(f"task {task.task_id!r} cannot have its capabilities: {reason}")
        # In a private sandbox, processes can be hidden from each other. The verification can
        # therefore run in the agent's sandbox, and needs no second sandbox. Two cases are excluded.
        # If InterCode runs as an ordinary user, the agent would not see the agent's own processes.
        # With a network, the agent could not install another C library.
        private = task.verification is not None and not self.reach(task) and is_root()
        return replace(limits, private=True) if private else limits

    def reach(self, task: Task) -> Network:
        """Return the network policy of the task's sandbox."""
        return self.network

    def directory(self, task: Task) -> str:
        """Return the directory in which the setup runs and the task's relative files are written.

        The directory is absolute, or relative to the image's working directory.
        """
        return "."

    def check(self, task: Task) -> None:
        """Refuse a task whose image, limits or ages are invalid or not available.

        Raises:
            TaskError: The task's own image is invalid or names a missing file, its limits or ages
                are invalid, or the provider does not support its capabilities.
            ImageError: The image of all tasks is invalid or names a missing file.
        """
        self.limits(task)
        self._age_arguments(task)
        try:
            check(self.layered_image(task))
        except ImageError as error:
            if self._image is not None or task.image is None:
                raise
            raise TaskError(f"task {task.task_id!r}, field 'image': {error}") from error

    def digest(self, task: Task) -> str:
        """Return the digest of the image's content; build a missing image.

        Raises:
            ImageError: The image cannot be found or built, or a program that the task needs does
                not run.
        """
        digest = self.provider.digest(self.image(task))
        self.try_programs(task)
        return digest

    def changed(self, task: Task, sandbox: SandboxBackend) -> bool:
        """Return whether the image has changed since the sandbox started.

        For example, a package installation changes ``host``, and an edit changes a folder.
        """
        image = getattr(sandbox, "image", None)  # the sandboxes of some providers record no image
        return image is not None and image.digest != self.provider.digest(self.layered_image(task))

    def identify(self, task: Task) -> str:
        """Return a digest of the inputs that determine a fresh sandbox for the task.

        The ages of files are left out, because gold of a task with ages is not cached.
        """
        facts: list[Any] = [self.digest(task), task.setup, sorted(task.files.items()), task.timeout]
        facts += [repr(self.limits(task)), self.reach(task), *self.layers]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    def open(self, task: Task) -> SandboxBackend:
        """Start a fresh sandbox, write the task's files and run its setup.

        Raises:
            TaskError: The files cannot be written, the setup failed, or the capabilities are not
                available; the message names the task.
            ImageError: The image cannot be found or built, or a program that the task needs does
                not run in it.
            SandboxError: The sandbox cannot be started, or died.
        """
        return self._open(task, self.limits(task))

    def open_private(self, task: Task) -> SandboxBackend:
        """Start a sandbox like `open`, in which processes can be hidden from each other."""
        return self._open(task, replace(self.limits(task), private=True))

    def _open(self, task: Task, limits: Limits) -> SandboxBackend:
        self.try_programs(task)
        sandbox = self.provider.start(self.layered_image(task), limits, self.reach(task))
        try:
            self._prepare(sandbox, task)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def recipe(self, task: Task, base: str | None = None) -> WorkspaceRecipe:
        """Return a Dockerfile that describes a sandbox for the task, for other tools.

        `intercode.envs.dockerfile_export` lists the differences between the built image and the
        sandbox. The Dockerfile itself contains neither limits nor a service: both are fields of the
        result.

        Args:
            task: The task.
            base: The name after ``FROM``, which replaces the base image.

        Raises:
            TaskError, ImageError: As for `check`.
            UsageError: The image cannot be exported, for example because no registry has it; the
                message names the reason.
            SandboxError: The sandbox that is started to inspect the image failed.
        """
        self.check(task)
        image = self.image(task)
        writer = WorkspaceRecipeWriter(image, self._find_start(image), base)
        return writer.finish(
            self.directory(task),
            self.file_contents(task),
            task.setup,
            self.limits(task),
            NetworkPolicy.parse(self.reach(task)).shared,
            self.service(task),
        )

    def _find_start(self, image: str) -> ImageStartSettings:
        """Return the environment variables, working directory and user of an image's programs.

        If the image's scheme is in `OWN_START`, the image itself defines these facts. A sandbox is
        then started from the image, and its attributes are read.
        """
        spec = parse(image)
        if spec.scheme not in OWN_START:
            return ImageStartSettings()
        with closing(self.provider.start(str(replace(spec, additions=())))) as sandbox:
            user = getattr(getattr(sandbox, "image", None), "user", "")
            return ImageStartSettings(dict(sandbox.env), sandbox.cwd, user)

    def file_contents(self, task: Task) -> dict[str, bytes]:
        """Return the contents of the task's files by path."""
        return {path: encode(content) for path, content in task.files.items()}

    def service(self, task: Task) -> EpisodeService | None:
        """Return the program that runs alongside the agent; None if the task has none."""
        return None

    def try_setup(self, task: Task, text: str) -> Completed:
        """Run a script instead of a task's setup, in a separate sandbox.

        Args:
            task: The task.
            text: The script.

        Returns:
            The completed script, with exit code and output.

        Raises:
            TaskError, ImageError, SandboxError: As for `open`.
        """
        new_sandbox = self.provider.start(
            self.layered_image(task), self.limits(task), self.reach(task)
        )
        with closing(new_sandbox) as sandbox:
            self._lay(sandbox, task)
            argv, stdin = script(text)
            seconds = self._setup_seconds(sandbox, task)
            return sandbox.exec(argv, stdin=stdin, cwd=self.directory(task), timeout=seconds)

    def _prepare(self, sandbox: SandboxBackend, task: Task) -> None:
        """Write the task's files and run its setup."""
        self._lay(sandbox, task)
        if task.setup is not None:
            self._run(sandbox, task, "setup", task.setup)

    def _lay(self, sandbox: SandboxBackend, task: Task) -> None:
        """Set the ages of the image's files, then write the task's files."""
        folder = self.directory(task)
        # The ages come before the task's files, because these files must be new.
        if ages := self._age_arguments(task):
            self._run(sandbox, task, "the ages of its files", _AGES, "bash", *ages)
        try:
            for path, content in self.file_contents(task).items():
                sandbox.write_file(PurePosixPath(folder, path), content)
        except OSError as error:
            raise TaskError(
                f"task {task.task_id!r}: file {path!r} cannot be written: {error}"
            ) from error

    def _run(
        self, sandbox: SandboxBackend, task: Task, step_name: str, text: str, *arguments: str
    ) -> None:
        argv, stdin = script(text, *arguments)
        seconds = self._setup_seconds(sandbox, task)
        try:
            result = sandbox.exec(argv, stdin=stdin, cwd=self.directory(task), timeout=seconds)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise image_start_error(sandbox, error) from error
        if not result.ok:
            reason = f"failed with exit code {result.exit_code}"
            if result.timed_out:
                reason = (
                    f"was not done within {seconds:g} s (a longer timeout of actions is its, too)"
                )
            output = decode(result.stderr or result.stdout).strip()[-500:]
            raise TaskError(
                f"task {task.task_id!r}: {step_name} {reason}: {output or '(no output)'}"
            )

    @staticmethod
    def _setup_seconds(sandbox: SandboxBackend, task: Task) -> float:
        return max(SETUP_TIMEOUT, sandbox.limits.seconds(task.timeout))

    @staticmethod
    def _age_arguments(task: Task) -> list[str]:
        """Return the arguments of the script `_AGES`: path and age in seconds, alternating."""
        return [text for path, age in task.ages.items() for text in (path, str(int(age)))]
