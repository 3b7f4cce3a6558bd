"""Folders that InterCode's other packages register in this package, for use in sandboxes.

The other packages import this one, not the reverse. Therefore this package knows the folders of
their modules and image files only by these tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGES: dict[str, Path] = {}
"""Name of a package with modules that run as workers in sandboxes → the package's folder.

Workers never run ``__init__.py`` of such a package, nor of its subpackages, because these files may
import packages that a sandbox lacks.
"""
FOLDERS: dict[str, Path] = {}
"""Prefix of an addition to an image's name → the folder with the addition's files.

For instance ``builtin:`` is the prefix of the addition ``+builtin:NAME``.
"""


def bare_packages(modules: Iterable[str]) -> dict[str, str]:
    """Return the packages and subpackages that contain some modules, each with its folder.

    Args:
        modules: Full names of modules. A module outside the packages of `PACKAGES` is ignored.
    """
    package_folders = {}
    for module_name in modules:
        top_package, *name_parts = module_name.split(".")
        if top_package in PACKAGES:
            for subpackage_parts in (name_parts[:end] for end in range(len(name_parts))):
                package_folders[".".join([top_package, *subpackage_parts])] = str(
                    Path(PACKAGES[top_package], *subpackage_parts)
                )
    return package_folders


def is_packaged(path: Path) -> bool:
    """Return whether a file lies in a folder of `FOLDERS`, and so is not a user's file."""
    return any(path.is_relative_to(folder) for folder in FOLDERS.values())
