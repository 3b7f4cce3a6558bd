"""A scripted model server that implements the real protocols over HTTP.

The server offers OpenAI's chat, completions and responses and Anthropic's messages, each whole and
streamed. Wherever an agent can make a mistake, the server is as strict as the real one. The server
can also send deliberate faults. In tests and demonstrations, the server replaces paid ones. Its
tokens are words, so tests can check costs to the token::

    with ScriptedServer(script([Rule(Line("submit"))])) as server:
        model = get_model("openai-compatible/any", base_url=server.url)

Unmodified command-line agents can use the server, too. `shell` makes a line that runs a command
with the agent's own shell tool, whatever the tool's name is::

    rules = [Rule(shell("ls"), turn=0), Rule(Line("Done."))]
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
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from intercode.models.api_fields import model_entry, model_page
from intercode.models.base import Answer, Usage
from intercode.models.scripted import Line, Script, answer, count
from intercode_integrations.testing.request_conversion import fit_script, request, turn
from intercode_integrations.testing.server_dialects import (
    DIALECTS,
    TOO_LONG,
    add_token_data,
    chat,
    completion,
    error,
    messages,
    no_json,
    responses,
)
from intercode_integrations.testing.streams import STREAMS, failure, frame

FORMS: dict[str, Callable[[Answer, int], dict[str, Any]]] = {
    "chat/completions": chat,
    "completions": completion,
    "messages": messages,
    "responses": responses,
}
"""Endpoint path → function that writes an answer, given with its turn, in the endpoint's form."""
COUNT = "messages/count_tokens"
_CHARGED_KINDS = {None, "malformed", "truncated", "slow", "empty", "unfinished"}
"""Kinds of faults (None: no fault) whose tokens are charged, because the model has worked."""

Kind = Literal[
    "status", "malformed", "truncated", "disconnect", "slow", "empty", "unfinished", "overloaded"
]
"""Kinds of faults. ``malformed``: a whole body that is not JSON; in a stream, one event that is not
JSON. ``truncated``: the connection ends within the body. ``disconnect``: the connection ends before
any answer. ``slow``: the answer is right, but late. ``empty``: an answer without choices, or a
stream without events. ``unfinished``: a stream that ends properly, but without its last events;
without a stream, half of the body. ``overloaded``: in a stream, an error in place of the second
half; without a stream, status 529. ``status``: an error response with the status `Fault.status`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the answer to one request.

    Attributes:
        kind: The kind of fault.
        status: The HTTP status, for the kind ``status``.
        headers: The headers of the response, for the kind ``status``.
        body: The body of the response, for the kind ``status``; ``None``: an error in the
            protocol's form.
        delay: Seconds before the first byte of the answer.
        pause: Seconds before each event of a stream except the first.
        last_request: An event for which the answer waits: a stream in its middle, and a whole
            answer, except for an error response, before its first byte. The end of the server ends
            the wait, too.
    """

    kind: Kind
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    delay: float = 0.0
    pause: float = 0.0
    last_request: threading.Event | None = None


Plan = Callable[[int], "Fault | None"]
"""Function from the number of a request, counted from 0, to the fault of its answer."""


def status(code: int, **headers: str) -> Fault:
    """Return an error response as a fault; ``Retry_After="2"`` adds the header ``Retry-After``."""
    return Fault("status", code, {name.replace("_", "-"): text for name, text in headers.items()})


def too_many(seconds: float, *, as_date: bool = False) -> Fault:
    """Return the fault 429 with the header ``Retry-After``, in seconds or as a date."""
    wait = formatdate(time.time() + seconds, usegmt=True) if as_date else f"{seconds:g}"
    return status(429, Retry_After=wait)


def usual() -> tuple[Fault, ...]:
    """Return the usual faults, without delays: error responses, and damaged or missing answers."""
    return (
        *map(status, (500, 503, 529)),
        too_many(0),
        Fault("status", 429, {"retry-after-ms": "1"}),
        Fault("status", 502, body="<html>Bad Gateway</html>"),
        *(Fault(kind) for kind in ("malformed", "truncated", "disconnect", "empty")),
    )


def first(*faults: Fault) -> Plan:
    """Return a plan with the given faults for the first requests, in order, and none later."""
    return lambda request_number: faults[request_number] if request_number < len(faults) else None


