"""The processes of a server: one, or several that share its port, its sessions and its metrics."""

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
from intercode_integrations.serve.catalog import EnvironmentEntry
from intercode_integrations.serve.log import log
from intercode_integrations.serve.metrics import ServerMetrics
from intercode_integrations.serve.server import EnvironmentServer
from intercode_integrations.serve.session import SessionLimits

_BACKLOG = 1024
"""Clients that wait to be accepted."""
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_END_SIGNALS, signal.SIGCHLD)
_KEEPALIVE_OPTIONS = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds of silence, seconds between probes, and failed probes until a client counts as dead."""


def listen(host: str, port: int, workers: int = 1) -> list[socket.socket]:
    """Listen for clients with a socket for each worker, among which the kernel divides them.

    Args:
        host: The address.
        port: The port; 0: any free port.
        workers: The number of workers.

    Returns:
        A listening socket for each worker.

    Raises:
        UsageError: The port is not available.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if workers > 1:  # several workers would share the port with another server
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
    """Bind an address, exclusively or shared by all workers."""
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
    entries: Sequence[EnvironmentEntry],
    limits: SessionLimits,
    guard: RequestGuard,
    listeners: Sequence[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal. In a worker process, this function returns then, too.

    Args:
        entries: The environments.
        limits: The limits of client sessions.
        guard: Refuses requests.
        listeners: One for each worker.
        on_ready: Called when the server listens.

    Raises:
        InterCodeError: A worker did not start.
    """
    _, descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit, descriptor_limit))
    counts = ServerMetrics(len(listeners))
    if len(listeners) == 1:
        on_ready()
        asyncio.run(
            EnvironmentServer(entries, limits, guard, counts).run(listeners[0], _END_SIGNALS)
        )
        return
    worker = _supervise(counts, listeners, on_ready)
    if worker is not None:
        parent_fd, counts.worker = worker
        server = EnvironmentServer(entries, limits, guard, counts)
        asyncio.run(server.run(listeners[counts.worker], (signal.SIGTERM,), parent_fd))


def _supervise(
    counts: ServerMetrics, listeners: Sequence[socket.socket], on_ready: Callable[[], None]
) -> tuple[int, int] | None:
    """Start workers, and replace dead ones, until a signal ends all.

    Returns:
        None when all have ended; in a worker, a descriptor that becomes readable when its parent
        dies, and its number.

    Raises:
        InterCodeError: A worker did not start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent_fd, life_fd = os.pipe()  # only this process holds `life_fd`: its death closes it
    workers_by_pid: dict[int, int] = {}

    def fork_worker(worker_index: int) -> bool:
        """Start a worker; return whether this process is the worker."""
        if pid := os.fork():
            workers_by_pid[pid] = worker_index
            log("worker", number=worker_index, process=pid)
            return False
        os.close(life_fd)
        for other_index, listener in enumerate(listeners):
            if other_index != worker_index:
                listener.close()
        # A terminal sends SIGINT to all processes. Ignored, it would also be ignored in sandboxes.
        signal.signal(signal.SIGINT, lambda signal_number, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return True

    for worker_index in range(len(listeners)):
        if fork_worker(worker_index):
            return parent_fd, worker_index
    on_ready()
    is_ending = failed = False
    while workers_by_pid:
        if signal.sigwait(_SIGNALS) != signal.SIGCHLD:
            is_ending = True
            _end(workers_by_pid, listeners)
        for pid, worker_index in [*workers_by_pid.items()]:
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
            del workers_by_pid[pid]
            has_served = counts.forget(worker_index)
            if is_ending:
                continue
            if has_served and fork_worker(worker_index):
                return parent_fd, worker_index
            if not has_served:
                is_ending = failed = True
                _end(workers_by_pid, listeners)
    if failed:
        raise InterCodeError("a worker ended before it was ready: its error is above")
    return None


def _end(pids: Iterable[int], listeners: Iterable[socket.socket]) -> None:
    """End workers, and drop clients that no worker has accepted yet."""
    for listener in listeners:
        listener.close()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
