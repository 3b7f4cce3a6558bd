"""Tasks, which are problems for agents, and datasets of tasks, as plain, validated data.

`Task.__post_init__` validates and normalises every field that a data file can set. The values in
`Task.metadata` are validated only where they are used. A `Dataset` is an ordered set of tasks with
unique ids. `intercode.datasets.files` reads data files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, overload

from intercode.errors import TaskError, TaskNotFoundError, UsageError
from intercode.registry import NOTEBOOK
from intercode_sandbox.host_files import sha256
from intercode_sandbox.spelling_suggestions import hint_text, nearest_word
from intercode_sandbox.units import LIMITS, format_count

if TYPE_CHECKING:
    from numpy.random import Generator

SHOWN = ("db_tables",)
"""The keys of a task's `metadata` that the agent may see."""

SANDBOX_LIMITS = ("memory", "disk", "processes", "capabilities")
"""The fields of a task that limit its sandbox."""

LOOKS = "looks"
"""The key of a task's `metadata` for actions that read the information on which gold depends. The
oracle executes these actions before gold."""

CLOCK = "clock"
"""The key of a task's `metadata` that marks a task as dependent on the clock. The value is an
object folder → age (see `Task.ages`)."""
COMMON_METADATA = (LOOKS, CLOCK, "alternatives", "cache_gold", "judge", "wrong")
"""The keys of `metadata` that are valid in tasks of every environment."""

CANNOT = "cannot"
"""The key of a task's `metadata` for the reason why the task cannot be scored. Runs omit tasks with
this key."""
_MAX_QUOTED_LENGTH = 100
"""The maximum number of characters of an unknown id that a message quotes."""


