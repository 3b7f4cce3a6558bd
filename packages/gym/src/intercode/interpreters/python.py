"""Persistent Python of an episode, which behaves like Python's interactive prompt.

The worker (`inside.session`), a process in the sandbox, runs the actions. This module, on the host,
sends the actions, collects the output and enforces the time limit. Output arrives on one pipe. The
end of an action is reported on a separate channel, so the output needs no end marker. An action can
break this channel, or forge its messages. The result is then a wrong observation, or the loss of
the agent's variables, never a wrong grade.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import ClassVar

from intercode.errors import ActionError, ImageError, SandboxError, TaskError
from intercode.interpreters.base import (
    BY_CALLER,
    DRAIN,
    HARD_OUTPUT_FACTOR,
    LAST_COMMAND,
    Execution,
    cancellation_fd,
    is_cancelled,
    mark_interrupt,
)
from intercode.interpreters.inside.session import DONE, EXITED
from intercode.interpreters.python_start import SESSION, start
from intercode_sandbox.base import HeadTailBuffer, SandboxBackend

_GRACE_SECONDS = 3.0
"""Seconds for an action to react to a `KeyboardInterrupt`, before its worker is killed."""
_AGAIN_SECONDS = 0.1
_PRELUDE_SECONDS = 60.0
_CHUNK = 1 << 18
_MAX_READ = 1 << 20
_LONGEST_CODE = 200
"""Maximum bytes of the argument of ``exit`` that a note quotes."""
_GONE = "it cannot be started any more: its program is gone"


@dataclass(slots=True)
class _RunningPythonAction:
    """One running action."""

    number: int
    output: HeadTailBuffer
    deadline: float
    status: int = 0
    """The worker's report of how the action ended; 0: the action has not ended."""
    code: str = ""
    lost: bool = False
    """Whether the worker's process has ended or does not respond."""
    closed_fds: set[int] = field(default_factory=set)
    """Descriptors from which no further data will come."""
    stop_reason: str = ""
    """The reason why the interpreter stopped the action; empty: it was not stopped."""

    @property
    def is_over(self) -> bool:
        return self.lost or self.status != 0


