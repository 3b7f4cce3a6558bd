"""A gate, and clients of it, without a sandbox."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from intercode_integrations.gateway import GatewaySession

KEY = "sk-the-real-key-of-the-provider"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100},
}
_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
_FUNCTION = {"name": "bash", "description": "runs", "parameters": _SCHEMA}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{"type": "function", "function": _FUNCTION}],
    "/v1/responses": [{"type": "function", **_FUNCTION}],
    "/v1/messages": [{"name": "bash", "description": "runs", "input_schema": _SCHEMA}],
}


def said(connection: socket.socket) -> bytes:
    """Read until the other end closes."""
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


@contextmanager
def raw(seat: GatewaySession) -> Iterator[socket.socket]:
    """Connect to a seat, without a port."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            seat.serve(theirs)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with ours:
        ours.settimeout(30)
        yield ours
    thread.join(30)
    assert not thread.is_alive()


def ask(
    seat: GatewaySession,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    token: str | None = None,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """Make one request of the seat."""
    with raw(seat) as connection:
        client = HTTPConnection("127.0.0.1")
        client.sock = connection
        sent = {"Authorization": f"Bearer {seat.token if token is None else token}"}
        data = json.dumps({"model": "any", **(body or {})}) if method == "POST" else None
        client.request(method, path, data, {**sent, "Connection": "close", **(headers or {})})
        response = client.getresponse()
        return response.status, response.read()
