r"""Running bash process that executes actions and reports its state after each.

The module has four parts. `BashProcess` is the process. Lines of bash run an action and report on
it. `ShellStateReport` is the report. A script restores a reported state in a new shell. The caller
enforces time limits.

Every word of InterCode's lines is quoted or prefixed with ``\builtin``, so bash calls no alias and
no function of the agent instead. A control line is short, because bash reads a pipe byte by byte.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from intercode.errors import SandboxError
from intercode.interpreters.base import DRAIN, HARD_OUTPUT_FACTOR, cancellation_fd
from intercode_sandbox.base import HeadTailBuffer, SandboxBackend

OUTPUT, EPILOGUE, CONTROL, ACTION, STATUS = 195, 196, 197, 198, 199
"""Descriptors in the shell, in this order.

`OUTPUT` is a duplicate of its output; `CONTROL` is the pipe of control lines. `EPILOGUE` is the
file of the script that reports, `ACTION` the file of the action, and `STATUS` the channel of
reports.
"""
TIMEOUT_SIGNAL = int(signal.SIGRTMAX) - 1
_ARGV = (
    *("bash", "--norc", "--noprofile", "-i", "+m", "+H", "+o", "history"),
    f"/proc/self/fd/{CONTROL}",
)
_START_SECONDS = 30.0
_RESTORE_SECONDS = 10.0
"""Time limit in seconds of a start that restores an agent's state, which may never finish."""
_LOOK_SECONDS = 0.0001
"""Seconds between two checks of a pipe. The writer of a pipe gets no event when data is read."""
_PIPE_SIZE = 1 << 20
_CHUNK = 1 << 18
_MOST_CHUNKS = 8
"""Chunks of the last report that are read at most: more than the pipe holds."""


class ShellStartError(SandboxError):
    """An error: bash does not start in the sandbox."""


class ShellStartTimeoutError(ShellStartError):
    """An error: bash starts too slowly, for instance because the restored state is slow."""


@dataclass(slots=True)
class RunningShellAction:
    """One running action."""

    output: HeadTailBuffer
    deadline: float
    frame: ShellStateReport | None = None
    exit_code: int | None = None
    """Exit code of the shell itself, if the shell ended."""
    stop_reason: str = ""
    """The reason why the interpreter stopped the action; empty: it was not stopped."""
    survivors: tuple[int, ...] = ()
    """Processes that ran before the action. A stop of the action does not kill them."""


