"""Models by name, ``PROVIDER/NAME``, with cache, rate limit, budget and retries around each call.

All providers share this code. If the cache has no reply to a request, the request is sent, and
retried after failures. Each try waits for the rate limit (`RateLimit`), and reserves a part of the
budget (`Budget`), before the call. The cost of a reply is counted once, from the token counts that
the provider reports.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from intercode.errors import ModelAccessError, ModelError, ModelUnavailableError, UsageError
from intercode.models.api_keys import check_url
from intercode.models.base import (
    Answer,
    AttemptError,
    ClientFactory,
    Message,
    ModelClient,
    Reply,
    Request,
    Settings,
    SupportsServerStart,
    Tool,
    Usage,
)
from intercode.models.cache import ReplyCache, digest, is_unseeded_sampling
from intercode.models.custom import is_own, make_client
from intercode.models.interrupted_calls import RunInterruptState, current_drain
from intercode.models.limits import Budget, BudgetReservation, RateLimit, Retry
from intercode.models.prices import ModelPrice, ModelPrices
from intercode.models.response_parsing import replace_surrogates
from intercode.registry import MODELS
from intercode_sandbox.user_code import absolute, is_reference, split

T = TypeVar("T")
log = logging.getLogger(__name__)

GREEDY_SETTINGS = Settings()
ASSUMED_OUTPUT = 4096
"""Tokens that the budget reserves for a reply without a token limit."""
TYPICAL_OUTPUT = 256
"""Tokens that the rate limit assumes for a reply without a token limit, until the reply arrives."""
BYTES_PER_TOKEN = 4
"""Bytes per token of ordinary text, for estimates."""


def get_model(
    name: str,
    *,
    base_url: str | None = None,
    cache: ReplyCache | str | Path | None = None,
    budget: Budget | None = None,
    prices: ModelPrices | str | Path | None = None,
    rate_limit: RateLimit | None = None,
    retry: Retry = Retry(),  # noqa: B008 - frozen
) -> RemoteModel:
    """Return a model by name.

    Args:
        name: ``PROVIDER/NAME``: ``openai/gpt-4o``, ``vllm/Qwen/Qwen2.5-Coder-7B-Instruct``. A
            user-defined provider is ``path/to/file.py:make`` or ``path/to/file.py:make/NAME``,
            where ``make(model, base_url=…, timeout=…)`` returns an
            `intercode.models.base.ModelClient`.
        base_url: The server's URL; None: the provider's default.
        cache: A cache of replies, or its folder; None: no cache.
        budget: The budget in US dollars and tokens, which models may share; None: no limit.
        prices: A price table, or a file whose entries override InterCode's table.
        rate_limit: The rate limit, which models may share; None: a separate rate limit, which
            limits calls only after the provider first refuses a call.
        retry: The retry policy.

    Raises:
        UsageError: The provider is unknown, the key or the SDK is missing, or an option is invalid.
    """
    provider, _, model = name.partition("/")
    if provider not in MODELS and is_reference(name):
        name = absolute(name)
        provider, model = split(name, "/")
        model = model or provider.rpartition(":")[2]
    if not model:
        raise UsageError(f"a model is named PROVIDER/NAME, for instance openai/gpt-4o: {name!r}")
    factory: ClientFactory = MODELS.resolve(provider)
    prices = prices if isinstance(prices, ModelPrices) else ModelPrices(prices)
    call_context = ModelCallContext(
        rate_limit=rate_limit or RateLimit(),
        budget=budget or Budget(),
        cache=ReplyCache(cache) if isinstance(cache, str | Path) else cache,
        price=prices.find(name),
        retry=retry,
    )
    url = base_url and check_url(base_url)
    if is_own(factory):
        client = make_client(factory, provider, model, base_url=url, timeout=retry.timeout)
    else:
        client = factory(model, base_url=url, timeout=retry.timeout)
    return RemoteModel(name, client, call_context)


@dataclass(frozen=True, slots=True)
class ModelCallContext:
    """The limits, prices and cache of model calls.

    Many models may share one `Budget`, `RateLimit` and `ReplyCache`.
    """

    rate_limit: RateLimit = field(default_factory=RateLimit)
    budget: Budget = field(default_factory=Budget)
    cache: ReplyCache | None = None
    price: ModelPrice | None = None
    retry: Retry = field(default_factory=Retry)


class ModelCallLimiter:
    """Rate limit, budget and retries around single calls; several threads may share one object.

    Args:
        name: The model's name, for messages.
        endpoint: The server, for messages.
        call_context: The limits. The cache in the context is ignored.

    Raises:
        UsageError: The budget limits the cost, and the price is unknown.
    """

    def __init__(self, name: str, endpoint: str, call_context: ModelCallContext) -> None:
        self.name = name
        self._endpoint = endpoint
        self._call_context = call_context
        self._chance = random.Random()
        self._reached = False
        """Whether the server was ever reached."""
        self._open: dict[int, tuple[float, str]] = {}
        """Thread id → the start time of the thread's pending call, and the failure of the call's
        last try (empty: none)."""
        if call_context.price is None:
            if call_context.budget.max_cost is not None:
                raise UsageError(
                    f"the price of {name} is unknown, so its cost cannot be limited: give a file "
                    "of prices, or limit the tokens"
                )
            log.warning("the price of %s is unknown: its cost is not counted", name)

    def ask(
        self,
        send: Callable[[], Answer],
        most_input: int,
        limit: int | None = None,
        *,
        budget: Budget | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Send a request, with retries up to the limit of `Retry`, and return the reply.

        Args:
            send: Makes one call, like `ModelClient.send`.
            most_input: An upper bound of the prompt's tokens.
            limit: The reply's token limit; None: no limit.
            budget: A second budget, from which the call is also paid; None: no second budget.
            is_over: Returns whether a failed call must not be retried any more.

        Raises:
            BudgetError: A remaining budget is too small for the call.
            ModelAccessError: No server was ever reached, or the server refuses the key, the account
                or the model.
            ModelUnavailableError: No try returned an answer, or the run was interrupted.
            ModelError: The provider refused the request permanently.
        """
        thread = threading.get_ident()
        self._open[thread] = time.monotonic(), ""
        try:
            return self._ask(send, Usage(most_input, limit or 0), budget, thread, is_over)
        finally:
            del self._open[thread]

    def delay(self) -> tuple[float, str] | None:
        """Return the age of the oldest pending call in seconds, and a description of the wait.

        The result is None if no call is pending.
        """
        calls = list(self._open.values())
        if not calls:
            return None
        start_time, failure = min(calls)
        seconds = time.monotonic() - start_time
        text = f"waiting for {self.name} at {self._endpoint}: no answer for {seconds:.0f} s"
        limit = f"a try may take {self._call_context.retry.timeout:g} s, see --model-timeout"
        return seconds, f"{text}{failure and f', the last try: {failure}'} ({limit})"

    def _ask(
        self,
        send: Callable[[], Answer],
        max_usage: Usage,
        budget: Budget | None,
        thread: int,
        is_over: Callable[[], bool],
    ) -> Reply:
        retry, failures, drain = self._call_context.retry, 0, current_drain()
        ticket = self._call_context.rate_limit.ticket()
        while True:
            try:
                return replace(
                    self._send_paced(send, max_usage, budget, ticket, drain), retries=failures
                )
            except AttemptError as error:
                failures += 1
                drain.failed = drain.is_interrupted
                self._open[thread] = self._open[thread][0], str(error)
                if error.unreachable and not self._reached:
                    raise self._unavailable_error(error, failures) from None
                wait = retry.backoff(failures, error.retry_after, self._chance)
                if failures > retry.retries or wait is None or is_over():
                    raise self._unavailable_error(error, failures) from None
                level = logging.INFO if failures == 1 else logging.DEBUG
                schedule = "at the pace that it allows" if error.throttled else f"in {wait:.1f} s"
                log.log(level, "%s: %s; it is asked again %s", self.name, error, schedule)
                # If the provider refused the call for its rate limit, `RateLimit` delays all calls,
                # so no further wait is necessary.
                drain.wait(0.0 if error.throttled else wait)
                if drain.is_interrupted:
                    drain.failed = True
                    end = "; it is not asked again, as the run was interrupted"
                    raise ModelUnavailableError(self._history(error, failures) + end) from None
            except ModelError as error:
                refusal = type(error)(f"{self.name}: {error}")
                refusal.unsent = error.unsent and not failures
                # The cause shows the line in a user-defined client at which the error occurred.
                raise refusal from error.__cause__

    def send_unbilled(self, send: Callable[[], T]) -> T:
        """Make a free request once, within the rate limit but outside the budget."""
        pace = self._call_context.rate_limit
        start_time = pace.acquire(0)
        try:
            return send()
        finally:
            pace.release(start_time, succeeded=False)

    def _unavailable_error(self, error: AttemptError, failures: int) -> ModelError:
        if error.unreachable and not self._reached:
            return ModelAccessError(
                f"{self.name}: cannot connect to a server at {self._endpoint}: {error}; start the "
                "server, or name another one by --base-url"
            )
        wait_note = f" (it asks to wait {error.retry_after:.0f} s)" if error.retry_after else ""
        return ModelUnavailableError(self._history(error, failures) + wait_note)

    def _history(self, error: AttemptError, failures: int) -> str:
        """Describe how often the model was called, and the last failure."""
        repetition = "once" if failures == 1 else f"{failures} times"
        return f"{self.name} was asked {repetition}; the last time: {error}"

    def _send_paced(
        self,
        send: Callable[[], Answer],
        max_usage: Usage,
        budget: Budget | None,
        ticket: int,
        drain: RunInterruptState,
    ) -> Reply:
        """Make one try of a call, after waiting for the rate limit."""
        pace, output = self._call_context.rate_limit, max_usage.output_tokens or TYPICAL_OUTPUT
        estimate = max_usage.input_tokens // BYTES_PER_TOKEN + output
        start_time = pace.acquire(estimate, ticket, drain)
        try:
            reply = self._send_paid(send, max_usage, budget)
        except BaseException as error:
            if isinstance(error, AttemptError) and error.throttled:
                pace.refuse(error.retry_after)
            else:
                pace.release(start_time, succeeded=False)
            raise
        pace.release(
            start_time, unused_tokens=estimate - reply.usage.total if reply.usage.total else 0
        )
        return reply

    def _send_paid(
        self, send: Callable[[], Answer], max_usage: Usage, budget: Budget | None
    ) -> Reply:
        """Make one try of a call, after a reservation in the budgets, and count the try's cost."""
        call_context = self._call_context
        usage_limit = Usage(max_usage.input_tokens, max_usage.output_tokens or ASSUMED_OUTPUT)
        price = call_context.price.compute_cost(usage_limit) if call_context.price else 0.0
        reservations = _reserve(
            [call_context.budget, *([budget] if budget else [])], usage_limit.total, price
        )
        start_time = time.monotonic()
        try:
            answer = send()
        except AttemptError as error:
            self._reached = self._reached or not error.unreachable
            for reservation in reservations:
                reservation.presume() if error.charged else reservation.release()
            raise
        except BaseException:
            for reservation in reservations:
                reservation.release()
            raise
        seconds, cost = time.monotonic() - start_time, None
        self._reached = True
        if answer.usage is not None:
            cost = call_context.price.compute_cost(answer.usage) if call_context.price else None
        for reservation in reservations:
            reservation.presume() if answer.usage is None else reservation.settle(
                answer.usage, cost
            )
        return _reply(answer, cost, seconds)


