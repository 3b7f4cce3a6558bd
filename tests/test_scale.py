"""The simulation of large clusters agrees with closed forms, and with three nodes as measured."""

from __future__ import annotations

import importlib.util
import sys
from math import factorial
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def scale() -> Any:
    found = importlib.util.spec_from_file_location("scale", FILE)
    assert found is not None and found.loader is not None
    sys.modules["scale"] = module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_one_worker_waits_for_nobody(scale: Any) -> None:
    stations = [scale.Station("node", 0.03, 1), scale.Station("model", 0.2)]
    found = scale.simulate(stations, 1, 1000, draw=lambda mean: mean)
    assert found.rate == pytest.approx(1 / 0.23)
    assert found.busy == {"node": pytest.approx(0.03 / 0.23, rel=0.02)}


def test_a_queue_before_one_server(scale: Any) -> None:
    """The repairman's formula: N workers think for z, and are served one at a time for s."""
    workers, z, s = 20, 1.0, 0.08
    stations = [scale.Station("model", z), scale.Station("driver", s, 1)]
    found = scale.simulate(stations, workers, 4000)
    ways = [factorial(workers) / factorial(workers - n) * (s / z) ** n for n in range(workers + 1)]
    busy = 1 - 1 / sum(ways)
    assert found.rate == pytest.approx(busy / s, rel=0.02)
    assert found.busy["driver"] == pytest.approx(busy, rel=0.02)


def test_each_node_has_processors_of_its_own(scale: Any) -> None:
    found = scale.simulate([scale.Station("nodes", 0.5, 2, 10)], 20, 500, draw=lambda mean: mean)
    assert found.rate == pytest.approx(40)
    assert found.busy["nodes"] == pytest.approx(1, rel=0.02)
