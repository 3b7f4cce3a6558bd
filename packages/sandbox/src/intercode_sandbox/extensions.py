"""Folders of the packages above this one, which register them: sandboxes use files of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGES: dict[str, Path] = {}
"""Package whose modules sandboxes' workers run → its folder.

Of its ``__init__``, and of those of the packages in it, nothing is run there: they may import much
that no sandbox has.
"""
FOLDERS: dict[str, Path] = {}
"""Prefix of an addition to an image, as in ``+builtin:NAME`` → the folder of its files."""


def bare_packages(modules: Iterable[str]) -> dict[str, str]:
    """Return the registered packages of some modules, with those in them, and their folders.

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
    """Whether a file comes with a package and not from a user."""
    return any(path.is_relative_to(folder) for folder in FOLDERS.values())
