"""MCP servers for client sessions: one session over stdio, many over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from intercode import __version__
from intercode.connection_admission import ConnectionQueue
from intercode.envs.tools import sendable
from intercode.errors import UsageError
from intercode.json_limits import count_tokens
from intercode.request_guard import is_loopback, token_refusal

if TYPE_CHECKING:
    from intercode.tool_calls import Tool
    from intercode_integrations.mcp.sessions import Answer, EpisodeSession, EpisodeSessions

log = logging.getLogger(__name__)

INSTRUCTIONS = (
    "The tools act in one episode: a task in a sandbox. The description of the first tool says the "
    "task. Call submit when it is done."
)
PATIENCE = 5
"""Seconds in which a stopping server may still send its remaining answers."""
PROGRESS_SECONDS = 1
"""Seconds between two reports of progress. Each report may extend the client's own time limit."""
MAX_BODY = 1024**2
"""Maximum bytes of a request's body: as many as of a message to ``intercode serve``."""
MAX_READING = 16
"""Maximum number of bodies that the server reads at a time. Other requests wait unread."""
BODY_SECONDS = 30.0
"""Maximum seconds in which a whole body must arrive."""


def server(find_session: Callable[[Any], EpisodeSession]) -> Server[Any]:
    """Make an MCP server for clients of both protocol versions: with and without connections.

    Args:
        find_session: A function that finds a request's session from the SDK's context.
    """

    async def list_tools(context: Any, params: Any) -> Any:
        episode_start = await asyncio.shield(
            asyncio.wrap_future(find_session(context).episode_start)
        )
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description
                    if index
                    else _task_description(tool, episode_start.query),
                    input_schema=dict(tool.parameters),
                )
                for index, tool in enumerate(episode_start.tools)
            ]
        )

    async def call_tool(context: Any, params: Any) -> Any:
        answer_coroutine = find_session(context).call(
            params.name, params.arguments or {}, context.request_id
        )
        text, has_failed = await _report_progress(context.session, answer_coroutine)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], is_error=has_failed
        )

    return Server(
        "intercode",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _report_progress(session: Any, answer_coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Await a call, and report the seconds so far each second to a client that wants progress."""
    task, elapsed_seconds = asyncio.create_task(answer_coroutine), 0
    try:
        while not (await asyncio.wait({task}, timeout=PROGRESS_SECONDS))[0]:
            elapsed_seconds += PROGRESS_SECONDS
            await session.report_progress(
                elapsed_seconds, message=f"running for {elapsed_seconds} s"
            )
        return task.result()
    finally:
        task.cancel()  # if the client has cancelled the request, this stops the action, too


def _task_description(tool: Tool, query: str) -> str:
    return f"{tool.description}\n\nThe task: {sendable(query)}"


class McpStdioServer(threading.Thread):
    """A server of one session over standard input and output, until the client closes them.

    Meanwhile, output that is not an MCP message goes to standard error. The thread is a daemon: a
    read of standard input cannot be interrupted, and would otherwise keep the process from ending.

    Args:
        sessions: All sessions of the run.
        session: The session of the client.
    """

    def __init__(self, sessions: EpisodeSessions, session: EpisodeSession) -> None:
        super().__init__(name="intercode-mcp", daemon=True)
        self._sessions, self._session = sessions, session

    def run(self) -> None:
        """Serve the client until it disconnects, then end all sessions."""
        try:
            asyncio.run(self._serve())
        except Exception:  # such as a failed write to a client that was killed
            log.info("the connection has ended", exc_info=True)
        finally:
            self._sessions.leave()

    async def _serve(self) -> None:
        mcp_server = server(lambda context: self._session)
        async with stdio_server() as streams:
            await mcp_server.run(*streams, mcp_server.create_initialization_options())


class McpHttpServer(threading.Thread):
    """A server of a run's sessions over HTTP, each at an unguessable URL.

    Args:
        sessions: The sessions of the run.
        host: The address to listen on.
        port: The port; 0: any free port.
        token: The secret that each request must carry as ``Authorization: Bearer TOKEN``; None: no
            secret.
        admission: The quota of connections that have not named an episode yet.

    Raises:
        UsageError: The port is in use, or other machines could reach a server without a token.
    """

    def __init__(
        self,
        sessions: EpisodeSessions,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        admission: ConnectionQueue | None = None,
    ) -> None:
        super().__init__(name="intercode-mcp", daemon=True)
        if not token and not is_loopback(host):
            raise UsageError(f"other machines can reach {host}: a --token-file is required")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UsageError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
        # asyncio sets this option only on sockets that it opens itself. Without the option, answers
        # wait for 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        display_host = f"[{host}]" if ":" in host else host
        self._url = f"http://{display_host}:{self._socket.getsockname()[1]}/mcp"
        mcp_server = server(lambda context: context.request.scope["session"])
        # With `host`, the application also validates the Host header of each request.
        app = mcp_server.streamable_http_app(stateless_http=True, host=host)
        admission = admission or ConnectionQueue()
        config = uvicorn.Config(
            _RequestFilter(app, sessions, token, admission),
            http=_admission_protocol(admission),
            log_config=None,
            access_log=False,  # an access log would contain the secrets in the URLs
            timeout_graceful_shutdown=PATIENCE,
        )
        self._server = uvicorn.Server(config)

    def url(self, session: EpisodeSession) -> str:
        """Return the URL of a session, which contains the session's secret."""
        return f"{self._url}/{session.secret}"

    def run(self) -> None:
        """Serve until another thread calls `stop`."""
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Refuse new requests, send the remaining answers, and wait for the end of the thread."""
        self._server.should_exit = True
        self.join()


def _admission_protocol(admission: ConnectionQueue) -> type[H11Protocol]:
    """Return a uvicorn protocol class whose connections count as pending until admission."""

    class AdmissionProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            def drop() -> None:
                with suppress(RuntimeError):  # the event loop may have ended
                    self.loop.call_soon_threadsafe(transport.abort)

            super().connection_made(transport)
            admission.enter(self.client, transport.get_extra_info("socket"), drop)

        def connection_lost(self, exc: Exception | None) -> None:
            admission.leave(self.client)
            super().connection_lost(exc)

    return AdmissionProtocol


@dataclass(frozen=True, slots=True)
class _RequestFilter:
    """An ASGI filter of requests: only small requests that name a session pass to the MCP server.

    The filter refuses requests of web pages (with an ``Origin`` header), without the valid token,
    or with an unknown session.
    """

    app: Any
    sessions: EpisodeSessions
    token: str | None
    admission: ConnectionQueue
    read_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_READING))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            path_prefix, _, secret = scope["path"].rpartition("/")
            session = self.sessions.find(secret) if path_prefix == "/mcp" else None
            if "origin" in headers:
                rejection = PlainTextResponse("web pages may not call this", 403)
            elif self.token and (
                denial := token_refusal(_authorization_texts(headers), self.token.encode())
            ):
                rejection = PlainTextResponse(denial[1], denial[0])
            elif session is None:
                rejection = PlainTextResponse("there is no such episode", 404)
            else:
                self.admission.leave(scope["client"])
                try:
                    async with self.read_slots, asyncio.timeout(BODY_SECONDS):
                        receive, body = await _read_body(receive)
                    # A stateless server does not relate a cancellation to the earlier request.
                    session.cancel(_cancelled_request(body))
                    rejection = None
                except (UsageError, TimeoutError) as error:
                    error_text = str(error) or "the body took too long"
                    rejection = PlainTextResponse(error_text, 413, {"connection": "close"})
                scope = {
                    **scope,
                    "path": path_prefix,
                    "raw_path": path_prefix.encode(),
                    "session": session,
                }
            if rejection is not None:
                await rejection(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _cancelled_request(body: bytes) -> object:
    """Return the id of the request that a message cancels; None if it is not a cancellation."""
    if b"notifications/cancelled" not in body:
        return None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the MCP server itself refuses a malformed message
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled":
        return None
    params = message.get("params")
    return params.get("requestId") if isinstance(params, dict) else None


def _authorization_texts(headers: Headers) -> list[str]:
    """Return the values of the ``Authorization`` headers, decoded as UTF-8 like the token.

    Starlette decodes them as Latin-1.
    """
    values = headers.getlist("authorization")
    return [value.encode("latin-1").decode(errors="replace") for value in values]


async def _read_body(receive: Any) -> tuple[Any, bytes]:
    """Read the whole body of a request.

    Returns:
        A function that replays the events of the body to the application, and the body.

    Raises:
        UsageError: The body is too long, or has too many values.
    """
    body, events = bytearray(), list[Any]()
    is_last = False
    while not is_last:
        event = await receive()
        if event["type"] != "http.request":
            events.append(event)  # the application must learn that the client has disconnected
            break
        body += event.get("body", b"")
        if len(body) > MAX_BODY:
            raise UsageError(f"the body is longer than {MAX_BODY} bytes")
        is_last = not event.get("more_body", False)
    if is_last:
        count_tokens(body)
        events.append({"type": "http.request", "body": bytes(body), "more_body": False})
    events.reverse()

    async def replay_event() -> Any:
        return events.pop() if events else await receive()

    return replay_event, bytes(body)
