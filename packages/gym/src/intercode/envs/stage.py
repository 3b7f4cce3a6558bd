"""Stages: what makes the places in which an environment's tasks are tried.

`SandboxStage` makes sandboxes with everything that a task needs.
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

from intercode.envs.dockerfile_export import OWN_START, Recipe, Service, Start, Writer
from intercode.envs.program_checks import try_programs
from intercode.episode import decode, encode
from intercode.errors import ImageError, TaskError, UsageError
from intercode.interpreters.base import Place
from intercode.interpreters.bash import image_start_error
from intercode.task import SANDBOX_LIMITS, Task
from intercode_sandbox import Limits, Provider, SandboxBackend, get_provider
from intercode_sandbox.base import Completed, GrantsSome
from intercode_sandbox.data_paths import resolve_data_path
from intercode_sandbox.extensions import is_packaged
from intercode_sandbox.images.base import parse
from intercode_sandbox.images.resolve import admit, check
from intercode_sandbox.network import Network, Policy
from intercode_sandbox.privileges import is_root
from intercode_sandbox.scripts import SHELL, script

if TYPE_CHECKING:
    from intercode.envs.options import EnvOptions
    from intercode.envs.traits import Traits

SETUP_TIMEOUT = 120.0
"""Seconds that a task's setup may take, or as many as an action, where that is more."""


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
"""The script that gives the image's files below each folder their ages, to the second. Arguments:
folder and age of its newest file, in turn. Files of one second share a `touch`."""


@runtime_checkable
class SupportsTermination(Protocol):
    """A place whose end takes the kernel a while, in which other things can be done."""

    def kill_all(self) -> None:
        """Begin to end it: `close` will have less to wait for."""


PlaceT = TypeVar("PlaceT", bound=Place)
StagedT = TypeVar("StagedT", bound=Place)


class Stage(Protocol[StagedT]):
    """Makes the places of an environment; the agent's and gold's come out alike."""

    def image(self, task: Task) -> str:
        """Name what the task's place is made from."""

    def check(self, task: Task) -> None:
        """Refuse what cannot be made, as far as that can be told before any work starts.

        Raises:
            TaskError, ImageError: As named.
        """

    def digest(self, task: Task) -> str:
        """Identify that content, for a run's record. It may take long to make it."""

    def changed(self, task: Task, place: StagedT) -> bool:
        """Tell whether a place that is made for the task now would differ from one made before."""

    def open(self, task: Task) -> StagedT:
        """Make a fresh place, with everything that the task needs.

        Raises:
            TaskError: What the task needs cannot be had; it names the task.
            SandboxError: The place cannot be made.
        """

    def recipe(self, task: Task, base: str | None = None) -> Recipe:
        """Tell how the place is made, as a Dockerfile that another tool can build.

        Args:
            task: The task.
            base: A name after ``FROM``, in place of the image that all is laid over.

        Raises:
            TaskError, ImageError: As named.
            UsageError: No Dockerfile can make it.
        """


class NoRecipe:
    """A stage whose places are not made from images of files alone."""

    def recipe(self, task: Task, base: str | None = None) -> Recipe:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"task {task.task_id!r}: a Dockerfile cannot describe its workspace, which is a "
            "database session or an environment of 2023: open a workspace by stage.open(task)"
        )


CEILINGS = {"memory": 16 << 30, "disk": 16 << 30, "processes": 4096}
"""The most that a task may ask for, where no limit is set."""


def resolve_limits(task: Task, limits: Limits | None) -> Limits:
    """Return the limits of a task's place: its own, but for those that are set for all.

    Raises:
        TaskError: It asks for more than `CEILINGS`, or for capabilities beyond those that are set.
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
        TaskError: It is not in the folder of the task's data.
    """
    if task.folder is None:
        return Path(path).expanduser().absolute()
    try:
        return resolve_data_path(task.folder, path)
    except ValueError as error:
        raise TaskError(f"task {task.task_id!r}, field {field!r}: {error}") from None


