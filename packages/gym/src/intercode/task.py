"""Tasks and datasets: requests to agents as plain, validated data.

`Task.__post_init__` validates and normalises every field, so callers need no further checks. A
`Dataset` is an ordered set of tasks with unique ids. `intercode.datasets.files` reads data files.
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
from intercode_sandbox.files import sha256
from intercode_sandbox.spelling_suggestions import hint_text, nearest_word
from intercode_sandbox.units import LIMITS, format_count

if TYPE_CHECKING:
    from numpy.random import Generator

SHOWN = ("db_tables",)
"""The keys of a task's `metadata` that its agent may see."""

SANDBOX_LIMITS = ("memory", "disk", "processes", "capabilities")
"""The fields of a task that limit its sandbox."""

LOOKS = "looks"
"""The key of a task's `metadata` for actions that show what the reference solution (gold) needs.
The oracle takes them before gold."""

CLOCK = "clock"
"""The key of a task's `metadata` for folder → age, in a task that depends on the clock (see
`Task.ages`)."""
COMMON_METADATA = (LOOKS, CLOCK, "alternatives", "cache_gold", "judge", "wrong")
"""The keys of `metadata` that are valid in tasks of every environment."""

CANNOT = "cannot"
"""The key of a task's `metadata` for the reason why grading is impossible: runs omit the task."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: a query, and the data needed to try and to grade a solution.

    Raises:
        TaskError: A field has the wrong type or an impossible value; the message names it.
    """

    task_id: str
    """Unique within its dataset."""
    query: str
    """The request to the agent, in words."""
    gold: tuple[str, ...] = ()
    """Reference solutions (commands, statements, functions, flags); the best match counts."""
    setup: str | None = None
    """A deterministic command, run in the sandbox before the agent's first turn."""
    verification: str | None = None
    """A command run at the end; exit code 0 means solved."""
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Path → text, written before `setup` runs. Relative paths start in the image's working
    directory."""
    image: str | None = None
    """The image of the task; None: the environment's default."""
    timeout: float | None = None
    """Seconds for each action and for gold; None is the sandbox's limit."""
    tests: tuple[str, ...] = ()
    """Assertions, for environments that grade by tests."""
    db: str | None = None
    """The database's name, for SQL."""
    tags: tuple[str, ...] = ()
    """Labels to filter by."""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """All further fields of the task's data, under their original names."""
    may_change: tuple[str, ...] = ()
    """Absolute paths of system files and settings that a solution is expected to change, for the
    verification. ``*``, ``?`` and ``[…]`` match within a name; a folder includes its contents."""
    memory: int | None = None
    """The sandbox's memory in bytes, in a file also ``"1G"``; None: the environment's limit."""
    disk: int | None = None
    """Bytes that the sandbox may write; None: the environment's limit."""
    processes: int | None = None
    """Processes and threads of the sandbox; None: the environment's limit."""
    capabilities: tuple[str, ...] | None = None
    """The capabilities of root in the sandbox: names of
    `intercode_sandbox.capabilities.CAPABILITIES`; None: the environment's."""
    verification_timeout: float | None = None
    """Seconds for the verification; None: `timeout`."""
    folder: Path | None = field(default=None, compare=False, repr=False)
    """The folder of the task's data file. Every host path of the task must lie within it, and
    relative paths start there. None: a program made the task, and may name any path. A data file
    cannot set this field."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, _validate(name, check, getattr(self, name)))

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], index: int = 0, folder: Path | None = None) -> Task:
        """Build a task from a row of a data file.

        Unknown fields go to `metadata`; a name close to a known field is refused as a misspelling.
        Fields that are null count as absent.

        The field ``task_id`` distinguishes two shapes. A row without the field has the shape of
        the 2023 data: the row's number is the id, and a list under ``gold`` is *one* solution,
        whose commands are joined by ``;``. In a row with the field, a list under ``gold`` holds
        *alternatives*.

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
        """Folders of the image whose files have fixed ages at an episode's start: path → age.

        A value is the age of the folder's newest file in seconds, in [0, 1e10); the differences
        between the files' times are preserved. A task with the metadata key `CLOCK`, even with an
        empty value, depends on the clock.

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
        """Whether the task depends on the clock: its metadata has the key `CLOCK`."""
        return CLOCK in self.metadata

    @property
    def caches_gold(self) -> bool:
        """Whether gold has the same effect at any time, which permits caching its result."""
        return not self.depends_on_clock and self.metadata.get("cache_gold") is not False

    def shown(self) -> Task:
        """Return the part of the task that an agent may see, without solutions and grading data."""
        metadata = {name: self.metadata[name] for name in SHOWN if name in self.metadata}
        return Task(self.task_id, self.query, db=self.db, tags=self.tags, metadata=metadata)

    def expects(self, path: str) -> bool:
        """Whether `may_change` names a path, or a folder above it."""
        expected_paths = (
            (PurePosixPath(path), *PurePosixPath(path).parents) if self.may_change else ()
        )
        return any(
            expected_path.match(glob)
            for expected_path in expected_paths
            for glob in self.may_change
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the task in plain JSON types, without empty fields; `from_dict` inverts it."""
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
        retained_tasks: Unknown fields of the file, which were moved into `metadata`.
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

    @property
    def digest(self) -> str:
        """SHA-256 of the tasks in their order, independent of the file format."""
        if self._digest is None:
            rows = [task.to_dict() for task in self._tasks]
            text = json.dumps(rows, sort_keys=True, separators=(",", ":"), default=str)
            self._digest = sha256(text)
        return self._digest

    def by_id(self, task_id: str | int) -> Task:
        """Return the task with an id; a number stands for its digits, as in data files.

        Raises:
            TaskNotFoundError: No task has the id.
        """
        try:
            return self._tasks[self._index[str(task_id)]]
        except KeyError:
            suggestion = hint_text(str(task_id), self._index, listed=False)
            raise TaskNotFoundError(
                f"{self.name}: no task has the id {str(task_id)!r}{suggestion}"
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
        """Return the task that options of an environment's `reset` select; None without options.

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
        """Return the tasks whose `metadata` has this name under ``split``.

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
        """Prefix the message of a `TaskError` from the block with the task's file and row."""
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
        """Return a permutation of the row numbers, equal for equal seeds on every machine.

        The order sorts by a BLAKE2b hash of seed and id instead of shuffling: it depends on no
        library's random numbers, and removing a task does not reorder the others.
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
        """Return at most `count` tasks, drawn and ordered by `seed`."""
        return self._copy_with(self._tasks[row] for row in self.order(seed)[:count])

    def limit_timeouts(self, timeout: float) -> Dataset:
        """Return the dataset with each task's `timeout` capped at some seconds per action."""
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
    """Return a value's type in the words of JSON, for messages."""
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
    return _FixedDict((_nonempty_text(path), _text(content)) for path, content in value.items())


def _metadata(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object, not {_json_type(value)}")
    mapping: dict[str, Any] = freeze(value)
    return mapping


def _refuse_change(*args: object, **options: object) -> NoReturn:
    raise TypeError("a task is immutable; dataclasses.replace creates a changed copy")


class _FixedDict(dict[Any, Any]):
    """An immutable object within a task, which environments share."""

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class _FixedList(list[Any]):
    """An immutable list within a task, which environments share."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


def freeze(value: Any) -> Any:
    """Return an immutable, equal copy of data of JSON types."""
    if isinstance(value, (_FixedDict, _FixedList)):
        return value
    if isinstance(value, Mapping):
        return _FixedDict((key, freeze(item)) for key, item in value.items())
    return _FixedList(map(freeze, value)) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    """Return a copy of frozen data in the types of a JSON parser."""
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, (list, tuple)) else value


_QUERIES = ("instruction", "prompt", "question", "description", "problem_statement", "task")
"""Names of the query field in other formats."""
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
