"""The messages: OpenEnv's, as JSON in text frames.

A client sends ``{"type": …, "data": {…}}``: ``reset``, ``step``, ``state`` or ``close``. It is
answered by ``observation``, ``state`` or ``error``. All that a client may say is here, and nothing
else is read: it chooses task, split and seed, and says actions.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from intercode.errors import ActionError, InterCodeError, UsageError

CODES = (
    "INVALID_JSON",
    "UNKNOWN_TYPE",
    "VALIDATION_ERROR",
    "EXECUTION_ERROR",
    "CAPACITY_REACHED",
    "FACTORY_ERROR",
    "SESSION_ERROR",
)
"""The codes of errors. Those up to EXECUTION_ERROR are of one message, and the session goes on."""

_T = TypeVar("_T")
_Index = Annotated[int, Meta(ge=0)]
_Name = Annotated[str, Meta(max_length=1000)]


class Message(msgspec.Struct):
    """A client's message."""

    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """The wish for an episode."""

    seed: _Index | None = None
    episode_id: _Name | None = None
    """The client's own name for it."""
    task_id: _Name | int | None = None
    index: int | None = None
    split: _Name | None = None


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """An action."""

    action: str
    metadata: msgspec.Raw = msgspec.Raw()
    """Sent by OpenEnv's typed clients, and ignored: no value is made of it."""


class TaskQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for tasks."""

    split: _Name | None = None
    index: int = 0
    start: int | None = None
    stop: int | None = None


class MessageFault(Exception):  # noqa: N818 - it holds one, with its code
    """The fault in a client's message, as it is told.

    Args:
        code: One of `CODES`.
        error: Tells it.
    """

    def __init__(self, code: str, error: InterCodeError) -> None:
        super().__init__(str(error))
        self.code, self.error = code, error


def read(text: str | bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Read JSON of a kind.

    Raises:
        MessageFault: It is something else.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        error_class = ActionError if kind is Step else UsageError
        raise MessageFault(
            "VALIDATION_ERROR", error_class(f"the message cannot be: {error}")
        ) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise MessageFault(
            "INVALID_JSON", UsageError(f"the message is not JSON: {error}")
        ) from None


def observation(
    text: str, reward: float | None, truncated: bool, done: bool, info: dict[str, Any]
) -> bytes:
    """Write what came of a reset or an action."""
    fields = {"text": text, "truncated": truncated, "info": info}
    return encode_message("observation", {"observation": fields, "reward": reward, "done": done})


def error(code: str, error: InterCodeError) -> bytes:
    """Write an error; by its class's name a client of ours raises the same."""
    fields = {"message": str(error), "code": code, "error": type(error).__name__}
    return encode_message("error", fields)


def encode_message(kind: str, data: dict[str, Any]) -> bytes:
    """Write a message."""
    return json({"type": kind, "data": data})


def json(value: Any) -> bytes:
    """Write a value as JSON, which has no NaN: that becomes null."""
    return msgspec.json.encode(value, enc_hook=str)
