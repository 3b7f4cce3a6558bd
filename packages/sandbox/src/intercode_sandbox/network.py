"""Policies for the network: nothing, everything, one endpoint, or a list of hosts.

A `Policy` is read from a caller's `network`. Where it is neither nothing nor everything, the
sandbox has no network but its loopback, and a `Gate` out here opens each connection: it resolves
names itself, and connects to the very address that it has checked.
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
one, as the sandbox's own ``127.0.0.1:PORT``. Host names, as a list or with commas: those, by a
proxy."""

Resolve = Callable[..., list[tuple[Any, ...]]]
"""As `socket.getaddrinfo`."""

PROXY_PORT = 3128
"""The proxy's port on the sandbox's loopback; the next free one, where an endpoint has it."""
_WEB_PORTS = (80, 443)
_CONNECT_SECONDS = 10.0
_MOST_NAMES = 100
"""Refused names that a record has. More are a flood, and counted together."""
_OTHERS = "(others)"
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
"""Addresses by which clouds tell a machine its secrets. Some are in no reserved range."""
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
_EMBEDDING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 0),
    (ipaddress.ip_network("::ffff:0:0:0/96"), 0),
    (ipaddress.ip_network("64:ff9b::/96"), 0),
    (ipaddress.ip_network("64:ff9b:1::/48"), 0),
    (ipaddress.ip_network("::/96"), 0),
    (ipaddress.ip_network("2002::/16"), 80),
]
"""Networks of IPv6 addresses with one of IPv4 in them, and the bits after it."""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Bits 64 to 95 of an address of IPv6 of which the remaining ones are of IPv4, on any network."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedError(Exception):
    """A connection that the policy does not allow. The text is for the sandbox's programs, too."""


@dataclass(frozen=True, slots=True)
class Host:
    """One entry of a list: a name, or all names below one, and a port if only that counts."""

    name: str
    port: int | None = None

    def admits(self, name: str, port: int) -> bool:
        """Tell whether a connection to a host, by the name that a program gave, is allowed."""
        if port not in (_WEB_PORTS if self.port is None else (self.port,)):
            return False
        if self.name.startswith("*."):
            below = name.endswith(self.name[1:]) and len(name) >= len(self.name)
            return below and _is_name(name) and not name.startswith("*")
        return name == self.name

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The hosts and endpoints that a sandbox may reach."""

    shared: bool = False
    """Whether it has the network that the provider gives: all of it."""
    endpoints: tuple[tuple[str, int], ...] = ()
    """Hosts and ports, each to be reached by the sandbox's own port of that number."""
    hosts: tuple[Host, ...] = ()
    """Hosts to be reached by the proxy."""

    @classmethod
    def of(cls, network: Network) -> Policy:
        """Read a policy.

        Raises:
            UsageError: It is malformed; the message names what is wrong.
        """
        if isinstance(network, bool):
            return cls(shared=network)
        one = isinstance(network, str)
        texts = network.split(",") if isinstance(network, str) else list(network)
        if not texts:
            return cls()
        policies = [_entry(text, one and len(texts) == 1) for text in texts]
        endpoints = tuple(dict.fromkeys(each for policy in policies for each in policy.endpoints))
        hosts = tuple(dict.fromkeys(each for policy in policies for each in policy.hosts))
        ports = [port for _, port in endpoints]
        if twice := [port for port in ports if ports.count(port) > 1]:
            raise UsageError(f"network: two endpoints have the port {twice[0]}, and a sandbox one")
        return cls(False, endpoints, hosts)

    @property
    def reaches_out(self) -> bool:
        """Whether it leads to more than single endpoints."""
        return self.shared or bool(self.hosts)