@dataclass(frozen=True, slots=True)
class Task:
    """A problem for an agent: a query, and the data needed to try and to score a solution.

    Raises:
        TaskError: A field has the wrong type or an impossible value; the message names it.
    """

    task_id: str
    """The task's id, unique within its dataset."""
    query: str
    """The request to the agent, in words."""
    gold: tuple[str, ...] = ()
    """Reference solutions: commands, statements, functions or flags. If a task has several, the
    reward compares with the best match."""
    setup: str | None = None
    """A deterministic command that runs in the sandbox before the agent's first turn."""
    verification: str | None = None
    """A command that runs at the end of an episode; exit code 0 means solved."""
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Path → content of text files that are written before `setup` runs. A relative path is
    relative to the working directory of the image."""
    image: str | None = None
    """The image of the task; None: the environment's default."""
    timeout: float | None = None
    """The time limit of each action, and of gold, in seconds; None: the sandbox's limit."""
    tests: tuple[str, ...] = ()
    """Assertions, for environments that score by tests."""
    db: str | None = None
    """The name of the database, for SQL."""
    tags: tuple[str, ...] = ()
    """Labels by which tasks can be filtered."""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """All further fields of the task in its data file, under their original names."""
    may_change: tuple[str, ...] = ()
    """Absolute paths of system files and settings that a solution may change. The verification
    accepts changes of these paths. In a path, ``*``, ``?`` and ``[…]`` match within a name. The
    path of a folder includes its contents."""
    memory: int | None = None
    """The memory limit of the sandbox in bytes; None: the environment's limit. A data file may
    have a text such as ``"1G"``."""
    disk: int | None = None
    """The maximum number of bytes that the sandbox may write; None: the environment's limit."""
    processes: int | None = None
    """The maximum number of processes and threads in the sandbox; None: the environment's limit."""
    capabilities: tuple[str, ...] | None = None
    """The capabilities of root in the sandbox, by their names in
    `intercode_sandbox.linux_capabilities.CAPABILITIES`; None: those that the environment grants."""
    verification_timeout: float | None = None
    """The time limit of the verification in seconds; None: the value of `timeout`."""
    folder: Path | None = field(default=None, compare=False, repr=False)
    """The folder of the task's data file. Every host path in the task must be within this folder;
    relative paths are relative to it. None: a program made the task, and may name any path. A data
    file cannot set this field."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, _validate(name, check, getattr(self, name)))

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], index: int = 0, folder: Path | None = None) -> Task:
        """Build a task from a row of a data file.

        Unknown fields become entries of `metadata`, but a name that is similar to a known field is
        refused as a misspelling. A field with the value null counts as absent.

        A list under ``gold`` has two meanings, which the field ``task_id`` distinguishes. In a row
        with ``task_id``, the list holds *alternative* solutions. A row without ``task_id`` has the
        format of the 2023 data. Then the list is *one* solution, whose commands are joined by
        ``;``, and the row's number is the id.

        Args:
            row: The fields by name.
            index: The row's number, counted from 0.
            folder: The folder of the data file.

        Raises:
            TaskError: As for the class, or a field is missing.
        """
        fields = {key: value for key, value in row.items() if value is not None}
        if "query" not in fields:
            other_keys = [str(key) for key in fields if key not in FIELDS]
            likely_name = nearest_word("query", other_keys) or next(
                (k for k in other_keys if k in _QUERIES), None
            )
            advice = f": rename {likely_name!r}" if likely_name else ""
            raise TaskError(f"field 'query' is missing{advice}")
        if "task_id" not in fields:
            fields["task_id"] = index
            gold = fields.get("gold")
            if (
                isinstance(gold, list)
                and gold
                and all(isinstance(gold_action, str) for gold_action in gold)
            ):
                fields["gold"] = ";".join(gold)
        unknown = {key: fields.pop(key) for key in list(fields) if key not in FIELDS}
        for key in unknown:
            if (suggestion := nearest_word(str(key), FIELDS)) is not None:
                raise TaskError(
                    f"there is no field {key!r}; did you mean {suggestion!r}? (Put your own "
                    "fields under 'metadata'.)"
                )
        metadata = fields.pop("metadata", {})
        if not isinstance(metadata, Mapping):
            raise TaskError(f"field 'metadata' must be an object, not {_json_type(metadata)}")
        if duplicates := sorted(set(metadata) & set(unknown)):
            raise TaskError(f"field {duplicates[0]!r} is given twice: beside and within 'metadata'")
        return cls(**fields, metadata={**metadata, **unknown}, folder=folder)

    @property
    def ages(self) -> Mapping[str, float]:
        """Folders of the image → age of the folder's newest file when an episode starts.

        The age is in seconds, in [0, 1e10). The environment shifts the modification times of all
        files in the folder by the same amount, so the newest file has this age. Thus a task about
        "files of the last week" has the same solution on every day.

        Raises:
            TaskError: The metadata value has another shape.
        """
        ages = self.metadata.get(CLOCK, {})
        if not isinstance(ages, Mapping) or not all(map(_is_age, ages, ages.values())):
            raise TaskError(
                f"task {self.task_id!r}: metadata {CLOCK!r} must be an object of absolute path → "
                f"seconds, not {ages!r}"
            )
        return ages

    @property
    def depends_on_clock(self) -> bool:
        """Whether the task depends on the clock.

        The task depends on the clock if its metadata has the key `CLOCK`, even with an empty value.
        """
        return CLOCK in self.metadata

    @property
    def caches_gold(self) -> bool:
        """Whether the result of gold may be cached, since gold has the same effect at any time."""
        return not self.depends_on_clock and self.metadata.get("cache_gold") is not False

    def shown(self) -> Task:
        """Return the part of the task that an agent may see, without solutions and grading data."""
        metadata = {name: self.metadata[name] for name in SHOWN if name in self.metadata}
        return Task(self.task_id, self.query, db=self.db, tags=self.tags, metadata=metadata)

    def expects(self, path: str) -> bool:
        """Return whether a solution may change a path.

        A solution may change the path if `may_change` names the path or a folder that contains it.
        """
        expected_paths = (
            (PurePosixPath(path), *PurePosixPath(path).parents) if self.may_change else ()
        )
        return any(
            expected_path.match(glob)
            for expected_path in expected_paths
            for glob in self.may_change
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the task in plain JSON types, without empty fields, as `from_dict` reads it."""
        values = {name: getattr(self, name) for name in _CHECKS}
        plain_values = {name: _thaw(value) for name, value in values.items()}
        return {name: value for name, value in plain_values.items() if value not in (None, [], {})}


