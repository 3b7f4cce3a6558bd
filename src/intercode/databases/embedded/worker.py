"""The engine's end of a worker process, and the pool of those that wait for a session."""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from intercode.databases.base import Role
from intercode.databases.embedded.inside import wire
from intercode.errors import DatabaseError
from intercode.sandbox.base import Limits, Sandbox, Worker

_MOST_IDLE = 64
_KILLED = 128 + signal.SIGKILL
_END_SECONDS = 5.0


class WorkerEndedError(DatabaseError):
    """The process ended before it had answered."""


class WorkerLateError(DatabaseError):
    """It did not answer in time."""


class WorkerRefusedError(DatabaseError):
    """The worker answered that it cannot be done."""


class EmbeddedWorker:
    """A worker process in a sandbox of its own, which serves one session after another."""

    def __init__(self, sandbox: Sandbox, module: str) -> None:
        self.sandbox = sandbox
        self.module = module
        self.process: Worker = sandbox.worker(module)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def request(
        self, message: Sequence[Any], seconds: float, size: int, fds: Sequence[int] = ()
    ) -> Any:
        """Ask for something; the answer.

        Args:
            message: The operation and its arguments.
            seconds: How long to wait.
            size: What the values of the answer may weigh.
            fds: Descriptors to go with it.

        Raises:
            WorkerEndedError, WorkerLateError: No answer came.
            WorkerRefusedError: The answer says that it cannot be done.
            DatabaseError: The answer is malformed.
        """
        channel, limit = self.process.socket, wire.frame_limit(size)
        deadline = time.monotonic() + seconds
        operation, *arguments = message
        try:
            channel.settimeout(seconds)
            wire.send(channel, wire.encode([operation, limit, *arguments]), fds)
            data, _ = wire.receive(
                channel,
                limit,
                lambda: channel.settimeout(max(deadline - time.monotonic(), 0.001)),
            )
            done, value = wire.decode(data)
        except TimeoutError as error:
            raise WorkerLateError(f"no answer within {seconds:g} s") from error
        except (EOFError, OSError) as error:
            raise WorkerEndedError(self.obituary()) from error
        except (TypeError, ValueError) as error:
            self.interrupt()  # what it may still say would be taken for another answer
            raise DatabaseError(f"the database process answered nonsense: {error}") from error
        if not done:
            raise WorkerRefusedError(str(value))
        return value

    def obituary(self) -> str:
        """Why the process is no more."""
        poll = select.poll()
        poll.register(self.process.exit_fd)
        poll.poll(_END_SECONDS * 1000)
        code = self.process.poll()
        if code == _KILLED:
            return "out of memory: the database process was ended"
        said = self.process.errors().strip().rpartition("\n")[2]
        return f"the database process ended with exit code {code}" + (f": {said}" if said else "")

    def interrupt(self) -> None:
        """Kill the process, from any thread: whoever waits for its answer finds it ended."""
        self.process.signal(signal.SIGKILL)

    def restart(self) -> None:
        """Begin anew with another process over the same files.

        Raises:
            SandboxError: The sandbox is lost.
        """
        self.sandbox.kill()
        process, self.process = self.process, self.sandbox.worker(self.module)
        process.close()

    def close(self) -> None:
        """End it and its sandbox."""
        self.sandbox.close()
        self.process.close()


class WorkerPool:
    """Workers that wait for a session, by whom they served and by their limits. Thread-safe.

    Args:
        start: Starts one.
    """

    def __init__(self, start: Callable[[Limits], EmbeddedWorker]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, tuple[Role, Limits, EmbeddedWorker]] = OrderedDict()
        self._numbers = itertools.count()
        self._closed = False
        self._owner = os.getpid()

    def take(self, role: Role, limits: Limits) -> EmbeddedWorker:
        """A worker that has served nobody, or only those of the same role.

        Raises:
            SandboxError: None can be started.
        """
        while (worker := self._waiting(role, limits)) is not None:
            if worker.alive:
                return worker
            worker.close()
        return self._start(limits)

    def _waiting(self, role: Role, limits: Limits) -> EmbeddedWorker | None:
        with self._lock:
            if self._closed:
                raise DatabaseError("the engine is closed")
            if self._owner != os.getpid():  # forked: those that wait are the parent's
                self._owner, self._idle = os.getpid(), OrderedDict()
            for number in reversed(self._idle):
                if self._idle[number][:2] == (role, limits):
                    return self._idle.pop(number)[2]
        return None

    def give_back(self, worker: EmbeddedWorker, role: Role, limits: Limits) -> None:
        """Take back a worker that is in order."""
        surplus: EmbeddedWorker | None = worker
        with self._lock:
            if not self._closed:
                self._idle[next(self._numbers)] = (role, limits, worker)
                full = len(self._idle) > _MOST_IDLE
                surplus = self._idle.popitem(last=False)[1][2] if full else None
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """End those that wait, and take back no more."""
        with self._lock:
            self._closed = True
            idle = [worker for _, _, worker in self._idle.values()]
            self._idle.clear()
        for worker in idle:
            worker.close()
