"""Persistent bash of an episode: the behaviour of a terminal session, without a terminal.

Bash reads its control lines as a script from a pipe that its children do not inherit. For each
action InterCode writes one control line, which sources the action from a memory file. So nothing in
an action, such as an unterminated quote, a here-document or ``return``, can swallow the next
control line. The control line then sources the *epilogue*, a script of InterCode. The epilogue
reports the exit code, the directory and the shell's state on a separate channel, and prints nothing
to the action's output. In the output, InterCode searches only for the name of the memory file,
which bash prints in syntax errors. The name is removed, because ``bash -c`` would print none.

The agent could forge a report of the epilogue. A forgery changes at most the exit codes and the
shell state of the agent's own episode, never a grade: rewards compare files and output.

Bash runs with ``-i`` (interactive), though it reads a script. Therefore an unset variable or a
syntax error does not end the shell, aliases work, and messages begin with ``bash:``. Other
properties of interactive shells, such as job control, are switched off.
"""

from __future__ import annotations

import copy
import errno
import shlex
import signal
import time
from dataclasses import dataclass, replace

from intercode.errors import ActionError, ForkError, ImageError, SandboxError
from intercode.interpreters.base import (
    BY_CALLER,
    HARD_OUTPUT_FACTOR,
    LAST_COMMAND,
    Execution,
    SavedInterpreterState,
    is_cancelled,
    mark_interrupt,
)
from intercode.interpreters.shell import (
    TIMEOUT_SIGNAL,
    BashProcess,
    RunningShellAction,
    ShellStartError,
    ShellStartTimeoutError,
    ShellStateReport,
    format_as_script,
)
from intercode.interpreters.shell_state import (
    CARRIED,
    QUESTION,
    UnreportedShellState,
    find_missing_state,
    obstacles,
    script,
)
from intercode_sandbox.base import HeadTailBuffer, SandboxBackend, SupportsFork

_GRACE_SECONDS = 2.0
"""Seconds for an interrupted shell to report its state; most shells need a millisecond."""
_AGAIN_SECONDS = 0.1
"""Seconds between two kills of an action's processes, because the action may start others."""
_ANSWER_SECONDS = 10.0
"""Seconds for a shell to report its whole state; most shells need a millisecond."""
_TIMEOUT_CODE = 124
_KILLED_CODE = 128 + signal.SIGKILL
_INTERRUPTED_CODE = 128 + signal.SIGINT
_WINDOWS = "lines of this action end with a carriage return, which bash takes for a character"
_PROCESS_LIMIT_SHARE = 0.9
"""Share of the process limit above which almost no command could start a process."""


@dataclass(frozen=True, slots=True)
class SuspendedShell:
    """The saved state of a shell, from which another shell continues."""

    state: ShellStateReport
    """The shell's report, with the script that restores the whole state of the shell."""
    initial_variables: bytes
    """The variables that a fresh shell reports, in the form of `ShellStateReport.variables`."""
    pending_output: HeadTailBuffer
    """Output that background jobs printed since the last action; it belongs to the next action."""
    omissions: tuple[str, ...]
    """Descriptions of parts of the state that are not saved."""


