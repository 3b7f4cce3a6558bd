"""Every defence holds, and is missed when it is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .defences import DEFENCES, DOCKER, Defence
from .mutants import mutate, occurrences, probe, unrooted
from .probes import GONE, HOLDS, SKIPPED

each = pytest.mark.parametrize("defence", DEFENCES, ids=lambda d: d.name)


def check(
    request: pytest.FixtureRequest, defence: Defence, expected: int, src: Path | None = None
) -> None:
    if unrooted(defence):
        pytest.skip("needs root")
    if defence.name.startswith(DOCKER):
        request.getfixturevalue("engine")
    code, output = probe(defence) if src is None else probe(defence, src)
    if code == SKIPPED:
        pytest.skip(output.strip())
    assert code == expected, output


@each
def test_the_table_fits_the_source(defence: Defence) -> None:
    assert occurrences(defence) == [1] * len(defence.edits)


@each
def test_it_holds(request: pytest.FixtureRequest, defence: Defence) -> None:
    check(request, defence, HOLDS)


@each
def test_it_is_missed(request: pytest.FixtureRequest, defence: Defence, tmp_path: Path) -> None:
    check(request, defence, GONE, mutate(defence, tmp_path))
