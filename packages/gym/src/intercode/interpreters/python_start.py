"""Start of a Python worker in a sandbox, by a fork or as a program of the image.

By default a worker is a fork of the sandbox's process 1. Such a worker has InterCode's own Python,
with its standard library and nothing else, in any image and within a few milliseconds. The
alternative is a Python of the image, 3.8 or later, with the image's packages. InterCode then sends
the worker's source code to that Python.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.errors import ImageError, SandboxError, UsageError
from intercode.interpreters.inside.session import DONE
from intercode.interpreters.inside.wire import STARTED, MessageStreamParser, frame
from intercode_sandbox import Process, Provider, SandboxBackend, get_provider
from intercode_sandbox.base import SupportsFork, cause_of_death
from intercode_sandbox.native.pipes import close_all
from intercode_sandbox.ownership import disown_in_forks, register_release

if TYPE_CHECKING:
    from collections.abc import Callable

    from intercode.interpreters.inside.wire import Frame

_PACKAGE = "intercode.interpreters.inside"
SESSION, SUBMISSION, GRADER, PROGRAM = "session", "submission", "grader", "program"
"""The workers, which are modules of `interpreters.inside`."""
LONGEST_ANSWER = 64 << 20
_WORKER_MODULES = {
    SESSION: ("wire", "session"),
    SUBMISSION: ("wire", "session", "object_proxy", "submission"),
    GRADER: ("wire", "object_proxy", "grader"),
    PROGRAM: ("wire", "program"),
}
"""Worker → modules whose source is sent to a Python of the image."""
PRELOAD = tuple(f"{_PACKAGE}.{name}" for name in ("bootstrap", *_WORKER_MODULES))
"""Modules that a provider must load in process 1, so a worker can be forked from it."""
_READ, _WRITE = 230, 231
_SECONDS = 10.0
_END_SECONDS = 5.0
_CHECK_SECONDS = 60.0
_SIGNALS = 128
"""Exit code of a process that a signal has ended, minus the number of the signal."""
_KILL_EXIT_CODE = _SIGNALS + signal.SIGKILL
_CHUNK = 1 << 18
_BOOTSTRAP = """
import json, os, struct, sys, types
def read(size):
    data = b""
    while len(data) < size:
        data += os.read(230, size - len(data))
    return data
start = json.loads(read(struct.unpack("=I", read(4))[0]))
try:
    os.chdir(start["cwd"])
except OSError:
    pass  # an agent has removed it
for name in ("intercode", "intercode.interpreters", "intercode.interpreters.inside"):
    sys.modules[name] = types.ModuleType(name)
