"""The request guard of HTTP servers: host, origin and token checks before any request is served.

A hostile web page in a browser on this host can send requests to local servers in two ways. By DNS
rebinding, the page's own host name resolves to this host's address. By a cross-site request, the
page addresses the server directly. The guard therefore checks the headers ``Host``, ``Origin`` and
``Sec-Fetch-*``: the browser sets these, and no page can forge them.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit


class RequestHeaders(Protocol):
    """The headers of a request, with the interface of the package ``websockets``."""

    def get_all(self, key: str) -> list[str]:
        """Return all values of a header; names are case-insensitive."""


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this host only."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def token_refusal(values: Sequence[str], token: bytes) -> tuple[HTTPStatus, str] | None:
    """Return the HTTP status and the message that refuse a missing or wrong token.

    The result is None if the token is right.

    Args:
        values: The values of the request's header ``Authorization``.
        token: The server's secret.
    """
    scheme, _, value = (values[0] if len(values) == 1 else "").partition(" ")
    secret = value.strip().encode(errors="replace")
    if scheme.lower() != "bearer" or not secret:
        return HTTPStatus.UNAUTHORIZED, "a token is needed: Authorization: Bearer TOKEN"
    if not hmac.compare_digest(secret, token):
        return HTTPStatus.UNAUTHORIZED, "the token that was sent is not the right one"
    return None


class RequestGuard:
    """A filter of requests by host name, origin and token.

    Args:
        token: The secret that clients must send; None: clients need no token.
        names: The server's host names, in addition to ``localhost``, this host's name and numeric
            addresses.
        pages: Whether the server itself has web pages. Requests from these pages are accepted.
        option: The command-line option that adds host names, for the error message; empty: no
            option.
    """

    def __init__(
        self,
        token: str | None = None,
        names: Collection[str] = (),
        *,
        pages: bool = True,
        option: str = "",
    ) -> None:
        self._pages = pages
        self._advice = f"see {option}" if option else "call it localhost, or by its number"
        self._token = None if token is None else token.encode()
        self._names = {"localhost", socket.gethostname().lower(), *(map(str.lower, names))}

    def refusal(
        self, headers: RequestHeaders, *, is_token_free: bool = False, allows_links: bool = False
    ) -> tuple[HTTPStatus, str] | None:
        """Return the HTTP status and the message that refuse a request; None: it is accepted.

        Args:
            headers: The request's headers.
            is_token_free: Whether the request needs no token.
            allows_links: Whether a link on another site may open the resource as a page.
        """
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return HTTPStatus.FORBIDDEN, f"this server is not called so: {self._advice}"
        allowed_origins = {hosts[0].lower()} if self._pages else set()
        if {origin.partition("://")[2].lower() for origin in origins} - allowed_origins:
            return HTTPStatus.FORBIDDEN, "web pages of other sites are not served"
        mode, dest = (headers.get_all(f"Sec-Fetch-{name}") for name in ("Mode", "Dest"))
        follows_link = allows_links and (mode, dest) == (["navigate"], ["document"])
        if {*headers.get_all("Sec-Fetch-Site")} - {"none", "same-origin"} and not follows_link:
            return HTTPStatus.FORBIDDEN, "web pages of other sites are not served"
        if not is_token_free and self._token is not None:
            return token_refusal(headers.get_all("Authorization"), self._token)
        return None

    def _is_ours(self, host: str) -> bool:
        """Return whether the header ``Host`` is a name of this server or a numeric address.

        In a DNS rebinding attack, the browser sends the attacker's host name, which is neither.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _address(name) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