class Dataset(Sequence[Task]):
    """An ordered collection of tasks with unique ids.

    Args:
        tasks: The tasks.
        name: The dataset's name in messages and records.
        source: The file or folder of the data, if any.
        databases: For SQL: the folder or file of the tasks' databases, if any.
        rows: Task id → location in `source`, such as ``row 3 (line 7)``, where known.
        retained_tasks: Names of unknown fields in the data file, which became entries of the
            tasks' `metadata`.
        version: The version of the tasks, if they have one (`intercode.datasets.catalog.VERSIONS`).

    Raises:
        TaskError: Two tasks have the same id, or an item is not a task.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        name: str = "dataset",
        source: str | None = None,
        databases: str | None = None,
        rows: Mapping[str, str] | None = None,
        retained_tasks: Sequence[str] = (),
        version: int | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.databases = databases
        self.rows = rows or {}
        self.kept = retained_tasks
        self.version = version
        self._tasks = tuple(tasks)
        for row, task in enumerate(self._tasks, 1):
            if not isinstance(task, Task):
                raise TaskError(
                    f"{source or name}: row {row} is not a Task but {task!r:.80}: "
                    "Task.from_dict makes one of a dict"
                )
        self._index: dict[str, int] = {}
        for row, task in enumerate(self._tasks):
            first_row = self._index.setdefault(task.task_id, row)
            if first_row != row:
                raise TaskError(
                    f"{source or name}: row {row + 1}, field 'task_id': {task.task_id!r} is "
                    f"already the id of row {first_row + 1}"
                )
        self._digest: str | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int | str) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | str | slice) -> Task | Dataset:
        """Return the task at a position or with an id (a text), or the tasks of a slice."""
        if isinstance(index, str):
            return self.by_id(index)
        if isinstance(index, slice):
            return self._copy_with(self._tasks[index])
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._tasks == other._tasks

    def __hash__(self) -> int:
        return hash(self._tasks)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {format_count(len(self), 'task')})"

    def _repr_html_(self) -> str:
        """Return the view of the dataset in a notebook."""
        html: str = NOTEBOOK.get("dataset")(self)
        return html

    @property
    def digest(self) -> str:
        """SHA-256 of the tasks in their order, independent of the file format."""
        if self._digest is None:
            rows = [task.to_dict() for task in self._tasks]
            text = json.dumps(rows, sort_keys=True, separators=(",", ":"), default=str)
            self._digest = sha256(text)
        return self._digest

    def by_id(self, task_id: str | int) -> Task:
        """Return the task with an id. As in data files, a number denotes the id with its digits.

        Raises:
            TaskNotFoundError: No task has the id.
        """
        text = str(task_id)
        try:
            return self._tasks[self._index[text]]
        except KeyError:
            suggestion = hint_text(text, self._index, listed=False)
            if len(text) > _MAX_QUOTED_LENGTH:
                text = f"{text[:_MAX_QUOTED_LENGTH]}…"
            raise TaskNotFoundError(
                f"{self.name}: no task has the id {text!r}{suggestion}"
            ) from None

    def at(self, index: int) -> Task:
        """Return the task at a position, counted from 0.

        Raises:
            TaskNotFoundError: The index is not a whole number, or out of range.
        """
        if isinstance(index, bool) or not isinstance(index, Integral):
            raise TaskNotFoundError(f"{self.name}: an index must be a whole number, not {index!r}")
        if not 0 <= index < len(self):
            raise TaskNotFoundError(
                f"{self.name}: no task has the index {index}: 0 to {len(self) - 1}"
            )
        return self._tasks[int(index)]

    def select_task(
        self, task_id: Any = None, index: Any = None, **unknown_options: Any
    ) -> Task | None:
        """Return the task that the options of an environment's `reset` select.

        The result is None if no option selects a task.

        Raises:
            TaskNotFoundError: No task has that id or index.
            UsageError: An option is unknown, or both options are given.
        """
        if unknown_options:
            raise UsageError(
                f"reset has no option {min(unknown_options)!r}, only 'task_id' and 'index'"
            )
        if task_id is not None and index is not None:
            raise UsageError(f"which task: {task_id!r}, or that at index {index!r}?")
        if task_id is not None:
            return self.by_id(task_id)
        return None if index is None else self.at(index)

    def splits(self) -> list[str]:
        """Return the distinct names under ``split`` in the tasks' `metadata`, in task order."""
        names = (task.metadata.get("split") for task in self._tasks)
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def split(self, name: str) -> Dataset:
        """Return the tasks of a split: those whose `metadata` has the name under ``split``.

        Raises:
            TaskError: No task has this split.
        """
        if name not in (split_names := self.splits()):
            message = (
                f"its splits are {', '.join(split_names)}"
                if split_names
                else "its tasks name no splits"
            )
            raise TaskError(f"dataset {self.name!r}: there is no split {name!r}: {message}")
        return self.filter(lambda task: task.metadata.get("split") == name)

    def where(self, task: Task) -> str:
        """Return a task's location for messages: ``tasks.jsonl: row 3 (line 7), task 'a'``."""
        return f"{self._row_location(task)}task {task.task_id!r}"

    @contextmanager
    def locate_errors(self, task: Task) -> Iterator[None]:
        """Add the task's file and row to the message of a `TaskError` that the block raises."""
        try:
            yield
        except TaskError as error:
            raise TaskError(f"{self._row_location(task)}{error}") from error

    def _row_location(self, task: Task) -> str:
        row = f"{self.rows[task.task_id]}, " if task.task_id in self.rows else ""
        return f"{self.source or self.name}: {row}"

    def filter(self, keep: Callable[[Task], bool]) -> Dataset:
        """Return the tasks for which `keep` is true, in the same order."""
        return self._copy_with(task for task in self._tasks if keep(task))

    def order(self, seed: int) -> list[int]:
        """Return the row numbers in a random order that depends only on the seed and the ids.

        The rows are sorted by a BLAKE2b hash of seed and task id. Unlike a shuffle, this order
        depends on no library's random numbers, so it is equal on every machine. The removal of a
        task does not reorder the others.
        """

        def key(row: int) -> bytes:
            text = f"{seed}\0{self._tasks[row].task_id}"
            return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

        return sorted(range(len(self)), key=key)

    def iterate_shuffled(self, rng: Generator) -> Iterator[Task]:
        """Yield all tasks in a random order, then in another random order, indefinitely."""
        while True:
            for row in self.order(int(rng.integers(2**32))):
                yield self._tasks[row]

    def sample(self, count: int, seed: int = 0) -> Dataset:
        """Return at most `count` random tasks in the order that `order` derives from the seed."""
        return self._copy_with(self._tasks[row] for row in self.order(seed)[:count])

    def limit_timeouts(self, timeout: float) -> Dataset:
        """Return the dataset, in which each longer `timeout` of a task is lowered to a maximum.

        Args:
            timeout: The maximum in seconds. A task without its own time limit stays unchanged.
        """
        if all((task.timeout or 0) <= timeout for task in self):
            return self
        return self._copy_with(
            task if (task.timeout or 0) <= timeout else replace(task, timeout=timeout)
            for task in self
        )

    def _copy_with(self, tasks: Iterable[Task]) -> Dataset:
        return Dataset(
            tasks, self.name, self.source, self.databases, self.rows, self.kept, self.version
        )


