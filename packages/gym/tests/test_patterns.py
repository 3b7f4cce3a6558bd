"""Regular expressions that meet an agent's text: none takes time that grows with its square."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import signal
from collections.abc import Callable, Iterator

import pytest

import intercode
import intercode_sandbox

PARTS = ("agents", "databases", "envs", "evaluate", "interpreters", "models", "rewards")
PUMPS = ("1", "a", " ", "\t", "'", "`", "<", "1,", "a ", "x.", "11 ", "111,")
STARTS = ("", "```", "total ")
ENDS = ("x", "\n`", "!")
LENGTH = 60_000
"""With so many characters, what is quadratic takes a minute for a module."""
SECONDS = 20


def modules() -> Iterator[str]:
    for package in (intercode, intercode_sandbox):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.ispkg and not module.name.endswith("__main__"):
                yield module.name
    for part in PARTS:
        package = importlib.import_module(f"intercode.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"intercode.{part}."):
            # Those are sent to other Pythons; what is converted is the author's.
            if not re.search(r"\.(inside|convert)\b", module.name):
                yield module.name


def locals_of(module: object, source: str) -> list[str]:
    """The names on which patterns are used, other than the module's own."""
    used = re.findall(r"\b(\w+)\.(?:match|fullmatch|search|sub|split|findall|finditer)\(", source)
    return sorted({*used} - vars(module).keys())


def uses(name: str) -> list[Callable[[str], object]]:
    """How a module uses its patterns: not all of them look for one anywhere in a text."""
    module = importlib.import_module(name)
    source, found = inspect.getsource(module), []
    for own, value in vars(module).items():
        several = value.values() if isinstance(value, dict) else value
        for pattern in several if isinstance(value, dict | tuple) else [value]:
            if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
                # One of several is used by a name that a function gives it.
                names = [own] if pattern is value else locals_of(module, source)
                used = re.findall(rf"\b(?:{'|'.join(names)})\.(\w+)", source) if names else []
                kinds = {"match", "fullmatch"} & {*used}
                kinds |= {"search"} if "search" in used or not kinds else set()
                found += [getattr(pattern, kind) for kind in kinds]
    return found


WITH_PATTERNS = [name for name in modules() if uses(name)]
assert len(WITH_PATTERNS) > 20


@pytest.fixture(autouse=True)
def _time() -> Iterator[None]:
    """End a test after some seconds of its own: the machine may do other things, too."""

    def end(*_: object) -> None:
        pytest.fail(f"took more than {SECONDS} seconds of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", WITH_PATTERNS)
def test_a_long_text_takes_no_square_of_its_length(name: str) -> None:
    for use in uses(name):
        for pump in PUMPS:
            for end in ENDS:
                text = pump * (LENGTH // len(pump)) + end
                for start in STARTS:
                    use(start + text)
