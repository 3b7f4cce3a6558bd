"""Names for things that are imported when first used.

A registry maps a short name to ``"package.module:attribute"``; `Registry.get` imports it. So a
back end, an environment or a dataset costs nothing until it is asked for, lower layers reach
higher ones without importing them, and a reader's own things are on a par with ours::

    from intercode.registry import DATASETS
    DATASETS.register("mine", "my_package.tasks:load")

An installed package does the same by an entry point, in ``pyproject.toml``::

    [project.entry-points."intercode.datasets"]
    mine = "my_package.tasks:load"

The groups are ``intercode.environments``, ``intercode.datasets``, ``intercode.rewards`` and
``intercode.sources``. They
are looked through when a name is not one of ours, or all names are wanted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from intercode.errors import UsageError
from intercode.spelling import meant


class Registry:
    """Names of one kind of thing.

    Args:
        kind: What they are, for messages: ``"dataset"``.
        entries: Name → ``"module:attribute"``, or the thing itself.
        group: The group of entry points by which installed packages add to them.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, Any] | None = None, group: str | None = None
    ) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = dict(entries or {})
        self._group = group
        self._packages: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._look_for_packages()
        return name in self._entries

    def names(self, *, packages: bool = True) -> list[str]:
        """All names, sorted.

        Args:
            packages: Whether to look for those of installed packages, which takes its time.
        """
        if packages:
            self._look_for_packages()
        return sorted(self._entries)

    def register(self, name: str, target: Any, *, replace: bool = False) -> None:
        """Add a name.

        Args:
            name: The short name.
            target: ``"module:attribute"``, or the thing itself.
            replace: Take the name from whatever has it.

        Raises:
            UsageError: The name is taken.
        """
        if name in self._entries and not replace:
            raise UsageError(f"there already is a {self.kind} named {name!r}")
        self._entries[name] = target
        self._packages.discard(name)

    def is_trusted(self, name: str) -> bool:
        """Tell whether a name runs nothing new, wherever the name comes from.

        Names of InterCode's own and those that this process has registered are trusted; those of
        an installed package once the process has imported its module.
        """
        if name not in self:
            return False
        target = self._entries[name]
        is_imported = not isinstance(target, str) or target.partition(":")[0] in sys.modules
        return is_imported or name not in self._packages

    def get(self, name: str) -> Any:
        """The thing of this name, imported now if it was not yet.

        Raises:
            UsageError: There is none.
            ImportError: Its module, or something that this needs, is not installed.
        """
        if name not in self:
            raise UsageError(f"there is no {self.kind} named {name!r}{meant(name, self.names())}")
        target = self._entries[name]
        if not isinstance(target, str):
            return target
        module, _, attribute = target.partition(":")
        return attrgetter(attribute)(importlib.import_module(module))

    def _look_for_packages(self) -> None:
        """Add what installed packages register, once. Nothing of theirs is imported."""
        if self._group is None:
            return
        from importlib.metadata import entry_points  # slow, and mostly not needed

        for point in entry_points(group=self._group):
            if point.name not in self._entries:  # none takes a name of ours
                self._entries[point.name] = point.value
                self._packages.add(point.name)
        self._group = None


DATASETS = Registry(
    "dataset",
    {
        "apps": "intercode.datasets.apps:load",
        "bash": "intercode.datasets.builtin:load",
        "bash-hard": "intercode.datasets.hard:load_bash",
        "bash-starter": "intercode.datasets.starter:load_bash",
        "bird": "intercode.datasets.bird:load",
        "bird-mini-dev": "intercode.datasets.bird:load_mini_dev",
        "ctf": "intercode.datasets.puzzles:load",
        "generated-bash": "intercode.datasets.generated:load_bash",
        "generated-python": "intercode.datasets.generated:load_python",
        "generated-sql": "intercode.datasets.generated:load_sql",
        "ic-ctf": "intercode.datasets.ic_ctf:load",
        "mbpp": "intercode.datasets.mbpp:load",
        "nl2bash": "intercode.datasets.nl2bash:load",
        "nl2sh-alfa": "intercode.datasets.nl2sh_alfa:load",
        "python": "intercode.datasets.builtin:load_python",
        "python-hard": "intercode.datasets.hard:load_python",
        "python-starter": "intercode.datasets.starter:load_python",
        "spider": "intercode.datasets.spider:load",
        "sql": "intercode.datasets.builtin:load_sql",
        "sql-hard": "intercode.datasets.hard:load_sql",
        "sql-starter": "intercode.datasets.starter:load_sql",
        "swe": "intercode.datasets.builtin:load_swe",
        "swe-bench": "intercode.datasets.swe_bench:load",
        "swe-bench-lite": "intercode.datasets.swe_bench:load_lite",
        "swe-bench-verified": "intercode.datasets.swe_bench:load_verified",
        "swe-hard": "intercode.datasets.hard:load_swe",
        "wikisql": "intercode.datasets.wikisql:load",
    },
    "intercode.datasets",
)
"""Name → a function that returns a `Dataset`."""

