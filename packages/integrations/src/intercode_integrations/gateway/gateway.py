"""The gate: requests of an agent in, the same protocol out to the model's server, each recorded.

A `Gateway` serves a run, and has the key, the budget and the pace. A `Seat` serves one episode, and
has a token of its own, the only secret that the sandbox sees::

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
from intercode.guard import Guard
from intercode.models.base import AttemptError
from intercode.models.limits import Budget
from intercode.models.prices import Prices
from intercode.models.protocols import COUNT, MODELS, TABLES, Name, model_entry, model_page
from intercode.models.remote import BYTES_PER_TOKEN, Around
from intercode.models.upstream import Upstream
from intercode_integrations.gateway.calls import (
    NOT_PAID,
    Call,
)
from intercode_integrations.gateway.forwarding import LONGEST_ERROR, Backend, ForwardedCall
from intercode_integrations.gateway.http import Asked, Door
from intercode_integrations.gateway.intake import (
    SMALL,
    TOTAL,
    Intake,
    check_embedded_tokens,
    check_tokens,
)
from intercode_integrations.gateway.policy import (
    Refusal,
    Terms,
    admitted,
    betas,
    context,
    parsed,
    refused,
)
from intercode_integrations.gateway.retention import EpisodeCalls

_CLOSE_SECONDS = 5.0
FREE_COUNTS, COUNTS_A_CALL = 16, 4
"""Counts of tokens, which are free, that an episode may ask for, and more for each of its calls."""
_UNCOUNTED = {"stream", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences"}
"""Fields of a call that a count does not have."""
_QUERIES = {"beta", "client_version", "limit", "after_id", "before_id"}
"""Parts of a query that agents send. None changes an answer, but ``beta=true`` of Anthropic's."""
_PATHS: dict[str, Name] = {table.path: name for name, table in TABLES.items()}
SPOKEN: dict[str, tuple[Name, ...]] = {"openai": ("chat", "responses"), "anthropic": ("messages",)}
"""Provider → the protocols that it speaks; others speak all."""


class Gateway(Backend):
    """The gate of a run. Its seats are served by many threads.

    Args:
        upstream: The server and the key.
        around: Cache, budget, pace, price and retries, as around our own models.
        terms: What clients may do.
        prices: Prices of the models that `Terms.models` names.

    Raises:
        UsageError: A budget is in dollars, and a price is not known.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        around: Around | None = None,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        prices: Prices | None = None,
    ) -> None:
        super().__init__(upstream, around or Around(), terms, prices or Prices())
        self.intake = Intake(TOTAL, terms.max_body)
        self._seats: set[Seat] = set()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all seats, and the connections to the server. Idempotent."""
        for seat in tuple(self._seats):
            seat.close()
        self.connections.close()

    def seat(
        self,
        *,
        budget: Budget | None = None,
        record: Callable[[Call], None] | None = None,
        token: str | None = None,
        keep: bool = True,
        is_full: Callable[[], bool] = lambda: False,
    ) -> Seat:
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
                f"the price of {self.upstream.name} is not known, so its cost cannot be limited: "
                "give a file of prices, or limit the tokens"
            )
        seat = Seat(self, budget, record, self._seats.discard, token, keep=keep, is_full=is_full)
        self._seats.add(seat)
        return seat


