"""The interface of interpreters, which execute actions, with cancellation and saved states.

An `Interpreter` runs an action and returns an `Execution`, which holds the observation. A
`ActionCancellation` stops a running action from another thread. Between two actions, background
jobs of all interpreters may print; one thread of `DRAIN` reads this output.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from intercode.episode import ENDED, NoAction, Turn, decode, encode
from intercode.errors import ActionError, CausedInsideError, UsageError
from intercode_sandbox.base import HeadTailBuffer

HARD_OUTPUT_FACTOR = 64
"""Multiple of the output limit at which an action is stopped: no reader needs further output."""
IS_INTERACTIVE: ContextVar[bool] = ContextVar("IS_INTERACTIVE", default=False)
"""Whether a person types the actions: Ctrl-C then stops the running action, not the program."""
BY_CALLER = "caller"
"""Stop reason of an action that Ctrl-C or a cancellation has stopped."""
LAST_COMMAND = "the next command ends the episode"
"""End of the note to the agent about an interpreter that cannot be restarted; see `execute`."""
_HAS_ENDED = "the sandbox has ended, by what ran in it"
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one action."""

    output: bytes
    """The bytes that the action printed: all, or the head and the tail if the output was cut."""
    ok: bool
    """Whether the action ran without an error."""
    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    """Messages for the agent, for instance that the action reached the time limit."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the record: ``timed_out``, ``restarted``, ``truncated``, ``cwd``.

    ``gone`` is true if no further action can run; ``executed`` is false if this action did not run.
    """
    seconds: float = 0.0
    """The wall-clock time of the action in seconds."""

    @property
    def observation(self) -> str:
        """The text for the agent: the output, then each note in brackets on its own line."""
        text = self.output.decode("utf-8", "surrogateescape")
        if not self.notes:
            return text
        if text and not text.endswith("\n"):
            text += "\n"
        return text + "\n".join(f"[{note}]" for note in self.notes)


class StoppableAction(Protocol):
    """A running action that can be stopped."""

    stop_reason: str
    """Reason for the stop; empty: the action was not stopped."""


class ActionCancellation:
    """A request to stop one action, from another thread, before, during or after the action.

    A request that comes immediately before an SQL statement starts may not stop the statement. A
    caller therefore repeats the request until the call with the action returns. The scoring that
    may follow an action in the same call is not stopped.

    Attributes:
        requested: Whether a stop was requested.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake_up: Callable[[], object] | None = None
        self.requested = False

    def request(self) -> None:
        """Stop the action, if it runs."""
        with self._lock:
            self.requested = True
            if self._wake_up is not None:
                self._wake_up()

    @contextmanager
    def waking(self, wake_up: Callable[[], object]) -> Iterator[None]:
        """Call `wake_up` at a stop request in the block, or at once after an earlier request.

        Args:
            wake_up: The function to call, which must return at once. The call is made on the thread
                that requests the stop, or, after an earlier request, on this thread.
        """
        with self._lock:
            self._wake_up = wake_up
            if self.requested:
                wake_up()
        try:
            yield
        finally:
            with self._lock:
                self._wake_up = None


CANCELLATION: ContextVar[ActionCancellation | None] = ContextVar("CANCELLATION", default=None)
"""The cancellation of the current call to the environment. The caller sets the variable."""
_CANCELLATION: ContextVar[ActionCancellation | None] = ContextVar("_CANCELLATION", default=None)
"""The cancellation that a running action obeys: `CANCELLATION`, but None during scoring."""


@contextmanager
def allow_cancellation() -> Iterator[None]:
    """Let the caller's `CANCELLATION` stop the action that runs in the block."""
    token = _CANCELLATION.set(CANCELLATION.get())
    try:
        yield
    finally:
        _CANCELLATION.reset(token)


@contextmanager
def wake_on_cancellation(wake_up: Callable[[], object]) -> Iterator[None]:
    """Call `wake_up` when the running action is cancelled during the block.

    Another thread may make the call (`ActionCancellation.waking`).
    """
    cancellation = _CANCELLATION.get()
    if cancellation is None:
        yield
        return
    with cancellation.waking(wake_up):
        yield