def _validate(name: str, check: Callable[[object], Any], value: object) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise TaskError(f"field {name!r} {error}") from None


def _json_type(value: object) -> str:
    """Return the name of a value's JSON type, such as "an object", for messages."""
    names = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number"}
    return names.get(type(value), type(value).__name__)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_json_type(value)}")
    if "\0" in value:
        raise ValueError("holds a NUL, which no command or file name can hold")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not a character") from None
    return value


def _nonempty_text(value: object) -> str:
    text = _text(value)
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _optional_text(value: object) -> str | None:
    return None if value is None else _nonempty_text(value)


def _identifier(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _nonempty_text(value)


def _is_age(path: str, age: object) -> bool:
    is_number = isinstance(age, int | float) and not isinstance(age, bool)
    return path.startswith("/") and is_number and 0 <= age < 1e10  # type: ignore[operator]


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_nonempty_text(value),)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be text or a list of texts, not {_json_type(value)}")
    return tuple(_nonempty_text(text) for text in value)


def _globs(value: object) -> tuple[str, ...]:
    globs = _texts(value)
    for glob in globs:
        if not glob.startswith("/") or ".." in glob.split("/"):
            raise ValueError(f"must hold absolute paths without '..', not {glob!r}")
    return globs


def _limit(name: str) -> Callable[[object], Any]:
    return lambda value: None if value is None else LIMITS[name](value) or None


def _files(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object of path → text, not {_json_type(value)}")
    return _ImmutableDict((_nonempty_text(path), _text(content)) for path, content in value.items())


def _metadata(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object, not {_json_type(value)}")
    mapping: dict[str, Any] = freeze(value)
    return mapping


def _refuse_change(*args: object, **options: object) -> NoReturn:
    raise TypeError("a task is immutable; dataclasses.replace creates a changed copy")


class _ImmutableDict(dict[Any, Any]):
    """An immutable dictionary within a task. Several environments may share the task."""

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class _ImmutableList(list[Any]):
    """An immutable list within a task. Several environments may share the task."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


def freeze(value: Any) -> Any:
    """Return an immutable copy of data of JSON types, which is equal to the data."""
    if isinstance(value, (_ImmutableDict, _ImmutableList)):
        return value
    if isinstance(value, Mapping):
        return _ImmutableDict((key, freeze(item)) for key, item in value.items())
    return _ImmutableList(map(freeze, value)) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    """Return a copy of data from `freeze` as plain dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, (list, tuple)) else value


_QUERIES = ("instruction", "prompt", "question", "description", "problem_statement", "task")
"""Names that other formats give to the field ``query``."""
_CHECKS: dict[str, Callable[[object], Any]] = {
    "task_id": _identifier,
    "query": _nonempty_text,
    "gold": _texts,
    "setup": _optional_text,
    "verification": _optional_text,
    "files": _files,
    "image": _optional_text,
    **{name: _limit(name) for name in ("timeout", *SANDBOX_LIMITS)},
    "verification_timeout": _limit("timeout"),
    "tests": _texts,
    "db": _optional_text,
    "tags": _texts,
    "metadata": _metadata,
    "may_change": _globs,
}
FIELDS = frozenset(_CHECKS)
"""The field names of a task in a data file."""
