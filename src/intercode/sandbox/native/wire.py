"""Messages between the caller, the spawner and a sandbox's process 1: JSON and descriptors.

One message is one packet of a Unix ``SOCK_SEQPACKET`` socket, so that requests can be sent ahead.
A message too large for a packet (a 1 MiB argument list) travels in a memory file.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from array import array
from collections.abc import Sequence
from typing import Any

MAX_FDS = 250  # the kernel's SCM_MAX_FD is 253
HIGH_FD = 300
"""Above the numbers that a caller asks for inside."""
_PACKET = 64 * 1024
_FD_BYTES = array("i").itemsize
_INLINE, _MEMFD = b"J", b"M"


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def keep_only(sock: socket.socket) -> socket.socket:
    """Close, in a fork, every descriptor but this socket's and the standard ones.

    A fork that kept the others' ends would hide from them that this end has gone.
    """
    # So high that the table of descriptors is large enough from now on: where threads share it,
    # the kernel waits for all processors before it makes it larger.
    os.dup2(os.dup2(sock.detach(), HIGH_FD), 3, inheritable=False)
    os.closerange(4, 65536)
    return socket.socket(fileno=3)


class TruncatedError(OSError):
    """A message came without its descriptors: this process may open no more."""


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        OSError: The other end is gone.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) < _PACKET:
        _send_packet(sock, _INLINE + body, fds)
        return
    memfd = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(memfd, view) :]
        _send_packet(sock, _MEMFD, [*fds, memfd])
    finally:
        os.close(memfd)


def _send_packet(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    if fds:
        socket.send_fds(sock, [data], list(fds), socket.MSG_NOSIGNAL)
    else:
        sock.send(data, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for one message. Its descriptors are close-on-exec, and the receiver's to close.

    Raises:
        EOFError: The other end closed.
        TruncatedError: Its descriptors are too many for this process. It is lost.
        OSError: For instance a time-out set on the socket.
    """
    # Not `socket.recv_fds`: it forgets the flags that it is given.
    space = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
    data, ancillary, flags, _ = sock.recvmsg(_PACKET, space, socket.MSG_CMSG_CLOEXEC)
    received = array("i")
    for level, kind, item in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(item[: len(item) - len(item) % _FD_BYTES])
    fds = received.tolist()
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise TruncatedError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not data:
        raise EOFError("the other end closed")
    body = data[1:]
    if data[:1] == _MEMFD:
        memfd = fds.pop()
        try:
            body = os.pread(memfd, os.fstat(memfd).st_size, 0)
        finally:
            os.close(memfd)
    message: dict[str, Any] = json.loads(body)
    return message, fds
