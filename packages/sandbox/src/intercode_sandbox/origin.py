"""Origin and version of InterCode's packages: a package checks the one below it at its own import.

The check catches accidents: another project's package, or a user's folder, of the same name, and
packages of two releases. A package that copies `ORIGIN` passes; only the hashes of an installer
(``pip install --require-hashes``) prove what a package holds.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from intercode_sandbox import ORIGIN
from intercode_sandbox.errors import PackageError


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
            f"Remove or rename it, then reinstall {dependent} with the packages that it needs",
            name=package.__name__,
            path=package.__file__,
        )
    site = Path(file).parents[1]
    if (site / f"{dependent}-{package.__version__}.dist-info").exists():
        return
    for metadata in site.glob(f"{dependent}-*.dist-info"):
        version = metadata.stem.removeprefix(f"{dependent}-")
        raise PackageError(
            f"{package.__name__} ({package.__file__}) has version {package.__version__}, and "
            f"{dependent} ({metadata}) needs {version}. Install both from one release",
            name=package.__name__,
            path=package.__file__,
        )
