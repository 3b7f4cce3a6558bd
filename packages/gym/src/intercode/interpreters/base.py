"""The contract of an interpreter: how an action becomes an observation.

Between two actions `DRAIN` reads the output of background jobs, for all interpreters.
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
from intercode_sandbox.base import OutputBuffer

HARD_OUTPUT_FACTOR = 64
"""An action that prints this many times the output limit is stopped: the rest would not be read."""
IS_INTERACTIVE: ContextVar[bool] = ContextVar("INTERACTIVE", default=False)
"""Whether Ctrl-C stops the running action rather than the program: a person types the actions."""
BY_CALLER = "caller"
"""The reason of an action that Ctrl-C, or a cancellation, has stopped."""
LAST_COMMAND = "the next command ends the episode"
"""The end of the note on an interpreter that cannot be started again; see `execute`."""
_HAS_ENDED = "the sandbox has ended, by what ran in it"
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one action."""

    output: bytes
    """The bytes that it printed, exactly (head and tail, if cut)."""
    ok: bool
    """Whether it ran without an error."""
    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    """Facts that the agent must be told, for instance that the time limit was hit."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the record: ``timed_out``, ``restarted``, ``truncated``, ``cwd``; ``gone``, if no
    further action can run, and ``executed`` false, if this one did not."""
    seconds: float = 0.0
    """Wall time."""

    @property
    def observation(self) -> str:
        """The text that the agent sees: the output, then each note in brackets on its own line."""
        text = self.output.decode("utf-8", "surrogateescape")
        if not self.notes:
            return text
        if text and not text.endswith("\n"):
            text += "\n"
        return text + "\n".join(f"[{note}]" for note in self.notes)


class StoppableAction(Protocol):
    """A running action that can be stopped."""

    stop_reason: str
    """The reason why it was stopped; empty: it was not."""


class Cancellation:
    """A request to stop one action, which another thread may make before, during and after it.

    A request that comes just before a statement may miss it: repeat it until the call returns.
    Scoring, which may follow an action in the same call, is not stopped.

    Attributes:
        requested: Whether there was a request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None
        self.requested = False

    def request(self) -> None:
        """Stop the action, if it runs."""
        with self._lock:
            self.requested = True
            if self._wake is not None:
                self._wake()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake`, on the thread of a request, at one during the block or before it.

        Args:
            wake: Returns at once.
        """
        with self._lock:
            self._wake = wake
            if self.requested:
                wake()
        try:
            yield
        finally:
            with self._lock:
                self._wake = None


CANCELLATION: ContextVar[Cancellation | None] = ContextVar("CANCELLATION", default=None)
"""The cancellation of the call under way, from its caller."""
_CANCELLATION: ContextVar[Cancellation | None] = ContextVar("_CANCELLATION", default=None)
"""The cancellation that the running action obeys: that of the call, while no score is made."""


@contextmanager
def allow_cancellation() -> Iterator[None]:
    """Let the caller's `CANCELLATION` stop the action that runs in the block."""
    token = _CANCELLATION.set(CANCELLATION.get())
    try:
        yield
    finally:
        _CANCELLATION.reset(token)


@contextmanager
def wake_on_cancellation(wake: Callable[[], object]) -> Iterator[None]:
    """Call `wake`, from another thread, at a cancellation of the running action."""
    cancellation = _CANCELLATION.get()
    if cancellation is None:
        yield
        return
    with cancellation.waking(wake):
        yield


@contextmanager
def cancellation_fd() -> Iterator[int | None]:
    """Provide a descriptor that a cancellation makes readable; None: the action has none."""
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
    """Tell whether the running action is to be stopped."""
    cancellation = _CANCELLATION.get()
    return cancellation is not None and cancellation.requested


@contextmanager
def mark_interrupt(run: StoppableAction) -> Iterator[None]:
    """Mark an action as stopped if Ctrl-C comes during the block, if `IS_INTERACTIVE`."""
    try:
        yield
    except KeyboardInterrupt:
        if not IS_INTERACTIVE.get():
            raise
        run.stop_reason = BY_CALLER


