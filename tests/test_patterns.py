"""Regular expressions that meet an agent's text: none takes time that grows with its square."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator

import pytest

PARTS = ("agents", "databases", "envs", "evaluate", "interpreters", "models", "rewards")
PUMPS = ("1", "a", " ", "\t", "'", "`", "<", "1,", "a ", "x.", "11 ", "111,")
STARTS = ("", "```", "total ")
ENDS = ("x", "\n`", "!")
LENGTH = 60_000
"""With so many characters, what is quadratic takes a minute for a module."""


def modules() -> Iterator[str]:
    for part in PARTS:
        package = importlib.import_module(f"intercode.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"intercode.{part}."):
            # Those are sent to other Pythons; what is converted is the author's.
            if not re.search(r"\.(inside|convert)\b", module.name):
                yield module.name


def uses(name: str) -> list[Callable[[str], object]]:
    """How a module uses its patterns: not all of them look for one anywhere in a text."""
    module = importlib.import_module(name)
    source, found = inspect.getsource(module), []
    for own, value in vars(module).items():
        several = value.values() if isinstance(value, dict) else value
        for pattern in several if isinstance(value, dict | tuple) else [value]:
            if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
                used = re.findall(rf"\b{own}\.(\w+)", source) if pattern is value else ["match"]
                kinds = {"match", "fullmatch"} & {*used} or {"search"}
                found += [getattr(pattern, kind) for kind in kinds]
    return found


WITH_PATTERNS = [name for name in modules() if uses(name)]
assert len(WITH_PATTERNS) > 20


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", WITH_PATTERNS)
def test_a_long_text_takes_no_square_of_its_length(name: str) -> None:
    for use in uses(name):
        for pump in PUMPS:
            for end in ENDS:
                text = pump * (LENGTH // len(pump)) + end
                for start in STARTS:
                    use(start + text)
