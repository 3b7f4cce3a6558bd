"""Channels: the pipes and memory files between a program in a sandbox and its caller.

The caller opens a program's channels. For a prepared program the spawner opens them in advance.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

Channel = Literal["r", "w", "text"]
"""The kind of a channel: see `SandboxBackend.popen`."""


def channel(kind: Channel) -> tuple[int, int]:
    """Open a channel of a kind; return the caller's end, and the program's end."""
    if kind == "text":
        memfd = os.memfd_create("text", os.MFD_CLOEXEC)
        os.fchmod(memfd, 0o444)
        return memfd, os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # The pipe belongs to this process's user. A program in the sandbox may open its end by a name,
    # such as /dev/stdout. Therefore the mode permits the opening to all users.
    os.fchmod(read_end, 0o444 if kind == "r" else 0o666)
    return (write_end, read_end) if kind == "r" else (read_end, write_end)


def open_channels(
    kinds: Iterable[tuple[int, Channel]], merge_stderr: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Open the channels of a program. In case of an error no descriptor stays open.

    Args:
        kinds: The program's descriptor and the kind of each channel.
        merge_stderr: Whether descriptor 2 of the program is the same stream as descriptor 1.

    Returns:
        Two mappings: the program's descriptor → the caller's end, and → the program's end.
    """
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
    """Open the pipe by which process 1 reports a program's exit code.

    Returns:
        The caller's end, which does not block, and the end for process 1.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_end, False)
    return read_end, write_end


def close_all(*fds: int) -> None:
    """Close several descriptors."""
    for fd in fds:
        os.close(fd)
