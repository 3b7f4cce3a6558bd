"""The module ``intercode.utils`` of the 2023 release: data loader, containers and time limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from intercode.datasets.files import read_rows
from intercode.errors import EnvironmentStateError, UsageError
from intercode_paper.bash_interpreter import (
    AGENT_HOST,
    LIMITS,
    ActionOutput,
    run,
    split_words,
    variables,
)
from intercode_paper.compat.images import image_for
from intercode_sandbox import SandboxBackend, get_provider
from intercode_sandbox.images.resolve import check

TIMEOUT_DURATION = 10
"""The default time limit of a block of `timeout` in seconds."""
START_UP_DELAY = 0
"""The seconds to wait after the start of a container: none, because a sandbox is ready at once."""
MAX_SECONDS = 3600.0
"""The time limit in seconds of a command for which none is set. The 2023 release had no limit."""
SUFFIXES = (".csv", ".json", ".jsonl", ".tsv")

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class DataRow(dict[str, Any]):
    """A row of a data file, with query, gold and all other fields.

    Early releases had the other fields in ``extra``, later releases beside query and gold. A
    `DataRow` permits both ways of access.

    Args:
        fields: All fields of the row by name.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        extra_fields = {
            name: value for name, value in fields.items() if name not in ("query", "gold")
        }
        main_fields = {name: fields[name] for name in ("query", "gold") if name in fields}
        super().__init__({**main_fields, "extra": extra_fields} if extra_fields else main_fields)

    def __missing__(self, name: str) -> Any:
        return self.fields[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.fields

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field; `default` if the row has no such field."""
        return {**self.fields, **self}.get(name, default)


class IntercodeDataLoader:
    """The rows of a data file of 2023: JSON, JSON Lines, CSV or TSV.

    Args:
        data_path: The path of the file.
        parse_func: A function that is ignored, as in 2023.

    Raises:
        OSError: The file does not exist.
        UsageError: The format is unknown, the file has no rows, or a row lacks the field ``query``.
            The class is derived from `ValueError`.
        TaskError: The file is malformed. The class is derived from `ValueError`.
    """

    def __init__(self, data_path: str, parse_func: Callable[..., Any] | None = None) -> None:
        self._validate_file_path(data_path)
        self.data_path = data_path
        self._rows = self._read()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, index: int | None = None) -> DataRow:
        """Return a row without its empty fields.

        Args:
            index: The number of the row; None: a random row.
        """
        if index is None:
            # NumPy's global generator is used, because scripts of 2023 seed it.
            index = numpy.random.randint(0, len(self))
        row = self._rows[index]
        return DataRow({name: value for name, value in row.items() if value not in (None, "")})

    @cached_property
    def data(self) -> Any:
        """The rows as a pandas table; pandas is imported at the first access.

        Raises:
            ImportError: pandas is not installed.
        """
        return self._load_data()

    def _load_data(self) -> Any:
        rows = self._read()
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "data is a table of pandas: pip install pandas; get(n) is not"
            ) from None
        return pandas.DataFrame(rows)

    def _read(self) -> list[dict[str, Any]]:
        rows = [row for _, row in read_rows(Path(self.data_path))]
        if not rows or not all(isinstance(row, dict) and "query" in row for row in rows):
            raise UsageError(f"{self.data_path}: each row needs the fields 'query' and 'gold'")
        return rows

    def _validate_file_path(self, file_path: str) -> None:
        path = Path(file_path)
        if not path.exists():
            raise FileNotFoundError(f"there is no data file {file_path}")
        if path.suffix not in SUFFIXES:
            reason = (
                "reading it runs code" if path.suffix in (".pkl", ".pickle") else "unknown format"
            )
            raise UsageError(f"{file_path}: {reason}; known: {', '.join(SUFFIXES)}")


class timeout:  # noqa: N801 - its name in 2023
    """A time limit for the commands of `Container.exec_run` within a ``with`` block.

    The class of 2023 used a signal, which works only in the main thread, and limited all code of
    the block. This class limits no other code.

    Args:
        seconds: The seconds from the start of the block, after which its commands are killed.
        error_message: The text of a `TimeoutError` that leaves the block.
    """

    def __init__(self, seconds: float = TIMEOUT_DURATION, error_message: str = "Timeout") -> None:
        self.seconds = seconds
        self.error_message = error_message

    def __enter__(self) -> None:
        self._token = _deadline.set(time.monotonic() + self.seconds)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _deadline.reset(self._token)
        if kind is TimeoutError:
            raise TimeoutError(self.error_message) from None


def stands_for(module: str, name: str) -> property:
    """Return a property ``__class__`` with which an object counts as an instance of another class.

    Tests of 2023 call `isinstance` with classes of Docker and MySQL packages. The property never
    imports such a package, because a script that names the class has imported the package.

    Args:
        module: The module of the class.
        name: The name of the class.
    """

    def get_class(self: object) -> type:
        kind: type = getattr(sys.modules.get(module), name, type(self))
        return kind

    return property(get_class)


class ExecResult(NamedTuple):
    """The result of a command in a container."""

    exit_code: int | None
    """The exit code of the command; None if its text could not be split, or its output was not
    UTF-8."""
    output: bytes


class Container:
    """A sandbox with the interface of a 2023 Docker container.

    The sandbox starts at its first use. If the module of Docker's class
    ``docker.models.containers.Container`` is imported, `isinstance` accepts the object as such.

    Args:
        name: The name of the container.
        start: A function that starts a sandbox.
        environment: All environment variables of the container's processes.
        answers: Last word of a command, such as the script after ``bash -c`` → function that
            returns the output without running the command.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], SandboxBackend],
        environment: Mapping[str, str],
        answers: Mapping[str, Callable[[Container], str]] | None = None,
    ) -> None:
        self.name = name
        self.status = "running"
        self.environment = environment
        self._start = start
        self._answers = answers or {}
        self._sandbox: SandboxBackend | None = None

    __class__ = stands_for("docker.models.containers", "Container")

    @property
    def sandbox(self) -> SandboxBackend:
        """The sandbox of the container, which the first access starts.

        Raises:
            EnvironmentStateError: The container was stopped.
            SandboxError, ImageError: The sandbox cannot be started.
        """
        if self.status != "running":
            raise EnvironmentStateError(f"container {self.name!r} was stopped: call start() first")
        if self._sandbox is None:
            self._sandbox = self._start()
        return self._sandbox

    def exec_run(
        self, cmd: str | Sequence[str], workdir: str | None = None, *, timeout: float | None = None
    ) -> ExecResult:
        """Run a command, and return its exit code and output.

        Args:
            cmd: The command as a list of words, or as a text, which is split as by a POSIX shell.
            workdir: The working directory; None: ``/``.
            timeout: The time limit in seconds; None: the remaining time of an enclosing block of
                `timeout`, or an hour without such a block.

        Raises:
            TimeoutError: The command exceeded its time limit, and was killed.
            EnvironmentStateError: The container was stopped.
            SandboxError, ImageError: The sandbox failed, or cannot be started.
        """
        argv = split_words(cmd) if isinstance(cmd, str) else tuple(map(str.encode, cmd))
        script = argv[-1].decode("utf-8", "replace").strip() if argv else ""
        if (scripted_answer := self._answers.get(script)) is not None:
            return ExecResult(0, scripted_answer(self).encode())
        if timeout is None:
            deadline = _deadline.get()
            timeout = MAX_SECONDS if deadline is None else max(0.01, deadline - time.monotonic())
        output: ActionOutput = run(self.sandbox, argv, self.environment, workdir or "/", timeout)
        if output.timed_out:
            raise TimeoutError(f"{script!r} took longer than {timeout:.0f} s")
        return ExecResult(output.exit_code, output.text.encode())

    def reset(self) -> None:
        """Close the sandbox; the next command runs in a fresh sandbox of the image."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def start(self) -> None:
        """Permit commands again, in a fresh sandbox of the image."""
        self.status = "running"

    def stop(self) -> None:
        """Close the sandbox, and refuse further commands. Idempotent."""
        self.reset()
        self.status = "exited"

    remove = stop


class ContainerSettings(NamedTuple):
    """The options with which an environment starts its containers."""

    image: str
    sandbox: str
    network: bool
    environment: dict[str, str]
    """Environment variables of the container's processes."""