class BashProcess:
    """A bash process, which is fresh or restored to a reported state.

    Args:
        sandbox: The sandbox that bash runs in.
        user: The user that bash runs as; None: the image's.
        state: The report whose state is restored; an empty `ShellStateReport` for a fresh shell.

    Raises:
        OSError: Bash cannot be executed.
        ShellStartError: Bash ends at its start.
        ShellStartTimeoutError: Bash does not report in time.
    """

    def __init__(self, sandbox: SandboxBackend, user: str | None, state: ShellStateReport) -> None:
        self._process = sandbox.popen(
            _ARGV,
            channels={EPILOGUE: "text", CONTROL: "r", ACTION: "text", STATUS: "w"},
            # The working directory of a restored shell may no longer exist.
            cwd="/" if state.variables else None,
            user=user,
        )
        self.pid: int | None = getattr(self._process, "pid", None)
        """Process id inside the sandbox."""
        fds = self._process.fds
        self._output_fd, self._status, self._exit = fds[1], fds[STATUS], self._process.exit_fd
        self._control, self._action = fds[CONTROL], fds[ACTION]
        self._poll = select.poll()
        for fd in (self._output_fd, self._status, self._exit):
            self._poll.register(fd, select.POLLIN)
        self._action_number = 0
        self._frames = ShellReportReader()
        try:
            self.state = self._start(fds[EPILOGUE], state)
        except BaseException:
            self.close()
            raise

    def _start(self, epilogue: int, state: ShellStateReport) -> ShellStateReport:
        for fd in (self._output_fd, self._status, self._control):
            os.set_blocking(fd, False)
        _enlarge(self._output_fd)
        _rewrite(epilogue, _EPILOGUE_TEXT)
        _rewrite(self._action, restore_script(state))
        self._frames.expect(self._action_number)
        os.write(self._control, _start_line(self._action_number, state.status))
        # At its start bash complains that it has no terminal. This output is dropped.
        seconds = _RESTORE_SECONDS if state.variables else _START_SECONDS
        run = RunningShellAction(HeadTailBuffer(4096), time.monotonic() + seconds)
        while not self.read(run, run.deadline):
            if time.monotonic() >= run.deadline:
                raise ShellStartTimeoutError(f"bash did not start within {seconds:.0f} s")
        # A restored trap may end bash. The last report then has the kind X.
        if run.frame is None or run.frame.kind == "X":
            message = run.output.getvalue().decode(errors="replace").strip()
            raise ShellStartError(f"bash ended at its start (exit code {run.exit_code}): {message}")
        trace_flags = bytes(flag for flag in state.flags if flag in b"xv") if state.script else b""
        return replace(run.frame, hooks=state.hooks, flags=run.frame.flags + trace_flags)

    def send(self, action: str) -> bool:
        """Start an action; return whether the shell could accept it. A dead shell cannot."""
        return self.ask(self.state.preamble + action.encode("utf-8", "surrogateescape"))

    def ask(self, source: bytes) -> bool:
        """Run InterCode's lines like an action, but without the agent's traps; see `send`."""
        self._action_number += 1
        self._frames.expect(self._action_number)
        _rewrite(self._action, source)
        try:
            os.write(self._control, _run_line(self._action_number))
        except (BrokenPipeError, BlockingIOError):  # the shell died, or the agent filled the pipe
            return False
        return True

    def settle(self, deadline: float) -> bool:
        """Wait until bash has undone its last line's redirections; return whether it was in time.

        An empty line is written to the control pipe. When bash has read this line, the previous
        line is complete.
        """
        try:
            os.write(self._control, b"\n")
        except (BrokenPipeError, BlockingIOError):
            return False
        while _has_unread_data(self._control):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    @contextmanager
    def waking(self) -> Iterator[None]:
        """Make a cancellation of the running action end a wait of `read`, during the block."""
        with cancellation_fd() as fd:
            if fd is not None:
                self._poll.register(fd, select.POLLIN)
            try:
                yield
            finally:
                if fd is not None:
                    self._poll.unregister(fd)

    def read(self, run: RunningShellAction, deadline: float) -> bool:
        """Wait for output, a report or the shell's end; return whether the action has ended."""
        ready_events = dict(self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1))
        if self._status in ready_events:
            self._frames.add(self._take(self._status, ready_events))
            run.frame = self._frames.take()
        if self._output_fd in ready_events:
            run.output.add(self._take(self._output_fd, ready_events))
        if self._exit in ready_events:
            run.exit_code = self._process.poll()
            # The number of reads is bounded: a process that the shell left may write without end.
            for _ in range(_MOST_CHUNKS):
                self._frames.add(_read_some(self._status))
            run.frame = self._frames.take() or run.frame
        if run.frame is None and run.exit_code is None:
            return False
        # The pipe holds all output of a foreground command by now; a background job may continue.
        self.take_output(run)
        return True

    def take_output(self, run: RunningShellAction) -> None:
        """Read the output that is in the pipe, about 1 MiB at most."""
        max_total = run.output.total + _PIPE_SIZE
        while run.output.total < max_total and (chunk := _read_some(self._output_fd)):
            run.output.add(chunk)

    def _take(self, fd: int, ready_events: dict[int, int]) -> bytes:
        chunk = _read_some(fd)
        if not chunk and ready_events[fd] & select.POLLHUP:
            self._poll.unregister(fd)  # every copy of the pipe's other end is closed
        return chunk

    def rest(self, buffer: HeadTailBuffer) -> None:
        """Collect the output of background jobs in `buffer` until `wake`."""
        limit = buffer.limit * HARD_OUTPUT_FACTOR
        DRAIN.watch(self._process, self._output_fd, buffer, limit)

    def wake(self) -> None:
        """Stop the collection of output: from now on `read` takes the output."""
        DRAIN.release(self._output_fd)

    def signal(self, signal_number: int) -> None:
        """Send the shell a signal."""
        self._process.signal(signal_number)

    def close(self) -> None:
        """End the shell; its background jobs continue in the sandbox. Idempotent."""
        DRAIN.release(self._output_fd)
        self._process.close()


