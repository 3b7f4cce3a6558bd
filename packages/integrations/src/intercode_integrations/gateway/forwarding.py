"""Forwarding of one client call to the model's server, with its response and its record."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from typing import Any, TypeVar

from intercode.errors import BudgetError, ModelAccessError, ModelError, ModelUnavailableError
from intercode.models import response_parsing
from intercode.models.api_fields import Name
from intercode.models.base import Answer, AttemptError, Message, Reply, Request, Settings
from intercode.models.cache import ReplyCache, digest, is_unseeded_sampling
from intercode.models.prices import ModelPrices
from intercode.models.remote import ModelCallContext, ModelCallLimiter
from intercode.models.upstream import Upstream
from intercode.secrets import hide_in
from intercode_integrations.gateway.calls import (
    CLIENT_DISCONNECTED,
    EPISODE_ENDED,
    PAYMENT_REQUIRED_STATUS,
    Call,
    decode_answer,
    incomplete_reason,
    read_dialogue,
    read_token_data,
    tool_names,
)
from intercode_integrations.gateway.episode_calls import EpisodeCalls
from intercode_integrations.gateway.http import ClientConnection, ClientDisconnect
from intercode_integrations.gateway.policy import GatewayPolicy, GatewayRefusal, max_reply_tokens
from intercode_integrations.gateway.secret_filter import SecretFilter
from intercode_integrations.gateway.streams import StreamedAnswer
from intercode_integrations.gateway.upstream_connections import (
    UpstreamConnectionPool,
    UpstreamResponse,
)

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 * 1024**2
MAX_ERROR_BYTES = 64 * 1024
_STREAM = "text/event-stream"


class UpstreamBackend:
    """The upstream server of a gateway, with the limits and the cache of all calls to it.

    Args:
        upstream: The URL, the model and the API key of the server.
        call_context: Cache, budget, rate limit, price and retries.
        policy: The operator's rules for requests of clients.
        prices: Prices of the provider's models to which `GatewayPolicy.models` maps.

    Raises:
        UsageError: A budget is in dollars, and the price of a model is not known.
    """

    def __init__(
        self,
        upstream: Upstream,
        call_context: ModelCallContext,
        policy: GatewayPolicy,
        prices: ModelPrices,
    ) -> None:
        self.upstream, self.policy = upstream, policy
        self.connections = UpstreamConnectionPool(upstream)
        self._names = dict(policy.models) if policy.models is not None else {}
        self._frames: dict[str, ModelCallLimiter] = {}
        for model in dict.fromkeys([*self._names.values()] or [upstream.model]):
            full_name = f"{upstream.provider}/{model}"
            model_price = (
                call_context.price
                if model == upstream.model and call_context.price
                else prices.find(full_name)
            )
            self._frames[model] = ModelCallLimiter(
                full_name, upstream.url, replace(call_context, price=model_price)
            )
        self.is_priced = all(
            prices.find(f"{upstream.provider}/{model_name}") or call_context.price
            for model_name in self._frames
        )
        self.cache, self.timeout = call_context.cache, call_context.retry.timeout

    def model(self, model_name: object) -> str:
        """Return the provider's name of the model that a client requests.

        Raises:
            Refusal: The client may not use this model.
        """
        if self.policy.models is None:
            return self.upstream.model
        if not isinstance(model_name, str) or model_name not in self._names:
            raise GatewayRefusal(404, f"model: {model_name!r} is none of {', '.join(self._names)}")
        return self._names[model_name]

    def delay(self) -> tuple[float, str] | None:
        """Return the longest delay over all models; see `ModelCallLimiter.delay`."""
        return max(
            filter(None, (limiter.delay() for limiter in self._frames.values())), default=None
        )

    def frame(self, model: str) -> ModelCallLimiter:
        """Return the object that applies rate limit, budget and retries to calls of a model."""
        return self._frames[model]

    def model_names(self) -> list[str]:
        """Return the names that clients may request: names of the policy, or the only model."""
        return [*self._names] or [self.upstream.model]


class ForwardedCall:
    """A call of a client that the gateway forwards: request, answer so far, and record.

    The constructor decodes the dialogue for the record before anything is sent. A request that
    cannot be decoded, and therefore not be recorded, is never forwarded.

    Args:
        session: The session that records the call.
        gateway: The upstream server.
        client: The client's connection.
        protocol: The protocol of the call.
        target: The path and the query of the upstream's URL.
        request_body: The validated body, which the constructor may extend.
        headers: The headers to forward.
        size: An upper bound of the request's tokens.

    Raises:
        AttributeError, KeyError, TypeError, AttemptError: The request cannot be decoded.
    """

    def __init__(
        self,
        session: EpisodeCalls,
        gateway: UpstreamBackend,
        client: ClientConnection,
        protocol: Name,
        target: str,
        request_body: dict[str, Any],
        headers: dict[str, str],
        size: int,
    ) -> None:
        self._session, self._gateway, self._client, self._name = session, gateway, client, protocol
        self._target, self._headers, self._size = target, headers, size
        self._streamed = request_body.get("stream") is True
        self._usage_asked = bool((request_body.get("stream_options") or {}).get("include_usage"))
        # A streamed `chat` answer contains its token usage only if the request asks for usage.
        if protocol == "chat" and self._streamed:
            request_body["stream_options"] = {
                **(request_body.get("stream_options") or {}),
                "include_usage": True,
            }
        self._request_body = request_body
        self._limit = max_reply_tokens(protocol, request_body)
        self._call = Call(
            protocol=protocol,
            path=target.partition("?")[0],
            model=request_body["model"],
            messages=read_dialogue(protocol, request_body),
            streamed=self._streamed,
            tools=tool_names(request_body),
        )
        self._answer_bytes = b""
        """The answer's bytes, as the client receives them."""
        self._body: dict[str, Any] = {}
        self._failure: tuple[int, bytes] | None = None
        """The last error response of the server: status and body."""
        self._error = ""
        self.is_answered = False
        """Whether the server's answer has started. The call's record then follows soon."""
        self._broken = False
        """Whether the answer broke off. The client's connection then ends, as without a gateway."""

    def run(self) -> None:
        """Send the request, forward the answer to the client, and record the call.

        Raises:
            Refusal: The budget is used up, or the server gave no answer that can be forwarded.
            ClientDisconnect: The client has left, or the answer broke off.
            OSError: The call cannot be recorded.
        """
        call_limiter, start_time = (
            self._gateway.frame(self._request_body["model"]),
            time.monotonic(),
        )
        reply_cache, cache_key = self._cache_key()
        try:
            cached_reply = reply_cache.get(cache_key) if reply_cache else None
            if cached_reply is not None:
                self.is_answered = True
                reply = replace(cached_reply, cached=True, cost=0.0, seconds=0.0, retries=0)
                self._replay(cached_reply.text.encode())
            else:
                budget = self._session.budget
                reply = call_limiter.ask(
                    self._send,
                    self._size,
                    self._limit,
                    budget=budget,
                    is_over=lambda: self._session.is_closed,
                )
                if reply_cache and not self._error:
                    reply_cache.put(cache_key, replace(reply, text=self._answer_bytes.decode()))
        except (ModelError, ClientDisconnect) as error:
            self._fail(error, time.monotonic() - start_time)
            return
        self._note(reply)
        if self._broken:
            raise ClientDisconnect
        if not self._client.status:
            self._client.answer(200, self._answer_bytes)
        elif self._streamed:
            self._client.end()

    def _cache_key(self) -> tuple[ReplyCache | None, str]:
        cache, request_body = self._gateway.cache, self._request_body
        settings = Settings(request_body.get("temperature"), seed=request_body.get("seed"))
        if cache is None or (
            is_unseeded_sampling(settings) and not self._gateway.policy.cache_sampled
        ):
            return None, ""
        request_text = json.dumps([self._target, self._headers, request_body], sort_keys=True)
        request = Request((Message("user", request_text),))
        return cache, digest(self._gateway.upstream.name, self._gateway.upstream.url, request)

    def _replay(self, answer_bytes: bytes) -> None:
        self._answer_bytes = answer_bytes
        if not self._streamed:
            self._body = response_parsing.load(answer_bytes)
            return
        assembly = StreamedAnswer(self._name)
        assembly.feed(answer_bytes)
        self._body = assembly.body
        self._client.begin(200, [("content-type", _STREAM)])
        self._client.send_data(answer_bytes)

    def _send(self) -> Answer:
        """Send the request to the server once, without retries, and return the decoded answer.

        Raises:
            AttemptError: The server cannot be reached, or the answer is an error or unusable.
        """
        upstream_backend = self._gateway
        body = json.dumps(self._request_body, ensure_ascii=False).encode(errors="replace")
        answer = upstream_backend.connections.open(
            "POST", self._target, body, self._headers, upstream_backend.timeout
        )
        self.is_answered = True
        self._session.hold(answer)
        try:
            if answer.status != 200:
                error_body = upstream_backend.upstream.remove_key(answer.read(MAX_ERROR_BYTES))
                self._failure = answer.status, error_body
                raise response_parsing.status_error(
                    answer.status, answer.headers, error_body.decode(errors="replace")
                )
            if self._streamed and answer.headers.get("content-type", "").startswith(_STREAM):
                return self._stream(answer)
            self._answer_bytes = upstream_backend.upstream.remove_key(answer.read(MAX_ANSWER_BYTES))
            answer_data = response_parsing.load(self._answer_bytes)
            self._body = hide_in(answer_data, upstream_backend.upstream.key)
            # JSON escapes can hide the key from `remove_key`, but not from `hide_in`.
            if self._body != answer_data:
                self._answer_bytes = json.dumps(self._body).encode()
            self._error = incomplete_reason(self._body)
            return decode_answer(self._name, self._body)
        except AttemptError:
            self.is_answered = False
            raise
        finally:
            self._session.drop(answer)
            answer.close()

    def _stream(self, answer: UpstreamResponse) -> Answer:
        """Forward a streamed answer event by event, and return the decoded answer.

        Before the first event reaches the client, an error permits a retry. Later errors only end
        the stream.

        Raises:
            AttemptError: The stream failed before its first event reached the client.
        """
        assembly, forwarded_bytes = StreamedAnswer(self._name), bytearray()
        client, has_begun, secret_filter = (
            self._client,
            False,
            SecretFilter(self._gateway.upstream.key),
        )
        try:
            while chunk := answer.read_available():
                events = assembly.feed(chunk)
                if not has_begun and assembly.error:
                    error_text = json.dumps({"error": assembly.error})
                    raise AttemptError(
                        "an error in the stream: "
                        f"{error_text[: response_parsing.MAX_MESSAGE_LENGTH]}"
                    )
                output = secret_filter.filter_events(
                    event for event in events if not self._is_internal_usage(event.data)
                )
                if assembly.is_complete:
                    output += secret_filter.flush()
                if output:
                    if not has_begun:
                        has_begun = True
                        client.begin(200, [("content-type", _STREAM)])
                    forwarded_bytes += output
                    client.send_data(output)
                if len(forwarded_bytes) > MAX_ANSWER_BYTES:
                    raise ValueError("the response is too long")
            if not assembly.is_complete and not assembly.error:
                raise ValueError("the stream ended before its last event")
        except (AttemptError, ValueError) as error:
            if not has_begun:
                raise response_parsing.unusable_answer(str(error)) from None
            self._error = EPISODE_ENDED if self._session.is_closed else str(error)
        except ClientDisconnect:
            self._error = CLIENT_DISCONNECTED
        self._answer_bytes, self._body = (
            bytes(forwarded_bytes),
            hide_in(assembly.body, self._gateway.upstream.key),
        )
        self._broken = bool(self._error or assembly.error)
        if not self._error:
            outcome = {"error": assembly.error} if assembly.error else self._body
            self._error = incomplete_reason(hide_in(outcome, self._gateway.upstream.key))
        try:
            reply = decode_answer(self._name, self._body)
        except AttemptError as error:
            self._error = self._error or str(error)
            return Answer("")
        # The usage of a broken answer is unknown: with None, the reserved amount is charged.
        return replace(reply, usage=None) if self._broken else reply

    def _is_internal_usage(self, data: dict[str, Any] | None) -> bool:
        """Return whether an event has only the usage that the gateway requested, not the client."""
        hidden = self._name == "chat" and not self._usage_asked and data is not None
        return hidden and data is not None and data.get("choices") == [] and "usage" in data

    def _note(self, reply: Reply) -> None:
        try:
            answer = decode_answer(self._name, self._body)
        except AttemptError:
            answer = Answer("")
        # The protocol `responses` reports a failed answer by this status in its body.
        is_failed = self._body.get("status") == "failed"
        is_lost = is_failed or (
            self._broken and self._error not in {CLIENT_DISCONNECTED, EPISODE_ENDED}
        )
        failure = f"{self._gateway.upstream.name}: the response was cut off: {self._error}"
        self._session.failure = ModelUnavailableError(failure) if is_lost else None
        self._session.note(
            replace(
                self._call,
                error=self._error,
                model=reply.model or self._request_body["model"],
                text=answer.text,
                tool_calls=answer.tool_calls,
                usage=reply.usage,
                cost=reply.cost,
                seconds=reply.seconds,
                retries=reply.retries,
                cached=reply.cached,
                finish=answer.finish,
                **read_token_data(self._body),
            ),
            self,
        )

    def cut(self) -> None:
        """Record the call as ended by the end of its episode, unless it is already recorded."""
        self._session.note(replace(self._call, status=503, error=EPISODE_ENDED), self)

    def _fail(self, error: Exception, seconds: float) -> None:
        status, body = 503, b""
        if isinstance(error, BudgetError):
            status = PAYMENT_REQUIRED_STATUS
        elif self._failure:
            status, body = self._failure
            # The client must not read 401 or 402 as a fault of the client's token or budget: the
            # provider refused the gateway's key.
            status = 502 if status in {401, PAYMENT_REQUIRED_STATUS} else status
        is_cut = self._session.is_closed and not isinstance(error, BudgetError)
        if isinstance(error, ModelUnavailableError | ModelAccessError) and not is_cut:
            self._session.failure = _strip_tracebacks(error)
            body = body if self._failure and self._failure[0] == status else b""
        reason = EPISODE_ENDED if is_cut else str(error) or CLIENT_DISCONNECTED
        self._session.note(replace(self._call, status=status, error=reason, seconds=seconds), self)
        if isinstance(error, ClientDisconnect):
            raise error
        if not body:
            raise GatewayRefusal(status, str(error))
        log.info("answered with status %d: %s", status, error)
        self._client.answer(status, body, [("x-should-retry", "false")])


_ErrorT = TypeVar("_ErrorT", bound=Exception)


def _strip_tracebacks(error: _ErrorT) -> _ErrorT:
    """Return an error without tracebacks, for a session that keeps the error.

    The frames of a traceback would keep the request, with its whole dialogue, in memory.
    """
    chained_error: BaseException | None = error
    while chained_error is not None:
        chained_error.__traceback__ = None
        chained_error = chained_error.__context__
    return error
