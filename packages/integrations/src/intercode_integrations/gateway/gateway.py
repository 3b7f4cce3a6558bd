"""The gate: requests of an agent in, the same protocol out to the model's server, each recorded.

A `Gateway` serves a run, and has the key, the budget and the pace. A `GatewaySession` serves one
episode, and has a token of its own, the only secret that the sandbox sees::

    with Gateway(Upstream.of("anthropic/claude-sonnet-4-5")) as gateway, gateway.seat() as seat:
        sandbox.forward(8080, seat.serve)
        sandbox.exec([...], env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
                                 "ANTHROPIC_API_KEY": seat.token})
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from intercode.errors import (
    UsageError,
)
from intercode.models.base import AttemptError
from intercode.models.limits import Budget
from intercode.models.prices import Prices
from intercode.models.protocols import COUNT, MODELS, TABLES, Name, model_entry, model_page
from intercode.models.remote import BYTES_PER_TOKEN, Around
from intercode.models.upstream import Upstream
from intercode.request_guard import Guard
from intercode_integrations.gateway.calls import (
    PAYMENT_REQUIRED_STATUS,
    Call,
)
from intercode_integrations.gateway.forwarding import (
    MAX_ERROR_BYTES,
    ForwardedCall,
    UpstreamBackend,
)
from intercode_integrations.gateway.http import ClientConnection, RequestHead
from intercode_integrations.gateway.intake import (
    FREE_BODY_BYTES,
    MAX_TOTAL_BYTES,
    Intake,
    check_embedded_tokens,
    check_tokens,
)
from intercode_integrations.gateway.policy import (
    GatewayPolicy,
    Refusal,
    admit_body,
    bad_request,
    betas,
    context_size,
    parse_body,
)
from intercode_integrations.gateway.retention import EpisodeCalls

_CLOSE_SECONDS = 5.0
FREE_COUNTS, COUNTS_PER_CALL = 16, 4
"""Counts of tokens, which are free, that an episode may ask for, and more for each of its calls."""
_OMITTED_COUNT_FIELDS = {"stream", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences"}
"""Fields of a call that a count does not have."""
_QUERIES = {"beta", "client_version", "limit", "after_id", "before_id"}
"""Parts of a query that agents send. None changes an answer, but ``beta=true`` of Anthropic's."""
_PATHS: dict[str, Name] = {table.path: name for name, table in TABLES.items()}
PROVIDER_PROTOCOLS: dict[str, tuple[Name, ...]] = {
    "openai": ("chat", "responses"),
    "anthropic": ("messages",),
}
"""Provider → the protocols that it speaks; others speak all."""


class Gateway(UpstreamBackend):
    """The gate of a run. Its seats are served by many threads.

    Args:
        upstream: The server and the key.
        call_context: Cache, budget, pace, price and retries, as around our own models.
        policy: What clients may do.
        prices: Prices of the models that `Terms.models` names.

    Raises:
        UsageError: A budget is in dollars, and a price is not known.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        call_context: Around | None = None,
        policy: GatewayPolicy = GatewayPolicy(),  # noqa: B008 - frozen
        prices: Prices | None = None,
    ) -> None:
        super().__init__(upstream, call_context or Around(), policy, prices or Prices())
        self.intake = Intake(MAX_TOTAL_BYTES, policy.max_body)
        self._sessions: set[GatewaySession] = set()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all seats, and the connections to the server. Idempotent."""
        for session in tuple(self._sessions):
            session.close()
        self.connections.close()

    def open_session(
        self,
        *,
        budget: Budget | None = None,
        record: Callable[[Call], None] | None = None,
        token: str | None = None,
        keep: bool = True,
        is_full: Callable[[], bool] = lambda: False,
    ) -> GatewaySession:
        """Make a seat, for one episode or one fork.

        Args:
            budget: Money and tokens of the episode, beside those of the run.
            record: Called with each call once it has ended, on the thread that served it.
            token: The secret that requests bring; default: a random one.
            keep: Whether `Seat.calls` has the calls: a seat that serves for days has too many.
            is_full: Whether what `record` writes has reached its limit: no further call is made.

        Raises:
            UsageError: The budget is in dollars, and a price is not known.
        """
        if budget is not None and budget.max_cost is not None and not self.is_priced:
            raise UsageError(
                f"the price of {self.upstream.name} is unknown, so its cost cannot be limited: "
                "give a file of prices, or limit the tokens"
            )
        session = GatewaySession(
            self, budget, record, self._sessions.discard, token, keep=keep, is_full=is_full
        )
        self._sessions.add(session)
        return session


