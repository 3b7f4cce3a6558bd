"""Asserts that compare with a value that the submission was handed."""

from __future__ import annotations

import pytest

from intercode.datasets import load
from intercode.evaluate.steered_asserts import find_steered_assert

STEERED = [
    "xs = [3, 1]\nassert f(xs) == sorted(xs)",
    "xs = [3, 1]\nassert len(f(xs)) == len(xs)",
    "xs = [3, 1]\nys = f(xs)\nassert ys == sorted(xs)",
    "xs = list(range(3))\nassert f(x=xs) <= xs[:2]",
    "for xs in ([1], [2]):\n    assert f(xs) == list(reversed(xs))",
]
NOT_STEERED = [
    "assert f([3, 1]) == [1, 3]",
    "xs = [3, 1]\nassert f(xs) == [1, 3]",
    "xs = [3, 1]\nassert sorted(xs) == f(xs)",
    "xs = [3, 1]\nwanted = sorted(xs)\nassert f(xs) == wanted",
    "xs = [3, 1]\nf(xs)\nassert xs == [1, 3]",
    "xs = [3, 1]\nf(xs)\nxs = [2]\nassert f([2]) == xs[:]",
    "word = 'abc'\nassert f(word) == word.upper()",
    "xs = [3, 1]\nassert f(list(xs)) == sorted(xs)",
    "xs = [3, 1]\nasync def g(x): return x\nassert g(xs) == sorted(xs)",
    "no Python (",
]


@pytest.mark.parametrize("source", STEERED)
def test_what_a_submission_steers(source: str) -> None:
    text = find_steered_assert(source)
    assert text is not None and text.startswith("assert ")


@pytest.mark.parametrize("source", NOT_STEERED)
def test_what_it_does_not(source: str) -> None:
    assert find_steered_assert(source) is None


def test_no_bundled_task_has_such_an_assert() -> None:
    tasks = [*load("python"), *load("python-starter")]
    assert not [task.task_id for task in tasks if any(map(find_steered_assert, task.tests))]
