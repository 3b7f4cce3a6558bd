"""A recording proxy that forwards an agent's requests to the model's server, in the same protocol.

A `Gateway` serves all episodes of a run, and holds the provider's key, the budget and the rate
limit. A `GatewaySession` serves one episode, and has its own token. The token is the only secret
that the sandbox contains::

    with Gateway(Upstream.resolve("anthropic/claude-sonnet-4-5")) as gateway, gateway.open_session()
    as session:
        sandbox.forward(8080, session.serve)
        sandbox.exec([...], env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
                                 "ANTHROPIC_API_KEY": session.token})
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
from intercode.models.api_fields import COUNT, MODELS, TABLES, Name, model_entry, model_page
from intercode.models.base import AttemptError
from intercode.models.limits import Budget
from intercode.models.prices import ModelPrices
from intercode.models.remote import BYTES_PER_TOKEN, ModelCallContext
from intercode.models.upstream import Upstream
from intercode.request_guard import RequestGuard
from intercode_integrations.gateway.byte_quota import (
    FREE_BODY_BYTES,
    MAX_TOTAL_BYTES,
    SharedByteQuota,
    check_embedded_tokens,
    check_tokens,
)
from intercode_integrations.gateway.calls import (
    PAYMENT_REQUIRED_STATUS,
    Call,
)
from intercode_integrations.gateway.episode_calls import EpisodeCalls
from intercode_integrations.gateway.forwarding import (
    MAX_ERROR_BYTES,
    ForwardedCall,
    UpstreamBackend,
)
from intercode_integrations.gateway.http import ClientConnection, RequestHead
from intercode_integrations.gateway.policy import (
    GatewayPolicy,
    GatewayRefusal,
    admit_body,
    bad_request,
    betas,
    context_size,
    parse_body,
)

_CLOSE_SECONDS = 5.0
FREE_COUNTS, COUNTS_PER_CALL = 16, 4
"""Number of token counts that an episode may request before its first call, and number of further
counts for each call."""
_OMITTED_COUNT_FIELDS = {"stream", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences"}
"""Fields of a request for an answer that a request for a token count must not contain."""
_QUERIES = {"beta", "client_version", "limit", "after_id", "before_id"}
"""Query parameters that agents send. Only Anthropic's ``beta=true`` is forwarded."""
_PATHS: dict[str, Name] = {table.path: name for name, table in TABLES.items()}
PROVIDER_PROTOCOLS: dict[str, tuple[Name, ...]] = {
    "openai": ("chat", "responses"),
    "anthropic": ("messages",),
}
"""Provider → the API protocols that it supports; a provider not listed supports all three."""


