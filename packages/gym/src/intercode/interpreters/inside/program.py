"""Process that runs one program with an input, as an online judge does; its output is the result.

The code in this process is not trusted. Of a test case, the process has only the input: the host
compares the output with the expected output, outside the sandbox.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from intercode.interpreters.inside.wire import STARTED, HostChannel, keep, write_all

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN = 6
"""The kind of the host's request. Fields: ``before`` (earlier sources), ``program``, ``stdin``."""
EXIT_CAUSE = 7
"""The kind of the message that describes, for people, why the program ended."""
_MAX_MESSAGE_LENGTH = 500


def serve(channel: HostChannel, output_fd: int, limit: int) -> None:
    """Run the program that the host requests, and exit with the program's exit code."""
    output_fd = keep(output_fd)
    channel.send(STARTED)
    _, _, payload = channel.receive()
    request = json.loads(payload)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    setup_streams = _open_streams(null, null, null)
    for source in request["before"]:
        try:
            _execute(source, main)
        except BaseException:  # noqa: BLE001 - as at a prompt, the following sources still run
            continue
    # The streams' output goes to /dev/null. Below, their descriptors get new files.
    _flush(setup_streams)
    # The input is a file, not a pipe: programs that read fast ask for its size.
    stdin = os.memfd_create("stdin")
    write_all(stdin, request["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    streams = _open_streams(stdin, output_fd, null)
    code = 0
    try:
        code = _run_to_exit(channel, lambda: _execute(request["program"], main))
        _end_threads()
        atexit._run_exitfuncs()
        _flush([sys.stdout, *streams])
    finally:
        os._exit(code)


def _execute(source: str, main: ModuleType) -> None:
    exec(compile(source, "<program>", "exec", 0, True), vars(main))


def _run_to_exit(channel: HostChannel, run: Any) -> int:
    """Run a program; return its exit code. The host gets the cause of a failure."""
    try:
        run()
    except SystemExit as error:
        code = 0 if error.code is None else error.code
        if isinstance(code, int):
            return code & 0xFF
        cause: BaseException = error
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the program's
        cause = error
    else:
        return 0
    text = f"{type(cause).__name__}: {cause}"[:_MAX_MESSAGE_LENGTH]
    channel.send(EXIT_CAUSE, 0, text.encode("utf-8", "backslashreplace"))
    return 1


def _open_streams(stdin: int, stdout: int, stderr: int) -> list[Any]:
    """Make these files the descriptors 0, 1 and 2, and open Python's standard streams on them."""
    for standard_fd, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, standard_fd)
    text: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    sys.stdin = sys.__stdin__ = open(0, errors="surrogateescape", **text)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", errors="surrogateescape", **text)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", errors="backslashreplace", **text)  # type: ignore[misc]
    return [sys.stdout, sys.stderr]


def _flush(streams: Sequence[Any]) -> None:
    for stream in streams:
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - closed, or nothing that can be flushed
            continue


def _end_threads() -> None:
    """Wait for all threads but daemons, as Python does at the end of a program."""
    while True:
        running_threads = [
            thread
            for thread in threading.enumerate()
            if thread is not threading.current_thread() and not thread.daemon
        ]
        if not running_threads:
            return
        for thread in running_threads:
            thread.join()
