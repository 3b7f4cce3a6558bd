"""Models by name, ``PROVIDER/NAME``, and the frame around the calls of their clients.

The frame is the same for all providers. In this order: the cache; then, for each try, the pace
(`RateLimit`), the money (`Budget`) and the call. The cost of a reply is counted once, exactly as
the provider states it.
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
from intercode.models.base import (
    Answer,
    AttemptError,
    Client,
    ClientFactory,
    Message,
    Reply,
    Request,
    Settings,
    SupportsStart,
    Tool,
    Usage,
)
from intercode.models.cache import Cache, digest, is_unseeded_sampling
from intercode.models.custom import is_own, make_client
from intercode.models.drain import Drain, current_drain
from intercode.models.keys import check_url
from intercode.models.limits import Budget, Hold, RateLimit, Retry
from intercode.models.prices import Price, Prices
from intercode.models.wire import replace_surrogates
from intercode.registry import MODELS
from intercode_sandbox.user_code import absolute, is_reference, split

T = TypeVar("T")
log = logging.getLogger(__name__)

GREEDY_SETTINGS = Settings()
ASSUMED_OUTPUT = 4096
"""Tokens that are set aside for a reply without a limit of its own."""
TYPICAL_OUTPUT = 256
"""Tokens that a reply is estimated at until it is there."""
BYTES_PER_TOKEN = 4
"""Bytes of a token of ordinary text."""


def get_model(
    name: str,
    *,
    base_url: str | None = None,
    cache: Cache | str | Path | None = None,
    budget: Budget | None = None,
    prices: Prices | str | Path | None = None,
    rate_limit: RateLimit | None = None,
    retry: Retry = Retry(),  # noqa: B008 - frozen
) -> RemoteModel:
    """Make a model.

    Args:
        name: ``PROVIDER/NAME``: ``openai/gpt-4o``, ``vllm/Qwen/Qwen2.5-Coder-7B-Instruct``; or
            your own provider's, ``path/to/file.py:make`` or ``path/to/file.py:make/NAME``, where
            ``make(model, base_url=…, timeout=…)`` returns an `intercode.models.base.Client`.
        base_url: The server's URL, if it is not the provider's usual one.
        cache: Replies on disk, or their folder.
        budget: The money and tokens that all who share the budget may spend.
        prices: A file of prices that goes before the table that comes with InterCode.
        rate_limit: The pace, for all who share it; by default the model's own, without limits
            until the provider first refuses a call.
        retry: The patience with the server.

    Raises:
        UsageError: There is no such provider, no key or no SDK, or an option is wrong.
    """
    provider, _, model = name.partition("/")
    if provider not in MODELS and is_reference(name):
        name = absolute(name)
        provider, model = split(name, "/")
        model = model or provider.rpartition(":")[2]
    if not model:
        raise UsageError(f"a model is named PROVIDER/NAME, for instance openai/gpt-4o: {name!r}")
    factory: ClientFactory = MODELS.resolve(provider)
    prices = prices if isinstance(prices, Prices) else Prices(prices)
    call_context = Around(
        rate_limit=rate_limit or RateLimit(),
        budget=budget or Budget(),
        cache=Cache(cache) if isinstance(cache, str | Path) else cache,
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
class Around:
    """The frame of calls. One `Budget`, `RateLimit` and `Cache` may serve many models."""

    rate_limit: RateLimit = field(default_factory=RateLimit)
    budget: Budget = field(default_factory=Budget)
    cache: Cache | None = None
    price: Price | None = None
    retry: Retry = field(default_factory=Retry)


class Frame:
    """Pace, money and further tries around single calls. Several threads may share it.

    Args:
        name: The model's name, for messages.
        endpoint: The server, for messages.
        call_context: The limits; the cache is not looked at.

    Raises:
        UsageError: The budget is in dollars, and the price is not known.
    """

    def __init__(self, name: str, endpoint: str, call_context: Around) -> None:
        self.name = name
        self._endpoint = endpoint
        self._call_context = call_context
        self._chance = random.Random()
        self._reached = False
        """Whether a server ever answered."""
        self._open: dict[int, tuple[float, str]] = {}
        """Thread of a call without an answer → when it began, and how its last try has failed."""
        if call_context.price is None:
            if call_context.budget.max_cost is not None:
                raise UsageError(
                    f"the price of {name} is unknown, so its cost cannot be limited: give a file "
                    "of prices, or limit the tokens"
                )
            log.warning("the price of %s is not known: its cost is not counted", name)

    def ask(
        self,
        send: Callable[[], Answer],
        most_input: int,
        limit: int | None = None,
        *,
        budget: Budget | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Repeat a call until there is an answer, as often as is allowed.

        Args:
            send: Makes one call, as `Client.send` does.
            most_input: An upper bound of the prompt's tokens.
            limit: The most tokens of the reply; None: it has no limit.
            budget: A budget that the call must fit into, too.
            is_over: Whether a failed call is not to be repeated any more.
        """
        thread = threading.get_ident()
        self._open[thread] = time.monotonic(), ""
        try:
            return self._ask(send, Usage(most_input, limit or 0), budget, thread, is_over)
        finally:
            del self._open[thread]

    def delay(self) -> tuple[float, str] | None:
        """Return how long the oldest call has had no answer, and what is waited for, in words."""
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
                drain.wait(0.0 if error.throttled else wait)  # the pace is slower for all
                if drain.is_interrupted:
                    drain.failed = True
                    end = "; it is not asked again, as the run was interrupted"
                    raise ModelUnavailableError(self._history(error, failures) + end) from None
            except ModelError as error:
                refusal = type(error)(f"{self.name}: {error}")
                refusal.unsent = error.unsent and not failures
                raise refusal from error.__cause__  # the line of a user's own client

    def send_unbilled(self, send: Callable[[], T]) -> T:
        """Make a request that costs nothing, once, at the pace of the calls."""
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
        """Return how often the model was asked, and the last failure, in words."""
        times = "once" if failures == 1 else f"{failures} times"
        return f"{self.name} was asked {times}; the last time: {error}"

    def _send_paced(
        self,
        send: Callable[[], Answer],
        max_usage: Usage,
        budget: Budget | None,
        ticket: int,
        drain: Drain,
    ) -> Reply:
        """Call once, at the pace that is allowed."""
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
        pace.release(start_time, unused=estimate - reply.usage.total if reply.usage.total else 0)
        return reply

    def _send_paid(
        self, send: Callable[[], Answer], max_usage: Usage, budget: Budget | None
    ) -> Reply:
        """Call once, within the budgets."""
        call_context = self._call_context
        bound = Usage(max_usage.input_tokens, max_usage.output_tokens or ASSUMED_OUTPUT)
        price = call_context.price.of(bound) if call_context.price else 0.0
        holds = _reserve([call_context.budget, *([budget] if budget else [])], bound.total, price)
        start_time = time.monotonic()
        try:
            answer = send()
        except AttemptError as error:
            self._reached = self._reached or not error.unreachable
            for hold in holds:
                hold.presume() if error.charged else hold.release()
            raise
        except BaseException:
            for hold in holds:
                hold.release()
            raise
        seconds, cost = time.monotonic() - start_time, None
        self._reached = True
        if answer.usage is not None:
            cost = call_context.price.of(answer.usage) if call_context.price else None
        for hold in holds:
            hold.presume() if answer.usage is None else hold.settle(answer.usage, cost)
        return _reply(answer, cost, seconds)


