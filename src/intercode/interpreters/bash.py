"""One persistent bash per episode: what a person at a terminal expects, with no terminal.

Bash reads its control lines as a script from a pipe that its children do not inherit. A control
line sources the action from a memory file, so that nothing in it — an unterminated quote, a
here-document, `return` — can swallow the next line, and then sources the *epilogue*, which reports
the exit code, the directory and the shell's state on a channel of its own. Nothing is written to
the action's output, and nothing in its output is looked for.

The agent could forge that report: it changes at most its own exit code, never a grade, because
rewards look at the file system.

``-i`` with a script makes a shell that is interactive in the ways that matter (an unset variable
or a syntax error does not end it; aliases work; messages say ``bash: …``) and in no other.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from dataclasses import dataclass

from intercode.errors import ActionError, SandboxError
from intercode.interpreters.base import Execution
from intercode.interpreters.shell_state import Frame, FrameReader, restore_script
from intercode.sandbox.base import OutputBuffer, Process, Sandbox

_EPILOGUE, _CONTROL, _ACTION, _STATUS = 196, 197, 198, 199
_ARGV = (
    *("bash", "--norc", "--noprofile", "-i", "+m", "+H", "+o", "history"),
    f"/proc/self/fd/{_CONTROL}",
)
_TIMEOUT_SIGNAL = signal.SIGRTMAX - 1
_EPILOGUE_TEXT = rb"""\builtin set +xv
{ \builtin printf '\0%s\0%s\0%s\0%s\0%s\0' "$4" "$3" "$1" "$2" "${PWD-}"
\builtin printf '%s ' /proc/[0-9]*
\builtin printf '\0'
\builtin declare -p; \builtin declare -f; \builtin alias -p
\builtin shopt -p; \builtin set +o; \builtin umask -p; \builtin trap -p
\builtin printf '\0end\0%s\0' "$4"
} >&199 || \builtin :
case "$2" in *e*) \builtin return 0 ;; esac
\builtin return "$1"
"""
_REPORT = f'{{ . /proc/self/fd/{_EPILOGUE} "$?" "$-" %s %d; }} 2>/dev/null'
_RUN = f". /proc/self/fd/{_ACTION}; {_REPORT % ('A', 0)}\n".replace(" 0;", " %d;")
_START = (
    f"exec {_CONTROL}<&-; BASH_ARGV0=bash; trap '{_REPORT % ('X', 0)}' EXIT; "
    f"trap '{_REPORT % ('T', 0)}; trap - EXIT; exit 124' {int(_TIMEOUT_SIGNAL)}; "
    f"{{ . /proc/self/fd/{_ACTION}; }} >/dev/null 2>&1; (exit %d); {_REPORT % ('A', 0)}\n"
).replace("A 0;", "A %d;")

_START_SECONDS = 30.0
_GRACE_SECONDS = 0.5
_HARD_OUTPUT_FACTOR = 64
_PIPE_SIZE = 1 << 20
_CHUNK = 1 << 18


@dataclass(slots=True)
class _Run:
    """One action under way."""

    output: OutputBuffer
    deadline: float
    frame: Frame | None = None
    exit_code: int | None = None
    """Of the shell itself, if it ended."""
    stopped: str = ""
    """Why we ended it, if we did."""


class BashInterpreter:
    """See `interpreters.base.Interpreter`. An action is any bash source."""

    def __init__(self, sandbox: Sandbox, user: str | None = None) -> None:
        self.sandbox = sandbox
        self.user = user
        self._number = 0
        self._state = Frame.initial()
        self._pending = OutputBuffer(sandbox.limits.output)
        self._process: Process | None = None
        self._frames = FrameReader()
        self._open_shell()

    # -- an action -------------------------------------------------------------------------------

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action; see the module's docstring for what ends it and what survives."""
        if "\0" in action:
            raise ActionError("a command cannot hold a NUL")
        if not action.strip():
            return Execution(b"", ok=True, exit_code=0, info={"cwd": self._state.cwd})
        if self._process is None:
            return self._gone()
        began = time.monotonic()
        seconds = self.sandbox.limits.timeout if timeout is None else timeout
        run = _Run(self._pending, began + seconds)
        self._pending = OutputBuffer(self.sandbox.limits.output)
        if not self._send(action):
            # The shell died between two actions, for instance at the hands of its own children.
            self._restart()
            if self._process is None or not self._send(action):
                return self._gone()
        self._follow(run)
        return self._finish(run, seconds, began)

    def _send(self, action: str) -> bool:
        assert self._process is not None
        text = action.encode("utf-8", "surrogateescape")
        if tracing := self._state.tracing:
            text = b"\\builtin set -%s\n" % tracing + text
        self._number += 1
        self._frames.expect(self._number)
        _rewrite(self._process.fds[_ACTION], text)
        try:
            os.write(self._process.fds[_CONTROL], (_RUN % self._number).encode())
        except BrokenPipeError:
            return False
        return True

    def _follow(self, run: _Run) -> None:
        """Read until the action has ended, by itself or by us."""
        hard_limit = run.output.limit * _HARD_OUTPUT_FACTOR
        while not self._read(run, run.deadline):
            if run.output.total > hard_limit:
                run.stopped = "output"
            elif time.monotonic() >= run.deadline:
                run.stopped = "time"
            if run.stopped:
                self._stop(run)
                return
        if run.frame is not None and run.frame.kind == "X":
            self._await_exit(run)

    def _stop(self, run: _Run) -> None:
        """Kill what the action started; the shell reports its state as its last deed.

        The signal's trap is pending when the command that the shell waits for is killed, so that
        the rest of the action never runs.
        """
        process = self._process
        assert process is not None
        survivors = list(self._state.pids)
        # What bash has to say about its killed children is our doing, not the action's.
        shown, run.output = run.output, OutputBuffer(0)
        process.signal(int(_TIMEOUT_SIGNAL))
        shell = getattr(process, "pid", None)
        if shell is not None:
            self.sandbox.kill([*survivors, shell])
            grace = time.monotonic() + _GRACE_SECONDS
            while run.frame is None and run.exit_code is None and time.monotonic() < grace:
                self._read(run, grace)
        self.sandbox.kill(survivors)
        self._await_exit(run)
        run.output = shown

    def _await_exit(self, run: _Run) -> None:
        grace = time.monotonic() + _GRACE_SECONDS
        while run.exit_code is None and time.monotonic() < grace:
            self._read(run, grace)
        if run.exit_code is None:
            self.sandbox.kill(list(self._state.pids))
            run.exit_code = 128 + signal.SIGKILL

    def _read(self, run: _Run, deadline: float) -> bool:
        """Wait for something and take it; True when the action has ended."""
        process = self._process
        assert process is not None
        out, status = process.fds[1], process.fds[_STATUS]
        poll = select.poll()
        for fd in (out, status, process.exit_fd):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1)}
        if status in ready:
            self._frames.add(_read_some(status))
            run.frame = self._frames.take()
        if out in ready:
            run.output.add(_read_some(out))
        if process.exit_fd in ready:
            run.exit_code = process.poll()
            while data := _read_some(status):
                self._frames.add(data)
            run.frame = self._frames.take() or run.frame
        if run.frame is None and run.exit_code is None:
            return False
        # All that a foreground command printed is in the pipe by now; a background job may go on.
        most = run.output.total + _PIPE_SIZE
        while run.output.total < most and (data := _read_some(out)):
            run.output.add(data)
        return True

    def _finish(self, run: _Run, seconds: float, began: float) -> Execution:
        notes: list[str] = []
        frame = run.frame
        if frame is not None:
            self._state = frame
        code = frame.status if frame is not None else run.exit_code
        info: dict[str, object] = {}
        if run.stopped == "time":
            code = 124
            notes.append(f"timed out after {seconds:g} s: its processes were killed")
            info["timed_out"] = True
        elif run.stopped == "output":
            code = 128 + signal.SIGKILL
            notes.append(f"killed after {run.output.total} bytes of output")
        if run.exit_code is not None:
            if not run.stopped:
                code = run.exit_code
                notes.append(f"the shell ended with exit code {code}")
            self._restart()
            kept = "kept" if frame is not None else "as before this action"
            if self._process is not None:
                notes[-1] += f"; the shell was restarted, its variables and directory {kept}"
            info["restarted"] = True
        if run.output.truncated:
            info["truncated"] = True
        info["cwd"] = self._state.cwd
        return Execution(
            output=run.output.getvalue(),
            ok=code == 0 and not run.stopped,
            exit_code=code,
            notes=tuple(notes),
            info=info,
            seconds=time.monotonic() - began,
        )

    # -- the shell -------------------------------------------------------------------------------

    def _open_shell(self, status: int = 0) -> None:
        process = self.sandbox.popen(
            _ARGV,
            channels={_EPILOGUE: "text", _CONTROL: "r", _ACTION: "text", _STATUS: "w"},
            user=self.user,
        )
        self._process = process
        self._frames = FrameReader()
        self._number += 1
        self._frames.expect(self._number)
        for fd in (process.fds[1], process.fds[_STATUS]):
            os.set_blocking(fd, False)
        _enlarge(process.fds[1])
        os.write(process.fds[_EPILOGUE], _EPILOGUE_TEXT)
        _rewrite(process.fds[_ACTION], restore_script(self._state))
        os.write(process.fds[_CONTROL], (_START % (status, self._number)).encode())
        # Bash grumbles at its start that it has no terminal: that output is dropped.
        run = _Run(OutputBuffer(4096), time.monotonic() + _START_SECONDS)
        while not self._read(run, run.deadline):
            if time.monotonic() >= run.deadline:
                self.close()
                raise SandboxError(f"bash did not start within {_START_SECONDS:.0f} s")
        if run.frame is None:
            self.close()
            said = run.output.getvalue().decode(errors="replace").strip()
            raise SandboxError(f"bash ended at its start (exit code {run.exit_code}): {said}")
        self._state = run.frame

    def _restart(self) -> None:
        """A new shell with the last known state; none, if the sandbox no longer has a bash."""
        status = self._state.status
        self.close()
        try:
            self._open_shell(status)
        except (FileNotFoundError, PermissionError):
            self._process = None

    def _gone(self) -> Execution:
        note = "there is no bash left in this sandbox: no command can run any more"
        return Execution(b"", ok=False, exit_code=127, notes=(note,), info={"gone": True})

    def close(self) -> None:
        """End the shell; its background jobs live on with the sandbox."""
        if self._process is not None:
            self._process.close()
            self._process = None


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
    """Room for what background jobs print between two actions, so that they do not stall."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        return  # an ordinary user's share of pipe memory is used up: the default size will do
