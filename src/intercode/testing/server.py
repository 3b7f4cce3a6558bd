"""A server that speaks the real protocols over HTTP, and answers by a script.

It has OpenAI's chat and completions and Anthropic's messages, each as strict as the real one in
the points that an agent's mistakes would meet, with faults on purpose. It stands in for paid
servers in tests, and in demonstrations. Tokens are words, so that costs can be checked to the
token::

    with ScriptedServer(script([Rule(Line("submit"))])) as server:
        model = get_model("openai-compatible/any", base_url=server.url)
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal

from intercode.models.base import Message, Request, Settings, Usage
from intercode.models.scripted import Line, Script, answer
from intercode.models.wire import text_of
from intercode.testing.dialects import DIALECTS, TOO_LONG, chat, completion, messages, no_json

COMPLETION = 16
"""Tokens of a completion without a limit: a trap of the protocol."""
_CHARGED = {None, "malformed", "truncated", "slow", "empty"}
"""Faults that befall an answer: the model has worked for it."""

Kind = Literal["status", "malformed", "truncated", "disconnect", "slow", "empty"]
"""``malformed``: a whole body that is not JSON. ``truncated``: the connection ends within the body.
``disconnect``: it ends before any answer. ``slow``: the answer is right, but late. ``empty``: an
answer without choices."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the answer to one request.

    Attributes:
        kind: The kind of fault.
        status: The HTTP status, where that is the fault.
        headers: Headers sent with it.
        body: The body sent with it; ``None`` is an error as the protocol has it.
        delay: Seconds before the first byte.
    """

    kind: Kind
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    delay: float = 0.0


Plan = Callable[[int], "Fault | None"]
"""Number of the request, from 0 → its fault."""


def status(code: int, **headers: str) -> Fault:
    """Make an error; ``Retry_After="2"`` is the header ``Retry-After``."""
    return Fault("status", code, {name.replace("_", "-"): text for name, text in headers.items()})


def too_many(seconds: float, *, as_date: bool = False) -> Fault:
    """Make a 429 with ``Retry-After``, in seconds or as a date."""
    wait = formatdate(time.time() + seconds, usegmt=True) if as_date else f"{seconds:g}"
    return status(429, Retry_After=wait)


def usual() -> tuple[Fault, ...]:
    """Return one fault of each kind, without delays."""
    return (
        *map(status, (500, 503, 529)),
        too_many(0),
        Fault("status", 429, {"retry-after-ms": "1"}),
        Fault("status", 502, body="<html>Bad Gateway</html>"),
        *(Fault(kind) for kind in ("malformed", "truncated", "disconnect", "empty")),
    )


def first(*faults: Fault) -> Plan:
    """Plan these faults for the first requests, in order, then none."""
    return lambda number: faults[number] if number < len(faults) else None


def some(share: float, faults: Sequence[Fault], seed: int = 0) -> Plan:
    """Plan one of these faults for a share of the requests, the same ones for the same seed."""

    def plan(number: int) -> Fault | None:
        chance = random.Random(f"{seed} {number}")
        return chance.choice(faults) if chance.random() < share else None

    return plan


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and its result.

    Attributes:
        path: The endpoint's path.
        body: The body of the request.
        headers: The request's headers, names in lower case.
        fault: The fault of the answer.
        usage: The tokens that it took; ``None`` where the model did not work.
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
    """Serves on a free port of this machine, within a ``with`` statement.

    Args:
        script: The model's script; by default it says nothing.
        plan: The faults.
        dialect: The form of OpenAI's protocol: a name in `intercode.testing.dialects.DIALECTS`.
        context: The most tokens of a dialogue.
        key: The key that a caller must have; ``None``: no key.
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
        """The tokens of all whole answers: those that callers can know of."""
        taken = (e.usage for e in self.exchanges if e.answered and e.usage is not None)
        return sum(taken, Usage())

    def number(self) -> int:
        """Return the next request's number."""
        with self._lock:
            self._requests += 1
            return self._requests - 1

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the server's end."""
        self._stopped.wait(seconds)

    def note(self, exchange: Exchange) -> None:
        """Record a request and its result."""
        with self._lock:
            self.exchanges.append(exchange)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: callers hang up when their patience ends."""


def _handler(scripted: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        owner = scripted

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: ScriptedServer

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

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
        if "llama.cpp" in owner.dialect and (refusal := no_json(body)):
            return *refusal, None
        asked = Request(tuple(_messages(path, body)), _settings(path, body))
        found = answer(asked, owner.script, str(body.get("model", "")))
        usage = found.usage or Usage()
        if owner.context is not None and usage.input_tokens > owner.context:
            name = "anthropic" if path == "messages" else owner.dialect
            return 400, TOO_LONG.get(name, TOO_LONG["openai"]), None
        if path == "messages":
            return 200, messages(found), usage
        form = chat if path == "chat/completions" else completion
        return 200, DIALECTS[owner.dialect](form(found), body), usage

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
    """Return the dialogue of a request, in our form."""
    if path == "completions":
        return [Message("user", str(body.get("prompt", "")))]
    found = [Message("system", text_of(body["system"]))] if body.get("system") else []
    for message in body.get("messages", ()):
        role = message.get("role", "user")
        found.append(Message(role, _said(message.get("content"))))
    return found


def _settings(path: str, body: Mapping[str, Any]) -> Settings:
    """Return the settings of a request, as far as a script can follow them."""
    unasked = COMPLETION if path == "completions" else None
    limit = body.get("max_tokens", body.get("max_completion_tokens", unasked))
    return Settings(max_tokens=limit, stop=tuple(body.get("stop", body.get("stop_sequences", ()))))


def _said(content: Any) -> str:
    """Return a message's text; in Anthropic's blocks the results of tools are text, too."""
    if isinstance(content, list):
        return " ".join(str(block.get("text", block.get("content", ""))) for block in content)
    return text_of(content)