def _rewrite(fd: int, text: bytes) -> None:
    os.ftruncate(fd, 0)
    view = memoryview(text)
    offset = 0
    while offset < len(view):
        offset += os.pwrite(fd, view[offset:], offset)


def _has_unread_data(fd: int) -> bool:
    """Return whether a pipe holds unread data."""
    count = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    return any(count)


def _read_some(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return b""


def _enlarge(fd: int) -> None:
    """Enlarge a pipe, so it can hold the output that is printed between two reads."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        return  # the user's quota of pipe memory is used up; the default size is sufficient


# -- the lines of bash -----------------------------------------------------------------------------

# Here ``exec`` has no ``builtin`` before it: with ``builtin``, the redirections would not last.
_EPILOGUE_TEXT = rb"""BASH_ARGV0=bash
{ \builtin : 200>&0; } 2>/dev/null || \exec </dev/null
{ \builtin : 200>&1; } 2>/dev/null || \exec >&195
\builtin : 200>&2 || \exec 2>&195
[[ $1 != A || -s /proc/self/fd/198 ]] || \builtin exit "${3%% *}"
case "${3#* }" in *f*) \builtin set +f ;; esac
{ \builtin printf '%s\0' '' "$2" "$1" "${3%% *}" "${3#* }" "${DIRSTACK-}" \
"$BASHOPTS" "$SHELLOPTS" /proc/[0-9]*
case "${3#* }" in *f*) \builtin set -f ;; esac
\builtin declare -p; \builtin umask -p; \builtin trap -p; \builtin printf '\0'
\builtin alias -p; \builtin declare -f; \builtin printf '\0end\0%s\0' "$2"
} 2>/dev/null >&199 || \builtin :
case "${3#* }" in *e*) \builtin set -e; \builtin return 0 ;; esac
\builtin return "${3%% *}"
"""
"""The script that reports the shell's state (the epilogue).

Its arguments are the report's kind and number, and ``$? $-``. The script reopens a standard stream
that an action has closed; a redirection stays. If the shell can read no further action, the script
ends the shell. Bash writes line by line, and each line wakes InterCode's reader, so the script
avoids ``shopt -p``, which prints many lines.
"""

# Traps that would fire for InterCode's own lines are reported, and removed until the next action.
# The DEBUG trap is set last, because it would fire for the lines that set the other traps. If an
# action has a ``$(`` without an end, the parser of bash 5.2 still waits for a ``)``. The parser
# would then read and write outside its buffer. The ``eval ')'`` prevents this.
_COLLECT = (
    rf"\builtin trap -p RETURN ERR DEBUG>&{STATUS};\builtin trap - DEBUG ERR RETURN;"
    r"\builtin set +exv;\builtin eval ')';}>/dev/null 2>&1;"
)
_REPORT = rf"\. /proc/self/fd/{EPILOGUE}"
_SOURCE = rf"\. /proc/self/fd/{ACTION}"
_PARSER = b"bash: /proc/self/fd/%d: line " % ACTION
_LINE = re.compile(b"^" + _PARSER, re.MULTILINE)
_NO_END = b"(?:^%s\\d+: unexpected EOF while looking for .*\n)" % _PARSER
_WORDS = b"(?:syntax error|unexpected |conditional |expected |`).*\n"
_SAME_LINE = b"^%s(\\d+): %s(?:^%s\\1: %s)*" % (_PARSER, _WORDS, _PARSER, _WORDS)
_COMPLAINTS = {
    1: re.compile(_NO_END, re.MULTILINE),
    2: re.compile(_NO_END + b"?" + _SAME_LINE, re.MULTILINE),
}
"""Exit code → pattern of the lines in which bash's parser rejects an action.

