"""The 2023 release's ``intercode.utils``: a data loader, containers, and a time limit."""

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
from intercode_paper.bash import AGENT_HOST, LIMITS, Output, run, split_words, variables
from intercode_paper.compat.images import image_for
from intercode_sandbox import SandboxBackend, get_provider
from intercode_sandbox.images.resolve import check

TIMEOUT_DURATION = 10
"""The time limit of an action in seconds."""
START_UP_DELAY = 0
"""The start-up time of a container in seconds: 0, since a sandbox is ready at once."""
MAX_SECONDS = 3600.0
"""The maximum seconds of a command without a time limit; 2023 had no maximum."""
SUFFIXES = (".csv", ".json", ".jsonl", ".tsv")

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class Record(dict[str, Any]):
    """A row of a data file: query, gold, and all other fields under ``extra``.

    Early releases had the other fields under ``extra``, later releases beside query and gold. Both
    forms of access work.

    Args:
        fields: All fields of the row.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        extra = {name: value for name, value in fields.items() if name not in ("query", "gold")}
        main_fields = {name: fields[name] for name in ("query", "gold") if name in fields}
        super().__init__({**main_fields, "extra": extra} if extra else main_fields)

    def __missing__(self, name: str) -> Any:
        return self.fields[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.fields

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or `default`."""
        return {**self.fields, **self}.get(name, default)


class IntercodeDataLoader:
    """The rows of a data file of 2023: JSON, JSON Lines, CSV or TSV.

    Args:
        data_path: The file.
        parse_func: Ignored, as in 2023.

    Raises:
        OSError: The file does not exist.
        UsageError: The format is unknown, or a row lacks the field ``query``. A `ValueError`.
        TaskError: The file is malformed. A `ValueError`.
    """

    def __init__(self, data_path: str, parse_func: Callable[..., Any] | None = None) -> None:
        self._validate_file_path(data_path)
        self.data_path = data_path
        self._rows = self._read()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, index: int | None = None) -> Record:
        """Return a row without its empty fields; None: a random row."""
        if index is None:
            index = numpy.random.randint(0, len(self))  # old scripts seed NumPy's global generator
        row = self._rows[index]
        return Record({name: value for name, value in row.items() if value not in (None, "")})

    @cached_property
    def data(self) -> Any:
        """The rows as a table of pandas, which is imported at the first access.

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
    """A time limit for the container's commands within a ``with`` block.

    The 2023 class used a signal, which works in the main thread only. This class limits the
    commands of `Container.exec_run`.

    Args:
        seconds: The limit, for the whole block.
        error_message: The text of the `TimeoutError`.
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
    """Return a ``__class__`` property that makes `isinstance` accept another package's class.

    The tests of 2023 call `isinstance`. The property imports nothing: a script with such a call has
    imported the package.
    """

    def get_class(self: object) -> type:
        kind: type = getattr(sys.modules.get(module), name, type(self))
        return kind

    return property(get_class)


class ExecResult(NamedTuple):
    """The result of a command."""

    exit_code: int | None
    """None: the command's text could not be split."""
    output: bytes


class Container:
    """A stand-in for a Docker container of 2023: a sandbox, started at its first use.

    ``isinstance`` also accepts an object as a ``docker.models.containers.Container``, if the module
    of that class is imported.

    Args:
        name: The container's name.
        start: Starts a sandbox.
        environment: All environment variables of the container's processes.
        answers: Text of a command → function that returns its output without the sandbox.
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
        """The container's sandbox, started at the first access.

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
        """Run a command: a list, or a text that is split like in a POSIX shell.

        Args:
            cmd: The command.
            workdir: The working directory; None: ``/``.
            timeout: The limit in seconds; None: the remaining time of an enclosing `timeout`, else
                an hour.

        Raises:
            TimeoutError: The command exceeded its time limit, and was killed.
            SandboxError: The sandbox failed.
        """
        argv = split_words(cmd) if isinstance(cmd, str) else tuple(map(str.encode, cmd))
        script = argv[-1].decode("utf-8", "replace").strip() if argv else ""
        if (answer := self._answers.get(script)) is not None:
            return ExecResult(0, answer(self).encode())
        if timeout is None:
            deadline = _deadline.get()
            timeout = MAX_SECONDS if deadline is None else max(0.01, deadline - time.monotonic())
        output: Output = run(self.sandbox, argv, self.environment, workdir or "/", timeout)
        if output.timed_out:
            raise TimeoutError(f"{script!r} took longer than {timeout:.0f} s")
        return ExecResult(output.exit_code, output.text.encode())

    def reset(self) -> None:
        """Reset the container to its image: the next command runs in a fresh sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def start(self) -> None:
        """Restart the container from its image."""
        self.status = "running"

    def stop(self) -> None:
        """Stop the container, and free its sandbox. Idempotent."""
        self.reset()
        self.status = "exited"

    remove = stop


class ContainerSettings(NamedTuple):
    """The options with which an environment starts containers."""

    image: str
    sandbox: str
    network: bool
    environment: dict[str, str]
    """The environment variables of processes."""


def read_container_settings(image_name: str, kwargs: Mapping[str, Any]) -> ContainerSettings:
    """Read the container options among the keywords of an environment.

    Args:
        image_name: The image: a name of 2023, or a name for `intercode run --image`.
        kwargs: The keywords, of which ``sandbox``, ``network``, ``environment`` and ``data_path``
            count.

    Raises:
        UsageError: ``ports``, ``volumes`` or ``command`` is given: sandboxes support none of them.
        TaskError, ImageError: The image does not exist.
    """
    for name in ("ports", "volumes", "command"):
        if kwargs.get(name):
            raise UsageError(
                f"{name}= is Docker's, and a sandbox has none: run programs with "
                "container.exec_run, and lay files into an image (docs/how-to/images.md)"
            )
    image = image_for(image_name, kwargs.get("data_path"))
    check(image)
    environment = {**variables(AGENT_HOST, image), **(kwargs.get("environment") or {})}
    network = bool(kwargs.get("network", False))
    return ContainerSettings(image, kwargs.get("sandbox", "native"), network, environment)


def get_container(ctr_name: str, image_name: str, **kwargs: Any) -> Container:
    """Return a fresh container of an image.

    Args:
        ctr_name: The container's name.
        image_name: The image.
        **kwargs: The keywords of an environment.

    Raises:
        UsageError, TaskError, ImageError: As `read_container_settings`.
    """
    image, sandbox, network, environment = read_container_settings(image_name, kwargs)
    provider = get_provider(sandbox)
    return Container(ctr_name, lambda: provider.start(image, LIMITS, network), environment)
