"""The suite has every case of a hostile command, and of Inspect AI's self-check."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sources import path_of

CASES = range(1, 84)
CLASSES = {"escape", "host leak", "exfiltration", "lateral", "host DoS", "peer DoS", "self DoS"}
INSPECT_CASES = 44
ATTACKS = {*range(1, 42)}
"""Of November 2026, by their numbers there."""


def arguments(marker: str) -> Iterator[object]:
    """Of every ``@pytest.mark.MARKER(…)`` in the suite."""
    for folder in ("sandbox", "sandboxes", "interpreters"):
        for path in path_of(folder).glob("test_*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{marker}":
                    yield from (ast.literal_eval(argument) for argument in node.args)


def test_every_case_has_a_test() -> None:
    assert set(arguments("case")) == set(CASES)


def test_every_attack_has_a_test() -> None:
    assert set(arguments("attack")) == ATTACKS


def test_classes_are_gvisors() -> None:
    assert set(arguments("defends")) == CLASSES


def test_every_self_check_has_a_test() -> None:
    assert len(set(arguments("inspect"))) >= INSPECT_CASES
