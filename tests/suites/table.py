"""The suites: what belongs to each, as `tests/suites.toml` says.

A suite is a part of the tests of pytest, or a command. A test belongs to the first suite of the
table whose files and parameters fit it, so that each belongs to one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "suites.toml"
CORE = "core"
"""The suite of ``make test``."""


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        name: Its name.
        about: What it checks, in a few words.
        minutes: Minutes on the clock that it takes on two quiet cores.
        tests: Globs of its files. Those of a suite without a command are tests of pytest.
        params: If there are any, only tests with one of these words among their parameters belong
            to it.
        command: Shell commands that are the suite.
        imports: Modules that it needs besides what its files import: those of a program that it
            runs by its name.
        inputs: Globs of other files that it needs.
        packages: Packages of the system that it needs.
    """

    name: str
    about: str
    minutes: float
    tests: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    command: str = ""
    imports: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def fits(self, file: str, params: str = "") -> bool:
        """Tell whether a test belongs here.

        Args:
            file: Its file, relative to the project.
            params: Its parameters, as pytest writes them.
        """
        if self.command or not matches(file, self.tests):
            return False
        return not self.params or not {*self.params}.isdisjoint(words(params))


def words(params: str) -> list[str]:
    """Split the parameters of a test, as pytest writes them."""
    return re.split("[-_/]", params)


def matches(file: str, globs: Iterable[str]) -> bool:
    """Tell whether one of some globs fits the end of a path; one that begins with ``/``, all of it.

    So a glob fits wherever the folders are. ``*`` is any text, with folders in it.
    """
    each = (glob if glob.startswith("/") else f"*/{glob}" for glob in globs)
    return any(fnmatchcase(f"/{file}", glob) for glob in each)


@cache
def read(path: Path = TABLE) -> dict[str, Suite]:
    """Read the table: name → suite, in its order.

    A table with ``each`` stands for several suites: its keys are their names, and the values are
    their minutes; ``{each}`` in a text is the name.

    Raises:
        TypeError: A suite has a key that there is not, or lacks one.
    """
    suites: dict[str, Suite] = {}
    for name, said in tomllib.loads(path.read_text()).items():
        each: dict[str, float] = said.pop("each", {"": said.get("minutes")})
        for one, minutes in each.items():
            fields = {key: _filled(value, one) for key, value in said.items()}
            full = f"{name}-{one}" if one else name
            suites[full] = Suite(name=full, **{**fields, "minutes": minutes})
    return suites


def _filled(value: Any, each: str) -> Any:
    if isinstance(value, list):
        return tuple(_filled(one, each) for one in value)
    return value.replace("{each}", each) if isinstance(value, str) else value


def suite_of(suites: Sequence[Suite], file: str, params: str = "") -> str | None:
    """Return the name of the suite to which a test belongs; see `Suite.fits`."""
    return next((suite.name for suite in suites if suite.fits(file, params)), None)
