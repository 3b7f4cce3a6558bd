"""One persistent Python per episode, as at a prompt of Python's own.

The worker (`inside.session`) runs the actions; this module feeds it, collects its output and keeps
the time. Output comes on a pipe of its own, and the end of an action on a channel of its own, so
that nothing is looked for in an action's output. An action can break that channel, or forge its
messages: that costs it its names, or gives it a wrong observation, and never a grade.
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
    is_cancelled,
    stopped_by_interrupt,
    waking_fd,
)
from intercode.interpreters.inside.session import DONE, EXITED
from intercode.interpreters.python_start import SESSION, start
from intercode_sandbox.base import OutputBuffer, SandboxBackend

_GRACE_SECONDS = 3.0
"""The time that an action has to heed a `KeyboardInterrupt`, before it is killed."""
_AGAIN_SECONDS = 0.1
_PRELUDE_SECONDS = 60.0
_CHUNK = 1 << 18
_MOST_AT_ONCE = 1 << 20
_LONGEST_CODE = 200
"""Bytes of the argument of `exit` that are quoted."""
_GONE = "it cannot be started any more: its program is gone"


@dataclass(slots=True)
class _Run:
    """One action under way."""

    number: int
    output: OutputBuffer
    deadline: float
    status: int = 0
    """The worker's word for its end; 0: it has not ended."""
    code: str = ""
    lost: bool = False
    """The process has ended, or does not answer."""
    closed: set[int] = field(default_factory=set)
    """The descriptors from which nothing more will come."""
    stopped: str = ""
    """The reason why the interpreter ended it, if it did."""

    @property
    def over(self) -> bool:
        return self.lost or self.status != 0


