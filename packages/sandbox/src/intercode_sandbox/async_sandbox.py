"""`AsyncSandbox`: a `Sandbox` for programs with an event loop.

Each call runs on a thread and never blocks the loop. Calls of one sandbox run one after the other,
in the order in which they were made; calls of several sandboxes run concurrently.

A cancelled call leaves nothing half done. A waiting call never starts. A running command is
stopped, with all its descendants; any other running call ends by itself, and its result is freed.
The cancelled wait ends when the call has ended: then the sandbox is ready for the next call.
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
"""Maximum of concurrent calls, of all sandboxes and environments of this process."""
_CLOSING_THREADS = 16


@cache
def threads(pid: int) -> Executor:
    """Return a process's thread pool for calls; the pool adds a thread when none is idle."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="intercode-call")


@cache
def closing_threads(pid: int) -> Executor:
    """Return a process's thread pool for closing: closing frees the busy threads of the other."""
    return ThreadPoolExecutor(_CLOSING_THREADS, thread_name_prefix="intercode-close")


async def _run_on_thread(
    executor: Executor,
    call: Callable[[], T],
    stop: Callable[[], object] = lambda: None,
    discard: Callable[[T], object] = lambda result: None,
) -> T:
    """Run a call on a thread; if the wait is cancelled, return only after the call's end.

    Args:
        executor: The thread pool.
        call: The call.
        stop: Ends the call sooner.
        discard: Frees a result whose caller has gone.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop()
        while not future.done():
            with suppress(asyncio.CancelledError):  # a repeated one: only the first is raised
                await asyncio.wait([future])
        if future.exception() is None:
            await _run_on_thread(closing_threads(os.getpid()), partial(discard, future.result()))
        raise


def _make_awaitable(
    method: Callable[Concatenate[Sandbox, P], T],
    discard: Callable[[T], object] = lambda result: None,
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return an awaitable version of a method of `Sandbox`."""

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        return await self.run(lambda sandbox: method(sandbox, *args, **options), discard=discard)

    return call


def _make_stoppable(
    method: Callable[Concatenate[Sandbox, P], T],
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return an awaitable version of a method with a parameter `stop`; cancellation stops it.

    The caller's own `stop` still ends the method: an epoll descriptor joins both descriptors, and
    is readable as soon as one of them is.
    """

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        with ExitStack() as stack:
            cancellation = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, cancellation)
            stop, options["stop"] = options.get("stop"), cancellation
            if stop is not None:
                stop_events = stack.enter_context(select.epoll())
                stop_events.register(cancellation, select.EPOLLIN)
                stop_events.register(stop, select.EPOLLIN)  # type: ignore[arg-type]
                options["stop"] = stop_events.fileno()
            return await self.run(
                lambda sandbox: method(sandbox, *args, **options),
                stop=partial(os.eventfd_write, cancellation, 1),
            )

    return call


class AsyncSandbox:
    """A sandbox with awaitable calls and the methods of `Sandbox`.

    ``async with`` or the first call starts the sandbox; ``async with`` closes it.

    Args:
        *arguments: See `Sandbox`.
        **options: See `Sandbox`.

    Raises:
        UsageError: An option does not exist, or its value is invalid.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._request: StartRequest | None = StartRequest.from_options(*arguments, **options)
        self._sandbox: Sandbox | None = None
        self._reset_state()

    @classmethod
    def from_backend(cls, backend: SandboxBackend) -> Self:
        """Return a sandbox that owns, and later closes, a backend that already runs."""
        sandbox = cls.__new__(cls)
        sandbox._request, sandbox._sandbox = None, Sandbox.from_backend(backend)
        sandbox._reset_state()
        return sandbox

    def _reset_state(self) -> None:
        self._closed = False
        self._call_lock = asyncio.Lock()

    @property
    def sandbox(self) -> Sandbox:
        """The synchronous sandbox, for attributes that do not block.

        Raises:
            SandboxClosedError: The sandbox was not started yet.
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
        """Call your function with the sandbox on a thread, after all earlier calls.

        Args:
            call: The function.
            stop: Ends the call sooner if its wait is cancelled; the loop's thread calls it.
            discard: Frees the result if its wait was cancelled.

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
            if self._closed:  # closed during the start, when `close` had no sandbox to end
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
        """End all processes of the sandbox, and free its resources. Idempotent.

        A running or waiting call raises `SandboxClosedError`. Cancellation does not interrupt
        closing.
        """
        self._closed = True
        if self._sandbox is not None:
            await self._end(self._sandbox)
        else:
            async with self._call_lock:  # a start in progress ends its own sandbox
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
