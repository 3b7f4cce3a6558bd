"""`Task` and `Dataset`: requests to agents, plain data, validated when made.

A `Task` that exists is well-formed: every field is checked and brought to one shape by
`Task.__post_init__`, so nothing further up has to look again. Reading files is in
`intercode.datasets.files`.
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
from intercode_sandbox.suggestions import hint_text, nearest_word
from intercode_sandbox.units import LIMITS, format_count

if TYPE_CHECKING:
    from numpy.random import Generator

SHOWN = ("db_tables",)
"""The keys of a task's `metadata` that its agent may know."""

SANDBOX_LIMITS = ("memory", "disk", "processes", "capabilities")
"""The fields of a task that limit its sandbox."""

LOOKS = "looks"
"""The key of a task's `metadata` for actions that show what its gold needs: the oracle takes them
before gold."""

CLOCK = "clock"
"""The key of a task's `metadata` for folder → age, in a task that depends on the clock: see
`Task.ages`."""
COMMON_METADATA = (LOOKS, CLOCK, "alternatives", "cache_gold", "judge", "wrong")
"""The keys of `metadata` that tasks of any environment may have."""

CANNOT = "cannot"
"""The key of a task's `metadata` that says why it cannot be graded: no run tries it."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do, and how to tell whether it was done.

    Raises:
        TaskError: A field has the wrong type or an impossible value; the message names it.
    """

    task_id: str
    """Unique within its dataset."""
    query: str
    """The request to the agent, in words."""
    gold: tuple[str, ...] = ()
    """Accepted solutions (commands, statements, functions, flags): the best one counts."""
    setup: str | None = None
    """Run in the sandbox before the agent sees the task. Must do the same every time."""
    verification: str | None = None
    """A command run at the end; exit code 0 means solved."""
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Path → text, written before `setup` runs. Relative paths start at the image's directory."""
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
    """Everything else that the data held about the task, under its own names."""
    may_change: tuple[str, ...] = ()
    """Absolute paths of system files and settings that an answer is expected to change, for the
    verification: ``*``, ``?`` and ``[…]`` stand within a name, a folder for all that is in it."""
    memory: int | None = None
    """Bytes that its sandbox may use, in a file also as ``"1G"``; None: the environment's limit."""
    disk: int | None = None
    """Bytes that its sandbox may write; None: the environment's limit."""
    processes: int | None = None
    """Processes and threads of its sandbox; None: the environment's limit."""
    capabilities: tuple[str, ...] | None = None
    """The capabilities that root of its sandbox has: names of
    `intercode_sandbox.capabilities.CAPABILITIES`; None: the environment's."""
    verification_timeout: float | None = None
    """Seconds for the verification; None: `timeout`."""
    folder: Path | None = field(default=None, compare=False, repr=False)
    """The folder of the data file that the task is from. All that the task names on this machine
    lies in it, and its relative paths begin there. None: a program made the task, which may name
    any place. A data file cannot set it."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, _validate(name, check, getattr(self, name)))

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], index: int = 0, folder: Path | None = None) -> Task:
        """A task from a row of a data file.

        Unknown fields go to `metadata`, unless they are misspelt; fields that are null count as
        absent.

        Two shapes are told apart by ``task_id``. A row without one has the shape of the 2023
        data: its id is the row's number, and a list under ``gold`` is *one* solution, whose
        commands are joined by ``;``. In a row with one, such a list holds *alternatives*.

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
            meaning = nearest_word("query", other_keys) or next(
                (k for k in other_keys if k in _QUERIES), None
            )
            advice = f": rename {meaning!r}" if meaning else ""
            raise TaskError(f"field 'query' is missing{advice}")
        if "task_id" not in fields:
            fields["task_id"] = index
            gold = fields.get("gold")
            if isinstance(gold, list) and gold and all(isinstance(part, str) for part in gold):
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
            raise TaskError(f"field 'metadata' must be an object, not {_kind(metadata)}")
        if duplicates := sorted(set(metadata) & set(unknown)):
            raise TaskError(f"field {duplicates[0]!r} is given twice: beside and within 'metadata'")
        return cls(**fields, metadata={**metadata, **unknown}, folder=folder)

    @property
    def ages(self) -> Mapping[str, float]:
        """Folders of the image whose files have fixed ages when an episode begins, by path.

        A value is the age of the newest file there, in seconds; the files' times keep their
        distances. A task with this mark, even an empty one, depends on the clock.

        Raises:
            TaskError: The mark has another shape.
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
        """Whether the task is marked as dependent on the clock: its metadata has `CLOCK`."""
        return CLOCK in self.metadata

    @property
    def caches_gold(self) -> bool:
        """Whether gold has the same effect at any time, so that its result may be cached."""
        return not self.depends_on_clock and self.metadata.get("cache_gold") is not False

    def shown(self) -> Task:
        """The task as an agent may know it, without solutions and all that scores it."""
        metadata = {name: self.metadata[name] for name in SHOWN if name in self.metadata}
        return Task(self.task_id, self.query, db=self.db, tags=self.tags, metadata=metadata)

    def expects(self, path: str) -> bool:
        """Whether `may_change` names a path, or a folder above it."""
        places = (PurePosixPath(path), *PurePosixPath(path).parents) if self.may_change else ()
        return any(place.match(glob) for place in places for glob in self.may_change)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the fields that hold nothing; `from_dict` gives it back."""
        values = {name: getattr(self, name) for name in _CHECKS}
        plain_values = {name: _thaw(value) for name, value in values.items()}
        return {name: value for name, value in plain_values.items() if value not in (None, [], {})}


