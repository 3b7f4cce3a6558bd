"""Registries of objects that are imported on first use.

A registry maps a short name to ``"package.module:attribute"``. The object is imported when the name
is first used. So an unused back end, environment or dataset costs no time. Lower layers of
InterCode use objects of higher layers by name, without importing them. An object of a user can be
used wherever an object of InterCode can. Users have three ways to name an object:

- A file: ``path/to/file.py:name``, wherever a name of the kind is accepted
  (`LazyRegistry.resolve`).
- An entry point of an installed package, in ``pyproject.toml``::

    [project.entry-points."intercode.datasets"]
    mine = "my_package.tasks:load"

- A call: ``DATASETS.register("mine", "my_package.tasks:load")``.

The name of a group of entry points is ``intercode.``, followed by the kind of object. Kinds for
users are ``environments``, ``datasets``, ``rewards``, ``agents``, ``agent_providers``, ``models``,
``engines``, ``sandboxes``, ``images``, ``executors``, ``vectors``, ``commands``, ``sources`` and
``task_exporters``. InterCode's own packages also use ``exports``, ``presets``, ``rules`` and
``tables``. A registry reads its group when a name is not InterCode's, or when a caller requests all
names.

A name may come from a stranger: from a run's record, a task, a benchmark's ``intercode.toml``.
Callers check such a name by `LazyRegistry.is_trusted`, and pass it to `LazyRegistry.get`, which
executes no file, rather than to `LazyRegistry.resolve`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from intercode_sandbox.errors import PackageError, UsageError
from intercode_sandbox.origin import check_upper_package
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.user_code import is_reference, load, target_reference


class LazyRegistry:
    """A registry of the names of one kind of object.

    Args:
        kind: The kind of object, for messages, such as ``"dataset"``.
        entries: Name → ``"module:attribute"``, ``"module"``, or the object itself.
        group: The group of entry points by which installed packages add names.
        homes: Name that another package of InterCode adds → the package to install for it.
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
        """Return all names of the registry, sorted.

        Args:
            packages: Whether to include names of installed packages, which is slow.
        """
        if packages:
            self._look_for_packages()
        return sorted(self._entries)

    def register(self, name: str, target: Any, *, replace: bool = False) -> None:
        """Add a name to the registry.

        Args:
            name: The short name.
            target: ``"module:attribute"``, or the object itself.
            replace: Whether to replace an existing entry of that name.

        Raises:
            UsageError: The name is taken.
        """
        if name in self._entries and not replace:
            raise UsageError(f"a {self.kind} named {name!r} already exists")
        self._entries[name] = target
        self._packages.discard(name)

    def is_trusted(self, name: str) -> bool:
        """Return whether a name, even one from a stranger, leads to trusted code only.

        Names of InterCode, and names registered by this process, are trusted. A name that an
        installed package adds is trusted as soon as this process has imported the named module.
        References to files are never trusted. Another project's package with the name of one of
        InterCode's upper packages is not trusted either.
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
        """Return whether a name refers to a file, or to another project's installed package."""
        return name in self._packages if name in self else is_reference(name)

    def resolve(self, text: str) -> Any:
        """Return the object that a user names: a registered name, or ``path/to/file.py:name``.

        The call executes the file. Therefore a name that the user has not written must be checked
        by `is_trusted` first.

        Raises:
            UsageError: The name, or the object in the file, does not exist.
            ImportError: The object's module, or a dependency of the module, is not installed.
        """
        if text not in self and is_reference(text):
            return load(self.kind, text)
        return self.get(text)

    def get(self, name: str) -> Any:
        """Return the object of a registered name, imported on first use.

        Raises:
            UsageError: The name is not registered.
            PackageError: The object's package has the name of one of InterCode's, but another
                origin or version.
            ImportError: The object's module, or a dependency of the module, is not installed.
        """
        if name not in self:
            raise self.unknown(name)
        target = self._entries[name]
        if not isinstance(target, str):
            return target
        _check_target(target)
        module_name, _, attribute = target.partition(":")
        target_module = importlib.import_module(module_name)
        return attrgetter(attribute)(target_module) if attribute else target_module

    def unknown(self, name: str, names: Iterable[str] | None = None) -> UsageError:
        """Return the error for an unknown name, with a suggestion or a list of names.

        For a name of a package of InterCode that is not installed, the error names the package.

        Args:
            name: The name.
            names: The valid names; default: all.
        """
        if (home_package := self.homes.get(name)) and name not in self:
            return missing_package_error(f"{self.kind} {name!r}", home_package)
        suggestion = hint_text(name, self.names() if names is None else names)
        advice = OR_YOUR_OWN if self._takes_files else ""
        return UsageError(f"there is no {self.kind} {name!r}{suggestion}{advice}")

    def file_reference(self, name: str) -> str:
        """Return ``path/to/file.py:name`` of a registered object that a user's file defines.

        The text is empty for any other object.
        """
        return target_reference(self._entries.get(name))

    def _look_for_packages(self) -> None:
        """Add the names that installed packages declare as entry points.

        The packages are not imported. Only the first call has an effect.
        """
        if self._group is None:
            return
        from importlib.metadata import entry_points  # this import is slow, and rarely needed

        for entry_point in entry_points(group=self._group):
            is_ours = entry_point.value.partition(".")[0].partition(":")[0] in PROJECT_MODULES
            # No other project's package may take a name of InterCode, even if the package of
            # InterCode that adds the name is not installed.
            if entry_point.name in self._entries or (
                entry_point.name in self.homes and not is_ours
            ):
                continue
            self._entries[entry_point.name] = entry_point.value
            if not is_ours:
                self._packages.add(entry_point.name)
        self._group = None


def _check_target(target: Any) -> None:
    """Refuse an entry of a registry whose module lies in a false upper package.

    `origin.check_upper_package` describes the check.
    """
    package = target.partition(":")[0].partition(".")[0] if isinstance(target, str) else ""
    if package in UPPER_PACKAGES:
        check_upper_package(package)


def missing_package_error(subject: str, package: str) -> UsageError:
    """Return the error for an object whose package of InterCode is not installed.

    Args:
        subject: The object, for the message, such as ``dataset 'spider'``.
        package: The package to install.
    """
    return UsageError(f"{subject} needs the package {package}: pip install {package}")


UPPER_PACKAGES = frozenset({"intercode_integrations", "intercode_paper"})
"""InterCode's packages that no other package imports, except by entries of registries. The entries
are checked at their use: see `origin.check_upper_package`."""
PROJECT_MODULES = UPPER_PACKAGES | {"intercode", "intercode_sandbox"}
"""The top-level modules of all packages of InterCode."""
OR_YOUR_OWN = " (or your own, as path/to/file.py:name)"
