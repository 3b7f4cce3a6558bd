"""Network policies of sandboxes: no network, the whole network, single endpoints, or an allowlist.

`NetworkPolicy.parse` parses the option `network` of a caller. A sandbox with endpoints or an
allowlist has no network but its loopback: a `NetworkGate` on the host opens each connection for it.
The gate resolves host names itself, and connects to the very address that it has checked. So a
name's second, different resolution cannot evade the check.
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
"""The hosts that a sandbox may reach.

- False: no host.
- True: all hosts that this machine reaches.
- ``HOST:PORT`` or ``http://HOST:PORT``: that endpoint, at the sandbox's own ``127.0.0.1:PORT``.
- Host names, in a list or separated by commas: these hosts, by an HTTP proxy. In a list, or among
  several, ``HOST:PORT`` is such a host, too, unless ``HOST`` is this machine (``127.0.0.1``).
"""

Resolve = Callable[..., list[tuple[Any, ...]]]
"""A function with the signature of `socket.getaddrinfo`."""

PROXY_PORT = 3128
"""The preferred port of the HTTP proxy on the sandbox's loopback. If an endpoint uses this port,
the proxy gets the next free one."""
_WEB_PORTS = (80, 443)
"""The ports that an entry of an allowlist admits if it names no port."""
_CONNECT_SECONDS = 10.0
_MAX_REFUSED_NAMES = 100
"""Maximum number of keys in `NetworkGate.refusal_counts`. A flood of further destinations counts
together, under `_OVERFLOW_KEY`."""
_OVERFLOW_KEY = "(others)"
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?", re.ASCII)
_LONGEST_NAME = 253
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_METADATA = [
    # The first address is that of most clouds. The others are addresses of AWS.
    *map(ipaddress.ip_network, ("169.254.169.254", "169.254.170.2", "169.254.170.23")),
    ipaddress.ip_network("168.63.129.16"),  # Azure
    ipaddress.ip_network("100.100.100.200"),  # Alibaba
    ipaddress.ip_network("192.0.0.192"),  # Oracle
    ipaddress.ip_network("fd00:ec2::/64"),  # AWS: ::254, ::23
    ipaddress.ip_network("fd20:ce::/64"),  # Google: ::254
    ipaddress.ip_network("fd00:c1::/64"),  # Oracle: ::a9fe:a9fe
    ipaddress.ip_network("fd00:42::/64"),  # Scaleway: ::42
]
"""Addresses at which clouds serve secrets of a machine (metadata services). Some of these addresses
lie in no reserved range, so the standard library does not recognise them."""
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
_EMBEDDING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 0),
    (ipaddress.ip_network("::ffff:0:0:0/96"), 0),
    (ipaddress.ip_network("64:ff9b::/96"), 0),
    (ipaddress.ip_network("64:ff9b:1::/48"), 0),
    (ipaddress.ip_network("::/96"), 0),
    (ipaddress.ip_network("2002::/16"), 80),
]
"""IPv6 networks whose addresses contain an IPv4 address, each with the number of bits after the
IPv4 address."""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Values of bits 64 to 95 of an ISATAP address: its last 32 bits are an IPv4 address. ISATAP
addresses exist in any IPv6 network."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedConnectionError(Exception):
    """A connection that the policy does not allow. The HTTP proxy replies with the message."""


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """An entry of an allowlist: a host name, or all names below a domain."""

    name: str
    """A host name; or ``*.DOMAIN``, all names below that domain."""
    port: int | None = None
    """The admitted port; None: ports 80 and 443."""

    def admits(self, name: str, port: int) -> bool:
        """Return whether this entry allows a connection.

        Args:
            name: The host name that the program requested.
            port: The port.
        """
        if port not in (_WEB_PORTS if self.port is None else (self.port,)):
            return False
        if self.name.startswith("*."):
            is_subdomain = name.endswith(self.name[1:]) and len(name) >= len(self.name)
            return is_subdomain and _is_name(name) and not name.startswith("*")
        return name == self.name

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The hosts and endpoints that a sandbox may reach."""

    shared: bool = False
    """Whether the sandbox has the provider's whole network."""
    endpoints: tuple[tuple[str, int], ...] = ()
    """Hosts and ports. A program reaches each endpoint at the same port of the sandbox's 127.0.0.1.
    """
    hosts: tuple[AllowedHost, ...] = ()
    """Allowlist of hosts, which programs reach by the proxy."""

    @classmethod
    def parse(cls, network: Network) -> NetworkPolicy:
        """Parse the option `network` of a caller, in the forms that `Network` describes.

        Raises:
            UsageError: The policy is malformed; the message names the problem.
        """
        if isinstance(network, bool):
            return cls(shared=network)
        is_single = isinstance(network, str)
        texts = network.split(",") if isinstance(network, str) else list(network)
        if not texts:
            return cls()
        entry_policies = [_parse_entry(text, is_single and len(texts) == 1) for text in texts]
        endpoints = tuple(
            dict.fromkeys(entry for policy in entry_policies for entry in policy.endpoints)
        )
        hosts = tuple(dict.fromkeys(entry for policy in entry_policies for entry in policy.hosts))
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


