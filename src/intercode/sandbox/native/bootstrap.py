"""How processes of ours begin that are to know little: the spawner, and the zygote of sandboxes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

PROGRAM = os.path.join(os.path.dirname(__file__), "static", "process1")
"""The static program, which the build of this package makes."""
SOCKET = 3
"""The descriptor of the zygote's socket, and of a worker's."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PACKAGES = ("intercode", "intercode.sandbox", "intercode.sandbox.native")
# The packages' own __init__ is stood in for: it imports Gymnasium, for which there is no use.
_BEGIN = """
import importlib, json, os, signal, sys, types
# What its caller ignores or blocks, it would ignore or block. Python itself ignores two of them.
kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
for number in signal.valid_signals() - kept:
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:
        pass  # the C library has it for itself
signal.pthread_sigmask(signal.SIG_SETMASK, ())
root, setup = sys.argv[1], json.loads(sys.argv[2])
for package in setup["packages"]:
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [root + package[len("intercode"):].replace(".", "/")]
sys.path += setup["path"]
importlib.import_module("intercode.sandbox.native." + setup["module"]).main(**setup["arguments"])
os._exit(0)  # without the last words that a library may have
"""


def command(
    module: str,
    arguments: dict[str, Any],
    preload: Sequence[str] = (),
    path: Sequence[str] = (),
    python: str = sys.executable,
    root: str | None = None,
) -> list[str]:
    """Return the command that runs ``main`` of a module of this package.

    Args:
        module: Its name in this package.
        arguments: What its ``main`` is called with, by keyword.
        preload: Modules whose packages are to be found as well.
        path: Folders in which imports are looked for after the standard library.
        python: The Python that runs it.
        root: The folder of the package ``intercode`` there; default: this one's.
    """
    packages = dict.fromkeys(_PACKAGES)
    for name in preload:
        names = name.split(".")[:-1]
        if names[:1] == ["intercode"]:
            packages |= dict.fromkeys(".".join(names[: i + 1]) for i in range(len(names)))
    setup = {"module": module, "arguments": arguments, "packages": [*packages], "path": [*path]}
    return [python, "-I", "-S", "-X", "utf8", "-c", _BEGIN, root or _ROOT, json.dumps(setup)]