class GatewaySession(EpisodeCalls):
    """The gate of one episode.

    Attributes:
        token: The secret that its requests bring.
        calls: Calls that have ended, in this order.
        failure: The failure of the provider, or of the way to it, after which no call was answered.
            No agent can have caused such a failure: the episode's result says nothing of the agent.
        refusal: The last request that the gate itself refused.
    """

    def __init__(
        self,
        gateway: Gateway,
        budget: Budget | None,
        record: Callable[[Call], None] | None,
        on_close: Callable[[GatewaySession], None],
        token: str | None = None,
        *,
        keep: bool = True,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        super().__init__(budget, record, keep=keep)
        self.refusal: Refusal | None = None
        self._gateway, self._on_close, self._is_full = gateway, on_close, is_full
        self._guard = Guard(self.token, pages=False)
        self._turns = threading.BoundedSemaphore(gateway.policy.at_once)
        self._counts = 0
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> GatewaySession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse all further requests, and break off those under way. Idempotent."""
        with self._condition:
            self._closed = True
            for answer in self._open:
                answer.abort()
            for connection in self._connections:
                with suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)
            self._condition.wait_for(
                lambda: not self._open and not any(p.is_answered for p in self._pending_calls),
                _CLOSE_SECONDS,
            )
            unanswered_calls = tuple(self._pending_calls)
        for call in unanswered_calls:  # of a silent server, or between two tries
            call.cut()
        self._on_close(self)

    def serve(self, connection: socket.socket, admit: Callable[[], None] = lambda: None) -> None:
        """Serve one connection: an `intercode_sandbox.forwarding.Handler`.

        Args:
            connection: The socket.
            admit: Called once a request has brought the token.
        """
        with self._condition:
            if not self._closed:
                self._connections.add(connection)
        try:
            ClientConnection(connection, self._gateway.policy, admit).serve(self._handle)
        finally:
            with self._condition:
                self._connections.discard(connection)

    def _handle(self, request: RequestHead, client: ClientConnection) -> None:
        """Answer one request, or keep the refusal."""
        try:
            self._answer(request, client)
        except Refusal as refusal:
            self.refusal = Refusal(refusal.status, str(refusal))
            raise

    def _answer(self, request: RequestHead, client: ClientConnection) -> None:
        """Answer one request."""
        try:
            parts = urlsplit(request.target) if request.target.startswith("/") else None
        except ValueError:  # //[ begins a host
            parts = None
        if parts is None:
            raise Refusal(400, "the target of a request is a path")
        free = request.method in {"HEAD", "GET"} and parts.path == "/"
        if denial := self._guard.refusal(_KeyHeaders(request), free=free):
            raise Refusal(denial[0].value, denial[1])
        if self._closed:
            raise Refusal(401, "this token is no longer served")
        if not free:
            client.admit()
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := query.keys() - _QUERIES:
            raise bad_request(f"?{'&'.join(sorted(unknown))}")
        if free:
            client.body()
            client.answer(200, b"" if request.method == "HEAD" else b"{}")
        elif request.method == "GET" and (parts.path == MODELS or _is_model_path(parts.path)):
            client.body()
            client.answer(200, json.dumps(self._models(parts.path)).encode())
        elif request.method == "POST" and parts.path in {*_PATHS, COUNT}:
            self._post(request, client, parts.path, "?beta=true" if query.get("beta") else "")
        else:
            raise Refusal(404, f"the gateway has no {request.method} {parts.path[:200]}")

    def _models(self, path: str) -> dict[str, Any]:
        names = self._gateway.model_names()
        if path == MODELS:
            return model_page(names, "intercode")
        name = unquote(path.removeprefix(MODELS + "/"))
        if name not in names:
            raise Refusal(404, f"model: there is no {name[:200]!r}")
        return model_entry(name, "intercode")

    def _post(self, request: RequestHead, client: ClientConnection, path: str, query: str) -> None:
        if {*request.get_all("Content-Encoding")} - {"identity"}:
            raise Refusal(415, "a body is sent as it is, without Content-Encoding")
        gateway, name = self._gateway, _PATHS.get(path, "messages")
        if name not in PROVIDER_PROTOCOLS.get(gateway.upstream.provider, (name,)):
            raise Refusal(404, f"{gateway.upstream.name} does not speak the protocol of {path}")
        self._refuse_beyond_limits()
        headers = {"Content-Type": "application/json"}
        if name == "messages":
            headers["anthropic-version"] = "2023-06-01"
            if flags := betas(request.get_all("anthropic-beta"), gateway.policy):
                headers["anthropic-beta"] = flags
        with self._turns, ExitStack() as stack:
            body = self._body(request, client, stack)
            with gateway.intake.parsing_lock if len(body) > FREE_BODY_BYTES else nullcontext():
                request_body, size = self._read(name, body)
                del body
                forwarded_call = None
                if path != COUNT:
                    try:
                        forwarded_call = ForwardedCall(
                            self, gateway, client, name, path + query, request_body, headers, size
                        )
                    except (AttributeError, KeyError, TypeError, AttemptError):
                        raise bad_request("a dialogue that cannot be read") from None
            if forwarded_call is None:
                self._count(client, path + query, request_body, headers, size)
                return
            self._begin(forwarded_call)
            forwarded_call.run()

    def _body(self, request: RequestHead, client: ClientConnection, stack: ExitStack) -> bytes:
        """Read a body; the room that it takes is kept until `stack` is left."""
        policy, intake = self._gateway.policy, self._gateway.intake
        size = policy.max_body if request.length is None else request.length
        if size > policy.max_body:
            raise Refusal(413, f"the body is longer than {policy.max_body} bytes")

        def reserve() -> None:
            stack.enter_context(intake.reserve(self, size, policy.patience))

        return client.body(policy.max_body, free_bytes=FREE_BODY_BYTES, reserve=reserve)

    def _read(self, name: Name, body: bytes) -> tuple[dict[str, Any], int]:
        """Return the part of a request that is passed on, and the most tokens that it may have."""
        remaining_tokens = check_tokens(body)
        client_body = parse_body(body)
        check_embedded_tokens(client_body, remaining_tokens)
        model = self._gateway.model(client_body.get("model"))
        try:
            request_body = {"model": model, **admit_body(name, client_body, self._gateway.policy)}
            return request_body, context_size(request_body)
        except RecursionError:
            raise bad_request("the body has too many levels") from None

    def _begin(self, forwarded_call: ForwardedCall) -> None:
        with self._condition:
            self._refuse_beyond_limits()
            self._pending_calls.add(forwarded_call)
            self._started_calls += 1

    def _refuse_beyond_limits(self) -> None:
        """Refuse a call that may not be made, before its body is read and after it.

        Raises:
            Refusal: The gateway ends, or all calls have been made that may be.
        """
        if self._draining:
            raise Refusal(503, "the gateway ends")
        max_calls = self._gateway.policy.max_calls
        if max_calls is not None and self._started_calls >= max_calls:
            raise Refusal(
                PAYMENT_REQUIRED_STATUS, f"the {max_calls} calls that may be made have been made"
            )
        if self._dialogues.is_full:
            raise Refusal(
                PAYMENT_REQUIRED_STATUS,
                "the dialogues of this episode are as long as can be recorded",
            )
        if self._is_full():
            raise Refusal(PAYMENT_REQUIRED_STATUS, "the record of calls is as long as it may be")

    def _count(
        self,
        client: ClientConnection,
        target: str,
        request_body: dict[str, Any],
        headers: dict[str, str],
        size: int,
    ) -> None:
        """Answer how many tokens a request has: the server's count, or else an estimate."""
        with self._condition:
            if self._counts >= FREE_COUNTS + COUNTS_PER_CALL * self._started_calls:
                raise Refusal(429, "tokens were counted too often for the calls that were made")
            self._counts += 1
        gateway, start_time = self._gateway, time.monotonic()
        data = json.dumps(
            {key: request_body[key] for key in request_body.keys() - _OMITTED_COUNT_FIELDS}
        ).encode()

        def send() -> bytes:
            answer = gateway.connections.open("POST", target, data, headers, gateway.timeout)
            self.hold(answer)
            try:
                body = answer.read(MAX_ERROR_BYTES)
            finally:
                self.drop(answer)
                answer.close()
            if answer.status != 200:
                raise AttemptError(f"status {answer.status}")
            return body

        error = ""
        try:
            body = gateway.frame(request_body["model"]).send_unbilled(send)
        except AttemptError as failure:
            error = f"an estimate: {failure}"
            body = json.dumps({"input_tokens": size // BYTES_PER_TOKEN}).encode()
        body = gateway.upstream.remove_key(body)
        text, seconds = body.decode(errors="replace"), time.monotonic() - start_time
        call = Call("count", COUNT, request_body["model"], text=text, cost=0.0, seconds=seconds)
        self.note(replace(call, error=error))
        client.answer(200, body)


class _KeyHeaders:
    """The headers of a request, with a key of Anthropic's form where others have theirs."""

    def __init__(self, request: RequestHead) -> None:
        self._request = request

    def get_all(self, key: str) -> list[str]:
        keys = self._request.get_all("x-api-key") if key == "Authorization" else []
        return [f"Bearer {value}" for value in keys] or self._request.get_all(key)


def _is_model_path(path: str) -> bool:
    return path.startswith(MODELS + "/")