class PythonInterpreter:
    """An `Interpreter` whose actions are any Python source.

    Args:
        sandbox: The sandbox in which the worker runs.
        python: A Python program of the image, 3.8 or later; None: InterCode's own Python.
        prelude: Source that runs before the first action, and again after each restart.

    Raises:
        ImageError: The image has no such Python program.
        TaskError: The prelude fails.
        SandboxError: The sandbox failed.
    """

    language: ClassVar[str] = "python"

    def __init__(
        self, sandbox: SandboxBackend, python: str | None = None, prelude: str = ""
    ) -> None:
        self.sandbox = sandbox
        self._python = python
        self._prelude = prelude
        self._prelude_seconds = 0.0
        self._action_number = 0
        self._pending_output = HeadTailBuffer(sandbox.limits.output)
        self._is_gone = False
        self._has_run = False
        """Whether a worker that has been replaced had reported its start."""
        self._process = start(sandbox, SESSION, python)
        if failure := self._run_prelude():
            self.close()
            raise TaskError(f"the task's 'setup_code' failed: {failure}")
        self._collect_idle_output()

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action; if it must be stopped, interrupt it, then kill the worker if necessary.

        An action is stopped at its time limit, at a cancellation, and at `HARD_OUTPUT_FACTOR` times
        the output limit. If they apply, `info` has ``timed_out``, ``truncated``, and
        ``interrupted`` or ``restarted``. If the worker cannot be restarted, `info` has ``gone``;
        later actions then also have ``executed``, which is false.

        Raises:
            ActionError: The action holds a NUL.
            UsageError: The time limit is invalid; see `Limits.seconds`.
            SandboxError: The sandbox failed, or the worker ended before any action ran in it.
        """
        if "\0" in action:
            raise ActionError("source code cannot hold a NUL")
        if self._is_gone:
            return Execution(b"", ok=False, notes=(_GONE,), info={"gone": True, "executed": False})
        start_time = time.monotonic()
        seconds = self.sandbox.limits.seconds(timeout)
        DRAIN.release(self._process.output_fd)
        self._action_number += 1
        run = _RunningPythonAction(self._action_number, self._pending_output, start_time + seconds)
        self._pending_output = HeadTailBuffer(self.sandbox.limits.output)
        with cancellation_fd() as wake_fd:
            self._run(run, action, wake_fd)
        notes = self._finish(run, seconds)
        self._collect_idle_output()
        info: dict[str, object] = {}
        if run.stop_reason == "time":
            info["timed_out"] = True
        if run.lost:
            info["gone" if self._is_gone else "restarted"] = True
        elif run.stop_reason:
            info["interrupted"] = True
        if run.output.truncated:
            info["truncated"] = True
        return Execution(
            output=run.output.getvalue(),
            ok=not run.stop_reason and (run.status == DONE or _is_clean_exit(run)),
            notes=tuple(notes),
            info=info,
            seconds=time.monotonic() - start_time,
        )

    def close(self) -> None:
        """End the worker; the processes that it started continue in the sandbox."""
        DRAIN.release(self._process.output_fd)
        self._process.close()

    def _run_prelude(self, seconds: float = _PRELUDE_SECONDS) -> str:
        """Run the prelude; return an error message, or an empty text for success."""
        if not self._prelude:
            return ""
        start_time = time.monotonic()
        run = _RunningPythonAction(0, HeadTailBuffer(4096), start_time + seconds)
        self._run(run, self._prelude)
        if run.lost and not run.stop_reason:
            self._check_end()
        self._prelude_seconds = max(self._prelude_seconds, time.monotonic() - start_time)
        if run.status == DONE:
            return ""
        return run.output.getvalue().decode(errors="replace").strip() or "it does not end"

    def _collect_idle_output(self) -> None:
        """Collect output that the worker's threads print between actions, for the next action."""
        if self._is_gone:
            return
        limit = self.sandbox.limits.output * HARD_OUTPUT_FACTOR
        DRAIN.watch(self._process, self._process.output_fd, self._pending_output, limit)

    def _run(self, run: _RunningPythonAction, source: str, wake_fd: int | None = None) -> None:
        """Run source in the worker, until it ends or is stopped at a limit or a cancellation.

        Args:
            run: Receives the result.
            source: The source.
            wake_fd: A descriptor that a cancellation makes readable; None: no cancellation.
        """
        source_bytes = source.encode("utf-8", "surrogatepass")
        if not self._process.send(0, run.number, source_bytes, run.deadline - time.monotonic()):
            run.closed_fds.add(self._process.control)
        max_output = run.output.limit * HARD_OUTPUT_FACTOR
        while not run.is_over:
            with mark_interrupt(run):
                self._read(run, run.deadline, wake_fd)
            if run.is_over:
                break
            if run.output.total > max_output:
                run.stop_reason = "output"
            elif time.monotonic() >= run.deadline:
                run.stop_reason = "time"
            elif wake_fd is not None and is_cancelled():
                run.stop_reason = BY_CALLER
            if run.stop_reason:
                self._stop(run)
        self._take_output(run)

    def _stop(self, run: _RunningPythonAction) -> None:
        """Interrupt the action repeatedly; if the action does not end, the worker is lost."""
        grace = time.monotonic() + _GRACE_SECONDS
        while not run.is_over and time.monotonic() < grace:
            if self._process.pid is not None:
                # Kill the programs that the action waits for or has left running. The kill is
                # repeated, because the action may be about to start a program.
                self.sandbox.kill([self._process.pid])
            if self._process.started:
                self._process.process.signal(signal.SIGINT)
            next_signal_time = time.monotonic() + _AGAIN_SECONDS
            while not run.is_over and time.monotonic() < next_signal_time:
                self._read(run, next_signal_time)
        run.lost = run.status == 0

    def _read(self, run: _RunningPythonAction, deadline: float, wake_fd: int | None = None) -> None:
        """Wait for data on the worker's descriptors, or on `wake_fd`, and process the data."""
        poll, process = select.poll(), self._process
        for fd in {process.output_fd, process.control, process.exit_fd} - run.closed_fds:
            poll.register(fd, select.POLLIN)
        if wake_fd is not None:
            poll.register(wake_fd, select.POLLIN)
        remaining_seconds = max(deadline - time.monotonic(), 0)
        ready_fds = {fd for fd, _ in poll.poll(remaining_seconds * 1000 + 1)}
        if process.output_fd in ready_fds:
            self._take_output(run)
        if process.control in ready_fds:
            self._take_answer(run)
        elif process.exit_fd in ready_fds:
            run.lost = True

    def _take_output(self, run: _RunningPythonAction) -> None:
        max_total = run.output.total + _MAX_READ
        while run.output.total < max_total:
            try:
                chunk = os.read(self._process.output_fd, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                run.closed_fds.add(self._process.output_fd)
                return
            run.output.add(chunk)

    def _take_answer(self, run: _RunningPythonAction) -> None:
        try:
            frames = self._process.receive()
        except ValueError:
            run.stop_reason, run.lost, frames = "forged", True, []
        if frames is None:
            run.closed_fds.add(self._process.control)
        for status, action_number, code in frames or ():
            if action_number == run.number:
                run.status, run.code = status, code[:_LONGEST_CODE].decode(errors="replace")

    def _finish(self, run: _RunningPythonAction, seconds: float) -> list[str]:
        """Restart the worker if it was lost; return the notes for the agent."""
        notes = []
        if run.stop_reason == "time":
            notes.append(f"timed out after {seconds:g} s")
        elif run.stop_reason == "output":
            notes.append(f"stopped after {run.output.total} bytes of output")
        elif run.stop_reason == "forged":
            notes.append("stopped: it has written to a descriptor that it has not opened")
        if run.lost:
            if not run.stop_reason:
                self._check_end()
            end_reason = "was killed" if run.stop_reason else self._process.obituary()
            self._restart(seconds)
            restart_note = (
                f"{_GONE}: {LAST_COMMAND}"
                if self._is_gone
                else "it was started again, and all names are lost"
            )
            notes.append(f"the interpreter {end_reason}; {restart_note}")
        elif run.stop_reason:
            notes.append("interrupted: the interpreter goes on, with its names")
        elif run.status == EXITED:
            notes.append(f"exit({run.code}) ends nothing here: the interpreter goes on")
        return notes

    def _check_end(self) -> None:
        """Check that an action can have caused the end of the worker.

        Raises:
            SandboxError: No action can have caused the end: none has run, or InterCode's Python
                crashed.
        """
        self.sandbox.processes()  # the call raises if the sandbox has ended or was closed
        self._process.check_end(self.sandbox)
        if self._python is None and not (self._process.started or self._has_run):
            end_reason = self._process.obituary()
            raise SandboxError(f"the Python worker {end_reason} before its first action")

    def _restart(self, seconds: float) -> None:
        self._has_run |= self._process.started
        self._process.close()
        self.sandbox.kill()
        try:
            self._process = start(self.sandbox, SESSION, self._python)
        except ImageError:
            self._is_gone = True
            return
        # The prelude has succeeded before, so the agent's changes to files cause a failure now.
        # Such a failure is ignored.
        self._run_prelude(min(2 * self._prelude_seconds + seconds, _PRELUDE_SECONDS))


def _is_clean_exit(run: _RunningPythonAction) -> bool:
    return run.status == EXITED and run.code == "0"
