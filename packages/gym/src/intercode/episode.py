"""Episodes: the one trajectory format, plain data.

Text that came from a program is bytes at heart. It is decoded as UTF-8 with ``surrogateescape``
and written as ASCII JSON, so that every byte survives ``Episode → JSON → Episode``.
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

DataT = TypeVar("DataT")

Status = Literal["submitted", "skipped", "truncated", "ended", "error", "running"]
"""How an episode came to its end; ``ended``: by an action, which has ended its own sandbox,
or found no shell in it."""

_RARE = ("fork", "tokens", "changes")
"""Fields that most records do not have: left out of a line where they are None."""
ENDED = "ended"
"""In the `info` of the turn that has done so; and in the `detail` of a score, why not all that it
should judge could be read, by the agent's doing."""


def decode(data: bytes) -> str:
    """Bytes as text, losslessly: `encode` gives them back."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The bytes that `decode` was given."""
    return text.encode("utf-8", "surrogateescape")


def plain(data: DataT) -> DataT:
    r"""Return a text, or data of JSON types, as valid Unicode, which every wire carries.

    A byte that is not UTF-8 (in Python's texts a lone surrogate) is written as U+FFFD and its two
    hexadecimal digits: ``b"a\xe9"`` as ``"a\ufffde9"``. Any other lone surrogate is written as
    U+FFFD, ``u`` and its four digits, and U+FFFD itself twice. Everything else stays as it is, and
    `exact` gives each text back.
    """
    escaped_data: DataT = _each_text(data, lambda text: _NOT_PLAIN.sub(_escape_match, text))
    return escaped_data


def exact(data: DataT) -> DataT:
    """Return the text, or the data, that `plain` was given; all but escapes stays as it is."""
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


def _each_text(data: Any, change: Callable[[str], str]) -> Any:
    """Change every text of some data, the keys of objects among them."""
    if isinstance(data, str):
        return data if data.isascii() else change(data)
    if isinstance(data, Mapping):
        return {_each_text(key, change): _each_text(value, change) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)([_each_text(value, change) for value in data])
    return data


class NoAction(str):
    """An empty action: the agent has made nothing of its turn. It is not executed.

    Attributes:
        note: Why; it is the turn's observation.
    """

    __slots__ = ("note",)
    note: str

    def __new__(cls, note: str) -> NoAction:
        """An action without a text."""
        action = super().__new__(cls)
        action.note = note
        return action


@dataclass(frozen=True, slots=True)
class Score:
    """How well: the result of a reward."""

    value: float
    """In [0, 1]; 1.0 is success. (The 2023 SQL reward can be negative under ``paper``.)"""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The value's components by name, each in [0, 1] unless its reward says otherwise."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """An explanation of the value for people. It may quote gold: never shown to the agent."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a model produced for one turn, as training needs them.

    Raises:
        ValueError: Log-probabilities or mask are not as many as tokens.
    """

    ids: tuple[int, ...]
    """Numbers in the model's vocabulary."""
    logprobs: tuple[float, ...] = ()
    """Natural logarithm of the probability that each was sampled with; empty: not known."""
    mask: tuple[bool, ...] = ()
    """Whether each is to be learnt from; empty: all are."""
    prompt: tuple[int, ...] = ()
    """The tokens that the model was shown before; empty: not recorded."""

    def __post_init__(self) -> None:
        for name in ("logprobs", "mask"):
            if (count := len(getattr(self, name))) not in (0, len(self.ids)):
                raise ValueError(f"{name}: {count} for {len(self.ids)} tokens")


@dataclass(frozen=True, slots=True)
class FileChange:
    """A path on which a turn had an effect."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    type: Literal["file", "dir", "symlink", "fifo", "socket", "device"]
    """The type afterwards; for a deleted path, the type before."""
    mode: int = 0
    """Permission bits."""
    size: int = 0
    """Bytes."""
    text: str | None = None
    """The content of a regular file afterwards; None: deleted, binary, or not kept."""
    cut: bool = False
    """Whether `text` is only the beginning of the content, or the content was too large to keep."""


@dataclass(frozen=True, slots=True)
class TurnChanges:
    """The effect of a turn on files; only with the option ``keep_diffs``."""

    files: tuple[FileChange, ...] = ()
    """Sorted by path."""
    cut: int = 0
    """The number of further paths, more than a record keeps."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and what came of it."""

    action: str
    observation: str
    reward: float = 0.0
    """The reward that `step` returned: 0.0 before the end, unless every turn is rewarded."""
    ok: bool = True
    """Whether the action ran without an error (for Bash: exit code 0)."""
    exit_code: int | None = None
    seconds: float = 0.0
    """Wall time that the action took."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the interpreter adds, such as ``timed_out``, ``restarted``, ``truncated``; or
    ``invalid`` if the agent gave no action."""
    tokens: Tokens | None = None
    """The tokens that the action comes from, if the agent's model told them."""
    changes: TurnChanges | None = None
    """The effect on files, if it was asked for."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The origin of an episode that was forked from another one."""

    parent: str
    """The other's `Episode.id`."""
    turn: int
    """The number of turns that both have in common."""
    branch: tuple[int, ...]
    """The numbers of the forks that lead here, from the episode that was begun by `reset`."""


