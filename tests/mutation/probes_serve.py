"""Probes of the server: who may speak to it, what is heard, and what is left of a client."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import suppress

from websockets.asyncio.client import connect
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed

from intercode.connection_admission import ConnectionQueue
from intercode.request_guard import RequestGuard
from intercode_integrations.serve import messages
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.metrics import ServerMetrics
from intercode_integrations.serve.server import EnvironmentServer
from intercode_integrations.serve.server_processes import listen
from intercode_integrations.serve.session import SessionLimits
from waiting import new_marker

from .tools import ends, wait_for


def _refused(**headers: str) -> bool:
    fields = {"Host": "localhost", "Authorization": "Bearer right", **headers}
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return RequestGuard("right").refusal(Headers(named)) is not None


def serve_token() -> bool:
    return _refused(Authorization="Bearer wrong")


def serve_host() -> bool:
    return _refused(Host="evil.example")


def serve_origin() -> bool:
    return _refused(Origin="https://evil.example")


def serve_site() -> bool:
    return _refused(Sec_Fetch_Site="cross-site")


def serve_wishes() -> bool:
    try:
        messages.read('{"image": "debian"}', messages.ResetMessage)
    except messages.MessageFault:
        return True
    return False


def serve_capacity() -> bool:
    counts = ServerMetrics()
    return [counts.admit(1), counts.admit(1)] == [True, False]


class _Silent:
    """A pending connection whose client has sent nothing."""

    def __init__(self, admission: ConnectionQueue) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.dropped = threading.Event()
        admission.enter(self, self._theirs, self.dropped.set)


def admission_of_few() -> bool:
    admission = ConnectionQueue(1, 3600)
    first, _ = _Silent(admission), _Silent(admission)
    return first.dropped.is_set()


def admission_in_time() -> bool:
    return _Silent(ConnectionQueue(1, 0.1)).dropped.wait(
        5
    )  # allow limit: reached without the defence


def admission_of_silent_ones() -> bool:
    admission = ConnectionQueue(2, 3600)
    first = _Silent(admission)
    first.ours.send(b"GET / HTTP/1.1\r\n")
    second, _ = _Silent(admission), _Silent(admission)
    return second.dropped.is_set() and not first.dropped.is_set()


def serve_admission() -> bool:
    """Whether a silent connection is ended."""

    async def main() -> bool:
        [listener] = listen("127.0.0.1", 0)
        admission = ConnectionQueue(8, 0.1)
        server = EnvironmentServer(
            [ServedEnvironment("bash")],
            SessionLimits(drain=0.1),
            RequestGuard("x"),
            ServerMetrics(),
            admission,
        )
        running = asyncio.create_task(server.run(listener, ()))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            async with asyncio.timeout(5):  # allow limit: reached without the defence
                found = await reader.read() == b""
        except TimeoutError:
            found = False
        writer.close()
        server.end()
        await running
        return found

    return asyncio.run(main())


def serve_orphans() -> bool:
    """Whether the action of a client that has died ends."""
    marker = new_marker()

    async def main() -> bool:
        [listener] = listen("127.0.0.1", 0)
        server = EnvironmentServer(
            [ServedEnvironment("bash")], SessionLimits(drain=0.1), RequestGuard(), ServerMetrics()
        )
        running = asyncio.create_task(server.run(listener, ()))
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/ws"
        async with connect(url, proxy=None) as client:
            await client.send(json.dumps({"type": "reset", "data": {"index": 0}}))
            await client.recv()
            action = {"action": f"sleep {marker}"}
            await client.send(json.dumps({"type": "step", "data": action}))
            pid = await asyncio.to_thread(wait_for, marker)
            client.transport.abort()
            with suppress(ConnectionClosed):
                await client.recv()
        found = await asyncio.to_thread(ends, pid)
        server.end()
        await running
        return found

    return asyncio.run(main())
