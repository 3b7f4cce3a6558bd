"""The start of a Python worker in a sandbox, in one of two ways.

By default it is a fork of the sandbox's process 1: the Python that InterCode itself runs on, with
its standard library and nothing else, in any image and within a few milliseconds. Or it is a
Python of the image's own, from 3.8, with whatever packages the image has; the worker's source is
then sent to it.
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
from intercode.interpreters.inside.wire import STARTED, Frames, frame
from intercode_sandbox import Process, Provider, SandboxBackend, get_provider
from intercode_sandbox.base import Freezes, cause_of_death
from intercode_sandbox.native.pipes import close_all
from intercode_sandbox.ownership import disown_in_forks, register_release

if TYPE_CHECKING:
    from collections.abc import Callable

    from intercode.interpreters.inside.wire import Frame

_PACKAGE = "intercode.interpreters.inside"
SESSION, SUBMISSION, GRADER, PROGRAM = "session", "submission", "grader", "program"
"""The workers: modules of `interpreters.inside`."""
LONGEST_ANSWER = 64 << 20
_WORKER_MODULES = {
    SESSION: ("wire", "session"),
    SUBMISSION: ("wire", "session", "object_proxy", "submission"),
    GRADER: ("wire", "object_proxy", "grader"),
    PROGRAM: ("wire", "program"),
}
"""By worker, the modules whose source a Python of the image's is sent."""
PRELOAD = tuple(f"{_PACKAGE}.{name}" for name in ("bootstrap", *_WORKER_MODULES))
"""The modules that a provider must load to fork a worker."""
_READ, _WRITE = 230, 231
_SECONDS = 10.0
_END_SECONDS = 5.0
_CHECK_SECONDS = 60.0
_SIGNALS = 128
"""The exit code of a process that signal N ended is as many more than N."""
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
module.serve(wire.Channel(230, 231), 1, start["limit"])
"""


def provider(name: str = "native") -> Provider:
    """Return the process-wide provider of that name whose sandboxes can fork Python workers.

    Raises:
        UsageError: There is no such provider.
    """
    return get_provider(name, PRELOAD)


class PythonProcess:
    """A running worker.

    Args:
        process: The process.
        read: The descriptor on which its answers come.
        write: The descriptor for messages to it.
        output_fd: The descriptor on which its output comes; -1: none.
        errors: Reads its error output, if it is a fork of InterCode's own Python; None: it is a
            program of the image's.
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
        """As seen inside."""
        self.started = False
        """Whether its own start is over, and what it does next is its code's doing."""
        self._errors = errors
        self._write = write
        self._frames = Frames(LONGEST_ANSWER)
        self._owned_fds = {read, write, output_fd} - {-1, *process.fds.values()}
        self._release = register_release(self, close_all, *self._owned_fds)
        for fd in {read, write, output_fd} - {-1}:
            os.set_blocking(fd, False)
        disown_in_forks(self)

    def send(
        self, kind: int, number: int = 0, payload: bytes = b"", seconds: float = _SECONDS
    ) -> bool:
        """Send it a message; return whether it took it."""
        return self.send_raw(frame(kind, number, payload), seconds)

    def send_raw(self, data: bytes, seconds: float = _SECONDS) -> bool:
        """Send it bytes that are not a message; return whether it took them."""
        view, deadline = memoryview(data), time.monotonic() + seconds
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
        """Return the messages that have come; None: there will be no more.

        Raises:
            ValueError: It sent bytes that no worker sends.
        """
        try:
            data = os.read(self.control, _CHUNK)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not data:
            return None
        frames = self._frames.feed(data)
        self.started = self.started or any(kind == STARTED for kind, _, _ in frames)
        return [message for message in frames if message[0] != STARTED]

    def exit_code(self, seconds: float = _END_SECONDS) -> int | None:
        """Wait for the end of the worker; return its exit code, or None while it runs."""
        readable(self.exit_fd, seconds)
        return self.process.poll()

    def check_end(self, sandbox: SandboxBackend) -> None:
        """Check that the code in this worker caused its end, and not the Python that runs it.

        A worker that had started, and then exited or was killed, ended by its code. Every other end
        may be a crash of InterCode's own Python. Then a worker that runs ``pass`` in a new sandbox,
        which no agent can reach, decides: if it ends as well, no code was the cause.

        Args:
            sandbox: The sandbox in which it ran.

        Raises:
            SandboxError: The Python is the cause. The message has the line that says why it ended.
        """
        code = self.exit_code()
        if self._errors is None or code is None:
            return
        if not self.started or (code > _SIGNALS and code != _KILL_EXIT_CODE):
            check_worker(sandbox)

    def obituary(self) -> str:
        """Say in words how the worker ended. Its error output can be read only once."""
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
        """Kill it, if it runs. Idempotent."""
        self._owned_fds, self.output_fd = set(), -1
        self._release()
        self.process.close()

    def disown(self) -> None:
        """See `ownership.Owned`. The numbers stay valid, with nothing behind them."""
        null_fd = os.memfd_create("nothing", os.MFD_CLOEXEC)
        for fd in self._owned_fds:
            os.dup2(null_fd, fd, inheritable=False)
        os.close(null_fd)


