"""One running bash that is fed actions and reports on each; it knows nothing of time limits."""

from __future__ import annotations

import fcntl
import os
import select
import time
from dataclasses import dataclass, replace

from intercode.errors import SandboxError
from intercode.interpreters import shell_lines as lines
from intercode.interpreters.drain import Drain
from intercode.interpreters.shell_state import Frame, FrameReader, restore_script
from intercode.sandbox.base import OutputBuffer, Sandbox

HARD_OUTPUT_FACTOR = 64
"""Who prints this many times the output limit is stopped: nobody reads on."""
_START_SECONDS = 30.0
_RESTORE_SECONDS = 10.0
"""With an agent's state, which may never come to its end."""
_PIPE_SIZE = 1 << 20
_CHUNK = 1 << 18
_MOST_CHUNKS = 8
"""Of a last report: more than its pipe holds."""

_drain = Drain()


class ShellStartError(SandboxError):
    """Bash does not come up in this sandbox."""


class ShellLateError(ShellStartError):
    """It takes too long, for instance over the state that it is to restore."""


@dataclass(slots=True)
class Run:
    """One action under way."""

    output: OutputBuffer
    deadline: float
    frame: Frame | None = None
    exit_code: int | None = None
    """Of the shell itself, if it ended."""
    stopped: str = ""
    """Why we ended it, if we did."""
    survivors: tuple[int, ...] = ()
    """What ran before it, and is none of its."""


class Shell:
    """A bash with the state that `state` reports.

    Raises:
        OSError: It cannot be executed.
        ShellStartError: It ends.
        ShellLateError: It does not answer.
    """

    def __init__(self, sandbox: Sandbox, user: str | None, state: Frame) -> None:
        self._process = sandbox.popen(
            lines.ARGV,
            channels={
                lines.EPILOGUE: "text",
                lines.CONTROL: "r",
                lines.ACTION: "text",
                lines.STATUS: "w",
            },
            # The directory of a restored shell may be gone.
            cwd="/" if state.variables else None,
            user=user,
        )
        self.pid: int | None = getattr(self._process, "pid", None)
        """As seen inside."""
        fds = self._process.fds
        self._out, self._status, self._exit = fds[1], fds[lines.STATUS], self._process.exit_fd
        self._control, self._action = fds[lines.CONTROL], fds[lines.ACTION]
        self._poll = select.poll()
        for fd in (self._out, self._status, self._exit):
            self._poll.register(fd, select.POLLIN)
        self._number = 0
        self._frames = FrameReader()
        try:
            self.state = self._start(fds[lines.EPILOGUE], state)
        except BaseException:
            self.close()
            raise

    def _start(self, epilogue: int, state: Frame) -> Frame:
        for fd in (self._out, self._status, self._control):
            os.set_blocking(fd, False)
        _enlarge(self._out)
        _rewrite(epilogue, lines.EPILOGUE_TEXT)
        _rewrite(self._action, restore_script(state))
        self._frames.expect(self._number)
        os.write(self._control, lines.start_line(self._number, state.status))
        # Bash grumbles at its start that it has no terminal: that output is dropped.
        seconds = _RESTORE_SECONDS if state.variables else _START_SECONDS
        run = Run(OutputBuffer(4096), time.monotonic() + seconds)
        while not self.read(run, run.deadline):
            if time.monotonic() >= run.deadline:
                raise ShellLateError(f"bash did not start within {seconds:.0f} s")
        if run.frame is None:
            said = run.output.getvalue().decode(errors="replace").strip()
            raise ShellStartError(f"bash ended at its start (exit code {run.exit_code}): {said}")
        return replace(run.frame, hooks=state.hooks)

    def send(self, action: str) -> bool:
        """Have it run an action; False if it has died."""
        self._number += 1
        self._frames.expect(self._number)
        _rewrite(self._action, self.state.preamble + action.encode("utf-8", "surrogateescape"))
        try:
            os.write(self._control, lines.run_line(self._number))
        except (BrokenPipeError, BlockingIOError):  # the agent may have filled its pipe
            return False
        return True

    def read(self, run: Run, deadline: float) -> bool:
        """Wait for something and take it; True when the action has ended."""
        ready = dict(self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1))
        if self._status in ready:
            self._frames.add(self._take(self._status, ready))
            run.frame = self._frames.take()
        if self._out in ready:
            run.output.add(self._take(self._out, ready))
        if self._exit in ready:
            run.exit_code = self._process.poll()
            # Bounded: what the shell left running may be writing to its channel without end.
            for _ in range(_MOST_CHUNKS):
                self._frames.add(_read_some(self._status))
            run.frame = self._frames.take() or run.frame
        if run.frame is None and run.exit_code is None:
            return False
        # All that a foreground command printed is in the pipe by now; a background job may go on.
        self.take_output(run)
        return True

    def take_output(self, run: Run) -> None:
        """Take what has been printed by now."""
        most = run.output.total + _PIPE_SIZE
        while run.output.total < most and (data := _read_some(self._out)):
            run.output.add(data)

    def _take(self, fd: int, ready: dict[int, int]) -> bytes:
        data = _read_some(fd)
        if not data and ready[fd] & select.POLLHUP:
            self._poll.unregister(fd)  # the agent has closed every copy of the other end
        return data

    def rest(self, pending: OutputBuffer) -> None:
        """Until `wake`, what background jobs print goes to `pending`."""
        _drain.watch(self._out, pending, pending.limit * HARD_OUTPUT_FACTOR)

    def wake(self) -> None:
        """From now on the output is `read`."""
        _drain.release(self._out)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.signal(number)

    def close(self) -> None:
        """End it; its background jobs live on with the sandbox. Idempotent."""
        _drain.release(self._out)
        self._process.close()


def _rewrite(fd: int, text: bytes) -> None:
    os.ftruncate(fd, 0)
    view = memoryview(text)
    offset = 0
    while offset < len(view):
        offset += os.pwrite(fd, view[offset:], offset)


def _read_some(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return b""


def _enlarge(fd: int) -> None:
    """Room for what is printed while nobody looks."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        return  # an ordinary user's share of pipe memory is used up: the default size will do
