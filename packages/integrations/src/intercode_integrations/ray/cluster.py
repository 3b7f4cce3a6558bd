"""A Ray cluster: this process's connection to it, and its nodes."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from intercode.errors import UsageError
from intercode.spec import portable

_PATIENCE = 10.0
"""Seconds in which a port must answer."""
_TRIES = 3
"""Attempts at connecting to a cluster that breaks off."""


def refuse_passwords(options: Mapping[str, Any]) -> None:
    """Keep passwords out of the cluster, whose object store and logs many can read.

    Raises:
        UsageError: An option's URL has one.
    """
    for name, value in options.items():
        if portable(value) != value:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} has a password, which would be sent to the nodes: omit it from the "
                "URL; each node reads it from its own PGPASSWORD or MYSQL_PWD"
            )


def import_ray() -> Any:
    """Import Ray, whose usage statistics stay off unless they were asked for.

    Raises:
        UsageError: It is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed: pip install 'intercode-gym[ray]'") from None
    return ray


@contextmanager
def cluster_connection(address: str | None = None) -> Iterator[Any]:
    """Connect to a cluster, unless this process is connected; yield the package ``ray``."""
    ray, was_connected = import_ray(), import_ray().is_initialized()
    if not was_connected:
        connect(address)
    try:
        yield ray
    finally:
        if not was_connected:
            ray.shutdown()


def connect(address: str | None = None) -> None:
    """Connect this process to a cluster; see `intercode_integrations.ray.Ray`.

    Raises:
        UsageError: There is no such cluster.
    """
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    options |= {"log_to_driver": False, "configure_logging": False, "logging_level": "error"}
    target = address or os.environ.get("RAY_ADDRESS", "this machine")
    ray = import_ray()
    _check_address(target)
    try:
        _connect_with_retries(lambda: ray.init(address, **options))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster responds at {target}: {error} (with tokens, it needs "
            "RAY_AUTH_MODE=token and the token on this machine, too)"
        ) from error


def _connect_with_retries(attempt: Callable[[], object]) -> None:
    """Connect, and again where the cluster breaks off.

    Ray's server forks a process for each client while its threads use gRPC, and at times that
    process dies before it serves. Nothing has run for the client by then.

    Raises:
        ConnectionAbortedError: The cluster broke off each time.
    """
    for _ in range(_TRIES - 1):
        with suppress(ConnectionAbortedError):
            attempt()
            return
    attempt()


def _check_address(target: str) -> None:
    """Refuse an address at which no one listens; Ray would try for minutes."""
    host, _, port = target.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"there is no Ray cluster at {target}: {error}") from error


def allocate_nodes(
    max_processes: int, cpus: float = 1.0, excluded_nodes: Collection[str] = ()
) -> Counter[str]:
    """Return how many processes each living node gets: one for each reserved processor, in turn.

    Args:
        max_processes: The number of all of them, at the most.
        cpus: The processors that each reserves.
        excluded_nodes: Nodes that get none.
    """
    capacities = {
        node["NodeID"]: int(node["Resources"].get("CPU", 0) / cpus)
        for node in import_ray().nodes()
        if node["Alive"] and node["NodeID"] not in excluded_nodes
    }
    turns = sorted(
        (turn, node) for node, slot_count in capacities.items() for turn in range(slot_count)
    )
    return Counter(node for _, node in turns[:max_processes])


def node_affinity(node: str) -> Any:
    """Return the strategy that places an actor on a node, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
