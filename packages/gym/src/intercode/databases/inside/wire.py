"""Messages between an engine and its workers: a length, then JSON in which values keep their type.

The format is JSON and not pickle: an agent may have forged a worker's message, and pickle would run
its code. A message consists of lists. A JSON object in a message is a tag with a value whose type
JSON lacks.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

_LENGTH = struct.Struct("=I")
_CHUNK = 1 << 16
_MAX_DEPTH = 64
_PER_CHARACTER = 6
"""Maximum bytes of one character in JSON, if it is escaped."""


def frame_limit(size: int) -> int:
    """Return the maximum bytes of a message whose values together have a weight.

    Args:
        size: The weight: all characters and bytes, plus a constant for each value; see
            `worker.ResultRowCollector`.
    """
    return min(_PER_CHARACTER * size + (1 << 20), (1 << 32) - 1)


def nest(value: Any, levels: int = _MAX_DEPTH) -> Any:
    """Return a nested value in the form that `encode` needs.

    Args:
        value: The value.
        levels: The number of levels that are kept; deeper values become text.
    """
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return value
    if levels == 0:
        return str(value)
    if isinstance(value, Mapping):
        pairs = value.items()
        return {"map": [[nest(key, levels - 1), nest(item, levels - 1)] for key, item in pairs]}
    return [nest(item, levels - 1) for item in value]


def encode(message: Any) -> bytes:
    """Return a message as bytes. A value of an unknown type becomes text."""
    return _ENCODER.encode(message).encode("utf-8", "surrogatepass")


def decode(message_bytes: bytes | bytearray) -> Any:
    """Return the message that `encode` has encoded; its tuples become lists.

    Raises:
        ValueError: The data is not a result of `encode`.
    """
    try:
        return _DECODER.decode(message_bytes.decode("utf-8", "surrogatepass"))
    except (ArithmeticError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"a malformed message: {error!r}") from error


def _tag_value(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    for kind in (Decimal, datetime, date, time):
        if isinstance(value, kind):
            return {kind.__name__.lower(): str(value)}
    return str(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "bytes": base64.b64decode,
    "timedelta": lambda parts: timedelta(*parts),
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "map": dict,
}


def _untag_value(tagged_value: dict[str, Any]) -> Any:
    ((tag, text),) = tagged_value.items()
    return _READERS[tag](text)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_tag_value)
_DECODER = json.JSONDecoder(object_hook=_untag_value)


def send(sock: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    """Send one encoded message.

    Raises:
        OSError: The socket failed, for instance because the receiver has closed it.
    """
    frame = _LENGTH.pack(len(message)) + message
    if fds:
        frame = frame[socket.send_fds(sock, [frame], fds) :]
    sock.sendall(frame)


def receive(
    sock: socket.socket, limit: int, wait: Callable[[], None] | None = None
) -> tuple[bytearray, list[int]]:
    """Wait for one encoded message; return the message and the descriptors sent with it.

    Args:
        sock: The socket, which carries only one message at a time.
        limit: Maximum bytes of the message.
        wait: A function to call before each further wait, for instance to set the socket's
            time-out.

    Raises:
        EOFError: The sender has closed the socket.
        ValueError: The message is longer than `limit`, or data follows it.
        OSError: The socket failed, for instance by a time-out.
    """
    chunk, fds, _, _ = socket.recv_fds(sock, _CHUNK, 1, socket.MSG_CMSG_CLOEXEC)
    message_bytes = bytearray(chunk)
    length: int | None = None
    while True:
        if length is None and len(message_bytes) >= _LENGTH.size:
            length = _LENGTH.unpack_from(message_bytes)[0]
            if length > limit:
                raise ValueError(f"a message of {length} bytes, above {limit}")
        if length is not None and len(message_bytes) >= length + _LENGTH.size:
            break
        if not chunk:
            raise EOFError("the other end closed")
        if wait is not None:
            wait()
        chunk = sock.recv(_CHUNK if length is None else 1 << 20)
        message_bytes += chunk
    if len(message_bytes) > length + _LENGTH.size:
        raise ValueError("more than one message at once")
    del message_bytes[: _LENGTH.size]
    return message_bytes, fds
