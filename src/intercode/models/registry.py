"""Models by name: ``PROVIDER/NAME``."""

from __future__ import annotations

from pathlib import Path

from intercode.errors import UsageError
from intercode.models import keys
from intercode.models.budget import Budget
from intercode.models.cache import Cache
from intercode.models.client import ClientFactory
from intercode.models.prices import Prices
from intercode.models.rate_limit import RateLimit
from intercode.models.remote import Around, RemoteModel
from intercode.models.retry import FIRST
from intercode.registry import Registry

TIMEOUT = 300.0
"""Seconds for which a server may be silent."""
RETRIES = 6
"""After the first try."""

MODELS = Registry(
    "provider of models",
    {
        "anthropic": "intercode.models.anthropic_client:anthropic",
        "litellm": "intercode.models.litellm_client:litellm",
        "llama.cpp": "intercode.models.openai_client:llama_cpp",
        "ollama": "intercode.models.openai_client:ollama",
        "openai": "intercode.models.openai_client:openai",
        "openai-compatible": "intercode.models.openai_client:compatible",
        "openai-completions": "intercode.models.openai_client:openai_completions",
        "scripted": "intercode.models.scripted:scripted",
        "vllm": "intercode.models.openai_client:vllm",
    },
    "intercode.models",
)
"""A provider's name → what makes its `Client` (see `intercode.models.client`)."""


def get_model(
    name: str,
    *,
    base_url: str | None = None,
    cache: Cache | str | Path | None = None,
    budget: Budget | None = None,
    prices: Prices | str | Path | None = None,
    rate_limit: RateLimit | None = None,
    timeout: float = TIMEOUT,
    retries: int = RETRIES,
    first_wait: float = FIRST,
) -> RemoteModel:
    """A model.

    Args:
        name: ``PROVIDER/NAME``: ``openai/gpt-4o``, ``vllm/Qwen/Qwen2.5-Coder-7B-Instruct``.
        base_url: Where it is, if not where the provider is at home.
        cache: Replies on disk, or their folder.
        budget: What may be spent, with all who share it.
        prices: A file of prices that goes before the table that comes with InterCode.
        rate_limit: The pace, with all who share it; by default one that is this model's own and
            adapts to refusals.
        timeout: Seconds for which the server may be silent.
        retries: How often a call is tried again.
        first_wait: Seconds before it first is; doubled each time, and less or more by chance.

    Raises:
        UsageError: No such provider, no key, no client installed, or a bad option.
    """
    provider, slash, model = name.partition("/")
    if not slash or not model:
        raise UsageError(f"a model is named PROVIDER/NAME, for instance openai/gpt-4o: {name!r}")
    if not timeout > 0 or retries < 0 or first_wait < 0:
        raise UsageError("a timeout must be above 0 seconds, and retries and the wait not below 0")
    factory: ClientFactory = MODELS.get(provider)
    prices = prices if isinstance(prices, Prices) else Prices(prices)
    around = Around(
        rate_limit=rate_limit or RateLimit(),
        budget=budget or Budget(),
        cache=Cache(cache) if isinstance(cache, str | Path) else cache,
        price=prices.find(name),
        retries=retries,
        first_wait=first_wait,
    )
    client = factory(model, base_url=base_url and keys.check_url(base_url), timeout=timeout)
    return RemoteModel(name, client, around)