class BashInterpreter:
    """An `Interpreter` whose actions are any bash source.

    Args:
        sandbox: The sandbox in which bash runs.
        user: The user that the shell runs as; None: the image's.
        suspended_shell: The shell to continue; None: a fresh shell.

    Raises:
        ForkError: A part of the suspended shell's state cannot be restored.
        ImageError: The image has no bash, or its working directory cannot be entered.
        SandboxError: Bash does not start.
    """

    def __init__(
        self,
        sandbox: SandboxBackend,
        user: str | None = None,
        suspended_shell: SuspendedShell | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.user = user
        # The saved state, from `save` until the next action. No shell may run in the meantime.
        self._suspended_shell: SuspendedShell | None = None
        state = ShellStateReport() if suspended_shell is None else suspended_shell.state
        try:
            self._shell: BashProcess | None = BashProcess(sandbox, user, state)
        except ShellStartError as error:
            if suspended_shell is None:
                raise
            raise ForkError(f"the shell's state cannot be restored: {error}") from error
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            if suspended_shell is not None:
                raise
            raise image_start_error(sandbox, error) from error
        self._state = self._shell.state
        if suspended_shell is None:
            self._pending_output = HeadTailBuffer(sandbox.limits.output)
            self._initial_variables = self._state.variables
        else:
            self._pending_output = copy.deepcopy(suspended_shell.pending_output)
            self._initial_variables = suspended_shell.initial_variables
            if missing_part := find_missing_state(state, self._state):
                self.close()
                raise ForkError(f"the shell's state cannot be restored: it lacks {missing_part}")
        self._shell.rest(self._pending_output)

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action; kill its processes at the time limit, a cancellation or excessive output.

        Output is excessive at `HARD_OUTPUT_FACTOR` times the output limit. Background jobs of
        earlier actions survive, unless they fill the process limit. After a kill or an exit the
        shell restarts, with its state if possible. `info` has ``cwd``, unless the action was not
        executed. If they apply, `info` also has the keys ``timed_out``, ``restarted``, ``gone``,
        ``truncated`` and ``executed`` of `Execution.info`.

        Raises:
            ActionError: The action holds a NUL.
            UsageError: The time limit is invalid; see `Limits.seconds`.
            SandboxError: The sandbox failed.
        """
        if "\0" in action:
            raise ActionError("a command cannot hold a NUL")
        if not action.strip():
            return Execution(b"", ok=True, exit_code=0, info={"cwd": self._state.cwd})
        if self._suspended_shell is not None and not (restart_note := self._restart()).endswith(
            "kept"
        ):
            self._pending_output.add(f"[{restart_note}]\n".encode())
        if self._shell is None:
            return self._gone_execution()
        start_time = time.monotonic()
        seconds = self.sandbox.limits.seconds(timeout)
        self._shell.wake()
        action_run = RunningShellAction(
            self._pending_output, start_time + seconds, survivors=self._survivors(self._shell)
        )
        self._pending_output = HeadTailBuffer(self.sandbox.limits.output)
        if not self._shell.send(action):
            # The shell has died between two actions, for instance because its own child killed it.
            self._restart()
            if self._shell is None or not self._shell.send(action):
                return self._gone_execution()
        self._follow(action_run, self._shell)
        execution = self._finish(action_run, seconds, start_time)
        if not execution.ok and "\r\n" in action:
            execution = replace(execution, notes=(*execution.notes, _WINDOWS))
        if self._shell is not None:
            self._shell.rest(self._pending_output)
        return execution

    def save(self, lossy: bool = False) -> SavedInterpreterState:
        """Save the files and the shell's state; see `SupportsInterpreterSave`.

        The shell restarts when needed.

        Raises:
            ForkError: The sandbox cannot save its files. Or a part of the state cannot be saved,
                and `lossy` is false. Examples are a process beside the shell, and an additional
                descriptor.
            SandboxError: The sandbox failed.
        """
        sandbox, user = self.sandbox, self.user
        if not isinstance(sandbox, SupportsFork):
            raise ForkError(f"{type(sandbox).__name__} cannot save its files")
        # If another process was started since the last save, that saved state is out of date.
        if self._suspended_shell is not None and sandbox.processes():
            self._restart()
        suspended_shell, start = (
            self._suspended_shell or self._read_state(sandbox, lossy),
            sandbox.start_sibling,
        )
        if suspended_shell.omissions:
            # The shell and its processes continue, because the saved state is not complete.
            snapshot = sandbox.save_copy()
        else:
            shell, self._shell = self._shell, None
            self._suspended_shell, self._state = suspended_shell, suspended_shell.state
            try:
                snapshot = sandbox.freeze()
            finally:
                # `freeze` has already ended the shell; this call releases its descriptors.
                if shell is not None:
                    shell.close()

        def reopen() -> tuple[SandboxBackend, BashInterpreter]:
            sandbox_copy = start(snapshot)
            try:
                return sandbox_copy, BashInterpreter(sandbox_copy, user, suspended_shell)
            except BaseException:
                sandbox_copy.close()
                raise

        return SavedInterpreterState(reopen, snapshot.delete, CARRIED, suspended_shell.omissions)

    def _read_state(self, sandbox: SupportsFork, lossy: bool) -> SuspendedShell:
        """Return the whole state of the shell, which continues to run."""
        shell = self._shell
        if shell is None:
            raise ForkError("the sandbox has no bash any more")
        shell.wake()
        run = RunningShellAction(self._pending_output, time.monotonic() + _ANSWER_SECONDS)
        answers = shell.ask(QUESTION)
        while answers and not shell.read(run, run.deadline):
            answers = time.monotonic() < run.deadline
        frame = run.frame if run.exit_code is None and shell.settle(run.deadline) else None
        unreported_state = None if frame is None else UnreportedShellState.parse(frame.rest)
        if frame is None or unreported_state is None:
            self._restart()
            if self._shell is not None:
                self._shell.rest(self._pending_output)
            raise ForkError("the shell does not report its state")
        pending_output = copy.deepcopy(self._pending_output)
        shell.rest(self._pending_output)
        omissions = obstacles(sandbox.programs(), shell.pid, unreported_state)
        if omissions and not lossy:
            raise ForkError(
                f"the episode's state has parts that cannot be saved: {'; '.join(omissions)}"
            )
        previous_state = self._state
        state = replace(
            frame,
            status=previous_state.status,
            flags=previous_state.flags,
            hooks=previous_state.hooks,
            rest=(),
        )
        state = replace(state, script=script(state, unreported_state, self._initial_variables))
        return SuspendedShell(state, self._initial_variables, pending_output, tuple(omissions))

    def _survivors(self, shell: BashProcess) -> tuple[int, ...]:
        """Return the processes that a stop of the next action must not kill."""
        if not set(self._state.pids) - {shell.pid}:
            return ()
        # The list is read again: a daemon that has forked since the report has another process id.
        return tuple(pid for pid in self.sandbox.processes() if pid != shell.pid)

    def _follow(self, run: RunningShellAction, shell: BashProcess) -> None:
        """Read until the action ends; stop the action at its limits or a cancellation."""
        hard_limit = run.output.limit * HARD_OUTPUT_FACTOR
        with shell.waking():
            while not run.stop_reason:
                with mark_interrupt(run):
                    if shell.read(run, run.deadline):
                        break
                if run.output.total > hard_limit:
                    run.stop_reason = "output"
                elif time.monotonic() >= run.deadline:
                    run.stop_reason = "time"
                elif is_cancelled():
                    run.stop_reason = BY_CALLER
        if run.stop_reason:
            self._stop(run, shell)
        elif run.frame is not None and run.frame.kind == "X":
            self._await_exit(run, shell)

    def _stop(self, run: RunningShellAction, shell: BashProcess) -> None:
        """Kill the processes of the action; the shell reports its state and exits.

        The shell waits for a command and gets a signal with a trap. When the command is killed, the
        trap runs first and ends the shell, so the rest of the action never runs.
        """
        shell.take_output(run)  # output that was printed since the last read
        # Bash's messages about its killed children are dropped: InterCode's kill causes them.
        action_output, run.output = run.output, HeadTailBuffer(0)
        shell.signal(TIMEOUT_SIGNAL)
        if shell.pid is not None:
            kill_count = self.sandbox.kill([*run.survivors, shell.pid])
            if self._crowded(kill_count + len(run.survivors)):
                run.survivors = ()
            next_kill_time = time.monotonic() + _AGAIN_SECONDS
            grace = time.monotonic() + _GRACE_SECONDS
            while not shell.read(run, min(next_kill_time, grace)) and time.monotonic() < grace:
                if time.monotonic() >= next_kill_time:
                    # The shell may have been about to start a command when the signal came, so kill
                    # again.
                    self.sandbox.kill([*run.survivors, shell.pid])
                    next_kill_time = time.monotonic() + _AGAIN_SECONDS
        self.sandbox.kill(run.survivors)
        self._await_exit(run, shell)
        run.output = action_output

    def _await_exit(self, run: RunningShellAction, shell: BashProcess) -> None:
        grace = time.monotonic() + _GRACE_SECONDS
        while run.exit_code is None and time.monotonic() < grace:
            shell.read(run, grace)
        if run.exit_code is None:
            self.sandbox.kill(run.survivors)
            run.exit_code = _KILLED_CODE if run.frame is None else run.frame.status

    def _crowded(self, processes: int) -> bool:
        return processes > _PROCESS_LIMIT_SHARE * self.sandbox.limits.processes

    def _finish(self, run: RunningShellAction, seconds: float, start_time: float) -> Execution:
        notes: list[str] = []
        info: dict[str, object] = {}
        code = run.exit_code if run.frame is None else run.frame.status
        if run.stop_reason == "time":
            code = _TIMEOUT_CODE
            notes.append(f"timed out after {seconds:g} s: its processes were killed")
            info["timed_out"] = True
        elif run.stop_reason == BY_CALLER:
            code = _INTERRUPTED_CODE
            notes.append("interrupted: its processes were killed")
        elif run.stop_reason == "output":
            code = _KILLED_CODE
            notes.append(f"killed after {run.output.total} bytes of output")
        elif run.exit_code is not None:
            code = run.exit_code
            notes.append(f"the shell ended with exit code {code}")
        self._remember(run.frame, code or 0)
        if run.exit_code is not None:
            restart_note = self._restart(as_before=run.frame is None)
            notes[-1] += f"; {restart_note}"
            info["gone" if self._shell is None else "restarted"] = True
        elif self._shell is not None and self._crowded(len(self._state.pids) - 1):
            self.sandbox.kill([] if self._shell.pid is None else [self._shell.pid])
            notes.append(f"its {len(self._state.pids) - 1} background processes were killed")
        if run.output.truncated:
            info["truncated"] = True
        info["cwd"] = self._state.cwd
        return Execution(
            output=format_as_script(run.output.getvalue(), code or 0),
            ok=code == 0 and not run.stop_reason,
            exit_code=code,
            notes=tuple(notes),
            info=info,
            seconds=time.monotonic() - start_time,
        )

    def _remember(self, frame: ShellStateReport | None, code: int) -> None:
        frame = self._state if frame is None else frame
        hooks = frame.hooks if frame.kind == "A" else self._state.hooks
        self._state = replace(frame, status=code, hooks=hooks)
        if self._shell is not None:
            self._shell.state = self._state

    def _restart(self, as_before: bool = False) -> str:
        """Start a shell with the last reported state; return a note for the agent on the result."""
        state = self._state
        self.close()
        self._suspended_shell = None
        attempts = [state, state, ShellStateReport(status=state.status)]
        while attempts:
            attempt = attempts.pop(0)
            try:
                self._shell = BashProcess(self.sandbox, self.user, attempt)
            except (OSError, ShellStartError) as error:
                if isinstance(error, SandboxError) and not isinstance(error, ShellStartError):
                    raise
                if isinstance(error, OSError) and error.errno not in (errno.EAGAIN, errno.ENOMEM):
                    break  # the sandbox no longer has a bash
                if isinstance(error, ShellStartTimeoutError):
                    del attempts[:-1]
                self.sandbox.kill()  # for instance, a fork bomb of the agent prevents the start
                continue
            self._state = self._shell.state
            state_note = "kept" if attempt is state else "lost"
            state_note = "as before this action" if as_before and attempt is state else state_note
            return f"the shell was restarted, its variables and directory {state_note}"
        return f"no other can be started in this sandbox: {LAST_COMMAND}"

    def _gone_execution(self) -> Execution:
        note = "there is no bash left in this sandbox: no command can run any more"
        info = {"gone": True, "executed": False}
        return Execution(b"", ok=False, exit_code=127, notes=(note,), info=info)

    def close(self) -> None:
        """End the shell; its background jobs continue in the sandbox."""
        if self._shell is not None:
            self._shell.close()
            self._shell = None
        self._suspended_shell = None


def image_start_error(sandbox: SandboxBackend, error: OSError) -> ImageError:
    """Return the error for an image in which bash cannot be executed."""
    return ImageError(
        f"bash does not start in {sandbox.cwd!r}, the image's working directory: {error}. The "
        "image needs bash and this folder, and its user needs permission to execute and to enter "
        "them"
    )


def open_shell(sandbox: SandboxBackend, directory: str) -> BashInterpreter:
    """Return a shell that starts in a directory, without a previous directory (``OLDPWD``)."""
    shell = BashInterpreter(sandbox)
    shell.execute(f"cd -- {shlex.quote(directory)}; unset OLDPWD")
    return shell