for name, source in start["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = "<intercode>/" + name
    exec(compile(source, module.__file__, "exec"), module.__dict__)
wire = sys.modules["intercode.interpreters.inside.wire"]
for name in [name for name in sys.modules if name.split(".")[0] == "intercode"]:
    del sys.modules[name]
sys.argv, sys.path[:1] = [""], [""]
module.serve(wire.HostChannel(230, 231), 1, start["limit"])
"""


def provider(name: str = "native") -> Provider:
    """Return the process-wide provider of that name; its sandboxes can fork Python workers.

    Raises:
        UsageError: No such provider exists.
    """
    return get_provider(name, PRELOAD)


class PythonWorkerProcess:
    """A running worker.

    Args:
        process: The worker's process.
        read: The descriptor from which the worker's responses are read.
        write: The descriptor to which messages for the worker are written.
        output_fd: The descriptor from which the worker's output is read; -1: none.
        errors: Returns the worker's error output, for a fork of InterCode's own Python; None: the
            worker is a program of the image.
    """

    def __init__(
        self,
        process: Process,
        read: int,
        write: int,
        output_fd: int,
        errors: Callable[[], str] | None = None,
    ) -> None:
        self.process = process
        self.control = read
        self.exit_fd = process.exit_fd
        self.output_fd = output_fd
        self.pid: int | None = getattr(process, "pid", None)
        """Process id inside the sandbox."""
        self.started = False
        """Whether the worker has reported its start; its code is responsible for a later end."""
        self._errors = errors
        self._write = write
        self._frames = MessageStreamParser(LONGEST_ANSWER)
        self._owned_fds = {read, write, output_fd} - {-1, *process.fds.values()}
        self._release = register_release(self, close_all, *self._owned_fds)
        for fd in {read, write, output_fd} - {-1}:
            os.set_blocking(fd, False)
        disown_in_forks(self)

    def send(
        self, kind: int, number: int = 0, payload: bytes = b"", seconds: float = _SECONDS
    ) -> bool:
        """Send the worker a message; return whether the worker accepted it in time."""
        return self.send_raw(frame(kind, number, payload), seconds)

    def send_raw(self, content: bytes, seconds: float = _SECONDS) -> bool:
        """Send the worker raw bytes, without a frame; return whether it accepted them in time."""
        view, deadline = memoryview(content), time.monotonic() + seconds
        while view:
            try:
                view = view[os.write(self._write, view) :]
            except BlockingIOError:
                if not writable(self._write, deadline - time.monotonic()):
                    return False
            except (BrokenPipeError, ConnectionResetError):
                return False
        return True

    def receive(self) -> list[Frame] | None:
        """Return the messages that have arrived; None if the worker has closed the channel.

        Raises:
            ValueError: A message exceeds `LONGEST_ANSWER`: code in the worker has forged it.
        """
        try:
            chunk = os.read(self.control, _CHUNK)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        frames = self._frames.feed(chunk)
        self.started = self.started or any(kind == STARTED for kind, _, _ in frames)
        return [message for message in frames if message[0] != STARTED]

    def exit_code(self, seconds: float = _END_SECONDS) -> int | None:
        """Wait at most `seconds` for the worker's end; return its exit code, or None if it runs."""
        readable(self.exit_fd, seconds)
        return self.process.poll()

    def check_end(self, sandbox: SandboxBackend) -> None:
        """Check that the code in this worker caused the worker's end, not the Python that runs it.

        Only a fork of InterCode's own Python is checked, not a Python of the image.

        If a worker had started, and then exited or was killed, its code caused the end. Every other
        end may be a crash of InterCode's own Python. In that case a second worker runs ``pass`` in
        a new sandbox, which no agent can reach. If the second worker ends as well, InterCode's
        Python is the cause.

        Args:
            sandbox: The sandbox in which the worker ran.

        Raises:
            SandboxError: InterCode's Python is the cause. The message contains the reason.
        """
        code = self.exit_code()
        if self._errors is None or code is None:
            return
        if not self.started or (code > _SIGNALS and code != _KILL_EXIT_CODE):
            check_worker(sandbox)

    def obituary(self) -> str:
        """Return a description of how the worker ended. Its error output can be read only once."""
        code = self.exit_code()
        if code is None:
            return "did not answer any more"
        if code == _KILL_EXIT_CODE:
            return "was killed (out of memory?)"
        name = signal.strsignal(code - _SIGNALS) if code > _SIGNALS else None
        end = f"ended with exit code {code}" if name is None else f"crashed ({name})"
        cause = "" if self._errors is None or self.started else cause_of_death(self._errors())
        return f"{end}: {cause}" if cause else end

    def close(self) -> None:
        """Kill the worker if it runs, and close its descriptors. Idempotent."""
        self._owned_fds, self.output_fd = set(), -1
        self._release()
        self.process.close()

    def disown(self) -> None:
        """Replace the owned descriptors with an empty file; see `ownership.SupportsDisown`.

        The descriptors' numbers stay valid.
        """
        null_fd = os.memfd_create("nothing", os.MFD_CLOEXEC)
        for fd in self._owned_fds:
            os.dup2(null_fd, fd, inheritable=False)
        os.close(null_fd)


def writable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor is writable; return whether this happened in time."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(max(seconds, 0) * 1000))


def readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor is readable; return whether this happened in time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))


def start(sandbox: SandboxBackend, worker: str, python: str | None = None) -> PythonWorkerProcess:
    """Start a worker.

    Args:
        sandbox: The sandbox in which to start the worker.
        worker: `SESSION`, `SUBMISSION`, `GRADER` or `PROGRAM`.
        python: A Python program of the image; None: a fork of process 1.

    Raises:
        ImageError: The image has no such Python program.
        UsageError: The sandbox's provider cannot fork the worker.
        SandboxError: The sandbox failed.
    """
    return _fork(sandbox, worker) if python is None else _execute(sandbox, worker, python)


