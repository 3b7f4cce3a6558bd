"""Environments with awaitable methods, for programs with an event loop (servers, agent frameworks).

By default, calls run on the threads that all objects of `AsyncSandbox` and `AsyncEnv` share. Only a
running call occupies a thread: a thousand idle episodes occupy none. The calls of one environment
run one after the other, in the order in which the program made them.

Cancellation of an awaiting task never leaves a call half done. A call that has not started is
removed from the queue. A running call continues in the background, and the next call starts after
its end. Only `close` ends a running call. The cancellation of an action ends the episode, even if
the action had not started. The observation is lost, and the environment refuses further actions
until `reset`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import gymnasium

from intercode.envs.base import InterCodeEnv
from intercode.envs.snapshots import EpisodeSnapshot, ForkMode
from intercode.episode import Episode, Score
from intercode.errors import EnvironmentStateError, UsageError
from intercode.models.base import Tool
from intercode.task import Dataset, Task
from intercode_sandbox.async_sandbox import AsyncSandbox, closing_threads, threads

T = TypeVar("T")
Result = tuple[str, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _QueuedCall(Generic[T]):
    call: Callable[[], T]
    result_future: asyncio.Future[T]
    discard: Callable[[T], object]
    """Function that frees the call's result if no task awaits the result any more."""
    abandon: Callable[[], object]
    """Function to call before the next call starts, if no task awaits this call any more."""


