"""Functions that import public names of the package `intercode` at their first use.

Type checkers cannot follow these imports; they read the package's stub file.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from intercode_sandbox.origin import check_upper_package

_INTEGRATIONS = "intercode_integrations"


def import_name(source: str) -> Any:
    """Import an attribute of a module.

    Args:
        source: Module and attribute: ``"package.module:attribute"``.
    """
    module, _, attribute = source.partition(":")
    return getattr(importlib.import_module(module), attribute)


def import_integration(name: str) -> Any:
    """Import a public name of ``intercode_integrations``.

    Raises:
        UsageError: The package is not installed.
        PackageError: The package belongs to another project, or has another version.
    """
    if find_spec(_INTEGRATIONS) is None:
        from intercode_sandbox.lazy_imports import missing_package_error

        raise missing_package_error(f"intercode.{name}", _INTEGRATIONS.replace("_", "-"))
    check_upper_package(_INTEGRATIONS)
    return getattr(importlib.import_module(_INTEGRATIONS), name)
