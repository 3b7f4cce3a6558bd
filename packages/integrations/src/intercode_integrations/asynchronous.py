"""Environments and sandboxes for programs that have an event loop: servers, agents' frameworks.

A call runs on a thread of an executor that all share, so that only a call that runs costs a
thread: a thousand idle episodes have none. Calls of one environment run one after the other, in
the order in which they were made.

A cancelled call leaves nothing half done. One that has not begun never begins; one that runs
continues in the background, and its environment takes the next call when it has ended. Only
`close` ends a running call. An action whose wait is cancelled, also before it began, ends the
attempt: its observation is lost, and the next action is refused until `reset`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import PurePosixPath
from typing import Any, Generic, Self, TypeVar

import gymnasium

from intercode.envs.base import InterCodeEnv
from intercode.envs.snapshots import EpisodeSnapshot, How
from intercode.episode import Episode, Score
from intercode.errors import EnvironmentStateError, UsageError
from intercode.models.base import Tool
from intercode.task import Dataset, Task
from intercode_sandbox.base import Change, Completed, SandboxBackend, Snapshot
from intercode_sandbox.units import MIB

T = TypeVar("T")
Result = tuple[str, float, bool, bool, dict[str, Any]]

MOST_THREADS = 1024
"""Calls that run at once, of all environments without an executor of their own."""


@cache
def threads(pid: int) -> Executor:
    """Return the threads of a process for calls; a thread is made when none is idle."""
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="intercode-call")


@cache
def closers(pid: int) -> Executor:
    """Return the threads that close: where all others are busy, closing makes them free."""
    return ThreadPoolExecutor(16, thread_name_prefix="intercode-close")


@dataclass(frozen=True, slots=True)
class _Job(Generic[T]):
    call: Callable[[], T]
    answer: asyncio.Future[T]
    discard: Callable[[T], object]
    """Frees a result that is no longer awaited."""
    abandon: Callable[[], object]
    """Called between two calls, when this one is no longer awaited."""


class Calls:
    """Runs the calls of one thing, one after the other, for the tasks of one event loop.

    Args:
        what: Names the thing, for messages.
        stop: Ends the call that runs; called from another thread.
        close: Frees the thing; called when no call runs.
        executor: Threads of the caller's own, in place of the shared ones.
    """

    def __init__(
        self,
        what: str,
        stop: Callable[[], object],
        close: Callable[[], object],
        executor: Executor | None = None,
    ) -> None:
        self._what, self._stop, self._close = what, stop, close
        self._executor = executor
        self._waiting: deque[_Job[Any]] = deque()
        self._running: asyncio.Future[Any] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._idle: list[Callable[[], object]] = []

    async def __call__(
        self,
        call: Callable[[], T],
        discard: Callable[[T], object] = lambda result: None,
        abandon: Callable[[], object] = lambda: None,
    ) -> T:
        """Run a call when all before it have ended, and wait for its result.

        Args:
            call: Runs on a thread.
            discard: Frees the result if the wait for it was cancelled.
            abandon: Is called if the wait was cancelled, before the next call begins.

        Raises:
            EnvironmentStateError: The thing is closed, or was closed before the call began.
        """
        if self._closing is not None:
            raise EnvironmentStateError(f"{self._what} is closed")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(call, answer, discard, abandon))
        self._next()
        return await answer

    async def close(self) -> None:
        """End the running call, refuse those that wait, and free the thing. Idempotent.

        If the wait for it is cancelled, closing continues.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._closing)

    def when_idle(self, work: Callable[[], object]) -> None:
        """Do something when no call runs or waits: now, or after the last one."""
        self._idle.append(work)
        self._next()

    def _next(self) -> None:
        while self._waiting and self._running is None:
            job = self._waiting.popleft()
            if job.answer.done():
                job.abandon()
            else:
                executor = self._executor or threads(os.getpid())
                self._running = job.answer.get_loop().run_in_executor(executor, job.call)
                self._running.add_done_callback(partial(self._ended, job))
        while self._idle and self._running is None:
            self._idle.pop()()

    def _ended(self, job: _Job[T], running: asyncio.Future[T]) -> None:
        self._running = None
        error = running.exception()
        if not job.answer.done():
            if error is None:
                job.answer.set_result(running.result())
            else:
                job.answer.set_exception(error)
        else:
            job.abandon()
            if error is None:
                closers(os.getpid()).submit(job.discard, running.result())
        self._next()

    async def _end(self) -> None:
        loop, pid = asyncio.get_running_loop(), os.getpid()
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(EnvironmentStateError(f"{self._what} was closed"))
        if self._running is not None:
            await loop.run_in_executor(closers(pid), self._stop)
        if self._running is not None:
            await asyncio.wait([self._running])
        await loop.run_in_executor(closers(pid), self._close)


