"""No circle of imports: a module can be read, moved and imported without those that need it.

Imports in functions and under ``TYPE_CHECKING`` count: they hide a circle and do not undo it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

from sources import ROOT, SOURCES

KNOWN: list[set[str]] = []
"""Circles that are still there. Remove the line of a circle that you remove; add none."""


def graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Map each module to those of `sources` that it imports, wherever the statement stands."""
    found = {}
    for name, source in sources.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[name] = (named & sources.keys()) - {name}
    return found


def circles(imports: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Yield the groups of modules that import each other, directly or through others (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[set[str]]:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in imports[name]:
            if other not in number:
                yield from visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            at = stack.index(name)
            group = set(stack[at:])
            del stack[at:]
            if len(group) > 1:
                yield group

    for name in imports:
        if name not in number:
            yield from visit(name)


def test_the_package_has_no_circle_of_imports_but_the_known_ones() -> None:
    sources = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path.read_text()
        for root in SOURCES
        for path in root.glob("*/**/*.py")
        if "templates" not in path.parts
    }
    found = [{name.partition(".")[2] for name in group} for group in circles(graph(sources))]
    more = [sorted(group) for group in found if not any(group <= known for known in KNOWN)]
    assert not more, f"modules that import each other: {more}"


def test_a_circle_is_found_wherever_its_imports_stand() -> None:
    sources = {
        "p": "",
        "p.a": "from p import b",
        "p.b": "def late():\n    from p.c import Name",
        "p.c": "if TYPE_CHECKING:\n    import p.a",
        "p.d": "import p.a, os",
    }
    assert list(circles(graph(sources))) == [{"p.a", "p.b", "p.c"}]


BELOW = {
    "sandbox": (),
    "gym": ("sandbox",),
    "integrations": ("sandbox", "gym"),
    "paper": ("sandbox", "gym"),
}
"""Package → those below it."""
MODULES = {
    "sandbox": "intercode_sandbox",
    "gym": "intercode",
    "integrations": "intercode_integrations",
    "paper": "intercode_paper",
}


@pytest.mark.parametrize("package", BELOW)
def test_tests_import_no_package_above_theirs(package: str) -> None:
    above = [name for name in BELOW if name != package and name not in BELOW[package]]
    folders = {
        path.name for name in above for path in (ROOT / "packages" / name / "tests").iterdir()
    }
    refused = {MODULES[name] for name in above} | {name.removesuffix(".py") for name in folders}
    for path in sorted((ROOT / "packages" / package / "tests").rglob("*.py")):
        imported = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
        }
        assert not imported & refused - {"conftest"}, path
