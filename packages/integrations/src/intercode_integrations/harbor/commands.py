"""Concurrent commands in a sandbox; the cancellation of a waiting caller kills its command.

Calls of `AsyncSandbox` run one after the other. Harbor's agents, however, run commands
concurrently. The last command of an agent that is out of time must not delay the tests.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from intercode.errors import SandboxError
from intercode_sandbox import AsyncSandbox, Completed, Process, Sandbox
from intercode_sandbox.async_sandbox import threads
from intercode_sandbox.native.pipes import Channel
from intercode_sandbox.native.process import run_to_end
from intercode_sandbox.script_arguments import END, script

T = TypeVar("T")
ProcessGroup = tuple[Process, int]

# The outer shell prints its process id, which is also the id of the process group of all
# descendants. Then the shell replaces itself by the command.
_SHELL = ("/bin/bash", "-c", 'echo $$ >&3; exec /bin/bash -c "$0" 3>&-')


def run_on_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function on a thread of the shared executor, and return a future of its result."""
    return asyncio.get_running_loop().run_in_executor(threads(os.getpid()), work)


async def run(
    async_sandbox: AsyncSandbox,
    command: str,
    seconds: float | None,
    output_limit: int,
    **popen_options: Any,
) -> Completed:
    """Run a Bash command. A time-out or a cancellation kills the command's whole process group.

    Args:
        async_sandbox: The sandbox.
        command: The command.
        seconds: The time limit; None: that of the sandbox.
        output_limit: The maximum bytes of each stream that are kept.
        **popen_options: See `Sandbox.popen`.

    Raises:
        OSError, LookupError: The command cannot start: its working directory or its user is
            invalid.
        SandboxError: The sandbox failed.
    """
    time_limit = async_sandbox.sandbox.limits.seconds(seconds)
    start_future = asyncio.ensure_future(
        async_sandbox.run(partial(_start, command, **popen_options))
    )
    try:
        process, group_id = await asyncio.shield(start_future)
    except asyncio.CancelledError:
        await _end(async_sandbox, *await start_future)
        raise
    exit_future = run_on_thread(lambda: run_to_end(process, time_limit, output_limit, lambda: None))
    try:
        result = await asyncio.shield(exit_future)
    finally:
        await _end(async_sandbox, process, group_id, exit_future)
    if getattr(process, "lost", False):
        raise SandboxError("the sandbox ended while a command ran in it")
    return result


def _start(command: str, sandbox: Sandbox, **popen_options: Any) -> ProcessGroup:
    argv, stdin = script(command, shell=_SHELL)
    channels: dict[int, Channel] = {2: "w", 3: "w"}
    if stdin is not None:
        channels[0] = "r"
    process = sandbox.popen(argv, channels=channels, merge_stderr=False, **popen_options)
    poller = select.poll()  # unlike select, poll accepts descriptor numbers of any size
    for fd in (process.fds[3], process.exit_fd):
        poller.register(fd, select.POLLIN)
    poller.poll()
    if stdin is not None:
        with suppress(BrokenPipeError), open(process.fds[0], "wb", closefd=False) as pipe:
            pipe.write(stdin + END)
    return process, int(os.read(process.fds[3], 32) or 0)


async def _end(
    async_sandbox: AsyncSandbox,
    process: Process,
    group_id: int,
    exit_future: asyncio.Future[Any] | None = None,
) -> None:
    """Kill a process if it still runs, wait until its output has been read, and close it."""

    def kill(sandbox: Sandbox) -> None:
        if group_id:
            sandbox.exec(["/bin/bash", "-c", f"kill -9 -- -{group_id}"], user="0:0")
        process.signal(signal.SIGKILL)

    if process.poll() is None:
        await async_sandbox.run(kill)
    if exit_future is not None:
        await exit_future
    await async_sandbox.run(lambda _: process.close())
