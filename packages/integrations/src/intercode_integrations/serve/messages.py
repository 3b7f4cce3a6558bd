"""Messages of a session: OpenEnv's, as JSON in text frames.

A client sends ``{"type": …, "data": {…}}`` with one of the types ``reset``, ``step``, ``state`` and
``close``. The server answers with ``observation``, ``state`` or ``error``. The classes of this
module define all input that the server accepts from clients: a choice of task, split and seed, and
actions.
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
"""Codes of errors. An error with a code up to EXECUTION_ERROR concerns one message, and the session
continues. An error with another code ends the session."""

_T = TypeVar("_T")
_Index = Annotated[int, Meta(ge=0)]
_Name = Annotated[str, Meta(max_length=1000)]


class ClientMessage(msgspec.Struct):
    """A client's message, with its data still encoded."""

    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")


class ResetMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The data of the message ``reset``: a request for an episode."""

    seed: _Index | None = None
    episode_id: _Name | None = None
    """The name by which the client refers to the episode."""
    task_id: _Name | int | None = None
    index: int | None = None
    split: _Name | None = None


class StepMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The data of the message ``step``: an action."""

    action: str
    metadata: msgspec.Raw = msgspec.Raw()
    """Field that OpenEnv's typed clients send. The server ignores it without parsing."""


class TaskListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an HTTP request for tasks."""

    split: _Name | None = None
    index: int = 0
    start: int | None = None
    stop: int | None = None


class MessageFault(Exception):  # noqa: N818 - it holds one, with its code
    """A fault in a client's message, with the code and the error that the client receives.

    Args:
        code: One of `CODES`.
        error: The exception whose class and message the client receives.
    """

    def __init__(self, code: str, error: InterCodeError) -> None:
        super().__init__(str(error))
        self.code, self.error = code, error


def read(text: str | bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Parse JSON into an object of a given class.

    Raises:
        MessageFault: The text is not JSON, or does not fit the class.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        error_class = ActionError if kind is StepMessage else UsageError
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
    """Encode the message ``observation``: the result of a reset or of an action."""
    fields = {"text": text, "truncated": truncated, "info": info}
    return encode_message("observation", {"observation": fields, "reward": reward, "done": done})


def error(code: str, error: InterCodeError) -> bytes:
    """Encode the message ``error``, from which InterCode's clients rebuild the exception."""
    fields = {"message": str(error), "code": code, "error": type(error).__name__}
    return encode_message("error", fields)


def encode_message(kind: str, data: dict[str, Any]) -> bytes:
    """Encode a message of the server as JSON."""
    return json({"type": kind, "data": data})


def json(value: Any) -> bytes:
    """Encode a value as JSON; NaN becomes null, and an unknown type becomes its text."""
    return msgspec.json.encode(value, enc_hook=str)
