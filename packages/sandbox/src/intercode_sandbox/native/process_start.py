"""Command lines that start the spawner, and the Python process from which workers are forked.

The processes start with an isolated Python, few imports, and default actions for all signals. Only
SIGPIPE and SIGXFSZ are ignored, as in any Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PROGRAM = os.path.join(os.path.dirname(__file__), "static", "process1")
"""The path of the static C program that runs as zygote and as process 1 of sandboxes. The build of
this package creates it."""
SOCKET = 3
"""The descriptor of the zygote's socket to the spawner, and of a worker's socket to the caller."""
_ROOT = os.path.dirname(os.path.dirname(__file__))
_PACKAGES = ("intercode_sandbox", "intercode_sandbox.native")
# The code creates an empty module for each package, in place of the package's __init__.py. Those
# files would import many modules that the process does not use.
_BOOTSTRAP_CODE = """
import importlib, json, os, signal, sys, types
# What its caller ignores or blocks, it would ignore or block. Python itself ignores two of them.
kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
for number in signal.valid_signals() - kept:
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:
        pass  # the C library has it for itself
signal.pthread_sigmask(signal.SIG_SETMASK, ())
setup = json.loads(sys.argv[1])
for package, folder in setup["packages"].items():
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [folder]
sys.path += setup["path"]
importlib.import_module("intercode_sandbox.native." + setup["module"]).main(**setup["arguments"])
os._exit(0)  # without the last words that a library may have
"""


class WorkerModules(NamedTuple):
    """The Python modules that can run as workers in sandboxes, and the search paths of imports.

    Attributes:
        modules: The names of the modules.
        path: Folders that imports search after the standard library.
        packages: Name of a package whose ``__init__.py`` is not executed → the package's folder.
    """

    modules: list[str]
    path: list[str]
    packages: dict[str, str]


def command(
    module: str,
    arguments: dict[str, Any],
    path: Sequence[str] = (),
    packages: Mapping[str, str] | None = None,
    python: str = sys.executable,
    package_root: str | None = None,
) -> list[str]:
    """Return the command line that runs ``main`` of a module of this package in a new Python.

    Args:
        module: The module's name in this package.
        arguments: Keyword arguments of the module's ``main``.
        path: Folders that imports search after the standard library.
        packages: Name of a further package whose ``__init__.py`` is not executed → its folder.
        python: The path of the Python that runs the module.
        package_root: The folder of the package ``intercode_sandbox`` for that Python; default: the
            folder of the package in this process.
    """
    package_folders = {
        package_name: os.path.join(package_root or _ROOT, *package_name.split(".")[1:])
        for package_name in _PACKAGES
    }
    setup = {"module": module, "arguments": arguments, "path": [*path]}
    setup["packages"] = {**(packages or {}), **package_folders}
    return [python, "-I", "-S", "-X", "utf8", "-c", _BOOTSTRAP_CODE, json.dumps(setup)]