class Dataset(Sequence[Task]):
    """Tasks in order, each with an id of its own.

    Args:
        tasks: The tasks.
        name: What people call it.
        source: The file or folder that it was read from, if any.
        databases: For SQL: the folder or file that holds the tasks' databases, if any.
        rows: Task id → its place in `source`, such as ``row 3 (line 7)``, where known.
        kept: The fields of the file that mean nothing, and were put into `metadata`.
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
        kept: Sequence[str] = (),
        version: int | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.databases = databases
        self.rows = rows or {}
        self.kept = kept
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
        """The task at a position or with an id (a text), or the tasks of a slice."""
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
        """SHA-256 of the tasks in their order: the same tasks give it whatever file held them."""
        if self._digest is None:
            rows = [task.to_dict() for task in self._tasks]
            text = json.dumps(rows, sort_keys=True, separators=(",", ":"), default=str)
            self._digest = sha256(text)
        return self._digest

    def by_id(self, task_id: str | int) -> Task:
        """The task with this id; a number is taken for its digits, as in data files.

        Raises:
            TaskNotFoundError: There is none.
        """
        try:
            return self._tasks[self._index[str(task_id)]]
        except KeyError:
            suggestion = hint_text(str(task_id), self._index, listed=False)
            raise TaskNotFoundError(
                f"{self.name}: no task has the id {str(task_id)!r}{suggestion}"
            ) from None

    def at(self, index: int) -> Task:
        """The task at a position, counted from 0.

        Raises:
            TaskNotFoundError: There is none.
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
        """The task that options of an environment's `reset` name; None: they name none.

        Raises:
            TaskNotFoundError: No task has that id or index.
            UsageError: There is another option, or both are given.
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
        """The names under ``split`` in the tasks' `metadata`, each once, in their order."""
        names = (task.metadata.get("split") for task in self._tasks)
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def split(self, name: str) -> Dataset:
        """The tasks whose `metadata` has this name under ``split``.

        Raises:
            TaskError: There are none.
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
        """Tell where a task stands, for messages: ``tasks.jsonl: row 3 (line 7), task 'a'``."""
        return f"{self._place(task)}task {task.task_id!r}"

    @contextmanager
    def locate_errors(self, task: Task) -> Iterator[None]:
        """Put file and row before a `TaskError` that begins with the task."""
        try:
            yield
        except TaskError as error:
            raise TaskError(f"{self._place(task)}{error}") from error

    def _place(self, task: Task) -> str:
        row = f"{self.rows[task.task_id]}, " if task.task_id in self.rows else ""
        return f"{self.source or self.name}: {row}"

    def filter(self, keep: Callable[[Task], bool]) -> Dataset:
        """The tasks for which `keep` is true, in the same order."""
        return self._copy_with(task for task in self._tasks if keep(task))

    def order(self, seed: int) -> list[int]:
        """A permutation of the row numbers, the same for this seed on every machine.

        It sorts by a hash of seed and id rather than shuffling, so that it depends on no
        library's random numbers, and taking a task away leaves the others in their order.
        """

        def key(row: int) -> bytes:
            text = f"{seed}\0{self._tasks[row].task_id}"
            return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

        return sorted(range(len(self)), key=key)

    def iterate_shuffled(self, rng: Generator) -> Iterator[Task]:
        """Yield every task once in a random order, then in another one, without an end."""
        while True:
            for row in self.order(int(rng.integers(2**32))):
                yield self._tasks[row]

    def sample(self, count: int, seed: int = 0) -> Dataset:
        """`count` tasks (or all, if there are fewer), drawn and ordered by `seed`."""
        return self._copy_with(self._tasks[row] for row in self.order(seed)[:count])

    def limit_timeouts(self, timeout: float) -> Dataset:
        """Return the tasks, with at most so many seconds for each action of theirs."""
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


def _kind(value: object) -> str:
    """A type by the name that a writer of JSON knows."""
    names = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number"}
    return names.get(type(value), type(value).__name__)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_kind(value)}")
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
        raise ValueError(f"must be text or a list of texts, not {_kind(value)}")
    return tuple(_nonempty_text(item) for item in value)


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
        raise ValueError(f"must be an object of path → text, not {_kind(value)}")
    return _FixedDict((_nonempty_text(path), _text(content)) for path, content in value.items())


def _metadata(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object, not {_kind(value)}")
    mapping: dict[str, Any] = freeze(value)
    return mapping


def _refuse_change(*args: object, **options: object) -> NoReturn:
    raise TypeError("a task is immutable; dataclasses.replace creates a changed copy")


class _FixedDict(dict[Any, Any]):
    """An object in a task, which environments share."""

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class _FixedList(list[Any]):
    """A list in a task, which environments share."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


def freeze(value: Any) -> Any:
    """Return data of JSON types that cannot be changed, and is equal to this."""
    if isinstance(value, (_FixedDict, _FixedList)):
        return value
    if isinstance(value, Mapping):
        return _FixedDict((key, freeze(item)) for key, item in value.items())
    return _FixedList(map(freeze, value)) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    """Return the same data in the types that JSON is read to."""
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, (list, tuple)) else value


_QUERIES = ("instruction", "prompt", "question", "description", "problem_statement", "task")
"""Names that other formats have for the request to the agent."""
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
"""The fields of a task in a file."""
