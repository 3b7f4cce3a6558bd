from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.episode import Episode, Turn
from intercode.rewards.answer import last_output, normalise, similarity


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\r\nb\r\n", "a\nb"),
        ("a  \nb\t\n", "a\nb"),
        ("a\n\n\n", "a"),
        ("\n\na\n\nb", "\n\na\n\nb"),
        ("  a", "  a"),
        ("a  b", "a  b"),
        (" \n\t\n", ""),
        ("A", "A"),
        ("a\u00a0\n", "a\u00a0"),
    ],
)
def test_normalise(text: str, wanted: str) -> None:
    assert normalise(text) == wanted


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(), st.text())
def test_similarity_is_symmetric_and_within_bounds(one: str, other: str) -> None:
    assert 0.0 <= similarity(one, other) == similarity(other, one) <= 1.0


def test_similarity() -> None:
    assert similarity("", "") == 1.0
    assert similarity("", "a b") == 0.0
    assert similarity("5 files found", "7 files found") == pytest.approx(2 / 3)
    assert similarity("a a a", "a") == pytest.approx(0.5)


def test_last_output_is_the_last_executed_action_s_without_notes() -> None:
    episode = Episode("t", "q", "bash")
    assert last_output(episode) is None
    refused = Turn("\0", "[not executed: it holds a NUL]", ok=False, info={"executed": False})
    episode.turns = [refused]
    assert last_output(episode) is None
    episode.turns = [Turn("ls", "a\n"), refused]
    assert last_output(episode) == "a\n"
    episode.turns.append(Turn("exit", "b\n[restarted]", info={"output": "b\n"}))
    assert last_output(episode) == "b\n"
