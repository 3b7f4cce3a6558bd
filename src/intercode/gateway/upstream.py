"""The server behind the gate: its address, its key, and single requests to it.

The key is in this process only. It is never part of what a client is sent: a server may repeat it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from intercode.errors import UsageError
from intercode.models import wire
from intercode.models.base import AttemptError
from intercode.models.keys import check_url, find, require
from intercode.models.openai import LOCAL

_OWN = (*LOCAL, "openai-compatible")
"""Providers that are a server of one's own."""
CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model of a provider, or of a server of one's own.

    Attributes:
        provider: As in ``PROVIDER/NAME``.
        model: The provider's name of the model.
        url: The base URL, with ``/v1``.
        key: The secret; empty: the server asks for none.
    """

    provider: str
    model: str
    url: str
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, model: str, base_url: str | None = None) -> Upstream:
        """Find the server of a model, and the key, as the clients of our own agents do.

        Args:
            model: ``PROVIDER/NAME``: ``openai/gpt-5``, ``anthropic/claude-sonnet-4-5``,
                ``vllm/NAME``, ``ollama/NAME``, ``llama.cpp/NAME``, ``openai-compatible/NAME``.
            base_url: The server's URL, if it is not the provider's usual one.

        Raises:
            UsageError: There is no such provider, no key, or no URL.
        """
        provider, slash, name = model.partition("/")
        if not slash or not name:
            raise UsageError(
                f"a model is named PROVIDER/NAME, for instance openai/gpt-5: {model!r}"
            )
        if provider == "openai":
            url = base_url or find("OPENAI_BASE_URL") or "https://api.openai.com/v1"
            key = require("OPENAI_API_KEY", model)
        elif provider == "anthropic":
            url = base_url or find("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
            key = require("ANTHROPIC_API_KEY", model)
        elif provider in _OWN:
            url = base_url or LOCAL.get(provider, "")
            key = find("OPENAI_COMPATIBLE_API_KEY") or ""
            if not url:
                raise UsageError(f"{model} needs a base URL: http://localhost:8000/v1")
        else:
            known = ", ".join(sorted(["openai", "anthropic", *_OWN]))
            raise UsageError(f"the gateway knows no provider {provider!r}; known: {known}")
        return cls(provider, name, check_url(url).removesuffix("/v1") + "/v1", key)

    @property
    def name(self) -> str:
        """The model's name with its provider, as the table of prices has it."""
        return f"{self.provider}/{self.model}"

    def open(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout: float
    ) -> Open:
        """Send a request; return the response, of which the body is still to be read.

        Args:
            method: GET or POST.
            path: From ``/v1`` on, which the base URL has already.
            body: The request's body.
            headers: Further headers.
            timeout: Seconds for which the server may be silent.

        Raises:
            AttemptError: There is no response.
        """
        parts = urlsplit(self.url)
        host, wait = parts.hostname or "", min(wire.CONNECT, timeout)
        make: Callable[[], http.client.HTTPConnection] = (
            (lambda: http.client.HTTPConnection(host, parts.port, timeout=wait))
            if parts.scheme == "http"
            else lambda: http.client.HTTPSConnection(
                host, parts.port, timeout=wait, context=ssl.create_default_context()
            )
        )
        connection = make()
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise AttemptError(f"no connection to {self.url}: {error}", unreachable=True) from None
        try:
            connection.sock.settimeout(timeout)
            sent = {**headers, **self._credentials(), "Accept-Encoding": "identity"}
            target = parts.path.removesuffix("/v1") + path
            connection.request(method, target, body or None, sent)
            return Open(connection, connection.sock, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise AttemptError(f"the connection broke: {_said(error)}", charged=True) from None

    def _credentials(self) -> dict[str, str]:
        if not self.key:
            return {}
        if self.provider == "anthropic":
            return {"x-api-key": self.key}
        both = {"Authorization": f"Bearer {self.key}"}
        # Servers of one's own that speak Anthropic's protocol look for its header.
        return both if self.provider == "openai" else {**both, "x-api-key": self.key}

    def without_key(self, data: bytes) -> bytes:
        """Remove the key from what the server says."""
        return data.replace(self.key.encode(), b"[key]") if self.key else data


class Open:
    """A response whose body is being read."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        sock: socket.socket,
        response: http.client.HTTPResponse,
    ) -> None:
        self._connection, self._socket, self._response = connection, sock, response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read(self, most: int) -> bytes:
        """Read the whole body.

        Raises:
            AttemptError: It was cut off, or is longer than `most` bytes.
        """
        found = bytearray()
        while data := self.some():
            found += data
            if len(found) > most:
                raise AttemptError("the answer is too long", charged=True)
        return bytes(found)

    def some(self) -> bytes:
        """Read what is there, and wait for it if need be; empty at the end.

        Raises:
            AttemptError: The connection broke.
        """
        try:
            data = self._response.read1(CHUNK)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AttemptError(f"the answer broke off: {_said(error)}", charged=True) from None
        if not data and self._response.length:
            raise AttemptError("the answer broke off", charged=True)
        return data

    def abort(self) -> None:
        """Wake a thread that reads: the answer breaks off."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection: a server that still writes stops."""
        self._response.close()
        self._connection.close()


def _said(error: Exception) -> str:
    return "it did not answer in time" if isinstance(error, TimeoutError) else repr(error)