def _resolve_image(task: Task, name: str) -> str:
    """Return the name of a task's own image; of a data file's it depends on no working directory.

    Raises:
        TaskError: It is made from what is not in the folder of the task's data.
        ImageError: The name means nothing.
    """
    if task.folder is None:
        return name
    try:
        return _image_within(task.folder, name)
    except ValueError as error:
        raise TaskError(f"task {task.task_id!r}, field 'image': {error}") from None


@lru_cache(maxsize=1024)  # each reset asks several times
def _image_within(folder: Path, name: str) -> str:
    spec = parse(name, folder)
    data_paths = [path for path in spec.paths if not is_packaged(path)]
    for path in data_paths:
        resolve_data_path(folder, path)
        resolve_data_path(folder, path / "Dockerfile")  # which is read if it is a folder's
    return str(spec) if data_paths else name


class SandboxStage:
    """Starts sandboxes for tasks; the agent's and gold's come out alike.

    Args:
        provider: Starts the sandboxes; or its name.
        image: The image of all tasks; what they lay over ``host``, they lay over it. None: each
            task's own.
        limits: What a sandbox may use; None: the defaults.
        network: What can be reached.
        default_image: The image of tasks that name none; None: ``host``.
    """

    DEFAULT = "host"
    """The image where nothing names one."""
    layers: Sequence[str] = ()
    """Archives of what the agent brings along; a record does not count them to the image."""
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
    def of(cls, options: EnvOptions, traits: Traits, **arguments: Any) -> Self:
        """Make the stage that an environment's options ask for.

        Raises:
            UsageError: There is no such provider.
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
        """Name the image that the task runs in.

        Raises:
            TaskError: The task's own image is made from what is not in its data's folder.
            ImageError: Its name means nothing.
        """
        task_image = self._default_image if task.image is None else _resolve_image(task, task.image)
        if self._image is None:
            return task_image
        base, plus, additions = task_image.partition("+")
        return f"{self._image}{plus}{additions}" if base == "host" else self._image

    def layered_image(self, task: Task) -> str:
        """Name what its sandbox starts from: the image, and over it what the agent brings along."""
        return "+".join([self.image(task), *self.layers])

    def base(self, task: Task) -> str:
        """Name the image that the task's programs come from: several tasks may share it."""
        return self.layered_image(task)

    def needs(self, task: Task) -> list[str]:
        """List the programs that the image must have for the task.

        A setup may install others than the shell that it is run by.
        """
        scripts = (task.setup, task.ages, task.verification, self.service(task))
        shell = [SHELL[0]] if any(scripts) else []
        return shell if task.setup else [*self.programs, *shell]

    def try_programs(self, task: Task) -> None:
        """Run the programs that the task needs, once per image.

        Raises:
            ImageError: One of them does not run in the image.
            SandboxError: No sandbox starts.
        """
        try_programs(self.provider, self.base(task), self.needs(task))

    def limits(self, task: Task) -> Limits:
        """Return what the task's sandbox may use.

        Raises:
            TaskError: Its capabilities are not available here.
        """
        limits, provider = resolve_limits(task, self._limits), self.provider
        capabilities = limits.capabilities
        if isinstance(provider, GrantsSome) and (
            reason := provider.capability_problem(capabilities, self.network)
        ):
            raise TaskError(f"task {task.task_id!r} cannot have its capabilities: {reason}")
        # So that its verification can be run in the agent's sandbox, and needs no other one. But
        # an ordinary user's agent would not see its own processes, and one with a network could not
        # install another C library.
        private = task.verification is not None and not self.reach(task) and is_root()
        return replace(limits, private=True) if private else limits

    def reach(self, task: Task) -> Network:
        """Return what the task's sandbox may reach."""
        return self.network

    def directory(self, task: Task) -> str:
        """Return where its relative files and its setup begin, from the image's directory."""
        return "."

    def check(self, task: Task) -> None:
        """Refuse a task whose image cannot exist, or that would not run in its sandbox.

        Raises:
            TaskError: The task's own image means nothing, or names a file that is not there; or
                its capabilities are not available here.
            ImageError: The image of all tasks does.
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
        """Identify that image's content.

        Raises:
            ImageError: It cannot be found or built, or a program that the task needs does not run.
        """
        digest = self.provider.digest(self.image(task))
        self.try_programs(task)
        return digest

    def changed(self, task: Task, place: SandboxBackend) -> bool:
        """Tell whether the image is another than the one that a sandbox was started from.

        The image ``host`` is, once a package is installed; a folder, once it is changed.
        """
        image = getattr(place, "image", None)  # not every provider's sandboxes know
        return image is not None and image.digest != self.provider.digest(self.layered_image(task))

    def identify(self, task: Task) -> str:
        """Return a digest of all that the state of a fresh sandbox for the task depends on."""
        facts: list[Any] = [self.digest(task), task.setup, sorted(task.files.items()), task.timeout]
        facts += [repr(self.limits(task)), self.reach(task), *self.layers]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    def open(self, task: Task) -> SandboxBackend:
        """Start a fresh sandbox in which the task's files are written and its setup has run.

        Raises:
            TaskError: The files cannot be written, the setup failed, or its capabilities cannot be
                had; it names the task.
            ImageError: The image cannot be found or built, or a program that the task needs does
                not run in it.
            SandboxError: The sandbox cannot be started, or died.
        """
        return self._open(task, self.limits(task))

    def open_private(self, task: Task) -> SandboxBackend:
        """Start a sandbox as `open` does, in which programs can be hidden from each other."""
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

    def recipe(self, task: Task, base: str | None = None) -> Recipe:
        """Tell how a sandbox for the task is made, as a Dockerfile that another tool can build.

        It has the same files, but that ``base`` stands for ``host``, and Docker's image of a
        Debian suite for ours. Limits and a service are not in the Dockerfile.

        Args:
            task: The task.
            base: A name after ``FROM``, in place of the image that all is laid over.

        Raises:
            TaskError, ImageError: As `check`.
            UsageError: The image is in no registry; the message says what to do.
        """
        self.check(task)
        image = self.image(task)
        writer = Writer(image, self._find_start(image), base)
        return writer.finish(
            self.directory(task),
            self.file_contents(task),
            task.setup,
            self.limits(task),
            Policy.of(self.reach(task)).shared,
            self.service(task),
        )

    def _find_start(self, image: str) -> Start:
        """Find how programs start in an image; one that says so itself is started for that."""
        spec = parse(image)
        if spec.scheme not in OWN_START:
            return Start()
        with closing(self.provider.start(str(replace(spec, additions=())))) as sandbox:
            user = getattr(getattr(sandbox, "image", None), "user", "")
            return Start(dict(sandbox.env), sandbox.cwd, user)

    def file_contents(self, task: Task) -> dict[str, bytes]:
        """Return the content of the files that the task has, by path."""
        return {path: encode(content) for path, content in task.files.items()}

    def service(self, task: Task) -> Service | None:
        """Return the program that runs beside the agent."""
        return None

    def try_setup(self, task: Task, text: str) -> Completed:
        """Run a script in place of a task's setup, in a place of its own.

        Args:
            task: The task.
            text: The script.

        Raises:
            TaskError, ImageError, SandboxError: As `open`.
        """
        place = self.provider.start(self.layered_image(task), self.limits(task), self.reach(task))
        with closing(place) as sandbox:
            self._lay(sandbox, task)
            argv, stdin = script(text)
            seconds = self._setup_seconds(sandbox, task)
            return sandbox.exec(argv, stdin=stdin, cwd=self.directory(task), timeout=seconds)

    def _prepare(self, sandbox: SandboxBackend, task: Task) -> None:
        """Write the task's files, and run its setup."""
        self._lay(sandbox, task)
        if task.setup is not None:
            self._run(sandbox, task, "setup", task.setup)

    def _lay(self, sandbox: SandboxBackend, task: Task) -> None:
        """Write the task's files."""
        folder = self.directory(task)
        if ages := self._age_arguments(task):  # first: what the task itself makes is new
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
        """Return the arguments of `_AGES`."""
        return [text for path, age in task.ages.items() for text in (path, str(int(age)))]