def _reserve(budgets: Sequence[Budget], tokens: int, cost: float) -> list[BudgetReservation]:
    reservations: list[BudgetReservation] = []
    try:
        # The loop must not become `extend`: if a budget refuses, the reservations made before must
        # be in the list, so they are released.
        for budget in budgets:
            reservations.append(budget.reserve(tokens, cost))  # noqa: PERF401
    except BaseException:
        for reservation in reservations:
            reservation.release()
        raise
    return reservations


class RemoteModel:
    """A `Model` that sends requests by a client, with cache, rate limit, budget and retries.

    Args:
        name: The name with the provider, such as ``openai/gpt-4o``.
        client: The client that makes the calls.
        call_context: The limits and the cache.

    Raises:
        UsageError: The budget limits the cost, and the price is unknown.
    """

    def __init__(self, name: str, client: ModelClient, call_context: ModelCallContext) -> None:
        self.name = name
        self._client = client
        self._call_context = call_context
        self._frame = ModelCallLimiter(name, client.endpoint, call_context)
        self._has_warned = False

    def __repr__(self) -> str:
        return f"RemoteModel({self.name!r}, {self._client!r})"

    def __enter__(self) -> RemoteModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def weights(self) -> str | None:
        """The SHA-256 of a local model's file, in hexadecimal; None for other models."""
        return self._client.weights if isinstance(self._client, SupportsServerStart) else None

    def delay(self) -> tuple[float, str] | None:
        """Return the oldest pending call's age and description; see `ModelCallLimiter.delay`."""
        return self._frame.delay()

    def start(self, calls: int = 1) -> None:
        """Start a local model's server; no effect for other models. See `SupportsServerStart`."""
        if isinstance(self._client, SupportsServerStart):
            self._client.start(calls)

    def close(self) -> None:
        """Close all connections, and end a local model's server unless other clients use it."""
        self._client.close()

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = GREEDY_SETTINGS,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's next message, from the cache if possible; see `Model.complete`.

        Args:
            messages: The dialogue, at least one message.
            settings: The sampling settings.
            tools: The tools that the model may call.

        Raises:
            ModelError: The dialogue is empty; or the call failed in a way that `Model.complete`
                lists.
        """
        if not messages:
            raise ModelError(f"{self.name}: the dialogue has no messages")
        clean_messages = tuple(
            replace(message, content=replace_surrogates(message.content)) for message in messages
        )
        request = Request(clean_messages, settings, tuple(tools))
        cache = None if is_unseeded_sampling(settings) else self._call_context.cache
        if cache is None:
            return self._check_trace(self._ask(request), settings)
        key = digest(self.name, self._client.endpoint, request)
        if cached_reply := cache.get(key):
            cached_reply = replace(cached_reply, cached=True, cost=0.0, seconds=0.0, retries=0)
            return self._check_trace(cached_reply, settings)
        reply = self._check_trace(self._ask(request), settings)
        cache.put(key, reply)
        return reply

    def _check_trace(self, reply: Reply, settings: Settings) -> Reply:
        """Warn once if token ids were requested and the server reports none; return the reply."""
        if settings.trace and reply.trace is None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s reports no token ids: none are recorded (servers such as vLLM report them)",
                self.name,
            )
        return reply

    def _ask(self, request: Request) -> Reply:
        size, limit = request.most_input_tokens(), request.settings.max_tokens
        return self._frame.ask(lambda: self._client.send(request), size, limit)


def _reply(answer: Answer, cost: float | None, seconds: float) -> Reply:
    return Reply(
        text=answer.text,
        tool_calls=answer.tool_calls,
        usage=answer.usage or Usage(),
        cost=cost,
        model=answer.model,
        finish=answer.finish,
        seconds=seconds,
        trace=answer.trace,
    )