def _entry(text: object, direct: bool) -> Policy:
    """Read one entry.

    Args:
        text: It.
        direct: Whether a name with a port is to be an endpoint, rather than the proxy's.
    """
    if not isinstance(text, str):
        raise UsageError(f"network: a host is a text, not {text!r}")
    name, port, scheme = _taken_apart(text.strip())
    if port is not None and (name in _LOCAL_NAMES or (direct and scheme != "https")):
        _check_literal(name, text)
        return Policy(endpoints=((name, port),))
    bare = _literal(name)
    if bare is not None and port is None:
        raise UsageError(f"network: give the port of an address, as {name}:443: {text!r}")
    if bare is None and "." not in name and port is None:
        raise UsageError(
            f"network: {text!r} is not a host: give HOST:PORT, a URL, or names such as pypi.org "
            "and *.example.org with commas between them; or no value, for all of the network"
        )
    if name.startswith("*.") and "." not in name[2:]:
        raise UsageError(f"network: {text!r} is too wide: give no value for all of the network")
    _check_literal(name, text)
    return Policy(hosts=(Host(name, port),))


def _taken_apart(text: str) -> tuple[str, int | None, str]:
    """Return an entry's host, its port if it has one, and its URL's scheme, if it is one."""
    scheme, port = "", None
    host = text
    if "://" in text:
        parts = urlsplit(text)
        scheme = parts.scheme
        if scheme not in ("http", "https") or "@" in parts.netloc:
            raise UsageError(
                f"network: a URL begins with http:// or https://, and a host: {text!r}"
            )
        host = (
            parts.netloc
            if parts.netloc.rpartition("]")[2].count(":")
            else (f"{parts.netloc}:{443 if scheme == 'https' else 80}")
        )
    if ":" in host:
        try:
            host, port = address(host)
        except UsageError as error:
            raise UsageError(f"network: {error}") from None
    host = host.lower().removesuffix(".")
    if _literal(host) is None and not _is_name(host):
        raise UsageError(f"network: {text!r} is not the name of a host")
    return host, port, scheme


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and ".." not in text and bool(_NAME.fullmatch(text))


def _literal(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _check_literal(name: str, text: str) -> None:
    if (found := _literal(name)) is not None and (why := never(found)):
        raise UsageError(f"network: {text!r} is {why}, which no sandbox may reach")


def _within(found: Address) -> Address:
    """Return the address of IPv4 that one of IPv6 stands for; else the address itself."""
    if isinstance(found, ipaddress.IPv4Address) or int(found) in (0, 1):
        return found
    for network, after in _EMBEDDING:
        if found in network:
            return ipaddress.IPv4Address(int(found) >> after & 0xFFFFFFFF)
    if int(found) >> 32 & 0xFFFFFFFF in _ISATAP:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found


def _translations(found: Address) -> list[Address]:
    """List what a translator to IPv4, with a prefix of its network's own, may make of an address.

    RFC 6052 leaves out bits 64 to 71 of the address, and has the prefixes of 32 to 96 bits.
    """
    if isinstance(found, ipaddress.IPv4Address):
        return []
    value = int(found)
    bits = value >> 64 << 56 | value & (1 << 56) - 1
    shifts = [88 - prefix for prefix in (32, 40, 48, 56, 64)]
    words = [value, *(bits >> shift for shift in shifts)]
    return [ipaddress.IPv4Address(word & 0xFFFFFFFF) for word in words]


def never(found: Address) -> str:
    """Say why an address is never connected to, also if it is named; empty: it may be."""
    found = _within(found)
    if any(each in network for each in (found, *_translations(found)) for network in _METADATA):
        return "an address of a cloud's metadata"
    if found.is_link_local:
        return "a link-local address"
    return "a multicast or unspecified address" if found.is_multicast or int(found) == 0 else ""


def not_public(found: Address) -> str:
    """Say why an address is not one of the public internet; empty: it is."""
    within = _within(found)
    if why := never(found):
        return why
    public = within.version == 4 or within in _PUBLIC_IPV6
    if not (public and within.is_global) or within.is_reserved:
        return "a private address"
    return "an address of this machine" if _is_own(within) else ""


def _is_own(found: Address) -> bool:
    """Return whether an address is this machine's: only to such a one can a socket be bound."""
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(found), 0))
        return True
    return False