def writable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be written to; return whether it could in that time."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(max(seconds, 0) * 1000))


def readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read from; return whether it could in that time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))


def start(sandbox: SandboxBackend, worker: str, python: str | None = None) -> PythonProcess:
    """Start a worker.

    Args:
        sandbox: The sandbox to start it in.
        worker: `SESSION`, `SUBMISSION`, `GRADER` or `PROGRAM`.
        python: A program of the image's to run it; None: a fork of process 1.

    Raises:
        ImageError: There is no such program.
        UsageError: The sandbox's provider cannot fork the worker.
        SandboxError: The sandbox failed.
    """
    return _fork(sandbox, worker) if python is None else _execute(sandbox, worker, python)


def check_worker(sandbox: SandboxBackend) -> None:
    """Check that a Python worker can run ``pass`` in a new sandbox of the same provider.

    Args:
        sandbox: A sandbox that the provider has started.

    Raises:
        SandboxError: The worker ends, or does not answer.
    """
    if not isinstance(sandbox, Freezes):  # a provider from outside, which starts no other one
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
            if any((status, number) == (DONE, 1) for status, number, _ in messages):
                return
        raise SandboxError(f"InterCode's own Python cannot run a worker: it {worker.obituary()}")


def _fork(sandbox: SandboxBackend, name: str) -> PythonProcess:
    facts = {"env": dict(sandbox.env), "cwd": sandbox.cwd, "limit": sandbox.limits.output}
    try:
        worker = sandbox.worker(PRELOAD[0])
    except LookupError as error:
        raise UsageError(
            "this sandbox cannot fork a Python: its provider must preload "
            "intercode.interpreters.python_start.PRELOAD, or name a program of the image"
        ) from error
    with ExitStack() as on_failure, ExitStack() as worker_ends:
        on_failure.callback(worker.close)
        answers, answer = os.pipe2(os.O_CLOEXEC)
        on_failure.callback(os.close, answers)
        worker_ends.callback(os.close, answer)
        question, questions = os.pipe2(os.O_CLOEXEC)
        on_failure.callback(os.close, questions)
        worker_ends.callback(os.close, question)
        output_fd = -1
        if name in (SESSION, PROGRAM):
            output_fd, output = os.pipe2(os.O_CLOEXEC)
            on_failure.callback(os.close, output_fd)
            os.fchmod(output, 0o666)  # a program opens /dev/stdout by its name
        else:
            output = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        worker_ends.callback(os.close, output)
        with suppress(BrokenPipeError, ConnectionResetError):  # the next question will tell
            socket.send_fds(worker.socket, [b"\0"], [output, question, answer])
        on_failure.pop_all()
    # An action could send descriptors by it, and take as long as it likes to close one.
    worker.socket.close()
    start_message = {"worker": f"{_PACKAGE}.{name}", **facts}
    return _send_start(
        PythonProcess(worker, answers, questions, output_fd, worker.errors), start_message
    )


def _execute(sandbox: SandboxBackend, worker: str, python: str) -> PythonProcess:
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
    return _send_start(PythonProcess(process, fds[_WRITE], fds[_READ], fds[1]), start_message)


def _send_start(worker: PythonProcess, start_message: dict[str, Any]) -> PythonProcess:
    """Send a worker its first message; if it is gone, the next question will tell."""
    facts = json.dumps(start_message).encode()
    worker.send_raw(struct.pack("=I", len(facts)) + facts)
    return worker


@cache
def _source(name: str) -> str:
    return (Path(__file__).parent / "inside" / f"{name}.py").read_text(encoding="utf-8")