An array without its end has a different exit code than other syntax errors.
"""


def _run_line(action_number: int) -> bytes:
    """Return the control line that runs the action and reports its end under that number."""
    return f'{_SOURCE};{{ BASH_ARGV0="$? $-";{_COLLECT}{_REPORT} A {action_number} "$0"\n'.encode()


def _start_line(action_number: int, status: int) -> bytes:
    """Return the first control line: set traps and descriptors, restore the state, report."""
    exit_trap, timeout_trap = (
        f'{{ {_REPORT} {kind} 0 "$? $-"; }} >/dev/null 2>&1' for kind in "XT"
    )
    setup = f"exec {OUTPUT}>&1 {CONTROL}<&-; trap '{exit_trap}' EXIT; "
    setup += f"trap '{timeout_trap}; trap - EXIT; exit 124' {TIMEOUT_SIGNAL}"
    restore = f'{{ {_SOURCE};BASH_ARGV0="{status} $-";{_COLLECT}'
    return f'{setup}; {restore}{_REPORT} A {action_number} "$0"\n'.encode()


def format_as_script(output: bytes, status: int) -> bytes:
    """Return an action's output with its syntax error in the form that ``bash -c`` would print.

    Bash parses nothing after a syntax error. Only the last such lines are bash's own, therefore;
    similar lines before them are a program's output.

    Args:
        output: The output.
        status: The exit code of the action.
    """
    complaints = _COMPLAINTS.get(status)
    if complaints is None or _PARSER not in output:
        return output
    *_, last_complaint = [None, *complaints.finditer(output)]
    if last_complaint is None:
        return output
    # Only the prefix at the beginning of each message is replaced. The message may quote a line of
    # the action, which could contain the same text.
    lines = _LINE.sub(b"bash: line ", last_complaint[0])
    return output[: last_complaint.start()] + lines + output[last_complaint.end() :]


# -- the report ------------------------------------------------------------------------------------

# The second form is the pattern itself, which bash prints if it did not expand the pattern.
_PROCESS = re.compile(rb"/proc/(\d{1,9}|\[0-9]\*)")
_STATUS = re.compile(rb"\d{1,3}")
_DEFAULTS = re.compile(rb"^trap -- - .*\n", re.MULTILINE)  # bash lists these in POSIX mode

_MAX_REPORT_BYTES = 1 << 26
"""Maximum bytes of a report.

If the agent floods the channel, its report is lost, but the host's memory is not filled.
"""
_MOST_FIELDS = 100_000
"""Maximum fields of a report. The report has one field for each process.

Each field becomes a Python object, so a flood of fields would fill the host's memory.
"""
_LONGEST_OPTIONS = 1 << 12
"""Maximum bytes of the names of all options. Each name becomes a Python object."""
_LONGEST_PATH = 1 << 14
"""Maximum bytes of a directory's path.

Bash can be in a directory whose path is too long for any system call.
"""


@dataclass(frozen=True, slots=True)
class ShellStateReport:
    """A report of the shell about its state.

    The fields `variables`, `functions`, `hooks` and `script` are commands that recreate the state.
    """

    kind: str = "A"
    """``A``: the action ended; ``X``: the shell exits; ``T``: it exits by `TIMEOUT_SIGNAL`."""
    status: int = 0
    flags: bytes = b""
    """``$-``: the letters of the options that are on."""
    directory: bytes = b""
    pids: tuple[int, ...] = ()
    """Process ids in the sandbox, except process 1: the shell, background jobs, daemons."""
    shell_options: tuple[bytes, ...] = ()
    """The options of ``shopt`` that are on."""
    set_options: tuple[bytes, ...] = ()
    """The options of ``set -o`` that are on."""
    variables: bytes = b""
    """Commands that set variables, the umask and traps."""
    functions: bytes = b""
    """Commands that define aliases, then functions."""
    hooks: bytes = b""
    """Traps on DEBUG, ERR and RETURN, which are set during actions only."""
    rest: tuple[bytes, ...] = ()
    """Fields before the report: the shell's response to source that `BashProcess.ask` ran."""
    script: bytes = b""
    """Source that restores the whole state, for a fork (`shell_state.script`); empty otherwise."""

    @property
    def cwd(self) -> str:
        """The shell's working directory."""
        return self.directory.decode("utf-8", "surrogateescape")

    @property
    def preamble(self) -> bytes:
        """Source that precedes the next action: the hooks, and ``set -x`` and ``set -v`` if on."""
        tracing = bytes(flag for flag in self.flags if flag in b"xv")
        return self.hooks + (b"\\builtin set -%s\n" % tracing if tracing else b"")


