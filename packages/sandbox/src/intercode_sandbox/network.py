"""Network policies: nothing, everything, single endpoints, or an allowlist of hosts.

A `Policy` is parsed from a caller's `network`. Except for nothing and everything, the sandbox has
no network but its loopback, and a `NetworkGate` on the host opens each connection. The gate
resolves names itself, and connects to the very address that it has checked.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from intercode_sandbox.errors import UsageError
from intercode_sandbox.forwarding import Handler, address, join

Network = bool | str | Sequence[str]
"""False: nothing. True: all that this machine reaches. ``HOST:PORT`` or ``http://HOST:PORT``: that
endpoint, at the sandbox's own ``127.0.0.1:PORT``. Host names, in a list or separated by commas:
these hosts, by a proxy."""

Resolve = Callable[..., list[tuple[Any, ...]]]
"""A function with the signature of `socket.getaddrinfo`."""

PROXY_PORT = 3128
"""The proxy's port on the sandbox's loopback; the next free port if an endpoint uses it."""
_WEB_PORTS = (80, 443)
_CONNECT_SECONDS = 10.0
_MAX_REFUSED_NAMES = 100
"""Maximum of refused names in a record. More are a flood, and counted together."""
_OVERFLOW_KEY = "(others)"
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?", re.ASCII)
_LONGEST_NAME = 253
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_METADATA = [
    *map(ipaddress.ip_network, ("169.254.169.254", "169.254.170.2", "169.254.170.23")),  # AWS, most
    ipaddress.ip_network("168.63.129.16"),  # Azure
    ipaddress.ip_network("100.100.100.200"),  # Alibaba
    ipaddress.ip_network("192.0.0.192"),  # Oracle
    ipaddress.ip_network("fd00:ec2::/64"),  # AWS: ::254, ::23
    ipaddress.ip_network("fd20:ce::/64"),  # Google: ::254
    ipaddress.ip_network("fd00:c1::/64"),  # Oracle: ::a9fe:a9fe
    ipaddress.ip_network("fd00:42::/64"),  # Scaleway: ::42
]
"""Addresses at which clouds serve a machine's secrets. Some are in no reserved range."""
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
_EMBEDDING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 0),
    (ipaddress.ip_network("::ffff:0:0:0/96"), 0),
    (ipaddress.ip_network("64:ff9b::/96"), 0),
    (ipaddress.ip_network("64:ff9b:1::/48"), 0),
    (ipaddress.ip_network("::/96"), 0),
    (ipaddress.ip_network("2002::/16"), 80),
]
"""IPv6 networks that embed an IPv4 address, each with the number of bits after the address."""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Bits 64 to 95 of an IPv6 address whose last 32 bits are an IPv4 address, in any network."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedError(Exception):
    """A connection refused by the policy. The sandbox's programs can read the text."""


@dataclass(frozen=True, slots=True)
class Host:
    """An entry of an allowlist: a name, or all names below one, with an optional port."""

    name: str
    port: int | None = None

    def admits(self, name: str, port: int) -> bool:
        """Return whether a connection to a host, by the program's name for it, is allowed."""
        if port not in (_WEB_PORTS if self.port is None else (self.port,)):
            return False
        if self.name.startswith("*."):
            is_subdomain = name.endswith(self.name[1:]) and len(name) >= len(self.name)
            return is_subdomain and _is_name(name) and not name.startswith("*")
        return name == self.name

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The hosts and endpoints that a sandbox may reach."""

    shared: bool = False
    """Whether the sandbox has the provider's whole network."""
    endpoints: tuple[tuple[str, int], ...] = ()
    """Hosts and ports, each reached at the sandbox's own port of that number."""
    hosts: tuple[Host, ...] = ()
    """Hosts reached by the proxy."""

    @classmethod
    def parse(cls, network: Network) -> Policy:
        """Parse a policy.

        Raises:
            UsageError: The policy is malformed; the message names the problem.
        """
        if isinstance(network, bool):
            return cls(shared=network)
        is_single = isinstance(network, str)
        texts = network.split(",") if isinstance(network, str) else list(network)
        if not texts:
            return cls()
        policies = [_parse_entry(text, is_single and len(texts) == 1) for text in texts]
        endpoints = tuple(dict.fromkeys(entry for policy in policies for entry in policy.endpoints))
        hosts = tuple(dict.fromkeys(entry for policy in policies for entry in policy.hosts))
        ports = [port for _, port in endpoints]
        if duplicate_ports := [port for port in ports if ports.count(port) > 1]:
            raise UsageError(
                f"network: two endpoints have the port {duplicate_ports[0]}, which a sandbox can "
                "have only once"
            )
        return cls(False, endpoints, hosts)

    @property
    def reaches_out(self) -> bool:
        """Whether the policy admits more than single endpoints."""
        return self.shared or bool(self.hosts)