class PythonInterpreter:
    """An `Interpreter` whose actions are any Python source.

    Args:
        sandbox: The sandbox in which it runs.
        python: A program of the image's, from Python 3.8; None: the Python of InterCode itself.
        prelude: Source that is run first, and again after a restart.

    Raises:
        ImageError: The image has no such program.
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
        self._prelude_took = 0.0
        self._number = 0
        self._pending = OutputBuffer(sandbox.limits.output)
        self._gone = False
        self._has_run = False
        """Whether an earlier worker has run any code."""
        self._process = start(sandbox, SESSION, python)
        if said := self._run_prelude():
            self.close()
            raise TaskError(f"the task's 'setup_code' fails: {said}")
        self._rest()

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action. At its time limit it is interrupted, and if that does not end it, killed.

        `info` has ``timed_out``; ``interrupted`` or ``restarted``; ``truncated``.
        """
        if "\0" in action:
            raise ActionError("source code cannot hold a NUL")
        if self._gone:
            return Execution(b"", ok=False, notes=(_GONE,), info={"gone": True, "executed": False})
        began = time.monotonic()
        seconds = self.sandbox.limits.seconds(timeout)
        DRAIN.release(self._process.out)
        self._number += 1
        run = _Run(self._number, self._pending, began + seconds)
        self._pending = OutputBuffer(self.sandbox.limits.output)
        with waking_fd() as wakes:
            self._run(run, action, wakes)
        notes = self._finish(run, seconds)
        self._rest()
        info: dict[str, object] = {}
        if run.stopped == "time":
            info["timed_out"] = True
        if run.lost:
            info["gone" if self._gone else "restarted"] = True
        elif run.stopped:
            info["interrupted"] = True
        if run.output.truncated:
            info["truncated"] = True
        return Execution(
            output=run.output.getvalue(),
            ok=not run.stopped and (run.status == DONE or _left_well(run)),
            notes=tuple(notes),
            info=info,
            seconds=time.monotonic() - began,
        )

    def close(self) -> None:
        """End the worker; the processes that it started live on with the sandbox."""
        DRAIN.release(self._process.out)
        self._process.close()

    def _run_prelude(self, seconds: float = _PRELUDE_SECONDS) -> str:
        """Run the prelude; return what went wrong."""
        if not self._prelude:
            return ""
        began = time.monotonic()
        run = _Run(0, OutputBuffer(4096), began + seconds)
        self._run(run, self._prelude)
        if run.lost and not run.stopped:
            self._check_end()
        self._prelude_took = max(self._prelude_took, time.monotonic() - began)
        if run.status == DONE:
            return ""
        return run.output.getvalue().decode(errors="replace").strip() or "it does not end"

    def _rest(self) -> None:
        """Collect the output of threads between two actions: it belongs to the next one."""
        if self._gone:
            return
        limit = self.sandbox.limits.output * HARD_OUTPUT_FACTOR
        DRAIN.watch(self._process, self._process.out, self._pending, limit)

    def _run(self, run: _Run, source: str, wakes: int | None = None) -> None:
        """Have the worker run source, until that has ended by itself, or is stopped.

        Args:
            run: What comes of it.
            source: The source.
            wakes: A descriptor that a cancellation makes readable; None: there is none.
        """
        data = source.encode("utf-8", "surrogatepass")
        if not self._process.send(0, run.number, data, run.deadline - time.monotonic()):
            run.closed.add(self._process.control)
        most = run.output.limit * HARD_OUTPUT_FACTOR
        while not run.over:
            with stopped_by_interrupt(run):
                self._read(run, run.deadline, wakes)
            if run.over:
                break
            if run.output.total > most:
                run.stopped = "output"
            elif time.monotonic() >= run.deadline:
                run.stopped = "time"
            elif wakes is not None and is_cancelled():
                run.stopped = BY_CALLER
            if run.stopped:
                self._stop(run)
        self._take_output(run)

    def _stop(self, run: _Run) -> None:
        """Interrupt the action, and if it does not heed that, give the worker up."""
        grace = time.monotonic() + _GRACE_SECONDS
        while not run.over and time.monotonic() < grace:
            if self._process.pid is not None:
                # The programs that it waits for, or has left running; again, for it may have been
                # about to start one.
                self.sandbox.kill([self._process.pid])
            if self._process.started:
                self._process.process.signal(signal.SIGINT)
            again = time.monotonic() + _AGAIN_SECONDS
            while not run.over and time.monotonic() < again:
                self._read(run, again)
        run.lost = run.status == 0

    def _read(self, run: _Run, deadline: float, wakes: int | None = None) -> None:
        """Wait until something happens, or `wakes` is readable, and take it."""
        poll, process = select.poll(), self._process
        for fd in {process.out, process.control, process.exit_fd} - run.closed:
            poll.register(fd, select.POLLIN)
        if wakes is not None:
            poll.register(wakes, select.POLLIN)
        left = max(deadline - time.monotonic(), 0)
        ready = {fd for fd, _ in poll.poll(left * 1000 + 1)}
        if process.out in ready:
            self._take_output(run)
        if process.control in ready:
            self._take_answer(run)
        elif process.exit_fd in ready:
            run.lost = True

    def _take_output(self, run: _Run) -> None:
        most = run.output.total + _MOST_AT_ONCE
        while run.output.total < most:
            try:
                data = os.read(self._process.out, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                run.closed.add(self._process.out)
                return
            run.output.add(data)

    def _take_answer(self, run: _Run) -> None:
        try:
            frames = self._process.receive()
        except ValueError:
            run.stopped, run.lost, frames = "forged", True, []
        if frames is None:
            run.closed.add(self._process.control)
        for status, number, code in frames or ():
            if number == run.number:
                run.status, run.code = status, code[:_LONGEST_CODE].decode(errors="replace")

    def _finish(self, run: _Run, seconds: float) -> list[str]:
        """Restart the worker if need be; return what the agent is to be told."""
        notes = []
        if run.stopped == "time":
            notes.append(f"timed out after {seconds:g} s")
        elif run.stopped == "output":
            notes.append(f"stopped after {run.output.total} bytes of output")
        elif run.stopped == "forged":
            notes.append("stopped: it has written to a descriptor that it has not opened")
        if run.lost:
            if not run.stopped:
                self._check_end()
            why = "was killed" if run.stopped else self._process.obituary()
            self._restart(seconds)
            now = (
                f"{_GONE}: {LAST_COMMAND}"
                if self._gone
                else "it was started again, and all names are lost"
            )
            notes.append(f"the interpreter {why}; {now}")
        elif run.stopped:
            notes.append("interrupted: the interpreter goes on, with its names")
        elif run.status == EXITED:
            notes.append(f"exit({run.code}) ends nothing here: the interpreter goes on")
        return notes

    def _check_end(self) -> None:
        """Check that an action can have caused the end of the worker.

        Raises:
            SandboxError: Whatever caused it, no action did.
        """
        self.sandbox.processes()  # if it has ended, or was closed, that is the error
        self._process.check_end(self.sandbox)
        if self._python is None and not (self._process.started or self._has_run):
            why = self._process.obituary()
            raise SandboxError(f"the Python worker {why}, before any action ran in it")

    def _restart(self, seconds: float) -> None:
        self._has_run |= self._process.started
        self._process.close()
        self.sandbox.kill()
        try:
            self._process = start(self.sandbox, SESSION, self._python)
        except ImageError:
            self._gone = True
            return
        # It has run before: if it fails now, then by what the agent has done to its files.
        self._run_prelude(min(2 * self._prelude_took + seconds, _PRELUDE_SECONDS))


def _left_well(run: _Run) -> bool:
    return run.status == EXITED and run.code == "0"
