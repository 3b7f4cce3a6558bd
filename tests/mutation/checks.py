"""The checks of a defence: it holds, and it is missed when it is removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from .defences import DEFENCES, DOCKER, Defence
from .mutants import mutate, probe, unrooted
from .probes import GONE, HOLDS, SKIPPED

Check = Callable[..., None]


def defences_of(*probes: ModuleType) -> list[Defence]:
    """Return the defences whose probes are in these modules."""
    return [d for d in DEFENCES if any(_has(module, d.name) for module in probes)]


def checks_of(*probes: ModuleType) -> tuple[Check, Check]:
    """Return the tests of the defences whose probes are in these modules."""
    each = pytest.mark.parametrize("defence", defences_of(*probes), ids=lambda d: d.name)

    @each
    def test_it_holds(request: pytest.FixtureRequest, defence: Defence) -> None:
        _check(request, defence, HOLDS)

    @each
    def test_it_is_missed(request: pytest.FixtureRequest, defence: Defence, tmp_path: Path) -> None:
        _check(request, defence, GONE, mutate(defence, tmp_path))

    return test_it_holds, test_it_is_missed


def _has(module: ModuleType, probe: str) -> bool:
    """Tell whether a module defines a probe, and has not only imported it."""
    return getattr(getattr(module, probe, None), "__module__", "") == module.__name__


def _check(
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