class AsyncEnv:
    """An environment whose calls are awaited.

    ``async with`` closes it. `env` is the environment itself, for attributes that cost no time.
    Gymnasium's wrappers around it take part in `reset`, `step` and `close`.

    Args:
        env: An environment, from `intercode.make`.
        executor: Threads for its calls; default: up to 1,024 that all share.

    Raises:
        UsageError: It is not one of InterCode's.
    """

    def __init__(self, env: gymnasium.Env[str, str], executor: Executor | None = None) -> None:
        inner = env.unwrapped
        if not isinstance(inner, InterCodeEnv):
            raise UsageError(f"AsyncEnv takes InterCode's environments: not {type(inner).__name__}")
        self.env = env
        self._inner = inner
        self._executor = executor
        self._calls = Calls("this environment", inner.stop, env.close, executor)

    @property
    def episode(self) -> Episode:
        """See `InterCodeEnv.episode`."""
        return self._inner.episode

    @property
    def dataset(self) -> Dataset:
        """The tasks."""
        return self._inner.dataset

    @property
    def tools(self) -> list[Tool]:
        """See `InterCodeEnv.tools`."""
        return self._inner.tools

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, **named: Any
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; see `InterCodeEnv.reset`."""
        return await self._calls(partial(self.env.reset, seed=seed, options=options, **named))

    async def step(self, action: str) -> Result:
        """Take an action; see `InterCodeEnv.step`.

        If the wait for it is cancelled, the action is taken nevertheless, unless it waited for
        another call: `episode` has its turn when the next call begins. The attempt has ended then.

        Raises:
            EnvironmentStateError: As `InterCodeEnv.step`; or an action before it was cancelled.
        """
        return await self._act(partial(self.env.step, action))  # type: ignore[arg-type]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool; see `InterCodeEnv.call`."""
        return await self._act(partial(self._inner.call, name, arguments))

    async def _act(self, call: Callable[[], Result]) -> Result:
        def abandon() -> None:
            self._inner.interrupt(asyncio.CancelledError())

        return await self._calls(call, abandon=abandon)

    async def score(
        self,
        task: Task,
        place: Any,
        *,
        output: str | None = None,
        episode: Episode | None = None,
    ) -> Score:
        """Score a place that an agent has left; see `InterCodeEnv.score`.

        Args:
            task: The task.
            place: The place; an `AsyncBackend`, too, of which no call runs.
            output: The agent's answer.
            episode: The record of the attempt, in place of `output`.
        """
        place = place.sandbox if isinstance(place, AsyncBackend) else place
        score = partial(self._inner.score, task, place, output=output, episode=episode)
        return await self._calls(score)

    async def snapshot(self, how: How = "auto", lossy: bool = False) -> EpisodeSnapshot:
        """Save the running episode; see `InterCodeEnv.snapshot`."""
        return await self._calls(partial(self._inner.snapshot, how, lossy), EpisodeSnapshot.close)

    async def restore(self, snapshot: EpisodeSnapshot) -> tuple[str, dict[str, Any]]:
        """Begin a fork of a snapshot's episode here; see `InterCodeEnv.restore`."""
        return await self._calls(partial(self._inner.restore, snapshot))

    async def fork(self, n: int = 1, how: How = "auto", lossy: bool = False) -> list[AsyncEnv]:
        """Fork the running episode into other environments; see `InterCodeEnv.fork`.

        Forks that are no longer awaited are closed.
        """

        def close(forks: list[InterCodeEnv[Any]]) -> None:
            for fork in forks:
                fork.close()

        forks = await self._calls(partial(self._inner.fork, n, how, lossy), close)
        return [AsyncEnv(fork, self._executor) for fork in forks]

    def when_idle(self, work: Callable[[], object]) -> None:
        """Do something when no call runs or waits: now, or after the last one."""
        self._calls.when_idle(work)

    async def close(self) -> None:
        """End the episode, with the action that runs, and free its sandbox. Idempotent.

        A call that runs or waits raises `SandboxClosedError` or `EnvironmentStateError`.
        """
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncBackend:
    """A sandbox whose calls are awaited.

    ``async with`` closes it. A command whose wait is cancelled runs to its end or its time limit.

    Args:
        sandbox: A sandbox; `sandbox` is that, for attributes that cost no time.
        executor: Threads for its calls; default: up to 1,024 that all share.
    """

    def __init__(self, sandbox: SandboxBackend, executor: Executor | None = None) -> None:
        self.sandbox = sandbox
        self._calls = Calls("this sandbox", sandbox.close, sandbox.close, executor)

    async def exec(self, argv: Sequence[str | bytes], **options: Any) -> Completed:
        """Run a program to its end; see `SandboxBackend.exec`."""
        return await self._calls(partial(self.sandbox.exec, argv, **options))

    async def read_file(self, path: str | PurePosixPath, limit: int = 100 * MIB) -> bytes:
        """Return the content of a regular file; see `SandboxBackend.read_file`."""
        return await self._calls(partial(self.sandbox.read_file, path, limit))

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o644) -> None:
        """Write a regular file; see `SandboxBackend.write_file`."""
        await self._calls(partial(self.sandbox.write_file, path, data, mode))

    async def changes(self) -> list[Change]:
        """List all that differs from the image; see `SandboxBackend.changes`."""
        return await self._calls(self.sandbox.changes)

    async def snapshot(self) -> Snapshot:
        """Save the file system as it is now; see `SandboxBackend.snapshot`."""
        return await self._calls(self.sandbox.snapshot, lambda snapshot: snapshot.delete())

    async def kill(self, keep: Sequence[int] = ()) -> int:
        """Kill all processes except some; see `SandboxBackend.kill`.

        It waits for a command that runs.
        """
        return await self._calls(partial(self.sandbox.kill, keep))

    async def processes(self) -> list[int]:
        """List the processes that run; see `SandboxBackend.processes`."""
        return await self._calls(self.sandbox.processes)

    async def run(self, call: Callable[[SandboxBackend], T]) -> T:
        """Call your function with the sandbox, in turn, on a thread: to `forward`, for instance."""
        return await self._calls(partial(call, self.sandbox))

    def when_idle(self, work: Callable[[], object]) -> None:
        """Do something when no call runs or waits: now, or after the last one."""
        self._calls.when_idle(work)

    async def close(self) -> None:
        """End everything in it, with the command that runs, and free it. Idempotent."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
