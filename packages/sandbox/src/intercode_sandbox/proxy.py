"""An HTTP proxy for one sandbox, with CONNECT and plain HTTP.

The sandbox's `NetworkGate` decides by the host that the request names. The proxy does not inspect
the relayed stream, in which TLS may name another host (SNI). So a program that may reach a server
may use everything that the server offers, under any name.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from intercode_sandbox.errors import UsageError
from intercode_sandbox.forwarding import address, join
from intercode_sandbox.network import NetworkGate, RefusedConnectionError

_LONGEST_HEAD = 65_536
_HEAD_SECONDS = 30.0
"""Time limit for the whole head of a request, even if its bytes arrive slowly."""
_REQUEST = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t\x20-\x7e\x80-\xff]*")
_DROPPED_FIELDS = {b"host", b"connection", b"keep-alive", b"upgrade", b"te", b"proxy-connection"}
_DROPPED_FIELDS |= {b"proxy-authorization"}
"""Header fields that the proxy does not pass on. The proxy writes Host and Connection itself."""


class _BadRequestError(Exception):
    """A request that the proxy cannot parse, or that is incomplete."""


def serve(gate: NetworkGate, client: socket.socket) -> None:
    """Serve one connection of a sandbox: read one request, then relay the stream.

    Args:
        gate: The sandbox's gate, which connects to the requested host if the policy allows it.
        client: The socket of the connection.
    """
    try:
        head, remaining_data = _read_head(client)
        method, host, port, upstream_head = _read_request(head)
        server = gate.connect_to_host(host, port)
    except _BadRequestError as error:
        _send_response(client, HTTPStatus.BAD_REQUEST, str(error))
    except RefusedConnectionError as error:
        _send_response(client, HTTPStatus.FORBIDDEN, str(error))
    except OSError as error:
        _send_response(client, HTTPStatus.BAD_GATEWAY, f"the host could not be reached: {error}")
    else:
        with server:
            if method == b"CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server.sendall(upstream_head + remaining_data)
            join(client, server)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request, and the received bytes that follow the head."""
    deadline = time.monotonic() + _HEAD_SECONDS
    received_data = bytearray()
    while (head_end := received_data.find(b"\r\n\r\n")) < 0:
        if len(received_data) > _LONGEST_HEAD:
            raise _BadRequestError("the request's head is too long")
        client.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            chunk = client.recv(4096)
        except TimeoutError:
            raise _BadRequestError("the request's head took too long") from None
        if not chunk:
            raise _BadRequestError("the request's head has no end")
        received_data += chunk
    client.settimeout(_HEAD_SECONDS)
    return bytes(received_data[:head_end]), bytes(received_data[head_end + 4 :])


def _read_request(head: bytes) -> tuple[bytes, str, int, bytes]:
    """Parse a request's head; return its method, host, port, and the head for the server."""
    request_line, *header_fields = head.split(b"\r\n")
    if (match := _REQUEST.fullmatch(request_line)) is None:
        raise _BadRequestError("not a request of HTTP/1.1")
    if not all(map(_FIELD.fullmatch, header_fields)):
        raise _BadRequestError("a field of the request is malformed")
    method, target = match[1], match[2].decode("ascii")
    url = urlsplit(f"//{target}" if method == b"CONNECT" else target)
    if method != b"CONNECT" and url.scheme.lower() != "http":
        raise _BadRequestError("a request to a proxy needs the whole URL, beginning with http://")
    try:
        port_suffix = "" if method == b"CONNECT" else ":80"
        host, port = address(url.netloc if _has_port(url.netloc) else url.netloc + port_suffix)
    except UsageError:
        raise _BadRequestError("the request names no host and port") from None
    host = host.lower().removesuffix(".")
    if method == b"CONNECT":
        return method, host, port, b""
    retained_fields = [
        field for field in header_fields if field.partition(b":")[0].lower() not in _DROPPED_FIELDS
    ]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [b"%b %b HTTP/1.1" % (method, path.encode("ascii")), b"Host: " + url.netloc.encode()]
    return (
        method,
        host,
        port,
        b"\r\n".join([*lines, *retained_fields, b"Connection: close", b"", b""]),
    )


def _has_port(netloc: str) -> bool:
    return ":" in netloc.rpartition("]")[2]


def _send_response(client: socket.socket, status: HTTPStatus, message: str) -> None:
    body = f"intercode: {message}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):  # the client has disconnected
        client.settimeout(_HEAD_SECONDS)
        client.sendall(head.encode() + body)
