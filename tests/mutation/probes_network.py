"""Probes of forwards, and of policies for the network."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

from intercode.errors import SandboxError, UsageError
from intercode_sandbox import get_provider, network, proxy
from intercode_sandbox.forwarding import SupportsForwarding, adopt_socket
from intercode_sandbox.network import (
    AllowedHost,
    NetworkGate,
    NetworkPolicy,
    RefusedConnectionError,
)

from .tools import ProbeError, one_of

_OTHER = "127.0.0.2"
"""An address of this machine's that stands for one of the internet."""


def _resolving(address: str) -> Callable[..., list[tuple[Any, ...]]]:
    return lambda _, port, **__: socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)


def _reached(listed: str, name: str, address: str) -> str:
    """What a gate says to a name that leads to `address`, where a server listens."""
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        gate = NetworkGate(NetworkPolicy(hosts=(AllowedHost(listed, port),)), _resolving(address))
        try:
            with gate.connect_to_host(name, port) as connection:
                return str(connection.getpeername()[0])
        except RefusedConnectionError:
            return next(iter(gate.refusal_counts)).partition(": ")[2]


def network_list() -> bool:
    found = _reached("a.example", "evil.example", "127.0.0.1")
    return one_of(found, holds="not listed", gone="a private address")


def network_private() -> bool:
    found = _reached("a.example", "a.example", "127.0.0.1")
    return one_of(found, holds="a private address", gone="127.0.0.1")


network_operators_names = network_private
"""The same, where the list is not of an operator's names."""


def network_rebinding() -> bool:
    network.non_public_reason = lambda _: ""
    with socket.create_server((_OTHER, 0)) as one:
        port = one.getsockname()[1]
        with socket.create_server(("127.0.0.1", port)):
            gate = NetworkGate(
                NetworkPolicy(hosts=(AllowedHost("localhost", port),)), _resolving(_OTHER)
            )
            with gate.connect_to_host("localhost", port) as connection:
                found = connection.getpeername()[0]
    return one_of(found, holds=_OTHER, gone="127.0.0.1")


def network_metadata() -> bool:
    return bool(network.non_public_reason(ipaddress.ip_address("168.63.129.16")))


def network_translated() -> bool:
    return bool(network.forbidden_reason(ipaddress.ip_address("2606:4700::192.0.0.192")))


def network_own_addresses() -> bool:
    ipaddress.IPv4Address.is_global = property(lambda _: True)  # type: ignore[assignment, method-assign]
    return bool(network.non_public_reason(ipaddress.ip_address("127.0.0.1")))


def network_mapped() -> bool:
    return bool(network.forbidden_reason(ipaddress.ip_address("::ffff:169.254.1.1")))


def proxy_head() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(bytes(80_000))
        theirs.shutdown(socket.SHUT_WR)
        proxy.serve(NetworkGate(NetworkPolicy()), ours)
        said = theirs.recv(4096).decode().strip()
    return one_of(said.rpartition("head ")[2], holds="is too long", gone="has no end")


def proxy_host_field() -> bool:
    head = b"GET http://a.example/ HTTP/1.1\r\nHost: evil.example"
    return b"evil" not in proxy._read_request(head)[3]


def forward_sockets() -> bool:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        adopt_socket([udp.detach()])
    except (SandboxError, UsageError) as error:
        return one_of(type(error).__name__, holds="SandboxError", gone="UsageError")
    raise ProbeError("it was taken")


def forward_network() -> bool:
    with closing(get_provider().start("host", network=True)) as sandbox:
        assert isinstance(sandbox, SupportsForwarding)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            sandbox.forward(port, lambda _: None)
        except UsageError:
            return True
        with socket.create_connection(("127.0.0.1", port)):
            return False