def _parse_entry(text: object, direct: bool) -> Policy:
    """Parse one entry.

    Args:
        text: The entry.
        direct: Whether a name with a port is an endpoint, rather than a host of the proxy.
    """
    if not isinstance(text, str):
        raise UsageError(f"network: a host is a text, not {text!r}")
    name, port, scheme = _split_entry(text.strip())
    if port is not None and (name in _LOCAL_NAMES or (direct and scheme != "https")):
        _check_literal(name, text)
        return Policy(endpoints=((name, port),))
    literal = _parse_literal(name)
    if literal is not None and port is None:
        raise UsageError(f"network: give the port of an address, as {name}:443: {text!r}")
    if literal is None and "." not in name and port is None:
        raise UsageError(
            f"network: {text!r} is not a host: give HOST:PORT, a URL, or comma-separated names "
            "such as pypi.org,*.example.org; or no value for the whole network"
        )
    if name.startswith("*.") and "." not in name[2:]:
        raise UsageError(f"network: {text!r} is too wide: give no value for the whole network")
    _check_literal(name, text)
    return Policy(hosts=(Host(name, port),))


def _split_entry(text: str) -> tuple[str, int | None, str]:
    """Return an entry's host, its port if any, and its scheme if the entry is a URL."""
    scheme, port = "", None
    host = text
    if "://" in text:
        url = urlsplit(text)
        scheme = url.scheme
        if scheme not in ("http", "https") or "@" in url.netloc:
            raise UsageError(
                f"network: a URL begins with http:// or https://, and a host: {text!r}"
            )
        host = (
            url.netloc
            if url.netloc.rpartition("]")[2].count(":")
            else (f"{url.netloc}:{443 if scheme == 'https' else 80}")
        )
    if ":" in host:
        try:
            host, port = address(host)
        except UsageError as error:
            raise UsageError(f"network: {error}") from None
    host = host.lower().removesuffix(".")
    if _parse_literal(host) is None and not _is_name(host):
        raise UsageError(f"network: {text!r} is not the name of a host")
    return host, port, scheme


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and ".." not in text and bool(_NAME.fullmatch(text))


def _parse_literal(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _check_literal(name: str, text: str) -> None:
    if (literal := _parse_literal(name)) is not None and (reason := forbidden_reason(literal)):
        raise UsageError(f"network: {text!r} is {reason}, which sandboxes must not reach")


def _embedded_ipv4(candidate: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds; else the address itself."""
    if isinstance(candidate, ipaddress.IPv4Address) or int(candidate) in (0, 1):
        return candidate
    for network, shift in _EMBEDDING:
        if candidate in network:
            return ipaddress.IPv4Address(int(candidate) >> shift & 0xFFFFFFFF)
    if int(candidate) >> 32 & 0xFFFFFFFF in _ISATAP:
        return ipaddress.IPv4Address(int(candidate) & 0xFFFFFFFF)
    return candidate


def _translations(candidate: Address) -> list[Address]:
    """List the IPv4 addresses into which a translator with a network-specific prefix may turn one.

    RFC 6052 skips bits 64 to 71 of the address, and has prefixes of 32 to 96 bits.
    """
    if isinstance(candidate, ipaddress.IPv4Address):
        return []
    address_number = int(candidate)
    bits = address_number >> 64 << 56 | address_number & (1 << 56) - 1
    shifts = [88 - prefix for prefix in (32, 40, 48, 56, 64)]
    shifted_numbers = [address_number, *(bits >> shift for shift in shifts)]
    return [ipaddress.IPv4Address(word & 0xFFFFFFFF) for word in shifted_numbers]


def forbidden_reason(candidate: Address) -> str:
    """Return why an address is never connected to, even if listed; empty: it may be reached."""
    candidate = _embedded_ipv4(candidate)
    if any(
        variant in network
        for variant in (candidate, *_translations(candidate))
        for network in _METADATA
    ):
        return "an address of a cloud's metadata"
    if candidate.is_link_local:
        return "a link-local address"
    return (
        "a multicast or unspecified address"
        if candidate.is_multicast or int(candidate) == 0
        else ""
    )


def non_public_reason(candidate: Address) -> str:
    """Return why an address is not on the public internet; empty: it is public."""
    effective_address = _embedded_ipv4(candidate)
    if reason := forbidden_reason(candidate):
        return reason
    is_in_public_range = effective_address.version == 4 or effective_address in _PUBLIC_IPV6
    if not (is_in_public_range and effective_address.is_global) or effective_address.is_reserved:
        return "a private address"
    return "an address of this machine" if _is_local(effective_address) else ""


def _is_local(candidate: Address) -> bool:
    """Return whether an address is this machine's: only a local address can be bound."""
    family = socket.AF_INET if candidate.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(candidate), 0))
        return True
    return False


