"""Episodes: the trajectory format of records, training and replay, as plain data.

An `Episode` holds its `Turn` objects and its `Score`. The output of a program is arbitrary bytes:
`decode` reads it as UTF-8 with ``surrogateescape``, and `Episode.to_json` writes ASCII JSON. Every
byte therefore survives ``Episode → JSON → Episode``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from intercode.errors import RecordError
from intercode.json_limits import load_record
from intercode.outcomes import KINDS_BY_CAUSE, OutcomeKind, failure_kind
from intercode.registry import NOTEBOOK

DataT = TypeVar("DataT")

Status = Literal["submitted", "skipped", "truncated", "ended", "error", "running"]
"""The status of an episode. ``ended`` means that an action of the agent ended the sandbox, or that
the sandbox no longer had a shell."""

_RARE = ("fork", "tokens", "changes")
"""Fields that a line of a record omits if they are None. Most episodes lack them."""
ENDED = "ended"
"""A key with two uses. The `info` of a turn has it if the action ended the sandbox. The `detail` of
a score has it if the agent's actions made a part of the scored state unreadable; the value is then
the reason."""


def decode(data: bytes) -> str:
    """Decode bytes as UTF-8 with ``surrogateescape``, so `encode` can restore the bytes."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Convert text from `decode` back to the original bytes."""
    return text.encode("utf-8", "surrogateescape")


def plain(data: DataT) -> DataT:
    r"""Escape text, or data of JSON types, to valid Unicode, which every protocol can transmit.

    A byte that is not UTF-8 (in Python's strings a lone surrogate) becomes U+FFFD and its two
    hexadecimal digits: ``b"a\xe9"`` becomes ``"a\ufffde9"``. Any other lone surrogate becomes
    U+FFFD, ``u`` and its four digits. U+FFFD itself is doubled. All other characters stay
    unchanged, and `exact` restores the original.
    """
    escaped_data: DataT = _each_text(data, lambda text: _NOT_PLAIN.sub(_escape_match, text))
    return escaped_data


def exact(data: DataT) -> DataT:
    """Restore text, or data of JSON types, that `plain` escaped: the inverse of `plain`."""
    restored_data: DataT = _each_text(data, lambda text: _ESCAPE.sub(_unescape_match, text))
    return restored_data


_MARK = "\N{REPLACEMENT CHARACTER}"
_NOT_PLAIN = re.compile(f"[\ud800-\udfff{_MARK}]")
_ESCAPE = re.compile(f"{_MARK}(?:{_MARK}|([89a-f][0-9a-f])|u(d[89a-f][0-9a-f]{{2}}))")


def _escape_match(match: re.Match[str]) -> str:
    character = match[0]
    if character == _MARK:
        return _MARK * 2
    is_byte = "\udc80" <= character <= "\udcff"
    return f"{_MARK}{ord(character) - 0xDC00:x}" if is_byte else f"{_MARK}u{ord(character):x}"


def _unescape_match(match: re.Match[str]) -> str:
    byte, code = match.groups()
    return chr(0xDC00 + int(byte, 16)) if byte else chr(int(code, 16)) if code else _MARK


def _each_text(document: Any, change: Callable[[str], str]) -> Any:
    """Return data in which `change` was applied to every non-ASCII text, including keys."""
    if isinstance(document, str):
        return document if document.isascii() else change(document)
    if isinstance(document, Mapping):
        return {
            _each_text(key, change): _each_text(value, change) for key, value in document.items()
        }
    if isinstance(document, (list, tuple)):
        return type(document)([_each_text(value, change) for value in document])
    return document


