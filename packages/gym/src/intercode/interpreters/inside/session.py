"""Python process that runs actions. Variables and other names persist from action to action.

An action that harms this process harms only its own episode: rewards run the submission in another
process, and grade nothing in this process. But the episode should continue. Before each action, the
process therefore restores the state that earlier actions may have closed, replaced or cleared. All
functions that a response needs are names of this module, so an action that replaces a builtin does
not affect them.
"""

from __future__ import annotations
import __future__

import _signal  # type: ignore[import-not-found]  # what `signal` wraps in Python
import builtins
import io
import linecache
import os
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Any

from intercode.interpreters.inside.wire import STARTED, HostChannel, keep, write_all

if TYPE_CHECKING:
    from types import CodeType, FrameType

# The functions below use this copy, which an action that replaces a builtin does not change.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

DONE, FAILED, INTERRUPTED, EXITED = 1, 2, 3, 4
"""The kinds of a response, by how the action ended; the payload is the code of an exit."""
_NAME = "<action %d>"
_ONLY_TREE = 0x400
_FEWEST_FRAMES = 500

_real_builtins = builtins
_importers = sys.path_importer_cache
_expression, _expression_statement = __import__("ast").Expression, __import__("ast").Expr
_futures = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_getpid, _exit, _fstat, _dup2 = os.getpid, os._exit, os.fstat, os.dup2
_handle, _sigint = _signal.signal, _signal.SIGINT
_details = traceback.TracebackException
_own_prefixes = (
    os.path.dirname(traceback.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    "<frozen ",
)
"""Path prefixes of code that belongs to Python or InterCode, not to an action."""


class UnbufferedOutput(io.FileIO):
    """A stream that writes all data immediately, so the output of all streams stays in order."""

    def write(self, data: Any) -> int:
        """Write all data, and return its length."""
        write_all(self.fileno(), data)
        return len(data)


class PythonSession:
    """The names of a ``__main__`` module, and the runner of actions in it.

    Args:
        output_fd: The descriptor to which the output is written, also by programs that actions
            start.
        limit: Maximum characters of a printed value or traceback.
    """

    def __init__(self, output_fd: int, limit: int) -> None:
        self._limit = limit
        self._running = False
        self._flags = 0
        self._pid = _getpid()
        self.main = ModuleType("__main__")
        self.names = vars(self.main)
        output_fd = keep(output_fd)
        self._output_fd = output_fd
        self._standard = [(0, keep(0)), (1, output_fd), (2, output_fd)]
        self._files = [(_fstat(fd).st_dev, _fstat(fd).st_ino) for _, fd in self._standard]
        self._open_streams()

    def run(self, action_number: int, source: str) -> tuple[int, bytes]:
        """Run an action; return the kind of its end (such as `DONE`), and the code of an exit."""
        status, code = FAILED, b""
        try:
            try:
                self._prepare()
                self._running = True
                self._execute(_NAME % action_number, source)
                status = DONE
            finally:
                self._running = False
        except SystemExit as error:
            status, code = EXITED, _exit_code(error)
        except KeyboardInterrupt as error:
            status = INTERRUPTED
            self._show(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the action's
            self._show(error)
        if _getpid() != self._pid:  # this process is a child that the action has forked
            _exit(int(code) if code.isdigit() else int(status != DONE))
        self._settle()
        return status, code

    def _execute(self, name: str, source: str) -> None:
        lines = [line + "\n" for line in source.split("\n")]
        linecache.cache[name] = (len(source), None, lines, name)
        tree: Any = compile(source, name, "exec", self._flags | _ONLY_TREE, True)
        last_expression = (
            tree.body.pop() if tree.body and type(tree.body[-1]) is _expression_statement else None
        )
        body = self._compile(tree, name, "exec")
        value = (
            None
            if last_expression is None
            else self._compile(_expression(last_expression.value), name, "eval")
        )
        exec(body, self.names)
        if value is not None:
            self._display(eval(value, self.names))

    def _compile(self, tree: Any, name: str, mode: str) -> CodeType:
        code: CodeType = compile(tree, name, mode, self._flags, True)
        self._flags |= code.co_flags & _futures
        return code

    def _display(self, value: object) -> None:
        if value is None:
            return
        _real_builtins._ = value  # type: ignore[attr-defined]
        self._write(repr(value) + "\n")

    def _show(self, error: BaseException) -> None:
        """Print a traceback that shows only the frames of actions."""
        try:
            try:
                self._running = True
                self._write(_report(error))
            finally:
                self._running = False
        except BaseException:  # noqa: BLE001 - its text, too, is the action's
            self._write(f"{type(error).__name__}\n")

    def _write(self, text: str) -> None:
        if len(text) > self._limit:
            head_length = self._limit // 2
            omission_note = f"\n[... {len(text) - 2 * head_length} characters cut ...]\n"
            text = text[:head_length] + omission_note + text[-head_length:]
        write_all(self._output_fd, text.encode("utf-8", "backslashreplace"))

    def _prepare(self) -> None:
        """Restore the state that earlier actions may have closed, replaced or cleared."""
        _handle(_sigint, self._interrupt)
        for (standard_fd, spare_fd), file in zip(self._standard, self._files):
            try:
                status = _fstat(standard_fd)
                is_intact = (status.st_dev, status.st_ino) == file
            except OSError:
                is_intact = False
            if not is_intact:
                _dup2(spare_fd, standard_fd)
        if [sys.stdin, sys.stdout, sys.stderr] != self._streams or any(
            stream.closed for stream in self._streams
        ):
            self._open_streams()
        self.names["__builtins__"] = _real_builtins
        sys.modules.setdefault("builtins", _real_builtins)
        sys.modules["__main__"] = self.main
        _forget_folders()

    def _open_streams(self) -> None:
        self._streams = [
            io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8"),
            _text_output(1),
            _text_output(2),
        ]
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]

    def _settle(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        if sys.getrecursionlimit() < _FEWEST_FRAMES:
            sys.setrecursionlimit(1000)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._running:
            raise KeyboardInterrupt


def _forget_folders() -> None:
    """Clear Python's caches of folders, so an action can import a module just written."""
    for path in sys.path:
        try:
            _importers.pop(path or os.getcwd(), None)
        except OSError:  # the working directory no longer exists
            continue


def _text_output(fd: int) -> io.TextIOWrapper:
    raw_stream = UnbufferedOutput(fd, "w", closefd=False)
    return io.TextIOWrapper(raw_stream, "utf-8", "backslashreplace", write_through=True)


def _exit_code(error: SystemExit) -> bytes:
    code = error.code
    if code is None or isinstance(code, int):
        return b"%d" % ((code or 0) & 0xFF)
    return str(code).encode("utf-8", "backslashreplace")


def _report(error: BaseException) -> str:
    report = _details(type(error), error, error.__traceback__)
    reports = [report]
    for chain_report in reports:
        chain_report.stack[:] = [
            frame for frame in chain_report.stack if not frame.filename.startswith(_own_prefixes)
        ]
        related_reports = [
            chain_report.__cause__,
            chain_report.__context__,
            *(getattr(chain_report, "exceptions", None) or ()),
        ]
        reports += [
            related_report for related_report in related_reports if related_report is not None
        ]
    if report.stack or len(reports) > 1:
        return "".join(report.format())
    return "".join(report.format_exception_only())


def serve(channel: HostChannel, output_fd: int, limit: int) -> None:
    """Run actions until the host closes the channel.

    If an action sets an alarm, the alarm may ring after the action, at any point of this loop. The
    interrupted step is then repeated, except the action itself. The host ignores a response that
    arrives twice.
    """
    session = PythonSession(output_fd, limit)
    _handle(_sigint, session._interrupt)
    channel.send(STARTED)  # from now on an interrupt ends an action, never this process
    reply = 0, -1, b""
    while True:
        try:
            _, request_number, source = channel.peek()
            if reply[1] != request_number:
                reply = FAILED, request_number, b""  # the action must not run a second time
                status, code = session.run(request_number, source.decode("utf-8", "surrogatepass"))
                reply = status, request_number, code
            channel.send(*reply)
            channel.drop()
        except EOFError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever a handler of the action's raises
            if getattr(error, "errno", None) is not None:  # the channel is closed
                return
