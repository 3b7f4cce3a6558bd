"""Folders of the packages above this one: packages register them, because sandboxes need files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGES: dict[str, Path] = {}
"""Package with modules for sandboxes' workers → its folder.

Workers never run ``__init__`` of this package, nor of its subpackages: these modules may import
packages that a sandbox lacks.
"""
FOLDERS: dict[str, Path] = {}
"""Prefix of an addition to an image, such as ``+builtin:NAME`` → the folder of its files."""


def bare_packages(modules: Iterable[str]) -> dict[str, str]:
    """Return the registered packages and subpackages of some modules, each with its folder.

    Args:
        modules: Names of modules.
    """
    packages = {}
    for name in modules:
        top, *name_parts = name.split(".")
        if top in PACKAGES:
            for subpackage_parts in (name_parts[:end] for end in range(len(name_parts))):
                packages[".".join([top, *subpackage_parts])] = str(
                    Path(PACKAGES[top], *subpackage_parts)
                )
    return packages


def is_packaged(path: Path) -> bool:
    """Whether a file belongs to a package, not to a user."""
    return any(path.is_relative_to(folder) for folder in FOLDERS.values())