class NoAction(str):
    """An empty action: the reply of the agent's model contained no action to execute.

    The environment executes nothing, and the turn counts.

    Attributes:
        note: The reason, which becomes the turn's observation.
    """

    __slots__ = ("note",)
    note: str

    def __new__(cls, note: str) -> NoAction:
        """Create an action with empty text and a note."""
        action = super().__new__(cls)
        action.note = note
        return action


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a reward function."""

    value: float
    """The reward in [0, 1]; 1.0 is success. (The 2023 SQL reward can be negative in the protocol
    ``paper``.)"""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The value's components by name, each in [0, 1] unless the reward documents another range."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """An explanation of the value for people. The explanation may quote gold, so the agent never
    receives it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a model produced for one turn, for training.

    Raises:
        ValueError: `logprobs` or `mask` is neither empty nor as long as `ids`.
    """

    ids: tuple[int, ...]
    """The tokens' numbers in the model's vocabulary."""
    logprobs: tuple[float, ...] = ()
    """Natural logarithm of each token's sampling probability; empty: not known."""
    mask: tuple[bool, ...] = ()
    """Whether each token counts in training; empty: all tokens count."""
    prompt: tuple[int, ...] = ()
    """The tokens of the model's prompt; empty: not recorded."""

    def __post_init__(self) -> None:
        for name in ("logprobs", "mask"):
            if (count := len(getattr(self, name))) not in (0, len(self.ids)):
                raise ValueError(f"{name}: {count} for {len(self.ids)} tokens")


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one path during a turn."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    type: Literal["file", "dir", "symlink", "fifo", "socket", "device"]
    """The type after the turn; for a deleted path, the type before the turn."""
    mode: int = 0
    """The permission bits."""
    size: int = 0
    """The size in bytes."""
    text: str | None = None
    """The content of a regular file after the turn; None: deleted, binary, or not retained."""
    cut: bool = False
    """Whether `text` has only the beginning of the content, or is None because of its size."""


@dataclass(frozen=True, slots=True)
class TurnChanges:
    """The file changes of a turn, recorded only with the option ``keep_diffs``."""

    files: tuple[FileChange, ...] = ()
    """The changes, sorted by path."""
    cut: int = 0
    """The number of further changed paths that the record omits because of its size limit."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and its observation."""

    action: str
    """The text of the agent's action; empty if the agent gave no action."""
    observation: str
    """The output that the agent received."""
    reward: float = 0.0
    """The reward that `step` returned: 0.0 before the end, unless every turn is rewarded."""
    ok: bool = True
    """Whether the action ran without an error (for Bash: exit code 0)."""
    exit_code: int | None = None
    """The exit code of the action; None: the interpreter has no exit codes, or the action none."""
    seconds: float = 0.0
    """Wall time of the action in seconds."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the action from the interpreter, such as ``timed_out``, ``restarted`` and
    ``truncated``. The key ``invalid`` is set if the agent gave no action."""
    tokens: Tokens | None = None
    """The tokens of the action, if the agent's model reported them."""
    changes: TurnChanges | None = None
    """The file changes of the turn; None without the option ``keep_diffs``."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The origin of an episode that is a fork of another episode."""

    parent: str
    """The `Episode.id` of the parent episode."""
    turn: int
    """The number of turns of the parent at the time of the fork, which both episodes have."""
    branch: tuple[int, ...]
    """The path from the original episode to this fork: for each fork on it, the fork's number."""


