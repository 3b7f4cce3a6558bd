"""A server that speaks the real protocols over HTTP, and says what a script says.

OpenAI's chat and completions and Anthropic's messages, each as strict as the real one in what an
agent's mistakes would meet, with faults on purpose. It stands in for paid servers in tests, and
in demonstrations. Tokens are words, so that costs can be checked to the token::

    with ScriptedServer(script([Rule(Line("submit"))])) as server:
        model = get_model("openai-compatible/any", base_url=server.url)
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from intercode.models import scripted_dialects as dialects
from intercode.models.base import Message, Settings, Usage
from intercode.models.client import Request
from intercode.models.decoding import text_of
from intercode.models.script import Line, Script, answer
from intercode.models.scripted_faults import Fault, Plan

COMPLETION = 16
"""Tokens of a completion, if the caller does not say: a trap of the protocol."""
_CHARGED = {None, "malformed", "truncated", "slow", "empty"}
"""Faults that befall an answer: the model has worked for it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and what became of it.

    Attributes:
        path: The endpoint's.
        body: What was asked.
        headers: Names in lower case.
        fault: What went wrong.
        usage: What it took; ``None`` where the model did not work.
    """

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    fault: Fault | None
    usage: Usage | None

    @property
    def answered(self) -> bool:
        """Whether the answer was whole."""
        return self.usage is not None and (self.fault is None or self.fault.kind == "slow")


class ScriptedServer:
    """Serves on a free port of this machine, for as long as it is open in a ``with``.

    Args:
        script: What it says; by default nothing.
        plan: What goes wrong.
        dialect: Whose form of OpenAI's protocol: a name in `intercode.models.scripted_dialects`.
        context: The most tokens of a dialogue.
        key: What a caller must have; ``None`` is nothing.
    """

    def __init__(
        self,
        script: Script = lambda _: Line(),
        *,
        plan: Plan = lambda _: None,
        dialect: str = "openai",
        context: int | None = None,
        key: str | None = None,
    ) -> None:
        self.script = script
        self.plan = plan
        self.dialect = dialect
        self.context = context
        self.key = key
        self.exchanges: list[Exchange] = []
        self._requests = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def root(self) -> str:
        """Anthropic's base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """OpenAI's base URL."""
        return f"{self.root}/v1"

    @property
    def usage(self) -> Usage:
        """What the whole answers took: what their callers can know of."""
        taken = (e.usage for e in self.exchanges if e.answered and e.usage is not None)
        return sum(taken, Usage())

    def number(self) -> int:
        """The next request's number."""
        with self._lock:
            self._requests += 1
            return self._requests - 1

    def wait(self, seconds: float) -> None:
        """Be slow, but not beyond the end."""
        self._stopped.wait(seconds)

    def note(self, exchange: Exchange) -> None:
        """Keep what became of a request."""
        with self._lock:
            self.exchanges.append(exchange)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers go when their patience ends; that is no news."""


def _handler(scripted: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        owner = scripted

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: ScriptedServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        owner = self.owner
        fault = owner.plan(owner.number())
        self.raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.removeprefix("/v1").strip("/")
        status, reply, usage = self._reply(path)
        kind = fault.kind if fault else None
        charged = usage if kind in _CHARGED and status == HTTPStatus.OK else None
        headers = {name.lower(): text for name, text in self.headers.items()}
        owner.note(Exchange(path, self._body(), headers, fault, charged))
        if fault is None:
            self._send(status, json.dumps(reply))
        else:
            self._fail(fault, status, reply)

    def _body(self) -> dict[str, Any]:
        try:
            body = json.loads(self.raw)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    def _reply(self, path: str) -> tuple[int, dict[str, Any], Usage | None]:
        owner, body = self.owner, self._body()
        if path not in {"chat/completions", "completions", "messages"}:
            return 404, _error("there is no such endpoint", "not_found"), None
        key = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        if owner.key is not None and key.removeprefix("Bearer ") != owner.key:
            return 401, _error(f"Incorrect API key provided: {key}", "invalid_api_key"), None
        if "llama.cpp" in owner.dialect and (refusal := dialects.no_json(body)):
            return *refusal, None
        asked = Request(tuple(_messages(path, body)), _settings(path, body))
        found = answer(asked, owner.script, str(body.get("model", "")))
        usage = found.usage or Usage()
        if owner.context is not None and usage.input_tokens > owner.context:
            name = "anthropic" if path == "messages" else owner.dialect
            return *dialects.TOO_LONG.get(name, dialects.TOO_LONG["openai"]), None
        if path == "messages":
            return 200, dialects.messages(found), usage
        form = dialects.chat if path == "chat/completions" else dialects.completion
        return 200, dialects.DIALECTS[owner.dialect](form(found), body), usage

    def _fail(self, fault: Fault, status: int, reply: dict[str, Any]) -> None:
        self.owner.wait(fault.delay)
        text = json.dumps(reply)
        if fault.kind == "status":
            body = json.dumps(_error("on purpose", None)) if fault.body is None else fault.body
            self._send(fault.status, body, fault.headers)
        elif fault.kind == "malformed":
            self._send(200, text[: len(text) // 2])
        elif fault.kind == "empty":
            self._send(200, json.dumps({**reply, "choices": [], "content": None}))
        elif fault.kind == "slow":
            self._send(status, text)
        else:
            if fault.kind == "truncated":
                self._send(200, text, cut=True)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(
        self, status: int, text: str, headers: Mapping[str, str] | None = None, cut: bool = False
    ) -> None:
        body = text.encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        fields |= {"Date": self.date_time_string(time.time()), **(headers or {})}
        head = f"HTTP/1.1 {status} {_phrase(status)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        # At once, so that no answer waits for the acknowledgement of its own headers.
        self.wfile.write(f"{head}\r\n".encode() + (body[: len(body) // 2] if cut else body))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _error(message: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "scripted_error", "param": None, "code": code}}


def _messages(path: str, body: Mapping[str, Any]) -> list[Message]:
    """The dialogue that was sent, in our form."""
    if path == "completions":
        return [Message("user", str(body.get("prompt", "")))]
    found = [Message("system", text_of(body["system"]))] if body.get("system") else []
    for message in body.get("messages", ()):
        role = message.get("role", "user")
        found.append(Message(role, _said(message.get("content"))))
    return found


def _settings(path: str, body: Mapping[str, Any]) -> Settings:
    """Of what was asked for, what a script can do."""
    unasked = COMPLETION if path == "completions" else None
    limit = body.get("max_tokens", body.get("max_completion_tokens", unasked))
    return Settings(max_tokens=limit, stop=tuple(body.get("stop", body.get("stop_sequences", ()))))


def _said(content: Any) -> str:
    """A message's text; of Anthropic's blocks, what tools gave is text, too."""
    if isinstance(content, list):
        return " ".join(str(block.get("text", block.get("content", ""))) for block in content)
    return text_of(content)