class ShellReportReader:
    """Parser of the channel of reports, which finds the report with the expected number.

    All other bytes on the channel come from the agent and are skipped.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._expected_numbers: tuple[bytes, ...] = ()

    def expect(self, action_number: int) -> None:
        """Expect the report with an action's number, or the report of an exit, with number 0."""
        self._buffer.clear()
        self._expected_numbers = (b"%d" % action_number, b"0")

    def add(self, chunk: bytes) -> None:
        """Append bytes of the channel."""
        self._buffer += chunk
        if len(self._buffer) > _MAX_REPORT_BYTES:
            del self._buffer[: -_MAX_REPORT_BYTES // 2]

    def take(self) -> ShellStateReport | None:
        """Return the expected report if it is complete; None otherwise."""
        for expected_number in self._expected_numbers if self._buffer.endswith(b"\0") else ():
            end = b"\0end\0" + expected_number + b"\0"
            if self._buffer.endswith(end):
                return self._parse(bytes(self._buffer[: -len(end)]), expected_number)
        return None

    @staticmethod
    def _parse(content: bytes, expected_number: bytes) -> ShellStateReport | None:
        if content.count(b"\0") > _MOST_FIELDS:
            return None
        *fields, variables, functions = content.split(b"\0")
        pids = []
        while fields and (match := _PROCESS.fullmatch(fields[-1])):
            pids.append(match[1])
            fields.pop()
        if len(fields) < 8 or fields[-7] != expected_number or not _STATUS.fullmatch(fields[-5]):
            return None
        hooks, _, kind, status, flags, directory, shell_options, set_options = fields[-8:]
        if max(map(len, (flags, shell_options, set_options))) > _LONGEST_OPTIONS:
            return None
        return ShellStateReport(
            kind.decode(errors="replace"),
            int(status),
            flags,
            directory[:_LONGEST_PATH],
            tuple(int(pid) for pid in pids if pid.isdigit() and pid != b"1"),
            tuple(shell_options.split(b":")),
            # The epilogue switches noglob off while it lists the processes, so the flags show it.
            tuple(set_options.split(b":")) + ((b"noglob",) if b"f" in flags else ()),
            variables,
            functions,
            _DEFAULTS.sub(b"", hooks) if hooks.startswith(b"trap -- ") else b"",
            tuple(fields[:-8]),
        )


# -- the state of a new shell ----------------------------------------------------------------------

# Options that make a shell useless, or that a new shell of InterCode never has, are not restored.
_UNRESTORED_OPTIONS = frozenset(
    b"errexit noexec xtrace verbose onecmd restricted monitor history histexpand".split()
)
OUR_TRAPS = re.compile(rb"^trap -- '\{ \\\. /proc/self/fd/\d+ .*\n", re.MULTILINE)


RESET_OPTIONS = b"""shopt -u ${BASHOPTS//:/ }
for option in ${SHELLOPTS//:/ }; do set +o $option; done; unset option"""


def quote_word(text: bytes) -> bytes:
    """Return a text as one quoted word of bash source."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def restore_script(frame: ShellStateReport) -> bytes:
    """Return bash source that restores the reported state in a new shell; errors in it are ignored.

    Commands that could call the agent's functions or aliases come before the definitions of these.
    """
    if frame.script:
        return frame.script
    if not frame.variables:
        return b"SECONDS=0\n"  # the shell may have been started some time before its first action
    aliases_on = b"expand_aliases" in frame.shell_options
    shell_options = [
        shell_option for shell_option in frame.shell_options if shell_option != b"expand_aliases"
    ]
    return b"\n".join(
        [
            b"cd -- " + quote_word(frame.directory),
            RESET_OPTIONS,
            *(
                b"set -o " + option
                for option in frame.set_options
                if option not in _UNRESTORED_OPTIONS
            ),
            b"shopt -s " + b" ".join(shell_options),
            OUR_TRAPS.sub(b"", frame.variables),
            frame.functions,
            b"\\builtin shopt -s expand_aliases" if aliases_on else b"",
            b"",
        ]
    )
