"""Messages between the caller, the spawner and a sandbox's process 1.

A message is a mapping, with descriptors. Each message is one packet of a Unix ``SOCK_SEQPACKET``
socket. So a sender may send further requests before the first reply. A message that is too large
for a packet (a 1 MiB argument list) is passed in a memory file. Messages between Python processes
are JSON. Messages to and from process 1, a C program, have a packed format: see ``static/wire.h``.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_FDS = 250  # the kernel's SCM_MAX_FD is 253
HIGH_FD = 300
"""A descriptor above all descriptors that a caller can request for a program's channels."""
_PACKET = 64 * 1024
"""Maximum size in bytes of a packet."""
_FD_BYTES = array("i").itemsize
_JSON, _PACKED = (b"J", b"M"), (b"B", b"F")
"""The possible first bytes of a packet, for each format. After the first tag the message follows in
the packet; with the second tag the message is in a memory file."""
_NUMBER, _LENGTH = struct.Struct("<q"), struct.Struct("<I")
_CONSTANTS = {None: b"n", True: b"t", False: b"f"}


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets for messages."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def keep_only(sock: socket.socket) -> socket.socket:
    """Close all descriptors of a forked process, except one socket and the standard streams.

    The process inherits copies of its parent's other sockets. If these copies stayed open, the
    peers of the sockets would not notice the end of the parent.

    Returns:
        The socket, now with descriptor 3.
    """
    # The copy to a high number makes the kernel enlarge this process's table of descriptors now.
    # Later, if threads share the table, the kernel would wait for all processors to enlarge it.
    os.dup2(os.dup2(sock.fileno(), HIGH_FD), 3, inheritable=False)
    sock.detach()
    os.closerange(4, 65536)
    return socket.socket(fileno=3)


class DescriptorsLostError(OSError):
    """A message whose descriptors were lost, because this process may open no further ones."""


class MalformedMessageError(OSError, ValueError):
    """A message that the sender's protocol does not permit; the sender counts as failed."""


def send(
    sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = (), packed: bool = False
) -> None:
    """Send one message.

    Args:
        sock: The socket.
        message: A mapping with text keys.
        fds: Descriptors to pass with the message.
        packed: Whether to use the packed format, because the receiver is process 1 or the zygote.

    Raises:
        OSError: The message was not sent, for instance because the receiver has closed its end.
    """
    inline_tag, memory_tag = _PACKED if packed else _JSON
    body = pack(message) if packed else json.dumps(message, separators=(",", ":")).encode()
    if len(body) < _PACKET:
        _send_packet(sock, inline_tag + body, fds)
        return
    memfd = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(memfd, view) :]
        _send_packet(sock, memory_tag, [*fds, memfd])
    finally:
        os.close(memfd)


def _send_packet(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    if fds:
        socket.send_fds(sock, [data], list(fds), socket.MSG_NOSIGNAL)
    else:
        sock.send(data, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for one message, and return it with its descriptors.

    The descriptors are close-on-exec, and the caller of this function must close them.

    Raises:
        EOFError: The sender has closed its end.
        DescriptorsLostError: The descriptors of the message exceed this process's limit. The
            message is lost.
        OSError: The socket failed, for instance by its time-out.
        MalformedMessageError: The message is malformed.
    """
    # This call waits, but leaves the message in the socket. Python runs signal handlers when a call
    # returns. If a handler raised an exception after `recvmsg`, received descriptors would be lost.
    sock.recv(1, socket.MSG_PEEK)
    # `socket.recv_fds` is unsuitable, because it ignores its flags.
    ancillary_size = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
    packet, ancillary, flags, _ = sock.recvmsg(_PACKET, ancillary_size, socket.MSG_CMSG_CLOEXEC)
    fd_array = array("i")
    for level, kind, control_data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fd_array.frombytes(control_data[: len(control_data) - len(control_data) % _FD_BYTES])
    fds = fd_array.tolist()
    try:
        if flags & socket.MSG_CTRUNC:
            raise DescriptorsLostError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not packet:
            raise EOFError("the other end closed")
        body = packet[1:]
        format_tag = packet[:1]
        if format_tag in (_JSON[1], _PACKED[1]):
            if not fds:
                raise MalformedMessageError("a message lacks the descriptor of its body")
            body = os.pread(fds[-1], os.fstat(fds[-1]).st_size, 0)
            os.close(fds.pop())
        try:
            message = unpack(body) if format_tag in _PACKED else json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MalformedMessageError(f"a message is malformed: {error}") from error
        if not isinstance(message, dict):
            raise MalformedMessageError("a message is not a mapping")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds


def pack(value: Any) -> bytes:
    """Serialise a value to the packed format."""
    chunks: list[bytes] = []
    _write_value(value, chunks.append)
    return b"".join(chunks)


def _write_value(value: Any, write_chunk: Callable[[bytes], None]) -> None:
    if value is None or isinstance(value, bool):
        write_chunk(_CONSTANTS[value])
    elif isinstance(value, int):
        write_chunk(b"i" + _NUMBER.pack(value))
    elif isinstance(value, (str, bytes)):
        text_bytes = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        write_chunk(b"s" + _LENGTH.pack(len(text_bytes)) + text_bytes + b"\0")
    elif isinstance(value, Mapping):
        write_chunk(b"M")
        for key, item in value.items():
            _write_value(key, write_chunk)
            _write_value(item, write_chunk)
        write_chunk(b"E")
    else:
        write_chunk(b"L")
        for item in value:
            _write_value(item, write_chunk)
        write_chunk(b"E")


def unpack(body: bytes) -> Any:
    """Deserialise a value from the packed format.

    Raises:
        ValueError: The bytes are malformed.
    """
    open_values: list[list[Any]] = [[]]
    open_tags: list[bytes] = []
    position = 0
    try:
        while position < len(body):
            tag = body[position : position + 1]
            position += 1
            if tag in (b"L", b"M"):
                open_tags.append(tag)
                open_values.append([])
            elif tag == b"E":
                values = open_values.pop()
                is_mapping = open_tags.pop() == b"M"
                open_values[-1].append(_pair_values(values) if is_mapping else values)
            elif tag == b"i":
                open_values[-1].append(_NUMBER.unpack_from(body, position)[0])
                position += _NUMBER.size
            elif tag == b"s":
                (text_length,) = _LENGTH.unpack_from(body, position)
                position += _LENGTH.size
                text_bytes = body[position : position + text_length]
                open_values[-1].append(text_bytes.decode("utf-8", "surrogateescape"))
                position += text_length + 1
            else:
                open_values[-1].append(_VALUES[tag])
    except (IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"a message is broken at byte {position}") from error
    if position != len(body) or open_tags or len(open_values[0]) != 1:
        raise ValueError("a message is broken at its end")
    return open_values[0][0]


_VALUES = {tag: value for value, tag in _CONSTANTS.items()}


def _pair_values(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))