def check_worker(sandbox: SandboxBackend) -> None:
    """Check that a Python worker can run ``pass`` in a new sandbox of the same provider.

    Args:
        sandbox: A sandbox of that provider.

    Raises:
        SandboxError: The worker ends, or does not respond.
    """
    # A sandbox without `start_sibling` cannot start a second one, so the check is omitted.
    if not isinstance(sandbox, SupportsFork):
        return
    with (
        closing(sandbox.start_sibling("scratch")) as pristine_sandbox,
        closing(_fork(pristine_sandbox, SESSION)) as worker,
    ):
        deadline = time.monotonic() + _CHECK_SECONDS
        worker.send(0, 1, b"pass")
        while (remaining_seconds := deadline - time.monotonic()) > 0 and readable(
            worker.control, remaining_seconds
        ):
            messages = worker.receive()
            if messages is None:
                break
            if any((status, request_number) == (DONE, 1) for status, request_number, _ in messages):
                return
        raise SandboxError(f"InterCode's own Python cannot run a worker: it {worker.obituary()}")


def _fork(sandbox: SandboxBackend, name: str) -> PythonWorkerProcess:
    facts = {"env": dict(sandbox.env), "cwd": sandbox.cwd, "limit": sandbox.limits.output}
    try:
        worker = sandbox.worker(PRELOAD[0])
    except LookupError as error:
        raise UsageError(
            "this sandbox cannot fork a Python: its provider must preload "
            "intercode.interpreters.python_start.PRELOAD, or name a program of the image"
        ) from error
    with ExitStack() as failure_cleanup, ExitStack() as worker_ends:
        failure_cleanup.callback(worker.close)
        answers, answer = os.pipe2(os.O_CLOEXEC)
        failure_cleanup.callback(os.close, answers)
        worker_ends.callback(os.close, answer)
        question, questions = os.pipe2(os.O_CLOEXEC)
        failure_cleanup.callback(os.close, questions)
        worker_ends.callback(os.close, question)
        output_fd = -1
        if name in (SESSION, PROGRAM):
            output_fd, output = os.pipe2(os.O_CLOEXEC)
            failure_cleanup.callback(os.close, output_fd)
            os.fchmod(output, 0o666)  # programs of any user may open /dev/stdout by name
        else:
            output = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        worker_ends.callback(os.close, output)
        # If the worker is gone, the next request reports the failure.
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(worker.socket, [b"\0"], [output, question, answer])
        failure_cleanup.pop_all()
    # The socket is closed, because an action could send descriptors through it, and keep them open.
    worker.socket.close()
    start_message = {"worker": f"{_PACKAGE}.{name}", **facts}
    return _send_start(
        PythonWorkerProcess(worker, answers, questions, output_fd, worker.errors), start_message
    )


def _execute(sandbox: SandboxBackend, worker: str, python: str) -> PythonWorkerProcess:
    try:
        process = sandbox.popen(
            [python, "-c", _BOOTSTRAP],
            channels={_READ: "r", _WRITE: "w"},
            cwd="/",
            env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "PWD": sandbox.cwd},
        )
    except OSError as error:
        if isinstance(error, SandboxError):
            raise
        raise ImageError(f"the image has no Python {python!r}") from error
    sources = [(f"{_PACKAGE}.{name}", _source(name)) for name in _WORKER_MODULES[worker]]
    start_message = {"modules": sources, "cwd": sandbox.cwd, "limit": sandbox.limits.output}
    fds = process.fds
    return _send_start(PythonWorkerProcess(process, fds[_WRITE], fds[_READ], fds[1]), start_message)


def _send_start(worker: PythonWorkerProcess, start_message: dict[str, Any]) -> PythonWorkerProcess:
    """Send a worker its first message; if the worker is gone, the next request fails."""
    facts = json.dumps(start_message).encode()
    worker.send_raw(struct.pack("=I", len(facts)) + facts)
    return worker


@cache
def _source(name: str) -> str:
    return (Path(__file__).parent / "inside" / f"{name}.py").read_text(encoding="utf-8")
