"""The two ends of what a program in a sandbox is given, made by its caller."""

from __future__ import annotations

import os
from typing import Literal

Channel = Literal["r", "w", "text"]


def channel(kind: Channel) -> tuple[int, int]:
    """(our end, the program's end)."""
    if kind == "text":
        memfd = os.memfd_create("text", os.MFD_CLOEXEC)
        os.fchmod(memfd, 0o444)
        return memfd, os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY | os.O_CLOEXEC)
    read, write = os.pipe2(os.O_CLOEXEC)
    # Ours by owner, which is nobody inside; a program opens /dev/stdout anew by its name.
    os.fchmod(read, 0o444 if kind == "r" else 0o666)
    return (write, read) if kind == "r" else (read, write)


def memory_file(data: bytes) -> int:
    """A read-only descriptor of these bytes: a program's whole input, with no pump for it."""
    ours, theirs = channel("text")
    with open(ours, "wb") as file:
        file.write(data)
    return theirs


def exit_pipe() -> tuple[int, int]:
    """(our end, on which an exit code will come, the end for process 1)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    return read, write


def error_pipe() -> tuple[int, int]:
    """(our end, the end for a worker). It holds a pipeful; what is more is lost, not waited for."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def close(*fds: int) -> None:
    """Close them all."""
    for fd in fds:
        os.close(fd)
