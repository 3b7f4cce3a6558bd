"""Suggestions for misspelt names: which words are compared at all."""

from __future__ import annotations

import pytest

from intercode_sandbox import spelling_suggestions
from intercode_sandbox.spelling_suggestions import distance, nearest_word


@pytest.fixture
def compared_words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The known words whose distance is computed."""
    words: list[str] = []

    def record(first_word: str, second_word: str) -> int:
        words.append(second_word)
        return distance(first_word, second_word)

    monkeypatch.setattr(spelling_suggestions, "distance", record)
    return words


def test_only_words_of_similar_length_are_compared(compared_words: list[str]) -> None:
    assert nearest_word("Sandbxo", ["sand", "sandbox", "s" * 1_000_000, "sandboxes"]) == "sandbox"
    assert compared_words == ["sandbox", "sandboxes"]


def test_a_long_word_is_not_compared(compared_words: list[str]) -> None:
    assert nearest_word("x" * 64, ["x" * 65]) == "x" * 65
    assert nearest_word("x" * 65, ["x" * 64]) is None
    assert compared_words == ["x" * 65]
