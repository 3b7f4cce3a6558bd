"""Environments of a reader: what requirements.txt installs, and what a page adds, and no more.

They are made of links into the tests' environment, without a network. `first_hour` installs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from warm import Warm

OURS = ("intercode-sandbox", "intercode-gym", "intercode-integrations", "intercode-paper")
"""The packages of requirements.txt."""
Readers = Callable[..., Warm]


def distributions(*requirements: str) -> dict[str, Distribution]:
    """Return name → distribution, of these and of all that they need."""
    result: dict[str, Distribution] = {}
    queue, queued = [*map(Requirement, requirements)], set[tuple[str, frozenset[str]]]()
    while queue:
        requirement = queue.pop()
        name, extras = requirement.name.lower(), frozenset(requirement.extras)
        if (name, extras) in queued:
            continue
        queued.add((name, extras))
        result[name] = distribution(name)
        for needed in map(Requirement, result[name].requires or ()):
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": it}) for it in extras or ("",)):
                queue.append(needed)
    return result


def environment(folder: Path, *packages: str) -> Path:
    """Make an environment, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in distributions(*OURS, *packages).values():
        for name in {file.parts[0] for file in entry.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(entry.locate_file(name))))
        for point in entry.entry_points.select(group="console_scripts"):
            script = folder / "bin" / point.name
            script.write_text(
                f"#!{python}\nimport sys\nfrom {point.module} import {point.attr}\n"
                f"sys.exit({point.attr}())\n"
            )
            script.chmod(0o755)
    return python


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    """Start commands in an environment with ours and these packages."""
    servers: dict[tuple[str, ...], Warm] = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)  # a reader has no tests on the path

        def server(*packages: str) -> Warm:
            if packages not in servers:
                python = environment(tmp_path_factory.mktemp("reader"), *packages)
                servers[packages] = stack.enter_context(Warm(python))
            return servers[packages]

        yield server


@pytest.fixture
def warm(readers: Readers) -> Warm:
    """Start commands in the environment that README installs."""
    return readers()
