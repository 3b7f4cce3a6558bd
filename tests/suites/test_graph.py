"""What a file needs is what it imports, by whatever way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from suites.graph import Graph

LAZY = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from shop.till import Till
    from shop.maker import create as make
_ELSEWHERE = {"Till": "shop.till:Till", "make": "shop.maker:create"}
"""
FILES = {
    "src/shop/__init__.py": LAZY,
    "src/shop/till.py": "",
    "src/shop/maker.py": "KINDS = {'car': 'shop.kinds.car:Car'}",
    "src/shop/kinds/__init__.py": "",
    "src/shop/kinds/car.py": "from . import wheel",
    "src/shop/kinds/wheel.py": "",
    "src/shop/kinds/sizes.json": "{}",
    "src/shop/unnamed.py": "",
    "src/shop/template/made.py": "",
    "tests/conftest.py": "",
    "tests/helper.py": "from shop.kinds import wheel",
}
ALWAYS = {"src/shop/__init__.py", "src/shop/unnamed.py", "src/shop/template/made.py"}
"""Of whoever needs a module of the package, as nothing says who needs these."""
CAR = {f"src/shop/kinds/{name}" for name in ("__init__.py", "car.py", "wheel.py", "sizes.json")}
WHEEL = CAR - {"src/shop/kinds/car.py"}
MAKER = {"src/shop/maker.py", *CAR}
Needed = Callable[[str], set[str]]


@pytest.fixture
def needed(tmp_path: Path) -> Needed:
    """What a test with this source needs, but for itself, ``conftest.py`` and what all need."""

    def find(source: str) -> set[str]:
        for name, text in {**FILES, "tests/test_it.py": source}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        graph = Graph(tmp_path, [*FILES, "tests/test_it.py"], ["src"], ["tests"])
        found = graph.needed(["tests/test_it.py"])
        assert {"tests/test_it.py", "tests/conftest.py"} <= found
        assert not found & ALWAYS or found >= ALWAYS
        return found - ALWAYS - {"tests/test_it.py", "tests/conftest.py"}

    return find


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os", set()),
        ("gymnasium.register('car', entry_point='shop.till:Till', kwargs={})", set()),
        ("import shop.till", {"src/shop/till.py"}),
        ("from shop import till", {"src/shop/till.py"}),
        ("def late():\n    from shop.till import Till", {"src/shop/till.py"}),
        ("from shop import Till", {"src/shop/till.py"}),
        ("import shop\nshop.Till()", {"src/shop/till.py"}),
        ("import shop\nshop.make('car')", MAKER),
        ("import shop\nhold(shop)", {"src/shop/till.py", *MAKER}),
        ("from shop.kinds import wheel", WHEEL),
        ("import helper", {"tests/helper.py", *WHEEL}),
        ("run('python', '-m', 'shop.till')", {"src/shop/till.py"}),
        ("run('from shop.till import Till; Till()')", {"src/shop/till.py"}),
        ("load('shop.maker:create')", MAKER),
        ("load(f'shop.kinds.{name}')", CAR),
        ("'''A docstring on shop.till.'''", set()),
        ("if TYPE_CHECKING:\n    import shop.till", set()),
        ("read('helper.txt')", set()),
    ],
)
def test_what_a_test_needs(needed: Needed, source: str, expected: set[str]) -> None:
    assert needed(source) == expected
