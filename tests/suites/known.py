"""What is known of the suites: with which inputs each passed last, and on what machine.

`tests/passed.json` has it. A suite is known as long as its inputs are as they were: the content of
its files, this Python and the packages that the tests use, the kernel, the control groups, and the
packages of the system that the suite names; but no longer than `DAYS`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from suites.graph import Graph
from suites.table import ROOT, TABLE, Suite, matches

RECORD = ROOT / "tests" / "passed.json"
DAYS = 14
"""A pass that is older says nothing any more."""
PACKAGES = ("packages/*/src",)
OTHERS = (
    *("tests", "packages/*/tests", "packages/integrations/tests/integrations"),
    *("examples/*", "benchmarks"),
)
"""Folders from which modules are imported: see `Graph`."""
ALWAYS = (
    *("/pyproject.toml", "/requirements.txt", "packages/*/pyproject.toml"),
    *("packages/*/hatch_build.py", "/conftest.py"),
)
"""Inputs of every suite."""
DISTRIBUTIONS = ("intercode-integrations", "intercode-paper")
"""Those above all others, whose tests need what the others' need."""
EXTRA = "test"
"""The extra with the packages of the tests."""


@dataclass(frozen=True)
class Passed:
    """A suite's last pass.

    Attributes:
        files: A digest of the content of its files.
        machine: Facts of the machine → values.
        day: The day, in ISO 8601.
        minutes: Minutes on the clock.
        tests: The number of tests that passed; 0 for a command.
    """

    files: str
    machine: Mapping[str, str]
    day: str
    minutes: float
    tests: int


class Inputs:
    """What the suites need, in a working copy of the project."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, capture_output=True, check=True, text=True)
        own = {str(TABLE.relative_to(ROOT)), str(RECORD.relative_to(ROOT))}
        found = {name for name in names.stdout.split("\0") if (root / name).is_file()}
        self.files = frozenset(found - own)
        """All files, but those that say what is known and what is to be run."""
        self._graph = Graph(root, self.files, PACKAGES, OTHERS)
        self._digests: dict[str, str] = {}

    def of(self, suite: Suite) -> set[str]:
        """Return the files that a suite needs."""
        tests = [file for file in self.files if matches(file, suite.tests)]
        others = {file for file in self.files if matches(file, (*ALWAYS, *suite.inputs))}
        return self._graph.needed(tests, suite.imports) | others

    def digest(self, suite: Suite) -> str:
        """Return a digest of their content, and of how the table describes the suite."""
        said = {k: v for k, v in asdict(suite).items() if k not in {"about", "minutes"}}
        whole = hashlib.sha256(json.dumps(said).encode())
        for file in sorted(self.of(suite)):
            whole.update(f"\0{file}\0{self._digest(file)}".encode())
        return whole.hexdigest()[:16]

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            self._digests[file] = hashlib.sha256((self._root / file).read_bytes()).hexdigest()
        return self._digests[file]


def machine(suite: Suite) -> dict[str, str]:
    """Return the facts of this machine on which a suite's result depends."""
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    facts = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cgroup": "v2" if unified else "v1",
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "distributions": _distributions(),
    }
    return facts | {name: _version(name) for name in suite.packages}


def _version(package: str) -> str:
    """Return the version of a package of the system, or nothing."""
    asked = ["dpkg-query", "--show", "--showformat=${Version}", package]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:  # no Debian
        return ""


def _distributions() -> str:
    """Return a digest of the names and versions of the packages that the tests use."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    to_do = [(name, frozenset({EXTRA})) for name in DISTRIBUTIONS]
    while to_do:
        name, extras = wanted = to_do.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            this = distribution(name)
        except PackageNotFoundError:  # it is optional
            continue
        found[name] = this.version
        for needed in map(Requirement, this.requires or ()):
            given = [{"extra": extra} for extra in ("", *extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, given)):
                to_do.append((needed.name, frozenset(needed.extras)))
    return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]


def load(path: Path = RECORD) -> dict[str, Passed]:
    """Read the record: suite → its last pass."""
    if not path.exists():
        return {}
    return {name: Passed(**said) for name, said in json.loads(path.read_text()).items()}


def save(passed: Mapping[str, Passed], path: Path = RECORD) -> None:
    """Write the record."""
    text = json.dumps({name: asdict(one) for name, one in sorted(passed.items())}, indent=1)
    path.write_text(text + "\n")


def why_unknown(suite: Suite, passed: Passed | None, inputs: Inputs) -> str:
    """Return the reason why a suite must be run; nothing if it is known."""
    if passed is None:
        return "it never passed"
    age = (date.today() - date.fromisoformat(passed.day)).days
    if not 0 <= age < DAYS:
        return f"it passed {age} days ago"
    now = machine(suite)
    if others := [k for k in {**passed.machine, **now} if now.get(k) != passed.machine.get(k)]:
        return f"this machine has another {', '.join(others)}"
    if inputs.digest(suite) != passed.files:
        return "its files have changed" + _named(inputs.of(suite))
    return ""


def _named(files: set[str]) -> str:
    """Name the changed files among some, as far as git tells them; see `changed`."""
    found = sorted(changed() & files)
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return f": {', '.join(found[:2])}{more}" if found else ""


def changed(root: Path = ROOT) -> set[str]:
    """Return the files that have changed since the record was last committed."""

    def git(*words: str) -> Sequence[str]:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
        return done.stdout.split()

    last = git("log", "-1", "--format=%H", "--", str(RECORD.relative_to(ROOT)))
    return set(git("diff", "--name-only", *last)) if last else set()
