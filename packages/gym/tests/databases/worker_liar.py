"""A worker for the tests that an agent has taken over: it answers what it is told to."""

from __future__ import annotations

import json
import os
import socket
import struct
import time


def frame(data: bytes) -> bytes:
    return struct.pack("=I", len(data)) + data


ANSWERS = {
    "long": struct.pack("=I", (1 << 32) - 1) + b"x" * 1000,
    "nonsense": frame(b"\xff\xff nonsense"),
    "deep": frame(b"[" * 50_000),
    "a bomb of a number": frame(b"[true," + b"9" * 100_000 + b"]"),
    "wrong shape": frame(b"[true,[1,2]]"),
    "wrong rows": frame(b'[true,[[[["a"],7,1,null]],null,false,false]]'),
    "no answer": frame(b"[]"),
    "two": frame(b"[true,[[],null,false,false]]") * 2,
    "unknown tag": frame(b'[true,[[[["a"],[[{"pickle":"x"}]],1,null]],null,false,false]]'),
}


def main(channel: socket.socket) -> None:
    while True:
        (length,) = struct.unpack("=I", channel.recv(4, socket.MSG_WAITALL))
        operation, _, *arguments = json.loads(channel.recv(length, socket.MSG_WAITALL))
        if operation != "execute":
            channel.sendall(frame(b"[true,null]"))
        elif arguments[0] == "end for good" or os.path.exists("/broken"):
            open("/broken", "w").close()  # in the sandbox, for the process that comes next
            os.abort()
        elif arguments[0] == "drip":
            while True:
                channel.send(b"\x01")
                time.sleep(0.01)  # allow sleep: a drop at a time, for ever
        elif arguments[0] == "end":
            os._exit(7)
        elif arguments[0] == "SELECT 1":
            channel.sendall(frame(b"[true,[[],null,false,false]]"))
        else:
            channel.sendall(ANSWERS[arguments[0]])