@dataclass(slots=True)
class Episode:
    """One attempt at one task, from `reset` to its end."""

    task_id: str
    query: str
    env: str
    """The environment's short name, for instance ``bash``."""
    agent: str = ""
    seed: int | None = None
    epoch: int = 0
    turns: list[Turn] = field(default_factory=list)
    status: Status = "running"
    answer: str | None = None
    """The text after ``submit``, if the environment takes an answer."""
    score: Score | None = None
    """None while it runs, and for an episode that ended by an infrastructure error."""
    error: str | None = None
    """The reason why there is no score. An error is never a reward of 0."""
    started: float = 0.0
    """Seconds since 1970, UTC."""
    seconds: float = 0.0
    """Wall time of the whole episode."""
    metadata: dict[str, Any] = field(default_factory=dict)
    fork: Fork | None = None
    """The episode that it was forked from, if any."""

    @property
    def id(self) -> str:
        """Name among all attempts: ``TASK#EPOCH``, with ``.N`` for each fork."""
        branch = () if self.fork is None else self.fork.branch
        return f"{self.task_id}#{self.epoch}" + "".join(f".{number}" for number in branch)

    @property
    def reward(self) -> float | None:
        """The final reward, or None if there is none; after an error there never is."""
        return None if self.score is None or self.status == "error" else self.score.value

    @property
    def success(self) -> bool:
        """Whether the final reward is 1.0."""
        return self.reward == 1.0

    @property
    def outcome(self) -> OutcomeKind | None:
        """The kind of its end, one of `OUTCOMES`; None before there is a score or an error."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the outcome."""
        return _with_outcome(self, asdict(self))

    def to_json(self) -> str:
        """One line of ASCII JSON."""
        return json.dumps(self, default=_shallow_dict, ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Episode:
        """The inverse of `to_dict`. An outcome is not read, but derived again.

        Raises:
            RecordError: A field is missing or unknown.
        """
        data = {name: value for name, value in data.items() if name != "outcome"}
        field_names = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - field_names):
            raise RecordError(f"episode has unknown fields: {', '.join(unknown)}")
        import msgspec

        try:
            return msgspec.convert(data, cls)
        # It also encodes text where it expects something else, which half a pair does not survive.
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise RecordError(f"episode cannot be read: {error}") from error

    @classmethod
    def from_json(cls, line: str | bytes) -> Episode:
        """The inverse of `to_json`.

        Raises:
            RecordError: The line is not JSON or not an episode.
        """
        try:
            data = load_record(line)
        except ValueError as error:
            raise RecordError(f"episode is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise RecordError(f"episode is not a JSON object but {type(data).__name__}")
        return cls.from_dict(data)


def not_json(data: Any) -> str:
    """Find what in some data is not of JSON's types.

    Returns:
        Its place and its type, as ``['x'][0] is a set``; empty: all is JSON.
    """
    try:
        json.dumps(data, default=_shallow_dict)
    except RecursionError:
        return " is nested too deeply"
    except ValueError as error:
        return f" cannot be written: {error}"
    except TypeError:
        items: Iterable[tuple[Any, Any]] = ()
        if is_dataclass(data):
            items = (
                (f".{attribute.name}", getattr(data, attribute.name)) for attribute in fields(data)
            )
        elif isinstance(data, Mapping):
            items = ((f"[{name!r}]", value) for name, value in data.items())
        elif isinstance(data, list | tuple):
            items = ((f"[{index}]", value) for index, value in enumerate(data))
        for place, value in items:
            if problem := not_json(value):
                return f"{place}{problem}"
        return f" is {type(data).__name__}"
    return ""


def _shallow_dict(value: Any) -> dict[str, Any]:
    """A data class as an object. `asdict` would copy every message and observation first."""
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not JSON")
    members = {f.name: getattr(value, f.name) for f in fields(value)}
    members = {
        name: member for name, member in members.items() if member is not None or name not in _RARE
    }
    return _with_outcome(value, members) if isinstance(value, Episode) else members


def _with_outcome(episode: Episode, data: dict[str, Any]) -> dict[str, Any]:
    """Add an episode's outcome to its plain data, once there is one."""
    return data if episode.outcome is None else {**data, "outcome": episode.outcome}