class NetworkGate:
    """A gate that opens the connections of one sandbox, if its policy allows them. Thread-safe.

    Args:
        policy: The policy.
        resolve: Resolves names, on this machine.
        private: Whether names may lead to private addresses. Only for names that this machine's
            operator has configured, never for names from a benchmark or an agent.
    """

    def __init__(
        self, policy: Policy, resolve: Resolve = socket.getaddrinfo, *, private: bool = False
    ) -> None:
        self.policy = policy
        self._resolve = resolve
        self._private = private
        self._lock = threading.Lock()
        self._refusal_counts: dict[str, int] = {}

    @property
    def refusal_counts(self) -> Mapping[str, int]:
        """Number of refused connections: ``host:port: reason`` → count."""
        with self._lock:
            return dict(self._refusal_counts)

    def allowed_text(self) -> str:
        """Return the allowed hosts as a phrase."""
        hosts = ", ".join(map(str, self.policy.hosts))
        return f"{hosts} (ports 80 and 443, where none is named)"

    def connect_to_host(self, name: str, port: int) -> socket.socket:
        """Connect to a host that a program requested.

        Raises:
            RefusedError: The policy does not allow the connection. The gate counts it.
            OSError: The host cannot be reached.
        """
        destination = f"{_printable_name(name)}:{port}"
        matching_hosts = [
            allowed_host for allowed_host in self.policy.hosts if allowed_host.admits(name, port)
        ]
        if not matching_hosts:
            self._refuse(
                destination,
                f"it is not in this sandbox's list: {self.allowed_text()}",
                "not listed",
            )
        allows_private = self._private or _parse_literal(name) is not None
        return self._connect(
            name, port, destination, forbidden_reason if allows_private else non_public_reason
        )

    def endpoint(self, host: str, port: int) -> Handler:
        """Return the handler of an endpoint's forward. A listed endpoint may be private."""
        destination = f"{host}:{port}"

        def serve(connection: socket.socket) -> None:
            with self._connect(host, port, destination, forbidden_reason) as upstream:
                join(connection, upstream)

        return serve

    def _connect(
        self, name: str, port: int, destination: str, refusal_reason: Callable[[Address], str]
    ) -> socket.socket:
        """Resolve a name once, and connect to the first permitted address that answers."""
        failure = OSError(f"{destination} has no address")
        reasons = []
        for family, kind, _, _, socket_address in self._resolve(
            name, port, type=socket.SOCK_STREAM
        ):
            candidate = ipaddress.ip_address(str(socket_address[0]).partition("%")[0])
            if reason := refusal_reason(candidate):
                reasons.append(reason)
                continue
            connection = socket.socket(family, kind)
            try:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(socket_address)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        if reasons and failure.errno is None:
            self._refuse(destination, f"its name leads to {reasons[0]}", reasons[0])
        raise failure

    def _refuse(self, destination: str, message: str, reason: str) -> None:
        key = f"{destination}: {reason}"
        with self._lock:
            if key not in self._refusal_counts and len(self._refusal_counts) >= _MAX_REFUSED_NAMES:
                key = _OVERFLOW_KEY
            self._refusal_counts[key] = self._refusal_counts.get(key, 0) + 1
        raise RefusedError(f"{destination} cannot be reached from here: {message}")


def _printable_name(name: str) -> str:
    """Return an agent's host name with unprintable characters replaced."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:_LONGEST_NAME])


def proxy_variables(port: int) -> dict[str, str]:
    """Return the environment variables that point programs to a proxy on the loopback."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{port}")
    variables = {**proxies, "no_proxy": "localhost,127.0.0.1,::1"}
    return {**variables, **{name.upper(): value for name, value in variables.items()}}


def free_port(policy: Policy) -> int:
    """Return the proxy's port: the first from `PROXY_PORT` on that no endpoint uses."""
    used_ports = {port for _, port in policy.endpoints}
    return next(port for port in range(PROXY_PORT, 65_536) if port not in used_ports)


def handlers(
    gate: NetworkGate, proxy: Callable[[NetworkGate, socket.socket], None]
) -> dict[int, Handler]:
    """Return the forwards that a policy needs: port → handler."""
    port_handlers = {
        port: gate.endpoint(endpoint_host, port) for endpoint_host, port in gate.policy.endpoints
    }
    if gate.policy.hosts:
        port_handlers[free_port(gate.policy)] = partial(proxy, gate)
    return port_handlers