def _parse_entry(text: object, can_be_endpoint: bool) -> NetworkPolicy:
    """Parse one entry of the option `network`.

    Args:
        text: The entry.
        can_be_endpoint: Whether a name with a port is an endpoint, unless it is an ``https`` URL.
            Otherwise programs reach the host by the proxy. This machine's host with a port is
            always an endpoint.
    """
    if not isinstance(text, str):
        raise UsageError(f"network: a host is a text, not {text!r}")
    host_name, port, scheme = _split_entry(text.strip())
    if port is not None and (host_name in _LOCAL_NAMES or (can_be_endpoint and scheme != "https")):
        _check_literal(host_name, text)
        return NetworkPolicy(endpoints=((host_name, port),))
    literal = _parse_literal(host_name)
    if literal is not None and port is None:
        raise UsageError(f"network: give the port of an address, as {host_name}:443: {text!r}")
    if literal is None and "." not in host_name and port is None:
        raise UsageError(
            f"network: {text!r} is not a host: give HOST:PORT, a URL, or comma-separated names "
            "such as pypi.org,*.example.org; or no value for the whole network"
        )
    if host_name.startswith("*.") and "." not in host_name[2:]:
        raise UsageError(f"network: {text!r} is too wide: give no value for the whole network")
    _check_literal(host_name, text)
    return NetworkPolicy(hosts=(AllowedHost(host_name, port),))


def _split_entry(text: str) -> tuple[str, int | None, str]:
    """Return the host of an entry, its port or None, and the scheme of a URL or ""."""
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
    """Return the IPv4 address that an IPv6 address embeds, or otherwise the address itself."""
    if isinstance(candidate, ipaddress.IPv4Address) or int(candidate) in (0, 1):
        return candidate
    for network, shift in _EMBEDDING:
        if candidate in network:
            return ipaddress.IPv4Address(int(candidate) >> shift & 0xFFFFFFFF)
    if int(candidate) >> 32 & 0xFFFFFFFF in _ISATAP:
        return ipaddress.IPv4Address(int(candidate) & 0xFFFFFFFF)
    return candidate


def _translations(candidate: Address) -> list[Address]:
    """Return the IPv4 addresses that a network's NAT64 translator may make of an IPv6 address.

    The prefix of the translator, and so the position of the IPv4 address, is unknown. RFC 6052
    permits prefixes of 32 to 96 bits, and leaves bits 64 to 71 unused.
    """
    if isinstance(candidate, ipaddress.IPv4Address):
        return []
    address_number = int(candidate)
    packed_number = address_number >> 64 << 56 | address_number & (1 << 56) - 1
    shifts = [88 - prefix_length for prefix_length in (32, 40, 48, 56, 64)]
    shifted_numbers = [address_number, *(packed_number >> shift for shift in shifts)]
    return [
        ipaddress.IPv4Address(shifted_number & 0xFFFFFFFF) for shifted_number in shifted_numbers
    ]


def forbidden_reason(candidate: Address) -> str:
    """Return the reason why no policy may admit an address; empty: a policy may admit it."""
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
    """Return the reason why an address is not on the public internet; empty: it is public."""
    effective_address = _embedded_ipv4(candidate)
    if reason := forbidden_reason(candidate):
        return reason
    is_in_public_range = effective_address.version == 4 or effective_address in _PUBLIC_IPV6
    if not (is_in_public_range and effective_address.is_global) or effective_address.is_reserved:
        return "a private address"
    return "an address of this machine" if _is_local(effective_address) else ""


def _is_local(candidate: Address) -> bool:
    """Return whether an address belongs to this machine.

    The check binds a socket to the address, which the kernel permits for local addresses only.
    """
    family = socket.AF_INET if candidate.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(candidate), 0))
        return True
    return False