class Seat(EpisodeCalls):
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
        ended: Callable[[Seat], None],
        token: str | None = None,
        *,
        keep: bool = True,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        super().__init__(budget, record, keep=keep)
        self.refusal: Refusal | None = None
        self._gateway, self._ended, self._is_full = gateway, ended, is_full
        self._guard = Guard(self.token, pages=False)
        self._turns = threading.BoundedSemaphore(gateway.terms.at_once)
        self._counts = 0
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse all further requests, and break off those under way. Idempotent."""
        with self._changed:
            self._closed = True
            for answer in self._open:
                answer.abort()
            for connection in self._connections:
                with suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)
            self._changed.wait_for(
                lambda: not self._open and not any(p.is_answered for p in self._passing),
                _CLOSE_SECONDS,
            )
            unanswered = tuple(self._passing)
        for passing in unanswered:  # of a silent server, or between two tries
            passing.cut()
        self._ended(self)

    def serve(self, connection: socket.socket, admit: Callable[[], None] = lambda: None) -> None:
        """Serve one connection: an `intercode_sandbox.forwarding.Handler`.

        Args:
            connection: The socket.
            admit: Called once a request has brought the token.
        """
        with self._changed:
            if not self._closed:
                self._connections.add(connection)
        try:
            Door(connection, self._gateway.terms, admit).serve(self._handle)
        finally:
            with self._changed:
                self._connections.discard(connection)

    def _handle(self, asked: Asked, door: Door) -> None:
        """Answer one request, or keep the refusal."""
        try:
            self._answer(asked, door)
        except Refusal as refusal:
            self.refusal = Refusal(refusal.status, str(refusal))
            raise

    def _answer(self, asked: Asked, door: Door) -> None:
        """Answer one request."""
        try:
            parts = urlsplit(asked.target) if asked.target.startswith("/") else None
        except ValueError:  # //[ begins a host
            parts = None
        if parts is None:
            raise Refusal(400, "the target of a request is a path")
        free = asked.method in {"HEAD", "GET"} and parts.path == "/"
        if denied := self._guard.refusal(_Keys(asked), free=free):
            raise Refusal(denied[0].value, denied[1])
        if self._closed:
            raise Refusal(401, "this token is no longer served")
        if not free:
            door.admit()
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := query.keys() - _QUERIES:
            raise refused(f"?{'&'.join(sorted(unknown))}")
        if free:
            door.body()
            door.answer(200, b"" if asked.method == "HEAD" else b"{}")
        elif asked.method == "GET" and (parts.path == MODELS or _within(parts.path)):
            door.body()
            door.answer(200, json.dumps(self._models(parts.path)).encode())
        elif asked.method == "POST" and parts.path in {*_PATHS, COUNT}:
            self._post(asked, door, parts.path, "?beta=true" if query.get("beta") else "")
        else:
            raise Refusal(404, f"the gateway has no {asked.method} {parts.path[:200]}")

    def _models(self, path: str) -> dict[str, Any]:
        names = self._gateway.listed()
        if path == MODELS:
            return model_page(names, "intercode")
        name = unquote(path.removeprefix(MODELS + "/"))
        if name not in names:
            raise Refusal(404, f"model: there is no {name[:200]!r}")
        return model_entry(name, "intercode")

    def _post(self, asked: Asked, door: Door, path: str, query: str) -> None:
        if {*asked.get_all("Content-Encoding")} - {"identity"}:
            raise Refusal(415, "a body is sent as it is, without Content-Encoding")
        gateway, name = self._gateway, _PATHS.get(path, "messages")
        if name not in SPOKEN.get(gateway.upstream.provider, (name,)):
            raise Refusal(404, f"{gateway.upstream.name} does not speak the protocol of {path}")
        self._refuse_beyond_limits()
        headers = {"Content-Type": "application/json"}
        if name == "messages":
            headers["anthropic-version"] = "2023-06-01"
            if flags := betas(asked.get_all("anthropic-beta"), gateway.terms):
                headers["anthropic-beta"] = flags
        with self._turns, ExitStack() as held:
            body = self._body(asked, door, held)
            with gateway.intake.parsing if len(body) > SMALL else nullcontext():
                sent, size = self._read(name, body)
                del body
                passing = None
                if path != COUNT:
                    try:
                        passing = ForwardedCall(
                            self, gateway, door, name, path + query, sent, headers, size
                        )
                    except (AttributeError, KeyError, TypeError, AttemptError):
                        raise refused("a dialogue that cannot be read") from None
            if passing is None:
                self._count(door, path + query, sent, headers, size)
                return
            self._begin(passing)
            passing.run()

    def _body(self, asked: Asked, door: Door, held: ExitStack) -> bytes:
        """Read a body; the room that it takes is kept until `held` is left."""
        terms, intake = self._gateway.terms, self._gateway.intake
        size = terms.max_body if asked.length is None else asked.length
        if size > terms.max_body:
            raise Refusal(413, f"the body is longer than {terms.max_body} bytes")

        def reserve() -> None:
            held.enter_context(intake.reserved(self, size, terms.patience))

        return door.body(terms.max_body, free=SMALL, reserve=reserve)

    def _read(self, name: Name, body: bytes) -> tuple[dict[str, Any], int]:
        """Return the part of a request that is passed on, and the most tokens that it may have."""
        remaining = check_tokens(body)
        given = parsed(body)
        check_embedded_tokens(given, remaining)
        model = self._gateway.model(given.get("model"))
        try:
            sent = {"model": model, **admitted(name, given, self._gateway.terms)}
            return sent, context(sent)
        except RecursionError:
            raise refused("the body has too many levels") from None

    def _begin(self, passing: ForwardedCall) -> None:
        with self._changed:
            self._refuse_beyond_limits()
            self._passing.add(passing)
            self._begun += 1

    def _refuse_beyond_limits(self) -> None:
        """Refuse a call that may not be made, before its body is read and after it.

        Raises:
            Refusal: The gateway ends, or all calls have been made that may be.
        """
        if self._draining:
            raise Refusal(503, "the gateway ends")
        most = self._gateway.terms.max_calls
        if most is not None and self._begun >= most:
            raise Refusal(NOT_PAID, f"the {most} calls that may be made have been made")
        if self._dialogues.is_full:
            raise Refusal(NOT_PAID, "the dialogues of this episode are as long as can be recorded")
        if self._is_full():
            raise Refusal(NOT_PAID, "the record of calls is as long as it may be")

    def _count(
        self, door: Door, target: str, sent: dict[str, Any], headers: dict[str, str], size: int
    ) -> None:
        """Answer how many tokens a request has: the server's count, or else an estimate."""
        with self._changed:
            if self._counts >= FREE_COUNTS + COUNTS_A_CALL * self._begun:
                raise Refusal(429, "tokens were counted too often for the calls that were made")
            self._counts += 1
        gateway, started = self._gateway, time.monotonic()
        data = json.dumps({key: sent[key] for key in sent.keys() - _UNCOUNTED}).encode()

        def send() -> bytes:
            answer = gateway.connections.open("POST", target, data, headers, gateway.timeout)
            self.hold(answer)
            try:
                body = answer.read(LONGEST_ERROR)
            finally:
                self.drop(answer)
                answer.close()
            if answer.status != 200:
                raise AttemptError(f"status {answer.status}")
            return body

        error = ""
        try:
            body = gateway.frame(sent["model"]).send_unbilled(send)
        except AttemptError as failure:
            error = f"an estimate: {failure}"
            body = json.dumps({"input_tokens": size // BYTES_PER_TOKEN}).encode()
        body = gateway.upstream.remove_key(body)
        text, seconds = body.decode(errors="replace"), time.monotonic() - started
        call = Call("count", COUNT, sent["model"], text=text, cost=0.0, seconds=seconds)
        self.note(replace(call, error=error))
        door.answer(200, body)


class _Keys:
    """The headers of a request, with a key of Anthropic's form where others have theirs."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def get_all(self, key: str) -> list[str]:
        keys = self._asked.get_all("x-api-key") if key == "Authorization" else []
        return [f"Bearer {value}" for value in keys] or self._asked.get_all(key)


def _within(path: str) -> bool:
    return path.startswith(MODELS + "/")
