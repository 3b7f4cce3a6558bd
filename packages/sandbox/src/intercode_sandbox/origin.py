"""Checks of the origin and version of InterCode's packages.

InterCode has a stack of packages: an upper package imports lower ones. An upper package checks the
package below by `check_package` when the upper package is imported. An entry point may name an
upper package. `check_upper_package` checks that package before its import.

The checks catch accidents: another project's package, or a user's folder, of the same name, and
packages of two releases. A package that copies `ORIGIN` passes. Only the hashes of an installer
(``pip install --require-hashes``) prove what a package contains.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from intercode_sandbox.errors import PackageError

_ROOT = sys.modules["intercode_sandbox"]
"""The module `intercode_sandbox`. An import statement would create an import cycle for the type
checker."""
ORIGIN: str = _ROOT.ORIGIN

_DECLARATION = f'ORIGIN = "{ORIGIN}"'
"""The line that ``__init__.py`` of an upper package must contain. The check reads the file, because
an import would run the package's code."""


def check_package(package: ModuleType, dependent: str, dependent_file: str) -> None:
    """Refuse a package of another project, or of another version than the dependent package's.

    The check takes the dependent package's version from the name of its metadata folder
    (``NAME-VERSION.dist-info``): reading the metadata takes a thousand times as long. A source
    checkout has no such folder and passes: all packages in a checkout have one version.

    Args:
        package: The lower package, imported.
        dependent: The name of the distribution that imports `package`, spelt as in the name of its
            metadata folder.
        dependent_file: A file in the dependent package's own folder.

    Raises:
        PackageError: The package has another origin or another version.
    """
    if getattr(package, "ORIGIN", None) != ORIGIN:
        raise PackageError(
            f"{package.__name__} ({package.__file__}) is not InterCode's package of this name. "
            f"Remove or rename it, then reinstall {dependent} with its dependencies",
            name=package.__name__,
            path=package.__file__,
        )
    if metadata_folder := _metadata_of_other_version(
        dependent_file, dependent, package.__version__
    ):
        version = metadata_folder.stem.removeprefix(f"{dependent}-")
        raise PackageError(
            f"{package.__name__} ({package.__file__}) has version {package.__version__}, and "
            f"{dependent} ({metadata_folder}) needs {version}. Install both from one release",
            name=package.__name__,
            path=package.__file__,
        )


def check_upper_package(name: str) -> None:
    """Refuse an upper package of another project or another version, without running its code.

    A missing package passes: importing the package raises an error anyway.

    Args:
        name: One of `intercode_sandbox.lazy_imports.UPPER_PACKAGES`.

    Raises:
        PackageError: The package has another origin or another version.
    """
    if (spec := find_spec(name)) is None:
        return
    package_file = spec.origin or str(
        spec.submodule_search_locations
    )  # folders of a namespace package
    if not _declares_origin(Path(package_file)):
        raise PackageError(
            f"{name} ({package_file}) is not InterCode's package of this name. Remove or rename "
            "it; pip "
            f"install {name.replace('_', '-')} installs InterCode's",
            name=name,
            path=package_file,
        )
    if metadata_folder := _metadata_of_other_version(package_file, name, _ROOT.__version__):
        raise PackageError(
            f"{name} ({metadata_folder}) has another version than intercode_sandbox, "
            f"{_ROOT.__version__}. "
            "Install both from one release",
            name=name,
            path=package_file,
        )


def _declares_origin(file: Path) -> bool:
    try:
        return _DECLARATION in file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return False


def _metadata_of_other_version(package_file: str, distribution: str, version: str) -> Path | None:
    """Return the metadata folder of another version of a distribution, in a package's site folder.

    None: the folder has metadata of `version`, or no metadata of the distribution.

    Args:
        package_file: A file in the package's own folder.
        distribution: The distribution's name.
        version: The expected version.
    """
    site_folder = Path(package_file).parents[1]
    if (site_folder / f"{distribution}-{version}.dist-info").exists():
        return None
    return next(site_folder.glob(f"{distribution}-*.dist-info"), None)