def some(share: float, faults: Sequence[Fault], seed: int = 0) -> Plan:
    """Return a plan of random faults for a share of the requests; equal seeds give equal plans."""

    def plan(request_number: int) -> Fault | None:
        random_generator = random.Random(f"{seed} {request_number}")
        return random_generator.choice(faults) if random_generator.random() < share else None

    return plan


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the server, and the result.

    Attributes:
        path: The endpoint's path, without ``/v1``.
        body: The body of the request.
        headers: The headers of the request, with names in lower case.
        fault: The fault of the answer; ``None``: no fault.
        usage: The charged tokens of the answer; ``None`` if the model did not work.
        query: The query string of the URL.
    """

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    fault: Fault | None
    usage: Usage | None
    query: str = ""

    @property
    def answered(self) -> bool:
        """Whether the client has received a complete and correct answer."""
        return self.usage is not None and (self.fault is None or self.fault.kind == "slow")


class ScriptedServer:
    """A scripted model server on a free port of this machine; ``with`` starts and ends the server.

    Args:
        script: The model's script; the default replies with empty texts.
        plan: The faults of the answers; the default has none.
        dialect: The form of OpenAI's protocol: a name in `server_dialects.DIALECTS`.
        context: The maximum tokens of a dialogue; ``None``: no limit.
        key: The key that each request must carry; ``None``: no key.
        models: The names in the list of models. The server accepts every other name, too.
    """

    def __init__(
        self,
        script: Script = lambda _: Line(),
        *,
        plan: Plan = lambda _: None,
        dialect: str = "openai",
        context: int | None = None,
        key: str | None = None,
        models: Sequence[str] = ("scripted",),
    ) -> None:
        self.script = script
        self.plan = plan
        self.dialect = dialect
        self.context = context
        self.key = key
        self.models = models
        self.exchanges: list[Exchange] = []
        self._requests = 0
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._server = _ScriptedHttpServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_event.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def root(self) -> str:
        """The base URL for clients of Anthropic's API."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """The base URL for clients of OpenAI's API."""
        return f"{self.root}/v1"

    @property
    def usage(self) -> Usage:
        """The total tokens of all complete answers. Clients can know of no other tokens."""
        usages = (
            exchange.usage
            for exchange in self.exchanges
            if exchange.answered and exchange.usage is not None
        )
        return sum(usages, Usage())

    def next_number(self) -> int:
        """Return the number of the next request, counted from 0."""
        with self._lock:
            self._requests += 1
            return self._requests - 1

    def wait(self, seconds: float) -> None:
        """Wait for a time, or until the end of the server."""
        self._stop_event.wait(seconds)

    def wait_for_event(self, event: threading.Event | None) -> None:
        """Wait for an event, or until the end of the server."""
        while event is not None and not event.wait(0.02) and not self._stop_event.is_set():
            pass

    def record_exchange(self, exchange: Exchange) -> None:
        """Append a request and its result to `exchanges`."""
        with self._lock:
            self.exchanges.append(exchange)


class _ScriptedHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, because clients may disconnect when they have waited too long."""


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class BoundRequestHandler(_ScriptedRequestHandler):
        owner = server

    return BoundRequestHandler


