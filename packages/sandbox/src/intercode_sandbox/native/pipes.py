"""The channels of a program in a sandbox: made by its caller, or by the spawner ahead of that."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

Channel = Literal["r", "w", "text"]


def channel(kind: Channel) -> tuple[int, int]:
    """Return our end and the program's end."""
    if kind == "text":
        memfd = os.memfd_create("text", os.MFD_CLOEXEC)
        os.fchmod(memfd, 0o444)
        return memfd, os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY | os.O_CLOEXEC)
    read, write = os.pipe2(os.O_CLOEXEC)
    # It belongs to us, not to a user inside; a program may open /dev/stdout by its name.
    os.fchmod(read, 0o444 if kind == "r" else 0o666)
    return (write, read) if kind == "r" else (read, write)


def open_channels(
    kinds: Iterable[tuple[int, Channel]], merge_stderr: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Return our ends and the program's ends by number; nothing stays open after an error."""
    ours: dict[int, int] = {}
    theirs: dict[int, int] = {}
    try:
        for number, kind in kinds:
            ours[number], theirs[number] = channel(kind)
        if merge_stderr:
            theirs[2] = os.dup(theirs[1])
    except OSError:
        close_all(*ours.values(), *theirs.values())
        raise
    return ours, theirs


def exit_pipe() -> tuple[int, int]:
    """Return our end, on which an exit code will come, and the end for process 1."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    return read, write


def close_all(*fds: int) -> None:
    """Close all of these descriptors."""
    for fd in fds:
        os.close(fd)
