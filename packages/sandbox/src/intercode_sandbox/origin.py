"""Origin and version of InterCode's packages.

A package checks the package below it at its own import: `check_package`. Names of the upper
packages in entry points are checked before the import of such a package: `check_upper_package`.

The checks catch accidents: another project's package, or a user's folder, of the same name, and
packages of two releases. A package that copies `ORIGIN` passes; only the hashes of an installer
(``pip install --require-hashes``) prove what a package holds.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from intercode_sandbox.errors import PackageError

_ROOT = sys.modules["intercode_sandbox"]
"""Root module of the package; an import statement would create a cycle of type-checking imports."""
ORIGIN: str = _ROOT.ORIGIN

_DECLARATION = f'ORIGIN = "{ORIGIN}"'
"""Line of an upper package's ``__init__.py``, to be read without importing the module."""


def check_package(package: ModuleType, dependent: str, file: str) -> None:
    """Refuse a package of another project, or of another version than the dependent package's.

    The folder of a package's metadata names its version: reading the metadata takes a thousand
    times as long as this check. A checkout has no such folder, and one version for all packages.

    Args:
        package: The lower package, imported.
        dependent: The distribution that needs it, as its metadata's folder spells the name.
        file: A file in the dependent package's own folder.

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
    if metadata := _metadata_of_other_version(file, dependent, package.__version__):
        version = metadata.stem.removeprefix(f"{dependent}-")
        raise PackageError(
            f"{package.__name__} ({package.__file__}) has version {package.__version__}, and "
            f"{dependent} ({metadata}) needs {version}. Install both from one release",
            name=package.__name__,
            path=package.__file__,
        )


def check_upper_package(name: str) -> None:
    """Refuse an upper package of another project or another version, without running its code.

    A missing package passes: its import fails by itself.

    Args:
        name: One of `intercode_sandbox.lazy_imports.UPPER_PACKAGES`.

    Raises:
        PackageError: The package has another origin or another version.
    """
    if (spec := find_spec(name)) is None:
        return
    file = spec.origin or str(spec.submodule_search_locations)  # folders of a namespace package
    if not _declares_origin(Path(file)):
        raise PackageError(
            f"{name} ({file}) is not InterCode's package of this name. Remove or rename it; pip "
            f"install {name.replace('_', '-')} installs InterCode's",
            name=name,
            path=file,
        )
    if metadata := _metadata_of_other_version(file, name, _ROOT.__version__):
        raise PackageError(
            f"{name} ({metadata}) has another version than intercode_sandbox, {_ROOT.__version__}. "
            "Install both from one release",
            name=name,
            path=file,
        )


def _declares_origin(file: Path) -> bool:
    try:
        return _DECLARATION in file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return False


def _metadata_of_other_version(file: str, distribution: str, version: str) -> Path | None:
    """Return the metadata of another version beside a package; None if `version` is installed."""
    site = Path(file).parents[1]
    if (site / f"{distribution}-{version}.dist-info").exists():
        return None
    return next(site.glob(f"{distribution}-*.dist-info"), None)
