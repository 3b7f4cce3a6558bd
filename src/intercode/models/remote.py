"""A model behind a client: what stands around each call, and is the same for all providers.

In this order: the cache; then, for each try, one's turn (`RateLimit`), the money (`Budget`), the
call. What a reply took is counted once, exactly as the provider says.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from intercode.errors import (
    ModelAccessError,
    ModelError,
    ModelUnavailableError,
    UsageError,
)
from intercode.models.base import Message, Reply, Settings, Tool, Usage
from intercode.models.budget import Budget
from intercode.models.cache import Cache, digest, varies
from intercode.models.client import Answer, AttemptError, Client, Request
from intercode.models.decoding import clean
from intercode.models.prices import Price
from intercode.models.rate_limit import Permit, RateLimit
from intercode.models.retry import FIRST, backoff

log = logging.getLogger(__name__)

GREEDY = Settings()
ASSUMED_OUTPUT = 4096
"""Tokens that are set aside for a reply without a limit of its own."""
TYPICAL_OUTPUT = 256
"""Tokens that a reply is thought to take until it is there."""
BYTES_PER_TOKEN = 4
"""Of ordinary text."""


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around calls. One `Budget`, `RateLimit` and `Cache` may serve many models."""

    rate_limit: RateLimit
    budget: Budget
    cache: Cache | None = None
    price: Price | None = None
    retries: int = 6
    first_wait: float = FIRST


class RemoteModel:
    """A `Model`: a client, and what stands around it.

    Args:
        name: With its provider: ``openai/gpt-4o``.
        client: Makes the calls.
        around: The rest.

    Raises:
        UsageError: The budget is in dollars, and the price is not known.
    """

    def __init__(self, name: str, client: Client, around: Around) -> None:
        self.name = name
        self._client = client
        self._around = around
        self._chance = random.Random()
        self._reached = False
        """Whether anybody ever was there."""
        if around.price is None:
            if around.budget.max_cost is not None:
                raise UsageError(
                    f"the price of {name} is not known, so its cost cannot be limited: give a "
                    "file of prices, or limit the tokens"
                )
            log.warning("the price of %s is not known: its cost is not counted", name)

    def __repr__(self) -> str:
        return f"RemoteModel({self.name!r}, {self._client!r})"

    def __enter__(self) -> RemoteModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = GREEDY,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """The model's next message; see `Model`."""
        if not messages:
            raise ModelError(f"{self.name}: there is no message to answer")
        said = tuple(replace(message, content=clean(message.content)) for message in messages)
        request = Request(said, settings, tuple(tools))
        cache = None if varies(settings) else self._around.cache
        if cache is None:
            return self._ask(request)
        key = digest(self.name, self._client.endpoint, request)
        if kept := cache.get(key):
            return replace(kept, cached=True, cost=0.0, seconds=0.0, retries=0)
        reply = self._ask(request)
        cache.put(key, reply)
        return reply

    def _ask(self, request: Request) -> Reply:
        """Ask until there is an answer, as often as is allowed."""
        failures = 0
        while isinstance(outcome := self._outcome(request), AttemptError):
            failures += 1
            wait = backoff(failures, outcome.retry_after, self._chance, self._around.first_wait)
            if failures > self._around.retries or wait is None:
                raise self._unavailable(outcome, failures)
            log.info("%s: %s; again in %.1f s", self.name, outcome, wait)
            time.sleep(wait)
        return replace(outcome, retries=failures)

    def _outcome(self, request: Request) -> Reply | AttemptError:
        try:
            return self._try(request)
        except AttemptError as error:
            return error
        except ModelError as error:
            raise type(error)(f"{self.name}: {error}") from None

    def _unavailable(self, error: AttemptError, failures: int) -> ModelError:
        times = "once" if failures == 1 else f"{failures} times"
        said = f"{self.name} was asked {times}; the last time: {error}"
        if error.unreachable and not self._reached:
            where = self._client.endpoint
            return ModelAccessError(f"{said} (is there a server at {where}? check the base URL)")
        asked = f" (it asks to wait {error.retry_after:.0f} s)" if error.retry_after else ""
        return ModelUnavailableError(said + asked)

    def _try(self, request: Request) -> Reply:
        around, most = self._around, request.most_input_tokens()
        limit = request.settings.max_tokens
        permit = around.rate_limit.acquire(most // BYTES_PER_TOKEN + (limit or TYPICAL_OUTPUT))
        bound = Usage(most, limit or ASSUMED_OUTPUT)
        hold = around.budget.reserve(bound.total, around.price.of(bound) if around.price else 0.0)
        started = time.monotonic()
        try:
            answer = self._client.send(request)
        except AttemptError as error:
            self._reached = self._reached or not error.unreachable
            hold.presume() if error.charged else hold.release()
            self._note_refusal(permit, error)
            raise
        except BaseException:
            hold.release()
            raise
        seconds = time.monotonic() - started
        self._reached = True
        if answer.usage is None:
            hold.presume()
            around.rate_limit.used(permit, permit.taken)
            return self._reply(answer, Usage(), None, seconds)
        cost = around.price.of(answer.usage) if around.price else None
        hold.settle(answer.usage, cost)
        around.rate_limit.used(permit, answer.usage.total)
        return self._reply(answer, answer.usage, cost, seconds)

    def _note_refusal(self, permit: Permit, error: AttemptError) -> None:
        if error.throttled:
            self._around.rate_limit.refused(permit, error.retry_after)

    def _reply(self, answer: Answer, usage: Usage, cost: float | None, seconds: float) -> Reply:
        return Reply(
            text=answer.text,
            tool_calls=answer.tool_calls,
            usage=usage,
            cost=cost,
            model=answer.model,
            finish=answer.finish,
            seconds=seconds,
        )
