"""A Ray cluster: the connection of this process to the cluster, and the choice of nodes."""

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
"""Maximum seconds in which the cluster's port must accept a connection."""
_TRIES = 3
"""Number of attempts to connect to a cluster that aborts the connection."""


def refuse_passwords(options: Mapping[str, Any]) -> None:
    """Refuse options with a password: many processes can read the cluster's object store and logs.

    Raises:
        UsageError: The URL in an option contains a password.
    """
    for name, value in options.items():
        if portable(value) != value:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} has a password, which would be sent to the nodes: omit it from the "
                "URL; each node reads it from its own PGPASSWORD or MYSQL_PWD"
            )


def import_ray() -> Any:
    """Import Ray, with its usage statistics switched off unless the user has switched them on.

    Raises:
        UsageError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without this setting, Ray prints a warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed: pip install 'intercode-gym[ray]'") from None
    return ray


@contextmanager
def cluster_connection(address: str | None = None) -> Iterator[Any]:
    """Connect to a cluster for the block, unless this process is connected; yield package ``ray``.

    Args:
        address: The address; see `intercode_integrations.ray.Ray`.
    """
    ray, was_connected = import_ray(), import_ray().is_initialized()
    if not was_connected:
        connect(address)
    try:
        yield ray
    finally:
        if not was_connected:
            ray.shutdown()


def connect(address: str | None = None) -> None:
    """Connect this process to a cluster.

    Args:
        address: The address; see `intercode_integrations.ray.Ray`.

    Raises:
        UsageError: No cluster responds at the address.
    """
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    options |= {"log_to_driver": False, "configure_logging": False, "logging_level": "error"}
    cluster_address = address or os.environ.get("RAY_ADDRESS", "this machine")
    ray = import_ray()
    _check_address(cluster_address)
    try:
        _connect_with_retries(lambda: ray.init(address, **options))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster responds at {cluster_address}: {error} (with tokens, it needs "
            "RAY_AUTH_MODE=token and the token on this machine, too)"
        ) from error


def _connect_with_retries(attempt: Callable[[], object]) -> None:
    """Call `attempt`, and repeat it if the cluster aborts the connection.

    Ray's server forks a process for each client, while its own threads use gRPC. Sometimes the
    forked process dies before it serves the client. A retry is safe, because nothing has run yet.

    Raises:
        ConnectionAbortedError: The cluster aborted each attempt.
    """
    for _ in range(_TRIES - 1):
        with suppress(ConnectionAbortedError):
            attempt()
            return
    attempt()


def _check_address(cluster_address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself would retry for minutes.

    Raises:
        UsageError: Nothing listens at the address.
    """
    host, _, port = cluster_address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"there is no Ray cluster at {cluster_address}: {error}") from error


def allocate_nodes(
    max_processes: int, cpus: float = 1.0, excluded_nodes: Collection[str] = ()
) -> Counter[str]:
    """Return the number of processes to start on each living node, in turn over the nodes.

    Args:
        max_processes: The maximum number of processes in all.
        cpus: The processors that each process reserves.
        excluded_nodes: The nodes that get no process.

    Returns:
        Node id → number of processes, at most as many as the node's processors permit.
    """
    capacities = {
        node["NodeID"]: int(node["Resources"].get("CPU", 0) / cpus)
        for node in import_ray().nodes()
        if node["Alive"] and node["NodeID"] not in excluded_nodes
    }
    slots = sorted(
        (slot_index, node)
        for node, slot_count in capacities.items()
        for slot_index in range(slot_count)
    )
    return Counter(node for _, node in slots[:max_processes])


def node_affinity(node: str) -> Any:
    """Return Ray's scheduling strategy that places an actor on exactly the given node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
