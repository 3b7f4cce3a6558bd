"""One call of a client: forwarded to the model's server, answered, and recorded."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from typing import Any, TypeVar

from intercode.errors import BudgetError, ModelAccessError, ModelError, ModelUnavailableError
from intercode.known_secrets import hide_in
from intercode.models import wire
from intercode.models.base import Answer, AttemptError, Message, Reply, Request, Settings
from intercode.models.cache import Cache, digest, is_unseeded_sampling
from intercode.models.prices import Prices
from intercode.models.protocols import Name
from intercode.models.remote import Around, Frame
from intercode.models.upstream import Upstream
from intercode_integrations.gateway.calls import (
    CUT,
    LEFT,
    NOT_PAID,
    Call,
    answered,
    offered,
    shortfall,
    spoken,
    traced,
)
from intercode_integrations.gateway.connections import Connections, Open
from intercode_integrations.gateway.http import Door, Gone
from intercode_integrations.gateway.policy import Refusal, Terms, most_tokens
from intercode_integrations.gateway.retention import EpisodeCalls
from intercode_integrations.gateway.secret_filter import Veil
from intercode_integrations.gateway.streams import Assembly

log = logging.getLogger(__name__)

LONGEST_ANSWER = 64 * 1024**2
LONGEST_ERROR = 64 * 1024
_STREAM = "text/event-stream"


class Backend:
    """The model's server, with the limits and the cache of all calls to it.

    Args:
        upstream: The server and the key.
        around: Cache, budget, pace, price and retries.
        terms: What clients may do.
        prices: Prices of the models that `Terms.models` names.

    Raises:
        UsageError: A budget is in dollars, and a price is not known.
    """

    def __init__(self, upstream: Upstream, around: Around, terms: Terms, prices: Prices) -> None:
        self.upstream, self.terms = upstream, terms
        self.connections = Connections(upstream)
        self._names = dict(terms.models) if terms.models is not None else {}
        self._frames: dict[str, Frame] = {}
        for model in dict.fromkeys([*self._names.values()] or [upstream.model]):
            name = f"{upstream.provider}/{model}"
            own = around.price if model == upstream.model and around.price else prices.find(name)
            self._frames[model] = Frame(name, upstream.url, replace(around, price=own))
        self.is_priced = all(
            prices.find(f"{upstream.provider}/{m}") or around.price for m in self._frames
        )
        self.cache, self.timeout = around.cache, around.retry.timeout

    def model(self, asked: object) -> str:
        """Return the provider's name of a model that a client asks for.

        Raises:
            Refusal: It may not have that one.
        """
        if self.terms.models is None:
            return self.upstream.model
        if not isinstance(asked, str) or asked not in self._names:
            raise Refusal(404, f"model: {asked!r} is none of {', '.join(self._names)}")
        return self._names[asked]

    def delay(self) -> tuple[float, str] | None:
        """Return the longest of the delays of its models: see `Frame.delay`."""
        return max(filter(None, (frame.delay() for frame in self._frames.values())), default=None)

    def frame(self, model: str) -> Frame:
        """Return pace, money and tries of a model."""
        return self._frames[model]

    def listed(self) -> list[str]:
        """Return the names of models that clients may ask for."""
        return [*self._names] or [self.upstream.model]


class ForwardedCall:
    """A call of a client: its request, the answer so far, and its record.

    The record begins before the call: a dialogue that cannot be recorded is not forwarded.

    Raises:
        AttributeError, KeyError, TypeError, AttemptError: The request cannot be read.
    """

    def __init__(
        self,
        seat: EpisodeCalls,
        gateway: Backend,
        door: Door,
        name: Name,
        target: str,
        sent: dict[str, Any],
        headers: dict[str, str],
        size: int,
    ) -> None:
        self._seat, self._gateway, self._door, self._name = seat, gateway, door, name
        self._target, self._headers, self._size = target, headers, size
        self._streamed = sent.get("stream") is True
        self._usage_asked = bool((sent.get("stream_options") or {}).get("include_usage"))
        if name == "chat" and self._streamed:  # else the tokens would not be known
            sent["stream_options"] = {**(sent.get("stream_options") or {}), "include_usage": True}
        self._sent = sent
        self._limit = most_tokens(name, sent)
        self._call = Call(
            protocol=name,
            path=target.partition("?")[0],
            model=sent["model"],
            messages=spoken(name, sent),
            streamed=self._streamed,
            tools=offered(sent),
        )
        self._raw = b""
        """The answer as the client gets it."""
        self._body: dict[str, Any] = {}
        self._failure: tuple[int, bytes] | None = None
        """The server's last refusal."""
        self._error = ""
        self.is_answered = False
        """Whether the server's answer has begun: it is recorded soon."""
        self._broken = False
        """Whether the answer breaks off: the client sees that, as it would without a gate."""

    def run(self) -> None:
        """Ask, answer, record."""
        frame, started = self._gateway.frame(self._sent["model"]), time.monotonic()
        cache, key = self._cached()
        try:
            entry = cache.get(key) if cache else None
            if entry is not None:
                self.is_answered = True
                reply = replace(entry, cached=True, cost=0.0, seconds=0.0, retries=0)
                self._replay(entry.text.encode())
            else:
                budget = self._seat.budget
                reply = frame.ask(
                    self._send,
                    self._size,
                    self._limit,
                    budget=budget,
                    is_over=lambda: self._seat.is_closed,
                )
                if cache and not self._error:
                    cache.put(key, replace(reply, text=self._raw.decode()))
        except (ModelError, Gone) as error:
            self._fail(error, time.monotonic() - started)
            return
        self._note(reply)
        if self._broken:
            raise Gone
        if not self._door.status:
            self._door.answer(200, self._raw)
        elif self._streamed:
            self._door.end()

    def _cached(self) -> tuple[Cache | None, str]:
        cache, sent = self._gateway.cache, self._sent
        settings = Settings(sent.get("temperature"), seed=sent.get("seed"))
        if cache is None or (
            is_unseeded_sampling(settings) and not self._gateway.terms.cache_sampled
        ):
            return None, ""
        text = json.dumps([self._target, self._headers, sent], sort_keys=True)
        request = Request((Message("user", text),))
        return cache, digest(self._gateway.upstream.name, self._gateway.upstream.url, request)

    def _replay(self, raw: bytes) -> None:
        self._raw = raw
        if not self._streamed:
            self._body = wire.load(raw)
            return
        assembly = Assembly(self._name)
        assembly.feed(raw)
        self._body = assembly.body
        self._door.begin(200, [("content-type", _STREAM)])
        self._door.more(raw)

    def _send(self) -> Answer:
        """Make one call; see `Client.send`."""
        gateway = self._gateway
        body = json.dumps(self._sent, ensure_ascii=False).encode(errors="replace")
        answer = gateway.connections.open(
            "POST", self._target, body, self._headers, gateway.timeout
        )
        self.is_answered = True
        self._seat.hold(answer)
        try:
            if answer.status != 200:
                error = gateway.upstream.remove_key(answer.read(LONGEST_ERROR))
                self._failure = answer.status, error
                raise wire.status_error(
                    answer.status, answer.headers, error.decode(errors="replace")
                )
            if self._streamed and answer.headers.get("content-type", "").startswith(_STREAM):
                return self._stream(answer)
            self._raw = gateway.upstream.remove_key(answer.read(LONGEST_ANSWER))
            data = wire.load(self._raw)
            self._body = hide_in(data, gateway.upstream.key)
            if self._body != data:  # the key was written by escapes
                self._raw = json.dumps(self._body).encode()
            self._error = shortfall(self._body)
            return answered(self._name, self._body)
        except AttemptError:
            self.is_answered = False
            raise
        finally:
            self._seat.drop(answer)
            answer.close()

    def _stream(self, answer: Open) -> Answer:
        """Pass on a stream. Once its first event has gone to the client, there is no other try."""
        assembly, forwarded = Assembly(self._name), bytearray()
        door, has_begun, veil = self._door, False, Veil(self._gateway.upstream.key)
        try:
            while data := answer.some():
                events = assembly.feed(data)
                if not has_begun and assembly.error:
                    text = json.dumps({"error": assembly.error})
                    raise AttemptError(f"an error in the stream: {text[: wire.MAX_MESSAGE_LENGTH]}")
                raw = veil.through(event for event in events if not self._ours(event.data))
                if assembly.whole:
                    raw += veil.rest()
                if raw:
                    if not has_begun:
                        has_begun = True
                        door.begin(200, [("content-type", _STREAM)])
                    forwarded += raw
                    door.more(raw)
                if len(forwarded) > LONGEST_ANSWER:
                    raise ValueError("the answer is too long")
            if not assembly.whole and not assembly.error:
                raise ValueError("the stream ended before its last event")
        except (AttemptError, ValueError) as error:
            if not has_begun:
                raise wire.unusable_answer(str(error)) from None
            self._error = CUT if self._seat.is_closed else str(error)
        except Gone:
            self._error = LEFT
        self._raw, self._body = bytes(forwarded), hide_in(assembly.body, self._gateway.upstream.key)
        self._broken = bool(self._error or assembly.error)
        if not self._error:
            outcome = {"error": assembly.error} if assembly.error else self._body
            self._error = shortfall(hide_in(outcome, self._gateway.upstream.key))
        try:
            reply = answered(self._name, self._body)
        except AttemptError as error:
            self._error = self._error or str(error)
            return Answer("")
        # Of an answer that broke off the tokens are not known: what was set aside counts.
        return replace(reply, usage=None) if self._broken else reply

    def _ours(self, data: dict[str, Any] | None) -> bool:
        """Tell whether an event has the tokens that only the gate has asked for."""
        hidden = self._name == "chat" and not self._usage_asked and data is not None
        return hidden and data is not None and data.get("choices") == [] and "usage" in data

    def _note(self, reply: Reply) -> None:
        try:
            answer = answered(self._name, self._body)
        except AttemptError:
            answer = Answer("")
        is_failed = self._body.get("status") == "failed"  # as `responses` says it
        is_lost = is_failed or (self._broken and self._error not in {LEFT, CUT})
        failure = f"{self._gateway.upstream.name}: the answer broke off: {self._error}"
        self._seat.failure = ModelUnavailableError(failure) if is_lost else None
        self._seat.note(
            replace(
                self._call,
                error=self._error,
                model=reply.model or self._sent["model"],
                text=answer.text,
                tool_calls=answer.tool_calls,
                usage=reply.usage,
                cost=reply.cost,
                seconds=reply.seconds,
                retries=reply.retries,
                cached=reply.cached,
                finish=answer.finish,
                **traced(self._body),
            ),
            self,
        )

    def cut(self) -> None:
        """Record the call as cut off, if it is not recorded yet."""
        self._seat.note(replace(self._call, status=503, error=CUT), self)

    def _fail(self, error: Exception, seconds: float) -> None:
        status, body = 503, b""
        if isinstance(error, BudgetError):
            status = NOT_PAID
        elif self._failure:
            status, body = self._failure
            status = 502 if status in {401, NOT_PAID} else status  # the token is right; our key not
        is_cut = self._seat.is_closed and not isinstance(error, BudgetError)
        if isinstance(error, ModelUnavailableError | ModelAccessError) and not is_cut:
            self._seat.failure = _without_frames(error)
            body = body if self._failure and self._failure[0] == status else b""
        reason = CUT if is_cut else str(error) or LEFT
        self._seat.note(replace(self._call, status=status, error=reason, seconds=seconds), self)
        if isinstance(error, Gone):
            raise error
        if not body:
            raise Refusal(status, str(error))
        log.info("answered with status %d: %s", status, error)
        self._door.answer(status, body, [("x-should-retry", "false")])


_ErrorT = TypeVar("_ErrorT", bound=Exception)


def _without_frames(error: _ErrorT) -> _ErrorT:
    """Return an error that is kept without its tracebacks, whose frames hold the request."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return error