class CallQueue:
    """A queue of calls to one resource: calls of concurrent tasks run one after the other.

    Args:
        label: The name of the resource, for messages.
        stop: A function that ends the running call. Another thread than the call's runs it.
        close: A function that frees the resource. The queue calls it when no other call runs.
        executor: The threads for the calls, in place of the threads that all queues share.
    """

    def __init__(
        self,
        label: str,
        stop: Callable[[], object],
        close: Callable[[], object],
        executor: Executor | None = None,
    ) -> None:
        self._label, self._stop, self._close = label, stop, close
        self._executor = executor
        self._queue: deque[_QueuedCall[Any]] = deque()
        self._running_future: asyncio.Future[Any] | None = None
        self._closing_task: asyncio.Task[None] | None = None
        self._idle_callbacks: list[Callable[[], object]] = []

    async def __call__(
        self,
        call: Callable[[], T],
        discard: Callable[[T], object] = lambda result: None,
        abandon: Callable[[], object] = lambda: None,
    ) -> T:
        """Run a call after all earlier calls have ended, and wait for its result.

        Args:
            call: The function to run on a thread.
            discard: A function that frees the result if the awaiting task was cancelled.
            abandon: A function that runs before the next call if the awaiting task was cancelled.

        Raises:
            EnvironmentStateError: The resource is closed, or was closed before the call started.
        """
        if self._closing_task is not None:
            raise EnvironmentStateError(f"{self._label} is closed")
        result_future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_QueuedCall(call, result_future, discard, abandon))
        self._run_next()
        return await result_future

    async def close(self) -> None:
        """End the running call, refuse the waiting calls, and free the resource. Idempotent.

        If the caller of `close` is cancelled, the closing continues.
        """
        if self._closing_task is None:
            self._closing_task = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._closing_task)

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call `callback` once no call runs or waits: immediately, or after the last call."""
        self._idle_callbacks.append(callback)
        self._run_next()

    def _run_next(self) -> None:
        while self._queue and self._running_future is None:
            job = self._queue.popleft()
            if job.result_future.done():
                job.abandon()
            else:
                executor = self._executor or threads(os.getpid())
                self._running_future = job.result_future.get_loop().run_in_executor(
                    executor, job.call
                )
                self._running_future.add_done_callback(partial(self._finish_job, job))
        while self._idle_callbacks and self._running_future is None:
            self._idle_callbacks.pop()()

    def _finish_job(self, job: _QueuedCall[T], future: asyncio.Future[T]) -> None:
        self._running_future = None
        error = future.exception()
        if not job.result_future.done():
            if error is None:
                job.result_future.set_result(future.result())
            else:
                job.result_future.set_exception(error)
        else:
            job.abandon()
            if error is None:
                closing_threads(os.getpid()).submit(job.discard, future.result())
        self._run_next()

    async def _end(self) -> None:
        loop, pid = asyncio.get_running_loop(), os.getpid()
        while self._queue:
            result_future = self._queue.popleft().result_future
            if not result_future.done():
                result_future.set_exception(EnvironmentStateError(f"{self._label} was closed"))
        if self._running_future is not None:
            await loop.run_in_executor(closing_threads(pid), self._stop)
        if self._running_future is not None:
            await asyncio.wait([self._running_future])
        await loop.run_in_executor(closing_threads(pid), self._close)


class AsyncEnv:
    """An environment whose calls are awaited.

    ``async with`` closes the environment at the end of its block. The attribute `env` is the
    wrapped environment, for attributes that need no waiting. Gymnasium's wrappers around the
    environment apply to `reset`, `step` and `close`.

    Args:
        env: An environment, from `intercode.make`.
        executor: Threads for the calls; default: up to 1,024 threads that all environments share.

    Raises:
        UsageError: The environment is not an InterCode environment.
    """

    def __init__(self, env: gymnasium.Env[str, str], executor: Executor | None = None) -> None:
        base_env = env.unwrapped
        if not isinstance(base_env, InterCodeEnv):
            raise UsageError(
                f"AsyncEnv takes InterCode's environments: not {type(base_env).__name__}"
            )
        self.env = env
        self._base_env = base_env
        self._executor = executor
        self._calls = CallQueue("this environment", base_env.stop, env.close, executor)

    @property
    def episode(self) -> Episode:
        """The record of the last episode; see `InterCodeEnv.episode`."""
        return self._base_env.episode

    @property
    def dataset(self) -> Dataset:
        """The dataset of the environment's tasks."""
        return self._base_env.dataset

    @property
    def tools(self) -> list[Tool]:
        """The environment's tools for models; see `InterCodeEnv.tools`."""
        return self._base_env.tools

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, **keywords: Any
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; see `InterCodeEnv.reset`."""
        return await self._calls(partial(self.env.reset, seed=seed, options=options, **keywords))

    async def step(self, action: str) -> Result:
        """Execute an action; see `InterCodeEnv.step`.

        If the awaiting task is cancelled while the action runs, the action still completes, and its
        turn is in `episode` when the next call starts. If the action had not started, it never
        runs. In both cases the episode has ended.

        Raises:
            EnvironmentStateError: See `InterCodeEnv.step`; also raised if an earlier action was
                cancelled.
        """
        return await self._act(partial(self.env.step, action))  # type: ignore[arg-type]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Execute an action by calling a tool; see `InterCodeEnv.call`."""
        return await self._act(partial(self._base_env.call, name, arguments))

    async def _act(self, call: Callable[[], Result]) -> Result:
        def abandon() -> None:
            self._base_env.interrupt(asyncio.CancelledError())

        return await self._calls(call, abandon=abandon)

    async def score(
        self,
        task: Task,
        workspace: Any,
        *,
        output: str | None = None,
        episode: Episode | None = None,
    ) -> Score:
        """Score the workspace at the end of an agent's attempt; see `InterCodeEnv.score`.

        Args:
            task: The task.
            workspace: The workspace, or an `AsyncSandbox` that executes nothing at the moment.
            output: The agent's answer.
            episode: The record of the attempt, in place of `output`.
        """
        workspace = workspace.sandbox.backend if isinstance(workspace, AsyncSandbox) else workspace
        score_call = partial(self._base_env.score, task, workspace, output=output, episode=episode)
        return await self._calls(score_call)

    async def snapshot(self, mode: ForkMode = "auto", lossy: bool = False) -> EpisodeSnapshot:
        """Save the running episode as a snapshot; see `InterCodeEnv.snapshot`."""
        return await self._calls(
            partial(self._base_env.snapshot, mode, lossy), EpisodeSnapshot.close
        )

    async def restore(self, snapshot: EpisodeSnapshot) -> tuple[str, dict[str, Any]]:
        """Start a fork of a snapshot's episode in this environment; see `InterCodeEnv.restore`."""
        return await self._calls(partial(self._base_env.restore, snapshot))

    async def fork(
        self, n: int = 1, mode: ForkMode = "auto", lossy: bool = False
    ) -> list[AsyncEnv]:
        """Fork the running episode into new environments; see `InterCodeEnv.fork`.

        If the awaiting task is cancelled, any environments that the fork has made are closed.
        """

        def close(forks: list[InterCodeEnv[Any]]) -> None:
            for fork in forks:
                fork.close()

        forks = await self._calls(partial(self._base_env.fork, n, mode, lossy), close)
        return [AsyncEnv(fork, self._executor) for fork in forks]

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call `callback` once no call runs or waits: immediately, or after the last call."""
        self._calls.when_idle(callback)

    async def close(self) -> None:
        """End the episode and its running action, and free its sandbox. Idempotent.

        A waiting call raises `EnvironmentStateError`. A running call that needs the workspace
        raises `SandboxClosedError` or `EnvironmentStateError`.
        """
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
