"""Start of processes that must know little of the machine: the spawner and sandboxes' zygote."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PROGRAM = os.path.join(os.path.dirname(__file__), "static", "process1")
"""The static program, created by the build of this package."""
SOCKET = 3
"""The descriptor of the zygote's socket, and of a worker's."""
_ROOT = os.path.dirname(os.path.dirname(__file__))
_PACKAGES = ("intercode_sandbox", "intercode_sandbox.native")
# Stubs replace the packages' own __init__: the parents' would import much that is unused.
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


class Workers(NamedTuple):
    """The modules of sandboxes' workers, and the search paths of their imports.

    Attributes:
        modules: Their names.
        path: Folders that imports search after the standard library.
        packages: Package whose ``__init__`` is not executed → its folder.
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
    root: str | None = None,
) -> list[str]:
    """Return the command that runs ``main`` of a module of this package.

    Args:
        module: The module's name in this package.
        arguments: Keyword arguments of its ``main``.
        path: Folders that imports search after the standard library.
        packages: Other packages whose ``__init__`` is not executed → their folders.
        python: The Python that runs it.
        root: The folder of the package ``intercode_sandbox`` for that Python; default: this
            process's.
    """
    package_folders = {
        name: os.path.join(root or _ROOT, *name.split(".")[1:]) for name in _PACKAGES
    }
    setup = {"module": module, "arguments": arguments, "path": [*path]}
    setup["packages"] = {**(packages or {}), **package_folders}
    return [python, "-I", "-S", "-X", "utf8", "-c", _BOOTSTRAP_CODE, json.dumps(setup)]
