"""`AsyncSandbox`: a `Sandbox` for programs with an event loop.

Each call runs on a thread and never blocks the loop. Calls of one sandbox run one after the other,
in the order in which they were made; calls of several sandboxes run concurrently.

The caller may cancel a call. A cancelled call that still waits for its turn never starts. A
cancelled command is stopped, with all its descendants. Any other cancelled call runs to its end,
and its result is freed. The ``await`` of a cancelled call raises only after the call has ended.
Then the sandbox is ready for the next call.
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
from intercode_sandbox.sandbox import Sandbox, SandboxStartRequest

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 1024
"""Maximum number of concurrent calls of all sandboxes and environments of this process."""
_CLOSING_THREADS = 16
"""Maximum number of sandboxes and environments that close at the same time."""


@cache
def threads(pid: int) -> Executor:
    """Return the thread pool for calls; the pool adds a thread when none is idle.

    Args:
        pid: The id of this process. A forked process needs a new pool, because threads do not
            survive a fork.
    """
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="intercode-call")


@cache
def closing_threads(pid: int) -> Executor:
    """Return the thread pool that closes sandboxes.

    This pool is separate from `threads`. If calls occupy all threads of that pool, closing their
    sandboxes still works, and ends the calls.

    Args:
        pid: The id of this process: see `threads`.
    """
    return ThreadPoolExecutor(_CLOSING_THREADS, thread_name_prefix="intercode-close")


async def _run_on_thread(
    executor: Executor,
    call: Callable[[], T],
    stop: Callable[[], object] = lambda: None,
    discard: Callable[[T], object] = lambda result: None,
) -> T:
    """Run a function on a thread, and return its result.

    If the awaiting task is cancelled, `asyncio.CancelledError` is raised only after the function
    has ended.

    Args:
        executor: The thread pool.
        call: The function.
        stop: A function that makes `call` end sooner, called after a cancellation.
        discard: A function that frees the result of `call` after a cancellation.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop()
        while not future.done():
            # A second cancellation is ignored: only the first one is raised below.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if future.exception() is None:
            await _run_on_thread(closing_threads(os.getpid()), partial(discard, future.result()))
        raise


def _make_awaitable(
    method: Callable[Concatenate[Sandbox, P], T],
    discard: Callable[[T], object] = lambda result: None,
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return an awaitable version of a method of `Sandbox`.

    Args:
        method: The method.
        discard: A function that frees the method's result if the call was cancelled.
    """

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        return await self.run(lambda sandbox: method(sandbox, *args, **options), discard=discard)

    return call


def _make_stoppable(
    method: Callable[Concatenate[Sandbox, P], T],
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return an awaitable version of a method that has a parameter `stop`, such as `Sandbox.exec`.

    A cancellation makes a descriptor readable, which the method gets as `stop`. If the caller gives
    a `stop`, too, the method gets an epoll descriptor. The epoll descriptor is readable as soon as
    one of both descriptors is.
    """

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        with ExitStack() as stack:
            cancel_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, cancel_fd)
            caller_stop_fd, options["stop"] = options.get("stop"), cancel_fd
            if caller_stop_fd is not None:
                stop_epoll = stack.enter_context(select.epoll())
                stop_epoll.register(cancel_fd, select.EPOLLIN)
                stop_epoll.register(caller_stop_fd, select.EPOLLIN)  # type: ignore[arg-type]
                options["stop"] = stop_epoll.fileno()
            return await self.run(
                lambda sandbox: method(sandbox, *args, **options),
                stop=partial(os.eventfd_write, cancel_fd, 1),
            )

    return call


class AsyncSandbox:
    """A sandbox with the methods of `Sandbox`, except `Sandbox.at_rest`, as coroutines.

    An ``async with`` block or the first call starts the sandbox. `close` or the end of the block
    closes the sandbox.

    Args:
        *arguments: See `Sandbox`.
        **options: See `Sandbox`.

    Raises:
        UsageError: An option does not exist, or its value is invalid.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._request: SandboxStartRequest | None = SandboxStartRequest.from_options(
            *arguments, **options
        )
        self._sandbox: Sandbox | None = None
        self._reset_state()

    @classmethod
    def from_backend(cls, backend: SandboxBackend) -> Self:
        """Return an `AsyncSandbox` for a backend that already runs; `close` closes the backend."""
        sandbox = cls.__new__(cls)
        sandbox._request, sandbox._sandbox = None, Sandbox.from_backend(backend)
        sandbox._reset_state()
        return sandbox

    def _reset_state(self) -> None:
        self._closed = False
        self._call_lock = asyncio.Lock()

    @property
    def sandbox(self) -> Sandbox:
        """The wrapped `Sandbox`. Use only its attributes that do not block the event loop.

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
        """Call a function with the `Sandbox`, on a thread, after all earlier calls have ended.

        Args:
            call: The function; its result is returned.
            stop: A function that makes `call` end sooner, called on the loop's thread after a
                cancellation.
            discard: A function that frees the result of `call` after a cancellation.

        Raises:
            SandboxClosedError: The sandbox is closed, or was closed before the call began.
        """
        async with self._call_lock:
            await self._start()
            bound_call = partial(call, self.sandbox)
            return await _run_on_thread(threads(os.getpid()), bound_call, stop, discard)

    async def _start(self) -> None:
        if self._closed:
            raise SandboxClosedError("the sandbox is closed")
        if self._sandbox is None and self._request is not None:
            start_backend, executor = self._request.start, threads(os.getpid())
            backend = await _run_on_thread(
                executor, start_backend, discard=lambda backend: backend.close()
            )
            self._sandbox = Sandbox.from_backend(backend)
            # A task may have called `close` during the start, when no sandbox existed to be ended.
            if self._closed:
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
            # If a start is in progress, `_start` ends the sandbox, and its caller frees the lock.
            async with self._call_lock:
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