class Gate:
    """Opens the connections of one sandbox, as its policy allows. Thread-safe.

    Args:
        policy: The policy.
        resolve: Resolves names, on this machine.
        private: Whether the names may lead to private addresses. Only for names that this machine's
            operator has configured, never for those of a benchmark or an agent.
    """

    def __init__(
        self, policy: Policy, resolve: Resolve = socket.getaddrinfo, *, private: bool = False
    ) -> None:
        self.policy = policy
        self._resolve = resolve
        self._private = private
        self._lock = threading.Lock()
        self._refused: dict[str, int] = {}

    @property
    def refused(self) -> Mapping[str, int]:
        """The connections that were refused: ``host:port: reason`` → how many."""
        with self._lock:
            return dict(self._refused)

    def allowed(self) -> str:
        """Return what may be reached, in words."""
        found = ", ".join(map(str, self.policy.hosts))
        return f"{found} (ports 80 and 443, where none is named)"

    def to_host(self, name: str, port: int) -> socket.socket:
        """Connect to a host that a program has asked for.

        Raises:
            RefusedError: The policy does not allow it. It is counted.
            OSError: It cannot be reached.
        """
        shown = f"{_printable(name)}:{port}"
        admitting = [host for host in self.policy.hosts if host.admits(name, port)]
        if not admitting:
            self._refuse(shown, f"it is not in this sandbox's list: {self.allowed()}", "not listed")
        named = self._private or _literal(name) is not None
        return self._connect(name, port, shown, never if named else not_public)

    def endpoint(self, host: str, port: int) -> Handler:
        """Return the handler of an endpoint's forward. It may be private, as it was named."""
        shown = f"{host}:{port}"

        def serve(connection: socket.socket) -> None:
            with self._connect(host, port, shown, never) as other:
                join(connection, other)

        return serve

    def _connect(
        self, name: str, port: int, shown: str, wrong: Callable[[Address], str]
    ) -> socket.socket:
        """Resolve a name once, and connect to one of its addresses that may be reached."""
        failure = OSError(f"{shown} has no address")
        reasons = []
        for family, kind, _, _, where in self._resolve(name, port, type=socket.SOCK_STREAM):
            found = ipaddress.ip_address(str(where[0]).partition("%")[0])
            if why := wrong(found):
                reasons.append(why)
                continue
            connection = socket.socket(family, kind)
            try:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(where)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        if reasons and failure.errno is None:
            self._refuse(shown, f"its name leads to {reasons[0]}", reasons[0])
        raise failure

    def _refuse(self, shown: str, said: str, reason: str) -> None:
        key = f"{shown}: {reason}"
        with self._lock:
            if key not in self._refused and len(self._refused) >= _MOST_NAMES:
                key = _OTHERS
            self._refused[key] = self._refused.get(key, 0) + 1
        raise RefusedError(f"{shown} cannot be reached from here: {said}")


def _printable(name: str) -> str:
    """Return a name, which an agent has made, as one that can be shown."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:_LONGEST_NAME])


def proxy_variables(port: int) -> dict[str, str]:
    """Return the variables by which programs find a proxy on the sandbox's loopback."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{port}")
    found = {**proxies, "no_proxy": "localhost,127.0.0.1,::1"}
    return {**found, **{name.upper(): value for name, value in found.items()}}


def free_port(policy: Policy) -> int:
    """Return the proxy's port: the first from `PROXY_PORT` on that no endpoint has."""
    taken = {port for _, port in policy.endpoints}
    return next(port for port in range(PROXY_PORT, 65_536) if port not in taken)


def handlers(gate: Gate, proxy: Callable[[Gate, socket.socket], None]) -> dict[int, Handler]:
    """Return the forwards that a policy needs, port → handler."""
    found = {port: gate.endpoint(host, port) for host, port in gate.policy.endpoints}
    if gate.policy.hosts:
        found[free_port(gate.policy)] = partial(proxy, gate)
    return found
