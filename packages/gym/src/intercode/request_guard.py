"""The guard at a server's door: who may speak to it.

A web page in the browser of someone on this machine can reach what listens here, by a name that it
has pointed here (DNS rebinding) or across sites. So the name that a client calls is checked, and
where it comes from; neither can be forged by a page.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit


class Headers(Protocol):
    """The headers of a request, as those of websockets are."""

    def get_all(self, key: str) -> list[str]:
        """Return all values of a header, whatever the case of its name."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def token_refusal(values: Sequence[str], token: bytes) -> tuple[HTTPStatus, str] | None:
    """Return the refusal of a missing or a wrong token; None: the token is right.

    Args:
        values: The request's headers ``Authorization``.
        token: The server's secret.
    """
    scheme, _, value = (values[0] if len(values) == 1 else "").partition(" ")
    secret = value.strip().encode(errors="replace")
    if scheme.lower() != "bearer" or not secret:
        return HTTPStatus.UNAUTHORIZED, "a token is needed: Authorization: Bearer TOKEN"
    if not hmac.compare_digest(secret, token):
        return HTTPStatus.UNAUTHORIZED, "the token that was sent is not the right one"
    return None


class Guard:
    """Refuses requests.

    Args:
        token: The secret that clients bring; None: they need none.
        names: Host names by which clients may call the server, beside addresses of numbers.
        pages: Whether the server has web pages of its own, whose requests are let in.
        option: The option by which such names are given, if there is one.
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
        self, headers: Headers, *, free: bool = False, linked: bool = False
    ) -> tuple[HTTPStatus, str] | None:
        """Say why a request is refused; None: it is not.

        Args:
            headers: The request's.
            free: Whether it needs no token.
            linked: Whether a link from elsewhere may lead a browser to it, as a page of its own.
        """
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return HTTPStatus.FORBIDDEN, f"this server is not called so: {self._advice}"
        allowed_origins = {hosts[0].lower()} if self._pages else set()
        if {origin.partition("://")[2].lower() for origin in origins} - allowed_origins:
            return HTTPStatus.FORBIDDEN, "web pages of other sites are not served"
        mode, dest = (headers.get_all(f"Sec-Fetch-{name}") for name in ("Mode", "Dest"))
        follows = linked and (mode, dest) == (["navigate"], ["document"])
        if {*headers.get_all("Sec-Fetch-Site")} - {"none", "same-origin"} and not follows:
            return HTTPStatus.FORBIDDEN, "web pages of other sites are not served"
        if not free and self._token is not None:
            return token_refusal(headers.get_all("Authorization"), self._token)
        return None

    def _is_ours(self, host: str) -> bool:
        """Tell whether a page cannot have chosen this name: only names can be pointed elsewhere."""
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