class Interpreter(Protocol):
    """Runs actions. Its state lives from turn to turn of one episode and not beyond."""

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action.

        After an exception of the caller's own (Ctrl-C), the action may still run, and no other may
        be run here: an environment ends the attempt. From another thread, the sandbox can be closed
        meanwhile, but not the interpreter.

        Args:
            action: Code in the interpreter's language.
            timeout: Seconds; default: the sandbox's limit.

        Raises:
            ActionError: The action cannot be run at all (it holds a NUL).
            UsageError: There is no such time limit; see `Limits.seconds`.
            SandboxError: The sandbox died.
        """

    def close(self) -> None:
        """End the interpreter. Idempotent; the sandbox lives on."""


def act(interpreter: Interpreter, action: str, timeout: float | None) -> Turn:
    """Run an action, and record it; see `Interpreter.execute`."""
    return record_turn(action, execute(interpreter, action, timeout))


def execute(interpreter: Interpreter, action: str, timeout: float | None) -> Execution:
    """Run an action. The agent is told of its mistakes; the end of its sandbox may be one.

    Raises:
        SandboxError: The sandbox died, and not by what ran in it.
        UsageError: The interpreter is a user's, and returns something else.
    """
    if isinstance(action, NoAction):
        info = {"executed": False, "invalid": True}
        return Execution(b"", ok=False, notes=(action.note,), info=info)
    try:
        encode(action)  # half a surrogate pair has no bytes that could be executed
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
        # The turn that lost the interpreter has said so, and left one for `submit`.
        return replace(execution, info={**execution.info, ENDED: True})
    return execution


def record_turn(action: str, execution: Execution) -> Turn:
    """Record an action and what came of it."""
    info = dict(execution.info)
    if execution.notes:
        info["output"] = decode(execution.output)  # what a reward compares
    return Turn(
        str(action),
        execution.observation,
        ok=execution.ok,
        exit_code=execution.exit_code,
        seconds=execution.seconds,
        info=info,
    )


class Place(Protocol):
    """The place where one episode happens: a sandbox, or a session with a database."""

    def kill(self) -> object:
        """End everything that runs in it."""

    def close(self) -> None:
        """Free the workplace. Idempotent, safe from any thread."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The saved state of an interpreter and of its place. Nothing runs for it."""

    open: Callable[[], tuple[Place, Interpreter]]
    """Start both again, as they were; any number of times, from any thread, also once the source
    has been closed."""
    close: Callable[[], None]
    """Free what is kept for it, once the places that were started from it are closed. Idempotent,
    safe from any thread."""
    carried: tuple[str, ...] = ()
    """Names of what is saved, for people: ``files``, ``variables``, …"""
    lost: tuple[str, ...] = ()
    """The parts of the state that were left out, in words. Only with ``lossy``."""


@runtime_checkable
class SupportsSave(Protocol):
    """An ability that an interpreter may have in addition.

    Without it, or where it refuses, a running episode is forked by repeating its actions.
    """

    def save(self, lossy: bool = False) -> SavedState:
        """Save the state of the interpreter and of its place, between two actions.

        Both go on, and answer as if nothing had been saved. They may start again when they are
        next used.

        Args:
            lossy: Leave out the parts of the state that cannot be carried, and list them in `lost`.

        Raises:
            ForkError: Parts of it cannot be carried; the message lists them.
            SandboxError: The place failed.
        """


class OutputDrain:
    """Reads the pipes of idle interpreters, each into the buffer of its next action.

    A pipe holds at most 1 MiB: without a reader a job that prints more would stand still. One
    thread serves all interpreters; it sleeps while nothing is printed.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._owner = os.getpid()
        # Reentrant, as a process can be garbage-collected at any line, also below.
        self._lock = threading.RLock()
        self._pipes: dict[int, _Pipe] = {}
        self._epoll: select.epoll | None = None

    def watch(self, owner: object, fd: int, buffer: OutputBuffer, limit: int) -> None:
        """Read `fd`, which does not block, into `buffer`, until that has taken `limit` bytes.

        Args:
            owner: The object that closes `fd` at its own end, and so ends the watch, too.
            fd: A pipe.
            buffer: For what comes.
            limit: Bytes.
        """
        if self._owner != os.getpid():
            self._forget()  # a fork has no thread
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._serve, args=(self._epoll,), name="intercode-drain", daemon=True
                ).start()
            self._pipes[fd] = _Pipe(buffer, limit, weakref.ref(owner, partial(self._lose, fd)))
            self._epoll.register(fd, select.EPOLLIN)

    def release(self, fd: int) -> None:
        """Leave `fd` alone from now on. Idempotent."""
        if self._owner == os.getpid():
            with self._lock:
                self._drop(fd)

    def _drop(self, fd: int) -> None:
        if self._pipes.pop(fd, None) is not None and self._epoll is not None:
            with suppress(OSError):  # the owner has gone, and closed it first
                self._epoll.unregister(fd)

    def _lose(self, fd: int, owner: weakref.ref[object]) -> None:
        """Leave a pipe alone whose owner was garbage-collected; its number may be another's now."""
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
class _Pipe:
    """A pipe that the drain reads."""

    buffer: OutputBuffer
    limit: int
    owner: weakref.ref[object]

    def take(self, fd: int) -> bool:
        """Read once; return whether to go on."""
        owner = self.owner()  # held meanwhile, so that `fd` stays its own
        if owner is None:
            return False
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer.add(data)
        return bool(data) and self.buffer.total < self.limit


DRAIN = OutputDrain()