class Gateway(UpstreamBackend):
    """The gateway of a run, with one session per episode. Many threads may serve sessions at once.

    Args:
        upstream: The URL, the model and the API key of the server.
        call_context: Cache, budget, rate limit, price and retries, the same as for agents that call
            a model without a gateway.
        policy: The operator's rules for requests of clients.
        prices: Prices of the provider's models to which `GatewayPolicy.models` maps.

    Raises:
        UsageError: A budget is in dollars, and the price of a model is not known.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        call_context: ModelCallContext | None = None,
        policy: GatewayPolicy = GatewayPolicy(),  # noqa: B008 - frozen
        prices: ModelPrices | None = None,
    ) -> None:
        super().__init__(
            upstream, call_context or ModelCallContext(), policy, prices or ModelPrices()
        )
        self.intake = SharedByteQuota(MAX_TOTAL_BYTES, policy.max_body)
        self._sessions: set[GatewaySession] = set()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all sessions, and the connections to the server. Idempotent."""
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
        """Open a session for one episode or one fork.

        Args:
            budget: Limits of the episode's cost and tokens, in addition to the run's budget.
            record: A function that receives each finished call, on the thread that served the call.
            token: The secret that requests of the session must carry; default: a random one.
            keep: Whether `GatewaySession.calls` keeps the finished calls. For a session of several
                days the calls would fill the memory.
            is_full: A function that returns whether the file that `record` writes has reached its
                limit. The session then refuses further calls.

        Raises:
            UsageError: The budget is in dollars, and the price of a model is not known.
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
    """The gateway's session for one episode.

    Attributes:
        token: The secret that the requests of the session must carry.
        calls: Finished calls, in the order of their ends.
        failure: The last failure of the provider or of the connection to it; None if a later call
            was answered. No agent can cause such a failure, so the episode's result gives no
            evidence about the agent.
        refusal: The last error response whose text is the gateway's own: a refusal, or a report of
            the provider's failure.
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
        self.refusal: GatewayRefusal | None = None
        self._gateway, self._on_close, self._is_full = gateway, on_close, is_full
        self._guard = RequestGuard(self.token, pages=False)
        self._turns = threading.BoundedSemaphore(gateway.policy.at_once)
        self._counts = 0
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> GatewaySession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse all further requests, and abort the running ones. Idempotent."""
        with self._condition:
            self._closed = True
            for answer in self._open:
                answer.abort()
            for connection in self._connections:
                with suppress(OSError):  # the connection may have already ended
                    connection.shutdown(socket.SHUT_RDWR)
            self._condition.wait_for(
                lambda: (
                    not self._open
                    and not any(pending_call.is_answered for pending_call in self._pending_calls)
                ),
                _CLOSE_SECONDS,
            )
            unanswered_calls = tuple(self._pending_calls)
        # The other pending calls wait for a silent server or for a retry. They get their record
        # now, without an answer.
        for call in unanswered_calls:
            call.cut()
        self._on_close(self)

    def serve(
        self, connection: socket.socket, on_admission: Callable[[], None] = lambda: None
    ) -> None:
        """Serve one client connection, as an `intercode_sandbox.forwarding.BoundRequestHandler`.

        Args:
            connection: The client's socket.
            on_admission: A function to call when a request has shown the valid token, before the
                answer.
        """
        with self._condition:
            if not self._closed:
                self._connections.add(connection)
        try:
            ClientConnection(connection, self._gateway.policy, on_admission).serve(self._handle)
        finally:
            with self._condition:
                self._connections.discard(connection)

    def _handle(self, request: RequestHead, client: ClientConnection) -> None:
        """Answer one request; keep a refusal in `refusal`, and raise it again."""
        try:
            self._answer(request, client)
        except GatewayRefusal as refusal:
            self.refusal = GatewayRefusal(refusal.status, str(refusal))
            raise

    def _answer(self, request: RequestHead, client: ClientConnection) -> None:
        """Answer one request.

        Raises:
            Refusal: The gateway refuses the request.
        """
        try:
            parsed_target = urlsplit(request.target) if request.target.startswith("/") else None
        except ValueError:  # urlsplit takes //[ for the start of an invalid IPv6 host
            parsed_target = None
        if parsed_target is None:
            raise GatewayRefusal(400, "the target of a request is a path")
        is_free = request.method in {"HEAD", "GET"} and parsed_target.path == "/"
        if denial := self._guard.refusal(_ApiKeyHeaders(request), is_token_free=is_free):
            raise GatewayRefusal(denial[0].value, denial[1])
        if self._closed:
            raise GatewayRefusal(401, "this token is no longer served")
        if not is_free:
            client.on_admission()
        query = dict(parse_qsl(parsed_target.query, keep_blank_values=True))
        if unknown_names := query.keys() - _QUERIES:
            raise bad_request(f"?{'&'.join(sorted(unknown_names))}")
        if is_free:
            client.body()
            client.answer(200, b"" if request.method == "HEAD" else b"{}")
        elif request.method == "GET" and (
            parsed_target.path == MODELS or _is_model_path(parsed_target.path)
        ):
            client.body()
            client.answer(200, json.dumps(self._models(parsed_target.path)).encode())
        elif request.method == "POST" and parsed_target.path in {*_PATHS, COUNT}:
            self._post(
                request, client, parsed_target.path, "?beta=true" if query.get("beta") else ""
            )
        else:
            raise GatewayRefusal(
                404, f"the gateway has no {request.method} {parsed_target.path[:200]}"
            )

    def _models(self, path: str) -> dict[str, Any]:
        model_names = self._gateway.model_names()
        if path == MODELS:
            return model_page(model_names, "intercode")
        model_name = unquote(path.removeprefix(MODELS + "/"))
        if model_name not in model_names:
            raise GatewayRefusal(404, f"model: there is no {model_name[:200]!r}")
        return model_entry(model_name, "intercode")

    def _post(self, request: RequestHead, client: ClientConnection, path: str, query: str) -> None:
        if {*request.get_all("Content-Encoding")} - {"identity"}:
            raise GatewayRefusal(415, "a body is sent as it is, without Content-Encoding")
        gateway, protocol = self._gateway, _PATHS.get(path, "messages")
        if protocol not in PROVIDER_PROTOCOLS.get(gateway.upstream.provider, (protocol,)):
            raise GatewayRefusal(
                404, f"{gateway.upstream.name} does not speak the protocol of {path}"
            )
        self._refuse_beyond_limits()
        headers = {"Content-Type": "application/json"}
        if protocol == "messages":
            headers["anthropic-version"] = "2023-06-01"
            if beta_header := betas(request.get_all("anthropic-beta"), gateway.policy):
                headers["anthropic-beta"] = beta_header
        with self._turns, ExitStack() as stack:
            body = self._body(request, client, stack)
            with gateway.intake.parsing_lock if len(body) > FREE_BODY_BYTES else nullcontext():
                request_body, size = self._read(protocol, body)
                del body
                forwarded_call = None
                if path != COUNT:
                    try:
                        forwarded_call = ForwardedCall(
                            self,
                            gateway,
                            client,
                            protocol,
                            path + query,
                            request_body,
                            headers,
                            size,
                        )
                    except (AttributeError, KeyError, TypeError, AttemptError):
                        raise bad_request("a dialogue that cannot be read") from None
            if forwarded_call is None:
                self._count(client, path + query, request_body, headers, size)
                return
            self._begin(forwarded_call)
            forwarded_call.run()

    def _body(self, request: RequestHead, client: ClientConnection, stack: ExitStack) -> bytes:
        """Read a body, and reserve memory for a large one; the exit of `stack` frees the memory.

        Raises:
            Refusal: The body is too long, or memory was not free in time.
        """
        policy, intake = self._gateway.policy, self._gateway.intake
        size = policy.max_body if request.length is None else request.length
        if size > policy.max_body:
            raise GatewayRefusal(413, f"the body is longer than {policy.max_body} bytes")

        def reserve() -> None:
            stack.enter_context(intake.reserve(self, size, policy.patience))

        return client.body(policy.max_body, free_bytes=FREE_BODY_BYTES, reserve=reserve)

    def _read(self, protocol: Name, body: bytes) -> tuple[dict[str, Any], int]:
        """Parse and validate a body.

        Returns:
            The part of the body that is forwarded, and an upper bound of its tokens.

        Raises:
            Refusal: The body is invalid, or the policy forbids it.
        """
        remaining_tokens = check_tokens(body)
        client_body = parse_body(body)
        check_embedded_tokens(client_body, remaining_tokens)
        model = self._gateway.model(client_body.get("model"))
        try:
            request_body = {
                "model": model,
                **admit_body(protocol, client_body, self._gateway.policy),
            }
            return request_body, context_size(request_body)
        except RecursionError:
            raise bad_request("the body has too many levels") from None

    def _begin(self, forwarded_call: ForwardedCall) -> None:
        with self._condition:
            self._refuse_beyond_limits()
            self._pending_calls.add(forwarded_call)
            self._started_calls += 1

    def _refuse_beyond_limits(self) -> None:
        """Refuse a call over a limit. Called before the body is read, and again after it.

        Raises:
            Refusal: The gateway is shutting down, the session has used all its calls, or the
                dialogues or the record have reached their maximum size.
        """
        if self._draining:
            raise GatewayRefusal(503, "the gateway ends")
        max_calls = self._gateway.policy.max_calls
        if max_calls is not None and self._started_calls >= max_calls:
            raise GatewayRefusal(
                PAYMENT_REQUIRED_STATUS, f"the {max_calls} calls that may be made have been made"
            )
        if self._dialogues.is_full:
            raise GatewayRefusal(
                PAYMENT_REQUIRED_STATUS,
                "the dialogues of this episode are as long as can be recorded",
            )
        if self._is_full():
            raise GatewayRefusal(
                PAYMENT_REQUIRED_STATUS, "the record of calls is as long as it may be"
            )

    def _count(
        self,
        client: ClientConnection,
        target: str,
        request_body: dict[str, Any],
        headers: dict[str, str],
        size: int,
    ) -> None:
        """Answer a request for a token count: with the server's count, or with an estimate.

        Raises:
            Refusal: The session has requested too many counts for its calls.
        """
        with self._condition:
            if self._counts >= FREE_COUNTS + COUNTS_PER_CALL * self._started_calls:
                raise GatewayRefusal(
                    429, "tokens were counted too often for the calls that were made"
                )
            self._counts += 1
        gateway, start_time = self._gateway, time.monotonic()
        payload = json.dumps(
            {field: request_body[field] for field in request_body.keys() - _OMITTED_COUNT_FIELDS}
        ).encode()

        def send() -> bytes:
            answer = gateway.connections.open("POST", target, payload, headers, gateway.timeout)
            self.hold(answer)
            try:
                body = answer.read(MAX_ERROR_BYTES)
            finally:
                self.drop(answer)
                answer.close()
            if answer.status != 200:
                raise AttemptError(f"status {answer.status}")
            return body

        error_text = ""
        try:
            body = gateway.frame(request_body["model"]).send_unbilled(send)
        except AttemptError as failure:
            error_text = f"an estimate: {failure}"
            body = json.dumps({"input_tokens": size // BYTES_PER_TOKEN}).encode()
        body = gateway.upstream.remove_key(body)
        text, seconds = body.decode(errors="replace"), time.monotonic() - start_time
        call = Call("count", COUNT, request_body["model"], text=text, cost=0.0, seconds=seconds)
        self.note(replace(call, error=error_text))
        client.answer(200, body)


class _ApiKeyHeaders:
    """The headers of a request, with Anthropic's ``x-api-key`` presented as a bearer token."""

    def __init__(self, request: RequestHead) -> None:
        self._request = request

    def get_all(self, key: str) -> list[str]:
        api_keys = self._request.get_all("x-api-key") if key == "Authorization" else []
        return [f"Bearer {value}" for value in api_keys] or self._request.get_all(key)


def _is_model_path(path: str) -> bool:
    return path.startswith(MODELS + "/")
