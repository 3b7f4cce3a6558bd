"""Names for things that are imported when first used.

A registry maps a short name to ``"package.module:attribute"``, which is imported when the name is
used. So a back end, an environment or a dataset costs nothing until it is asked for, lower layers
reach higher ones without importing them, and a user's own things are on a par with ours. They are
named in one of three ways:

- A file: ``path/to/file.py:name``, wherever a name of the kind is taken (`Registry.resolve`).
- An entry point of an installed package, in ``pyproject.toml``::

    [project.entry-points."intercode.datasets"]
    mine = "my_package.tasks:load"

- A call: ``DATASETS.register("mine", "my_package.tasks:load")``.

The groups of entry points are ``intercode.`` and ``environments``, ``datasets``, ``rewards``,
``agents``, ``agent_providers``, ``models``, ``engines``, ``sandboxes``, ``images``, ``executors``,
``vectors``, ``commands``, ``sources`` or ``task_exporters``. They are looked through when a name is
not one of ours, or all names are wanted.

A name may come from a stranger: from a run's record, a task, a benchmark's ``intercode.toml``. Such
a name is checked by `Registry.is_trusted`, and is never resolved.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from intercode_sandbox.errors import PackageError, UsageError
from intercode_sandbox.origin import check_upper_package
from intercode_sandbox.suggestions import hint_text
from intercode_sandbox.user_code import is_reference, load, target_reference


class Registry:
    """Names of one kind of thing.

    Args:
        kind: What they are, for messages: ``"dataset"``.
        entries: Name → ``"module:attribute"``, ``"module"``, or the thing itself.
        group: The group of entry points by which installed packages add to them.
        homes: Name that another package of ours adds → that package.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, Any] | None = None,
        group: str | None = None,
        homes: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.homes = dict(homes or {})
        self._entries: dict[str, Any] = dict(entries or {})
        self._group = group
        self._takes_files = group is not None
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
            raise UsageError(f"a {self.kind} named {name!r} already exists")
        self._entries[name] = target
        self._packages.discard(name)

    def is_trusted(self, name: str) -> bool:
        """Tell whether a name runs nothing new, wherever the name comes from.

        Names of InterCode's own and those that this process has registered are trusted; those of
        an installed package once the process has imported its module. No file is trusted, and no
        package of another project under the name of an upper one of ours.
        """
        if name not in self:
            return False
        target = self._entries[name]
        try:
            _check_target(target)
        except PackageError:
            return False
        is_imported = not isinstance(target, str) or target.partition(":")[0] in sys.modules
        return is_imported or name not in self._packages

    def is_foreign(self, name: str) -> bool:
        """Tell whether a name is that of a file's object, or of an installed package's."""
        return name in self._packages if name in self else is_reference(name)

    def resolve(self, text: str) -> Any:
        """Return the thing that a user names: by a known name, or as ``path/to/file.py:name``.

        The file is run: a name that comes from elsewhere than the user has to pass `is_trusted`.

        Raises:
            UsageError: There is no such name, or no such object in the file.
            ImportError: Its module, or something that this needs, is not installed.
        """
        if text not in self and is_reference(text):
            return load(self.kind, text)
        return self.get(text)

    def get(self, name: str) -> Any:
        """Return the thing of a known name, imported now if it was not yet.

        Raises:
            UsageError: There is none.
            PackageError: Its package has the name of one of ours, and another origin or version.
            ImportError: Its module, or something that this needs, is not installed.
        """
        if name not in self:
            raise self.unknown(name)
        target = self._entries[name]
        if not isinstance(target, str):
            return target
        _check_target(target)
        module, _, attribute = target.partition(":")
        target_module = importlib.import_module(module)
        return attrgetter(attribute)(target_module) if attribute else target_module

    def unknown(self, name: str, names: Iterable[str] | None = None) -> UsageError:
        """Return the error of a name that is not known: what was meant, or what there is.

        Args:
            name: The name.
            names: The names that would do; default: all.
        """
        if (home := self.homes.get(name)) and name not in self:
            return missing_package_error(f"{self.kind} {name!r}", home)
        suggestion = hint_text(name, self.names() if names is None else names)
        advice = OR_YOUR_OWN if self._takes_files else ""
        return UsageError(f"there is no {self.kind} {name!r}{suggestion}{advice}")

    def file_reference(self, name: str) -> str:
        """Return the reference of a thing that came from a user's file; empty for any other."""
        return target_reference(self._entries.get(name))

    def _look_for_packages(self) -> None:
        """Add what installed packages register, once. Nothing of theirs is imported."""
        if self._group is None:
            return
        from importlib.metadata import entry_points  # slow, and mostly not needed

        for entry_point in entry_points(group=self._group):
            is_ours = entry_point.value.partition(".")[0].partition(":")[0] in PROJECT_MODULES
            # None takes a name of ours, whether it is there or in a package that is not installed.
            if entry_point.name in self._entries or (
                entry_point.name in self.homes and not is_ours
            ):
                continue
            self._entries[entry_point.name] = entry_point.value
            if not is_ours:
                self._packages.add(entry_point.name)
        self._group = None


def _check_target(target: Any) -> None:
    """Check the origin of an upper package of ours that has an entry's target; see `origin`."""
    package = target.partition(":")[0].partition(".")[0] if isinstance(target, str) else ""
    if package in UPPER_PACKAGES:
        check_upper_package(package)


def missing_package_error(subject: str, package: str) -> UsageError:
    """Return the error of what another package of ours has, which is not installed."""
    return UsageError(f"{subject} needs the package {package}: pip install {package}")


UPPER_PACKAGES = frozenset({"intercode_integrations", "intercode_paper"})
"""Modules of the packages that no lower package imports, except by the name of an entry point."""
PROJECT_MODULES = UPPER_PACKAGES | {"intercode", "intercode_sandbox"}
"""The modules of our packages. What the upper ones add is checked at its use."""
OR_YOUR_OWN = " (or your own, as path/to/file.py:name)"