@dataclass(slots=True)
class Episode:
    """One attempt at one task, from `reset` to its end."""

    task_id: str
    query: str
    env: str
    """The environment's short name, such as ``bash``."""
    agent: str = ""
    """The agent's name; empty outside a run."""
    seed: int | None = None
    """The episode's seed; None: not seeded."""
    epoch: int = 0
    """The number of the attempt at the task, counted from 0."""
    turns: list[Turn] = field(default_factory=list)
    """The turns so far, without the submission."""
    status: Status = "running"
    answer: str | None = None
    """The text after ``submit``, if the environment takes an answer."""
    score: Score | None = None
    """The score; None while the episode runs, and after an infrastructure error."""
    error: str | None = None
    """The message of the error because of which the score is missing. Statistics never count an
    error as a reward of 0."""
    started: float = 0.0
    """The time of the start, in seconds since 1970-01-01 UTC."""
    seconds: float = 0.0
    """Wall time of the whole episode in seconds."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further facts in JSON types, such as the dialogue with the model under ``model``."""
    fork: Fork | None = None
    """The episode's origin, if the episode is a fork."""

    @property
    def id(self) -> str:
        """The identifier among all attempts of a run: ``TASK#EPOCH``, and ``.N`` for each fork."""
        branch = () if self.fork is None else self.fork.branch
        return f"{self.task_id}#{self.epoch}" + "".join(f".{fork_number}" for fork_number in branch)

    @property
    def reward(self) -> float | None:
        """The final reward; None as long as the episode has no score, and after an error."""
        return None if self.score is None or self.status == "error" else self.score.value

    @property
    def success(self) -> bool:
        """Whether the final reward is 1.0."""
        return self.reward == 1.0

    @property
    def outcome(self) -> OutcomeKind | None:
        """The kind of the episode's end, a key of `intercode.outcomes.OUTCOMES`.

        None: the episode has neither a score nor an error yet.
        """
        metadata = self.metadata
        if self.status == "error":
            error_name = metadata.get("error_type") or (self.error or "").partition(":")[0]
            return failure_kind(str(error_name))
        if self.status == "running" or self.score is None:
            return None
        if self.success:
            return "solved"
        last_info = self.turns[-1].info if self.turns else {}
        if self.status == "skipped" or ENDED in last_info or ENDED in self.score.detail:
            return "ended-by-agent"
        if self.status == "truncated":
            return "turn-limit"
        return KINDS_BY_CAUSE.get(str(metadata.get("ended_by")), "not-solved")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print a short text in IPython, whose notebooks also store the text of each output."""
        printer.text(f"Episode({self.id!r}, status={self.status!r}, reward={self.reward})")

    def _repr_html_(self) -> str:
        """Return the view of the episode in a notebook."""
        html: str = NOTEBOOK.get("episode")(self)
        return html

    def to_dict(self) -> dict[str, Any]:
        """Return the episode in plain JSON types, with its outcome."""
        return _with_outcome(self, asdict(self))

    def to_json(self) -> str:
        """Serialise the episode to one line of ASCII JSON."""
        return json.dumps(self, default=_shallow_dict, ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Episode:
        """Build an episode from the result of `to_dict`.

        The record's ``outcome`` is ignored: the property `outcome` derives it from other fields.

        Raises:
            RecordError: A field is missing, unknown, or of a wrong type.
        """
        record = {name: value for name, value in record.items() if name != "outcome"}
        field_names = {episode_field.name for episode_field in fields(cls)}
        if unknown := sorted(set(record) - field_names):
            raise RecordError(f"episode has unknown fields: {', '.join(unknown)}")
        import msgspec

        try:
            return msgspec.convert(record, cls)
        # For text in a field of another type, such as a number, msgspec encodes the text as UTF-8.
        # A lone surrogate in the text then raises UnicodeEncodeError.
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise RecordError(f"episode cannot be read: {error}") from error

    @classmethod
    def from_json(cls, line: str | bytes) -> Episode:
        """Parse a line that `to_json` wrote.

        Raises:
            RecordError: The line is not JSON or not an episode.
        """
        try:
            record = load_record(line)
        except ValueError as error:
            raise RecordError(f"episode is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise RecordError(f"episode is not a JSON object but {type(record).__name__}")
        return cls.from_dict(record)


def not_json(data: Any) -> str:
    """Describe the first value in some data that JSON cannot represent.

    Returns:
        The location and the problem, such as ``['x'][0] is set``; empty if JSON can represent the
        whole data.
    """
    try:
        json.dumps(data, default=_shallow_dict)
    except RecursionError:
        return " is nested too deeply"
    except ValueError as error:
        return f" cannot be written: {error}"
    except TypeError:
        members: Iterable[tuple[Any, Any]] = ()
        if is_dataclass(data):
            members = (
                (f".{attribute.name}", getattr(data, attribute.name)) for attribute in fields(data)
            )
        elif isinstance(data, Mapping):
            members = ((f"[{name!r}]", value) for name, value in data.items())
        elif isinstance(data, list | tuple):
            members = ((f"[{index}]", value) for index, value in enumerate(data))
        for field_path, value in members:
            if problem := not_json(value):
                return f"{field_path}{problem}"
        return f" is {type(data).__name__}"
    return ""


def _shallow_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, for `json.dumps`.

    Unlike `dataclasses.asdict`, the function does not copy the values deeply: an episode's
    messages are large. Fields in `_RARE` are omitted if they are None.

    Raises:
        TypeError: The value is not a dataclass.
    """
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not JSON")
    members = {f.name: getattr(value, f.name) for f in fields(value)}
    members = {
        name: member for name, member in members.items() if member is not None or name not in _RARE
    }
    return _with_outcome(value, members) if isinstance(value, Episode) else members


def _with_outcome(episode: Episode, fields_by_name: dict[str, Any]) -> dict[str, Any]:
    """Return an episode's fields with ``outcome`` added, if the episode has an outcome."""
    return (
        fields_by_name
        if episode.outcome is None
        else {**fields_by_name, "outcome": episode.outcome}
    )