class NetworkGate:
    """A gate that opens the connections of one sandbox, if its policy allows them. Thread-safe.

    Args:
        policy: The policy.
        resolve: A function that resolves host names, on this machine.
        private: Whether host names may resolve to private addresses. True is safe only for names
            that this machine's operator has configured, not for names from a benchmark or an agent.
    """

    def __init__(
        self, policy: NetworkPolicy, resolve: Resolve = socket.getaddrinfo, *, private: bool = False
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
        """Return the hosts of the policy's allowlist as a phrase for messages."""
        hosts_text = ", ".join(map(str, self.policy.hosts))
        return f"{hosts_text} (ports 80 and 443, where none is named)"

    def connect_to_host(self, name: str, port: int) -> socket.socket:
        """Connect to a host that a program requested.

        Raises:
            RefusedConnectionError: The policy does not allow the connection. The gate counts the
                refusal.
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
        """Return a handler that relays connections to an endpoint of the policy.

        The endpoint's address may be private, because the caller has named the endpoint itself.
        """
        destination = f"{host}:{port}"

        def serve(connection: socket.socket) -> None:
            with self._connect(host, port, destination, forbidden_reason) as upstream:
                join(connection, upstream)

        return serve

    def _connect(
        self, name: str, port: int, destination: str, refusal_reason: Callable[[Address], str]
    ) -> socket.socket:
        """Resolve a host name once, and connect to the first permitted address that answers.

        Args:
            name: The host name.
            port: The port.
            destination: The destination's text for messages.
            refusal_reason: A function that returns the reason why an address is not permitted, or
                an empty text.

        Raises:
            RefusedConnectionError: The name has no permitted address.
            OSError: No permitted address answers, or the name cannot be resolved.
        """
        failure: OSError | None = None
        reasons = []
        for family, socket_type, _, _, socket_address in self._resolve(
            name, port, type=socket.SOCK_STREAM
        ):
            candidate = ipaddress.ip_address(str(socket_address[0]).partition("%")[0])
            if reason := refusal_reason(candidate):
                reasons.append(reason)
                continue
            connection = socket.socket(family, socket_type)
            try:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(socket_address)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        if failure is not None:
            raise failure
        if reasons:
            self._refuse(destination, f"its name leads to {reasons[0]}", reasons[0])
        raise OSError(f"{destination} has no address")

    def _refuse(self, destination: str, message: str, reason: str) -> None:
        refusal_key = f"{destination}: {reason}"
        with self._lock:
            if (
                refusal_key not in self._refusal_counts
                and len(self._refusal_counts) >= _MAX_REFUSED_NAMES
            ):
                refusal_key = _OVERFLOW_KEY
            self._refusal_counts[refusal_key] = self._refusal_counts.get(refusal_key, 0) + 1
        raise RefusedConnectionError(f"{destination} cannot be reached from here: {message}")


def _printable_name(name: str) -> str:
    """Return a requested host name for messages: shortened, and "?" for unprintable characters."""
    return "".join(
        character if character.isascii() and character.isprintable() else "?"
        for character in name[:_LONGEST_NAME]
    )


def proxy_variables(port: int) -> dict[str, str]:
    """Return environment variables that make programs use a proxy on the loopback, at `port`."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{port}")
    variables = {**proxies, "no_proxy": "localhost,127.0.0.1,::1"}
    return {**variables, **{name.upper(): value for name, value in variables.items()}}


def free_port(policy: NetworkPolicy) -> int:
    """Return the proxy's port: the first from `PROXY_PORT` on that no endpoint uses."""
    used_ports = {port for _, port in policy.endpoints}
    return next(port for port in range(PROXY_PORT, 65_536) if port not in used_ports)


def handlers(
    gate: NetworkGate, proxy: Callable[[NetworkGate, socket.socket], None]
) -> dict[int, Handler]:
    """Return a handler for each port of the sandbox's loopback that the gate's policy needs.

    Args:
        gate: The sandbox's gate.
        proxy: A function that serves one connection to the HTTP proxy.

    Returns:
        Port → the handler of its forward.
    """
    port_handlers = {
        port: gate.endpoint(endpoint_host, port) for endpoint_host, port in gate.policy.endpoints
    }
    if gate.policy.hosts:
        port_handlers[free_port(gate.policy)] = partial(proxy, gate)
    return port_handlers
