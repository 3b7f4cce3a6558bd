"""`AsyncSandbox`: a `Sandbox` for programs that have an event loop.

A call runs on a thread, so that none holds up the loop. Calls of one sandbox run one after the
other, in the order in which they were made; those of several sandboxes run at once.

A cancelled call leaves nothing half done. A waiting call never begins. A running command is
stopped, with all that it started; another running call ends by itself, and its result is freed. The
wait ends, cancelled, when the call has: the sandbox is ready for the next one.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache, partial, wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from intercode_sandbox.base import Process, SandboxBackend, Snapshot
from intercode_sandbox.errors import SandboxClosedError
from intercode_sandbox.sandbox import Sandbox, StartRequest

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 1024
"""Calls that run at once, of all sandboxes and environments of this process."""
_CLOSING_THREADS = 16


@cache
def threads(pid: int) -> Executor:
    """Return the threads of a process for calls; a thread is made when none is idle."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="intercode-call")


@cache
def closing_threads(pid: int) -> Executor:
    """Return the threads that close: where all others are busy, closing makes them free."""
    return ThreadPoolExecutor(_CLOSING_THREADS, thread_name_prefix="intercode-close")


async def _run_on_thread(
    executor: Executor,
    call: Callable[[], T],
    stop: Callable[[], object] = lambda: None,
    discard: Callable[[T], object] = lambda result: None,
) -> T:
    """Run a call on a thread; if the wait is cancelled, end it when the call has ended.

    Args:
        executor: The threads.
        call: The call.
        stop: Ends the call sooner.
        discard: Frees a result that is no longer awaited.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop()
        while not future.done():
            with suppress(asyncio.CancelledError):  # a second one; the first is raised below
                await asyncio.wait([future])
        if future.exception() is None:
            await _run_on_thread(closing_threads(os.getpid()), partial(discard, future.result()))
        raise


def _make_awaitable(
    method: Callable[Concatenate[Sandbox, P], T],
    discard: Callable[[T], object] = lambda result: None,
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return a method of `Sandbox` as one that is awaited."""

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        return await self.run(lambda sandbox: method(sandbox, *args, **options), discard=discard)

    return call


def _make_stoppable(
    method: Callable[Concatenate[Sandbox, P], T],
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return a method with a parameter `stop` as one that is awaited, and stopped if cancelled.

    The caller's own `stop` still ends the method: an epoll descriptor joins the two, and is
    readable as soon as one of them is.
    """

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        with ExitStack() as stack:
            cancellation = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, cancellation)
            stop, options["stop"] = options.get("stop"), cancellation
            if stop is not None:
                either = stack.enter_context(select.epoll())
                either.register(cancellation, select.EPOLLIN)
                either.register(stop, select.EPOLLIN)  # type: ignore[arg-type]
                options["stop"] = either.fileno()
            return await self.run(
                lambda sandbox: method(sandbox, *args, **options),
                stop=partial(os.eventfd_write, cancellation, 1),
            )

    return call


class AsyncSandbox:
    """A sandbox whose calls are awaited: see `Sandbox`, of which it has the methods.

    It is started by ``async with``, or by its first call; ``async with`` closes it.

    Args:
        *arguments: As of `Sandbox`.
        **options: As of `Sandbox`.

    Raises:
        UsageError: An option does not exist, or its value makes no sense.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._request: StartRequest | None = StartRequest.of(*arguments, **options)
        self._sandbox: Sandbox | None = None
        self._reset_state()

    @classmethod
    def from_backend(cls, backend: SandboxBackend) -> Self:
        """Return the sandbox of a backend that was started already, and owns it from now on."""
        sandbox = cls.__new__(cls)
        sandbox._request, sandbox._sandbox = None, Sandbox.from_backend(backend)
        sandbox._reset_state()
        return sandbox

    def _reset_state(self) -> None:
        self._closed = False
        self._call_lock = asyncio.Lock()

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox itself, for attributes that cost no time.

        Raises:
            SandboxClosedError: It was not started yet.
        """
        if self._sandbox is None:
            raise SandboxClosedError("this sandbox was not started: use `async with`, or call it")
        return self._sandbox

    async def run(
        self,
        call: Callable[[Sandbox], T],
        *,
        stop: Callable[[], object] = lambda: None,
        discard: Callable[[T], object] = lambda result: None,
    ) -> T:
        """Call your function with the sandbox, in turn, on a thread.

        Args:
            call: The function.
            stop: Ends the call sooner if the wait for it is cancelled; called in the loop.
            discard: Frees the result if the wait for it was cancelled.

        Raises:
            SandboxClosedError: The sandbox is closed, or was closed before the call began.
        """
        async with self._call_lock:
            await self._start()
            work = partial(call, self.sandbox)
            return await _run_on_thread(threads(os.getpid()), work, stop, discard)

    async def _start(self) -> None:
        if self._closed:
            raise SandboxClosedError("the sandbox is closed")
        if self._sandbox is None and self._request is not None:
            start, executor = self._request.start, threads(os.getpid())
            backend = await _run_on_thread(executor, start, discard=lambda backend: backend.close())
            self._sandbox = Sandbox.from_backend(backend)
            if self._closed:  # meanwhile, and nothing was there to be ended
                await self._end(self._sandbox)
                raise SandboxClosedError("the sandbox is closed")

    async def fork(self) -> Self:
        """Start a second sandbox with the same files, limits and network: see `Sandbox.fork`."""
        twin = await self.run(Sandbox.fork, discard=Sandbox.close)
        return self.from_backend(twin.backend)

    exec = _make_stoppable(Sandbox.exec)
    popen = _make_awaitable(Sandbox.popen, Process.close)
    worker = _make_awaitable(Sandbox.worker, Process.close)
    kill = _make_awaitable(Sandbox.kill)
    processes = _make_awaitable(Sandbox.processes)
    programs = _make_awaitable(Sandbox.programs)
    terminal = _make_awaitable(Sandbox.terminal, os.close)
    forward = _make_awaitable(Sandbox.forward, lambda forward: forward.close())
    read_file = _make_awaitable(Sandbox.read_file)
    write_file = _make_awaitable(Sandbox.write_file)
    upload = _make_awaitable(Sandbox.upload)
    download = _make_awaitable(Sandbox.download)
    changes = _make_awaitable(Sandbox.changes)
    snapshot = _make_awaitable(Sandbox.snapshot, Snapshot.delete)
    freeze = _make_awaitable(Sandbox.freeze, Snapshot.delete)
    memory_peak = _make_awaitable(Sandbox.memory_peak)
    free_space = _make_awaitable(Sandbox.free_space)

    async def close(self) -> None:
        """End everything in it, with the command that runs, and free it. Idempotent.

        A call that runs or waits raises `SandboxClosedError`. If this is cancelled, closing ends.
        """
        self._closed = True
        if self._sandbox is not None:
            await self._end(self._sandbox)
        else:
            async with self._call_lock:  # a start that runs ends what it has started
                pass

    async def _end(self, sandbox: Sandbox) -> None:
        await _run_on_thread(closing_threads(os.getpid()), sandbox.close)

    async def __aenter__(self) -> Self:
        async with self._call_lock:
            await self._start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


AsyncSandbox.__signature__ = signature(Sandbox)  # type: ignore[attr-defined]