def read_container_settings(image_name: str, kwargs: Mapping[str, Any]) -> ContainerSettings:
    """Return the options of containers from the keywords of an environment.

    Args:
        image_name: The image: a name of 2023, or a name for ``intercode run --image``.
        kwargs: The keywords. Only ``sandbox``, ``network``, ``environment`` and ``data_path`` have
            an effect.

    Raises:
        UsageError: ``ports``, ``volumes`` or ``command`` is set, which sandboxes do not support.
        TaskError: The data's file system of NL2Bash does not exist.
        ImageError: The image's name is invalid, or names a missing file.
    """
    for name in ("ports", "volumes", "command"):
        if kwargs.get(name):
            raise UsageError(
                f"{name}= is Docker's, and a sandbox has none: run programs with "
                "container.exec_run, and lay files into an image (docs/sandbox/images.md)"
            )
    image = image_for(image_name, kwargs.get("data_path"))
    check(image)
    environment = {**variables(AGENT_HOST, image), **(kwargs.get("environment") or {})}
    network = bool(kwargs.get("network", False))
    return ContainerSettings(image, kwargs.get("sandbox", "native"), network, environment)


def get_container(ctr_name: str, image_name: str, **kwargs: Any) -> Container:
    """Return a new container of an image, whose sandbox starts at its first use.

    Args:
        ctr_name: The name of the container.
        image_name: The name of the image.
        **kwargs: The keywords of an environment; see `read_container_settings`.

    Raises:
        UsageError: As for `read_container_settings`; or ``sandbox`` names no provider.
        TaskError, ImageError: As for `read_container_settings`.
    """
    image, sandbox_name, network, environment = read_container_settings(image_name, kwargs)
    provider = get_provider(sandbox_name)
    return Container(ctr_name, lambda: provider.start(image, LIMITS, network), environment)
