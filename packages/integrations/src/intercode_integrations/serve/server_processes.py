"""The processes of a server: one worker, or several that share a port, a quota and the metrics."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from intercode.errors import InterCodeError, UsageError
from intercode.request_guard import RequestGuard
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.log import log
from intercode_integrations.serve.metrics import ServerMetrics
from intercode_integrations.serve.server import EnvironmentServer
from intercode_integrations.serve.session import SessionLimits

_BACKLOG = 1024
"""Maximum number of clients that wait for the server to accept their connection."""
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_END_SIGNALS, signal.SIGCHLD)
_KEEPALIVE_OPTIONS = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""TCP options by which the kernel finds dead clients: seconds of silence before the first probe,
seconds between probes, and number of failed probes."""


def listen(host: str, port: int, workers: int = 1) -> list[socket.socket]:
    """Open a listening socket for each worker, all at the same port.

    The kernel distributes new connections over the sockets.

    Args:
        host: The address to listen on.
        port: The port; 0: any free port.
        workers: The number of workers.

    Returns:
        A listening socket for each worker.

    Raises:
        UsageError: The port is not available, or the address is unknown.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if workers > 1:  # a shared socket could otherwise join the port of another server
            _bind_socket(family, address).close()
        listeners = []
        for _ in range(workers):
            listener = _bind_socket(family, address, is_shared=workers > 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE_OPTIONS.items():
                listener.setsockopt(socket.IPPROTO_TCP, option, value)
            listener.listen(_BACKLOG)
            listeners.append(listener)
            address = listener.getsockname()
    except OSError as error:
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    return listeners


def _bind_socket(family: int, address: Any, *, is_shared: bool = False) -> socket.socket:
    """Bind a socket to an address, exclusively or shared by all workers."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def run(
    entries: Sequence[ServedEnvironment],
    limits: SessionLimits,
    guard: RequestGuard,
    listeners: Sequence[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal arrives. The function returns in each worker process, too.

    Args:
        entries: The environments.
        limits: The limits of client sessions.
        guard: A filter that refuses requests without the token or from foreign web pages.
        listeners: The listening sockets, one for each worker.
        on_ready: A function to call when the server listens.

    Raises:
        InterCodeError: A worker ended before it was ready.
    """
    _, descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit, descriptor_limit))
    metrics = ServerMetrics(len(listeners))
    if len(listeners) == 1:
        on_ready()
        asyncio.run(
            EnvironmentServer(entries, limits, guard, metrics).run(listeners[0], _END_SIGNALS)
        )
        return
    worker_facts = _supervise(metrics, listeners, on_ready)
    if worker_facts is not None:
        parent_death_fd, metrics.worker = worker_facts
        server = EnvironmentServer(entries, limits, guard, metrics)
        asyncio.run(server.run(listeners[metrics.worker], (signal.SIGTERM,), parent_death_fd))


def _supervise(
    metrics: ServerMetrics, listeners: Sequence[socket.socket], on_ready: Callable[[], None]
) -> tuple[int, int] | None:
    """Start the workers, and replace dead ones, until a signal ends all of them.

    Returns:
        In this process, None when all workers have ended. In a worker, a descriptor that becomes
        readable when the parent process dies, and the worker's number.

    Raises:
        InterCodeError: A worker ended before it was ready.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # Only this process keeps the writing end `life_fd` open. When this process dies,
    # `parent_death_fd` becomes readable in the workers.
    parent_death_fd, life_fd = os.pipe()
    workers_by_pid: dict[int, int] = {}

    def fork_worker(worker_index: int) -> bool:
        """Fork a worker process; return True in the worker, and False in this process."""
        if pid := os.fork():
            workers_by_pid[pid] = worker_index
            log("worker", number=worker_index, process=pid)
            return False
        os.close(life_fd)
        for other_index, listener in enumerate(listeners):
            if other_index != worker_index:
                listener.close()
        # A terminal sends SIGINT to all processes, but only the parent may react. SIG_IGN would be
        # inherited by the processes in sandboxes, so the handler is an empty function.
        signal.signal(signal.SIGINT, lambda signal_number, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return True

    for worker_index in range(len(listeners)):
        if fork_worker(worker_index):
            return parent_death_fd, worker_index
    on_ready()
    is_ending = has_failed = False
    while workers_by_pid:
        if signal.sigwait(_SIGNALS) != signal.SIGCHLD:
            is_ending = True
            _end(workers_by_pid, listeners)
        for pid, worker_index in [*workers_by_pid.items()]:
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
            del workers_by_pid[pid]
            has_served = metrics.forget(worker_index)
            if is_ending:
                continue
            if has_served and fork_worker(worker_index):
                return parent_death_fd, worker_index
            if not has_served:
                is_ending = has_failed = True
                _end(workers_by_pid, listeners)
    if has_failed:
        raise InterCodeError("a worker ended before it was ready: its error is above")
    return None


def _end(pids: Iterable[int], listeners: Iterable[socket.socket]) -> None:
    """Ask workers to end, and close the sockets, on which clients would wait for dead workers."""
    for listener in listeners:
        listener.close()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