@contextmanager
def cancellation_fd() -> Iterator[int | None]:
    """Yield a descriptor that a cancellation makes readable; None: the action has none."""
    if _CANCELLATION.get() is None:
        yield None
        return
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        with wake_on_cancellation(partial(os.eventfd_write, fd, 1)):
            yield fd
    finally:
        os.close(fd)


def is_cancelled() -> bool:
    """Return whether a stop of the running action was requested."""
    cancellation = _CANCELLATION.get()
    return cancellation is not None and cancellation.requested


@contextmanager
def mark_interrupt(run: StoppableAction) -> Iterator[None]:
    """Set an action's stop reason at Ctrl-C in the block, instead of raising `KeyboardInterrupt`.

    Without `IS_INTERACTIVE`, the exception propagates.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not IS_INTERACTIVE.get():
            raise
        run.stop_reason = BY_CALLER


class Interpreter(Protocol):
    """The executor of an episode's actions. State, such as variables, lasts between actions."""

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action.

        If Ctrl-C raises an exception in the caller, the action may still run. No further action
        may run then, so the environment ends the episode. While an action runs, another thread may
        close the sandbox, but not the interpreter.

        Args:
            action: Code in the interpreter's language.
            timeout: Seconds; None: the sandbox's limit.

        Raises:
            ActionError: The action cannot run at all, for example because it contains a NUL.
            UsageError: The time limit is invalid; see `Limits.seconds`.
            SandboxError: The sandbox died.
        """

    def close(self) -> None:
        """End the interpreter. Idempotent. The sandbox continues."""


def act(interpreter: Interpreter, action: str, timeout: float | None) -> Turn:
    """Run an action and return its record; see `Interpreter.execute`."""
    return record_turn(action, execute(interpreter, action, timeout))


def execute(interpreter: Interpreter, action: str, timeout: float | None) -> Execution:
    """Run an action, and convert a failure that the agent caused to a note for the agent.

    Raises:
        SandboxError: The sandbox died, and no process in it was the cause.
        UsageError: A user's interpreter returned another type than `Execution`.
    """
    if isinstance(action, NoAction):
        info = {"executed": False, "invalid": True}
        return Execution(b"", ok=False, notes=(action.note,), info=info)
    try:
        # An action with a surrogate that stands for no byte is refused here, before anything runs.
        encode(action)
        execution = interpreter.execute(action, timeout)
    except (ActionError, UnicodeEncodeError) as error:
        note = f"not executed: {error}"
        return Execution(b"", ok=False, notes=(note,), info={"executed": False})
    except CausedInsideError:
        return Execution(b"", ok=False, notes=(_HAS_ENDED,), info={ENDED: True})
    if not isinstance(execution, Execution):
        raise UsageError(
            f"{type(interpreter).__qualname__}.execute must return an Execution (its output is "
            f"bytes), not {execution!r}"
        )
    if execution.info.get("gone") and execution.info.get("executed") is False:
        # An earlier turn announced this end, and left the agent one turn to submit its answer.
        return replace(execution, info={**execution.info, ENDED: True})
    return execution


def record_turn(action: str, execution: Execution) -> Turn:
    """Return the record of an action and its execution."""
    info = dict(execution.info)
    if execution.notes:
        info["output"] = decode(execution.output)  # rewards compare the output without notes
    return Turn(
        str(action),
        execution.observation,
        ok=execution.ok,
        exit_code=execution.exit_code,
        seconds=execution.seconds,
        info=info,
    )


class Workspace(Protocol):
    """The workspace of one episode: a sandbox, or a session with a database."""

    def kill(self) -> object:
        """Stop everything that runs in the workspace."""

    def close(self) -> None:
        """Free the workspace. Idempotent, safe from any thread."""


@dataclass(frozen=True, slots=True)
class SavedInterpreterState:
    """The saved state of an interpreter and its workspace. A saved state needs no process."""

    open: Callable[[], tuple[Workspace, Interpreter]]
    """Start a workspace and an interpreter in the saved state.

    The function may be called any number of times, from any thread, even after the original is
    closed.
    """
    close: Callable[[], None]
    """Free the saved data. Idempotent, safe from any thread.

    All workspaces that were started from the saved state must be closed before.
    """
    carried: tuple[str, ...] = ()
    """Names of the saved parts, for people: ``files``, ``variables``, …"""
    lost: tuple[str, ...] = ()
    """Descriptions of parts of the state that were not saved; empty unless `lossy` was set."""


@runtime_checkable
class SupportsInterpreterSave(Protocol):
    """An interpreter's optional ability to save its state.

    Without this ability, or after a `ForkError` of `save`, a fork in the mode ``auto`` is a new
    episode that repeats the actions.
    """

    def save(self, lossy: bool = False) -> SavedInterpreterState:
        """Save the state of the interpreter and its workspace, between two actions.

        Both continue, and respond as if nothing had been saved. Each may restart at its next use.

        Args:
            lossy: Whether to leave out parts of the state that cannot be saved, and list them in
                `SavedInterpreterState.lost`.

        Raises:
            ForkError: Parts of the state cannot be saved; the message lists them.
            SandboxError: The workspace failed.
        """


class IdleOutputReader:
    """Reader of the output that idle interpreters print, for the output of their next actions.

    A pipe holds at most 1 MiB: without a reader, a background job that prints more would block. One
    thread serves all interpreters. The thread sleeps while no job prints.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._owner = os.getpid()
        # The lock is reentrant. Garbage collection may call `_lose` on any thread at any line, even
        # while the thread holds this lock.
        self._lock = threading.RLock()
        self._pipes: dict[int, _OutputPipe] = {}
        self._epoll: select.epoll | None = None

    def watch(self, owner: object, fd: int, buffer: HeadTailBuffer, limit: int) -> None:
        """Read the non-blocking `fd` into `buffer`, until `buffer` has taken `limit` bytes.

        Args:
            owner: The object that closes `fd`. When the owner is garbage-collected, the reading
                ends.
            fd: The reading end of a pipe.
            buffer: The buffer for the output.
            limit: Bytes in the buffer at which the reading ends.
        """
        if self._owner != os.getpid():
            self._forget()  # after a fork, the thread exists in the parent only
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._serve, args=(self._epoll,), name="intercode-drain", daemon=True
                ).start()
            self._pipes[fd] = _OutputPipe(
                buffer, limit, weakref.ref(owner, partial(self._lose, fd))
            )
            self._epoll.register(fd, select.EPOLLIN)

    def release(self, fd: int) -> None:
        """Stop reading `fd`. Idempotent."""
        if self._owner == os.getpid():
            with self._lock:
                self._drop(fd)

    def _drop(self, fd: int) -> None:
        if self._pipes.pop(fd, None) is not None and self._epoll is not None:
            with suppress(OSError):  # the owner may have closed `fd` before
                self._epoll.unregister(fd)

    def _lose(self, fd: int, owner: weakref.ref[object]) -> None:
        """Drop the pipe of a garbage-collected owner, if no other pipe has its descriptor now."""
        with self._lock:
            if (pipe := self._pipes.get(fd)) is not None and pipe.owner is owner:
                self._drop(fd)

    def _serve(self, epoll: select.epoll) -> None:
        while True:
            for fd, _ in epoll.poll():
                with self._lock:
                    pipe = self._pipes.get(fd)
                    if pipe is not None and not pipe.take(fd):
                        self._drop(fd)


@dataclass(frozen=True, slots=True)
class _OutputPipe:
    """A pipe that the drain reads."""

    buffer: HeadTailBuffer
    limit: int
    owner: weakref.ref[object]

    def take(self, fd: int) -> bool:
        """Read available output once; return whether to continue reading."""
        owner = self.owner()  # while this reference exists, the owner does not close `fd`
        if owner is None:
            return False
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer.add(chunk)
        return bool(chunk) and self.buffer.total < self.limit


DRAIN = IdleOutputReader()
