"""Prices: the table that comes with InterCode, and a file before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from intercode.errors import UsageError
from intercode.models import Usage
from intercode.models.prices import ModelPrice, ModelPrices
from intercode.models.scripted import Line
from intercode_integrations.testing import ScriptedServer
from scripted_server.models.providers import HELLO, connect


@pytest.mark.parametrize(
    ("name", "price"),
    [
        ("openai/gpt-4o", ModelPrice(2.5, 10, 1.25)),
        ("openai/gpt-4o-2024-08-06", ModelPrice(2.5, 10, 1.25)),
        ("openai/gpt-4o-2024-05-13", ModelPrice(5, 15)),
        ("openai/gpt-4-0613", ModelPrice(30, 60)),
        ("litellm/anthropic/claude-haiku-4-5-20251001", ModelPrice(1, 5, 0.1)),
        ("anthropic/claude-sonnet-4-20250514", ModelPrice(3, 15, 0.3)),
        ("openai-compatible/gpt-4o", None),
        ("openai/gpt-4o-mega", None),
        ("vllm/gpt-4o", None),
    ],
)
def test_a_price_by_name(name: str, price: ModelPrice | None) -> None:
    assert ModelPrices().find(name) == price


def test_what_the_provider_had_in_its_cache_is_cheaper() -> None:
    usage = Usage(1000, 100, 600)
    assert ModelPrice(2, 8, 0.5).compute_cost(usage) == pytest.approx(
        (400 * 2 + 600 * 0.5 + 100 * 8) / 1e6
    )
    assert ModelPrice(2, 8).compute_cost(usage) == pytest.approx((1000 * 2 + 100 * 8) / 1e6)


def test_a_file_goes_before_the_table(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"models": {"vllm/a/b": {"input": 1, "output": 2, "cached_input": 0}}}')
    with ScriptedServer(lambda _: Line("four words are here")) as server:
        reply = connect("vllm/a/b", server, prices=file).complete(HELLO)
    assert reply.cost == pytest.approx((3 * 1 + 4 * 2) / 1e6)
    assert ModelPrices(file).find("openai/gpt-4") == ModelPrice(30, 60)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "prices are"),
        ('{"models": {"a/b": {"input": 1}}}', "a/b: a price has input and output"),
        ('{"models": {"a/b": {"input": 1, "output": 1, "x": 1}}}', "may have cached_input"),
        ('{"models": {"a/b": {"input": -1, "output": 1}}}', "a/b: input must be dollars"),
        ('{"models": {"a/b": {"input": 1, "output": NaN}}}', "output must be dollars"),
        ('{"models": {"a/b": {"input": "1", "output": 1}}}', "not '1'"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "prices.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        ModelPrices(file)
    assert str(file) in str(caught.value)