ENVS = Registry(
    "environment",
    {
        "bash": "intercode.envs.bash:BashEnv",
        "bash:paper": "intercode.paper.bash_env:PaperBashEnv",
        "ctf": "intercode.envs.ctf:CtfEnv",
        "ctf:paper": "intercode.paper.ctf:PaperCtfEnv",
        "python": "intercode.envs.python:PythonEnv",
        "python:paper": "intercode.paper.python:PaperPythonEnv",
        "sql": "intercode.envs.sql:SqlEnv",
        "sql:paper": "intercode.paper.sql_env:PaperSqlEnv",
        "swe": "intercode.envs.swe:SweEnv",
    },
    "intercode.environments",
)
"""Name, or ``name:protocol``, → an environment's class."""


SOURCES = Registry(
    "kind of source",
    {
        "harbor": "intercode.integrations.harbor.runs:HarborEnv",
        "inspect": "intercode.integrations.inspect.runs:InspectEnv",
        "openenv": "intercode.integrations.openenv:OpenEnvEnv",
        "verifiers": "intercode.integrations.verifiers.runs:VerifiersEnv",
    },
    "intercode.sources",
)
"""Scheme of an address, as in ``intercode run harbor:FOLDER``, → the environment that tries the
tasks there. Its class method ``tasks(rest)`` returns them, as a `Dataset`."""

EXECUTORS = Registry("place to run on", {"ray": "intercode.integrations.ray:Ray"})
"""Scheme of ``--on SCHEME[://ADDRESS]`` → its executor (`intercode.evaluate.executor`), which takes
all of that text."""

VECTORS = Registry("backend of vectors", {"ray": "intercode.integrations.ray.vector:make"})
"""Name → a function that makes a vector, from the arguments of `intercode.project.create_vec`."""


def scheme_of(address: object) -> str | None:
    """Return the scheme of an address ``scheme:rest``; None: it has none of `SOURCES`."""
    scheme, colon, rest = address.partition(":") if isinstance(address, str) else ("", "", "")
    return scheme if colon and rest and scheme in SOURCES else None


def environment(name: str, protocol: str = "default") -> Any:
    """Import an environment's class.

    Args:
        name: Its short name: ``"bash"``.
        protocol: ``"default"``, or ``"paper"``.

    Raises:
        UsageError: There is no such environment or protocol.
        ImportError: Its module, or something that this needs, is not installed.
    """
    entry = name if protocol == "default" else f"{name}:{protocol}"
    if entry not in ENVS and entry in SOURCES:
        return SOURCES.get(entry)
    if name in ENVS and entry not in ENVS:
        known = [
            "default",
            *(e.partition(":")[2] for e in ENVS.names() if e.startswith(f"{name}:")),
        ]
        raise UsageError(
            f"environment {name!r} has no protocol {protocol!r}{meant(protocol, known)}"
        )
    return ENVS.get(entry)


MESSAGES = Registry(
    "style of messages",
    {name: f"intercode.agents.retelling:{name}" for name in ("chat", "plain", "tools")},
)
"""Name → a function of an environment and its task that tells the episode as messages."""

REWARDS = Registry(
    "reward",
    {
        "bash:judge": "intercode.rewards.judge:Judge",
        "sql:default": "intercode.rewards.sql:SqlReward",
        "sql:bird-ex": "intercode.rewards.bird:ExReward",
        "sql:bird-soft-f1": "intercode.rewards.bird:SoftF1Reward",
        "sql:bird-r-ves": "intercode.rewards.bird:RVesReward",
        "sql:spider-test-suite": "intercode.rewards.test_suite:SuiteReward",
    },
    "intercode.rewards",
)
"""``env:name`` → a function that is the reward (see `intercode.rewards.own`), or a class, which is
made from the parts of the environment that its parameters name: of SQL ``databases``, ``cache``,
``permute_columns`` and ``columns``. The judge of Bash is made from a model."""

RULES = Registry(
    "rule",
    {
        "answer": "intercode.rewards.answer:Answer.VERSION",
        "bash": "intercode.rewards.bash:BashReward.VERSION",
        "command": "intercode.rewards.command:CommandReward.VERSION",
        "flag": "intercode.rewards.flag:FlagReward.VERSION",
        "harbor": "intercode.integrations.harbor.verifier:HarborReward.VERSION",
        "judge": "intercode.rewards.judge:Judge.VERSION",
        "paper": "intercode.paper:VERSION",
        "python": "intercode.rewards.python:PythonReward.VERSION",
        "sql": "intercode.rewards.sql:SqlReward.VERSION",
        "swe": "intercode.rewards.swe:SweReward.VERSION",
    },
)
"""Name of a rule of grading → its version, which stands beside it. An environment's traits name the
rules of its own reward."""
