"""Channels of a program in a sandbox, opened by its caller, or in advance by the spawner."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

Channel = Literal["r", "w", "text"]


def channel(kind: Channel) -> tuple[int, int]:
    """Return the caller's end and the program's end."""
    if kind == "text":
        memfd = os.memfd_create("text", os.MFD_CLOEXEC)
        os.fchmod(memfd, 0o444)
        return memfd, os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # This process's user owns the pipe, yet a program inside may open /dev/stdout by its name.
    os.fchmod(read_end, 0o444 if kind == "r" else 0o666)
    return (write_end, read_end) if kind == "r" else (read_end, write_end)


def open_channels(
    kinds: Iterable[tuple[int, Channel]], merge_stderr: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Return both ends of each channel by number, the caller's first; on errors leave none open."""
    caller_ends: dict[int, int] = {}
    program_ends: dict[int, int] = {}
    try:
        for fd_number, kind in kinds:
            caller_ends[fd_number], program_ends[fd_number] = channel(kind)
        if merge_stderr:
            program_ends[2] = os.dup(program_ends[1])
    except OSError:
        close_all(*caller_ends.values(), *program_ends.values())
        raise
    return caller_ends, program_ends


def exit_pipe() -> tuple[int, int]:
    """Return the caller's end, which receives an exit code, and the end for process 1."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_end, False)
    return read_end, write_end


def close_all(*fds: int) -> None:
    """Close all given descriptors."""
    for fd in fds:
        os.close(fd)
