"""Token prices: InterCode's built-in table, and an optional file that overrides it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from intercode.errors import UsageError
from intercode.models.base import Usage

TOKENS_PER_PRICE = 1_000_000
"""The number of tokens to which a price refers."""
_KEYS = {"input", "output", "cached_input"}
_LOCAL_PREFIX = "local/"
"""The prefix of models that run on this machine, at no cost."""
_DATE_SUFFIX = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)$")


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The prices of a model in US dollars per million tokens.

    If ``cached_input`` is None, cached tokens have the price ``input``.
    """

    input: float
    output: float
    cached_input: float | None = None

    def compute_cost(self, usage: Usage) -> float:
        """Return the cost of the tokens in US dollars.

        The cost is ``(uncached * input + cached * cached_input + output_tokens * output) / 1e6``,
        where ``uncached`` is the number of the prompt's tokens that are not cached.
        """
        cached_price = self.input if self.cached_input is None else self.cached_input
        uncached_tokens = usage.input_tokens - usage.cached_tokens
        total = uncached_tokens * self.input + usage.cached_tokens * cached_price
        return (total + usage.output_tokens * self.output) / TOKENS_PER_PRICE


class ModelPrices:
    """A table of prices by model name with provider, such as ``openai/gpt-4o``."""

    def __init__(self, file: str | Path | None = None) -> None:
        """Read the built-in table, and a file in the same format whose entries override it.

        Raises:
            UsageError: The file cannot be read, or is malformed.
        """
        builtin_file = resources.files("intercode.models").joinpath("prices.json")
        self._table = _parse(builtin_file.read_text(encoding="utf-8"), "prices.json")
        if file is not None:
            try:
                text = Path(file).read_text(encoding="utf-8")
            except (OSError, UnicodeError) as error:
                raise UsageError(f"the prices in {file} cannot be read: {error}") from error
            self._table.update(_parse(text, str(file)))

    def find(self, name: str) -> ModelPrice | None:
        """Return a model's price, by its name, or without a trailing date or ``-latest``.

        ``None`` is an unknown price, not a price of zero. A local model has the price 0 unless the
        file has another. The prefix ``litellm/`` is ignored.
        """
        name = name.removeprefix("litellm/")
        if name.startswith(_LOCAL_PREFIX):
            return self._table.get(name, ModelPrice(0.0, 0.0))
        return self._table.get(name) or self._table.get(_DATE_SUFFIX.sub("", name))


def _parse(text: str, location: str) -> dict[str, ModelPrice]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the prices in {location} are not JSON: {error}") from error
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, dict):
        raise UsageError(f'{location}: prices are {{"models": {{"provider/name": {{…}}}}}}')
    return {name: _price(entry, f"{location}: {name}") for name, entry in models.items()}


def _price(entry: Any, location: str) -> ModelPrice:
    if not isinstance(entry, Mapping) or not {"input", "output"} <= set(entry) <= _KEYS:
        raise UsageError(f"{location}: a price has input and output, and may have cached_input")
    for key, value in entry.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise UsageError(
                f"{location}: {key} must be dollars for a million tokens, not {value!r}"
            )
    return ModelPrice(**entry)