class _ScriptedRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: ScriptedServer

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, in place of a line for each request."""

    def do_HEAD(self) -> None:
        self._send(200, "")

    def do_GET(self) -> None:
        path = self._request_path()
        status, reply = 200, {}
        self._record_exchange(path, {}, None, None)
        if path == "models":
            reply = model_page(self.owner.models, "scripted")
        elif path.startswith("models/"):
            reply = model_entry(path.removeprefix("models/"), "scripted")
        else:
            status, reply = 404, error(path, 404, "there is no such endpoint", "not_found")
        self._send(status, json.dumps(reply))

    def do_POST(self) -> None:
        owner, path = self.owner, self._request_path()
        self.request_bytes = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = self._parse_body()
        # A request to count tokens gets no number and no fault. Agents send such requests at any
        # time, so numbers for them would shift the faults of the other requests.
        fault = None if path == COUNT else owner.plan(owner.next_number())
        status, reply, usage = self._make_reply(path, body)
        fault_kind = fault.kind if fault else None
        charged_usage = usage if fault_kind in _CHARGED_KINDS and status == HTTPStatus.OK else None
        self._record_exchange(path, body, fault, charged_usage)
        if fault is not None:
            owner.wait(fault.delay)
            if self._send_fault(fault, path, body):
                return
        if status == HTTPStatus.OK and body.get("stream") and path in STREAMS:
            self._stream(path, reply, body, fault)
        elif fault is None:
            self._send(status, json.dumps(reply))
        else:
            self._send_faulty(fault, status, reply)

    def _request_path(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/v1").strip("/")

    def _record_exchange(
        self, path: str, body: Mapping[str, Any], fault: Fault | None, usage: Usage | None
    ) -> None:
        headers = {name.lower(): text for name, text in self.headers.items()}
        query_string = urlsplit(self.path).query
        self.owner.record_exchange(Exchange(path, body, headers, fault, usage, query_string))

    def _parse_body(self) -> dict[str, Any]:
        try:
            body = json.loads(self.request_bytes)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    def _make_reply(
        self, path: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any], Usage | None]:
        owner = self.owner
        if path not in FORMS and path != COUNT:
            return 404, error(path, 404, "there is no such endpoint", "not_found"), None
        client_key = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        if owner.key is not None and client_key.removeprefix("Bearer ") != owner.key:
            message = f"Incorrect API key provided: {client_key}"
            return 401, error(path, 401, message, "invalid_api_key"), None
        if "llama.cpp" in owner.dialect and (refusal := no_json(body)):
            return *refusal, None
        if previous_id := body.get("previous_response_id"):
            message = (
                f"Previous response with id '{previous_id}' not found."  # the server stores nothing
            )
            return 400, error(path, 400, message, "previous_response_not_found"), None
        model_request = request(path.removesuffix("/count_tokens"), body)
        if path == COUNT:
            return (
                200,
                {
                    "input_tokens": sum(
                        count(request_message.content) for request_message in model_request.messages
                    )
                },
                None,
            )
        model_answer = answer(
            model_request, fit_script(owner.script, model_request.tools), str(body.get("model", ""))
        )
        usage = model_answer.usage or Usage()
        if owner.context is not None and usage.input_tokens > owner.context:
            dialect = "anthropic" if path == "messages" else owner.dialect
            return 400, TOO_LONG.get(dialect, TOO_LONG["openai"]), None
        reply = FORMS[path](model_answer, turn(model_request.messages))
        if "choices" in reply:
            reply = add_token_data(
                DIALECTS[owner.dialect](reply, body), body, model_request.messages
            )
        return 200, reply, usage

    def _send_fault(self, fault: Fault, path: str, body: Mapping[str, Any]) -> bool:
        """Send the fault if it replaces the whole answer; return whether it does."""
        is_in_stream = fault.kind == "overloaded" and body.get("stream")
        if fault.kind in {"status", "overloaded"} and not is_in_stream:
            status = 529 if fault.kind == "overloaded" else fault.status
            error_text = json.dumps(error(path, status, "on purpose", None))
            self._send(status, error_text if fault.body is None else fault.body, fault.headers)
            return True
        if fault.kind == "disconnect":
            self._hang_up()
            return True
        return False

    def _send_faulty(self, fault: Fault, status: int, reply: dict[str, Any]) -> None:
        """Send a whole answer that a fault damages or delays."""
        self.owner.wait_for_event(fault.last_request)
        text = json.dumps(reply)
        if fault.kind in {"malformed", "unfinished"}:
            self._send(200, text[: len(text) // 2])
        elif fault.kind == "empty":
            self._send(200, json.dumps({**reply, "choices": [], "content": None, "output": []}))
        elif fault.kind == "truncated":
            self._send(200, text, cut=True)
            self._hang_up()
        else:
            self._send(status, text)

    def _stream(
        self, path: str, reply: dict[str, Any], body: Mapping[str, Any], fault: Fault | None
    ) -> None:
        """Send an answer as events, each in its own HTTP chunk, with the fault if there is one."""
        events = list(STREAMS[path](reply, body))
        middle_index = len(events) // 2
        fault_kind = fault.kind if fault else None
        if fault_kind == "empty":
            events = []
        elif fault_kind in {"truncated", "unfinished"}:
            events = events[: middle_index + 1]
        elif fault_kind == "malformed":
            events.insert(middle_index, (events[middle_index][0], '{"half'))
        elif fault_kind == "overloaded":
            error_payload = error(path, 529, "Overloaded", "server_is_overloaded")
            events[middle_index:] = [failure(path, reply, error_payload)]
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        for event_index, event in enumerate(events):
            if fault is not None and event_index:
                self.owner.wait(fault.pause)
                self.owner.wait_for_event(
                    fault.last_request if event_index == middle_index else None
                )
            event_bytes = frame(event)
            chunk = b"%x\r\n%b\r\n" % (len(event_bytes), event_bytes)
            if fault_kind == "truncated" and event_index == middle_index:
                self.wfile.write(chunk[: len(chunk) // 2])
                self._hang_up()
                return
            self.wfile.write(chunk)
        self.wfile.write(b"0\r\n\r\n")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(
        self, status: int, text: str, headers: Mapping[str, str] | None = None, cut: bool = False
    ) -> None:
        body = text.encode()
        header_fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        # A single write: otherwise the body would wait for the acknowledgement of the headers.
        self._head(
            status, header_fields | dict(headers or {}), body[: len(body) // 2] if cut else body
        )

    def _head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        header_fields = {"Date": self.date_time_string(time.time()), **headers}
        head_text = f"HTTP/1.1 {status} {_phrase(status)}\r\n"
        head_text += "".join(f"{name}: {value}\r\n" for name, value in header_fields.items())
        self.wfile.write(f"{head_text}\r\n".encode() + body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