def _reserve(budgets: Sequence[Budget], tokens: int, cost: float) -> list[Hold]:
    holds: list[Hold] = []
    try:
        # Not by `extend`: what was set aside before a refusal is given back.
        for budget in budgets:
            holds.append(budget.reserve(tokens, cost))  # noqa: PERF401
    except BaseException:
        for hold in holds:
            hold.release()
        raise
    return holds


class RemoteModel:
    """A `Model`: a client, and the frame of its calls.

    Args:
        name: The name with the provider: ``openai/gpt-4o``.
        client: Makes the calls.
        call_context: The frame.

    Raises:
        UsageError: The budget is in dollars, and the price is not known.
    """

    def __init__(self, name: str, client: Client, call_context: Around) -> None:
        self.name = name
        self._client = client
        self._call_context = call_context
        self._frame = Frame(name, client.endpoint, call_context)
        self._warned = False

    def __repr__(self) -> str:
        return f"RemoteModel({self.name!r}, {self._client!r})"

    def __enter__(self) -> RemoteModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def weights(self) -> str | None:
        """The SHA-256 of the model's file; None where a provider has the model."""
        return self._client.weights if isinstance(self._client, SupportsStart) else None

    def delay(self) -> tuple[float, str] | None:
        """See `Frame.delay`."""
        return self._frame.delay()

    def start(self, calls: int = 1) -> None:
        """Start the model's server where it is ours; else do nothing. See `SupportsStart`."""
        if isinstance(self._client, SupportsStart):
            self._client.start(calls)

    def close(self) -> None:
        """Close all connections, and end the model's server where it is ours."""
        self._client.close()

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = GREEDY_SETTINGS,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's next message; see `Model`."""
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
        """Warn once where token ids were asked for and the server reports none."""
        if settings.trace and reply.trace is None and not self._warned:
            self._warned = True
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
