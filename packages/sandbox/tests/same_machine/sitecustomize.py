"""Loaded by every Python that the tests start: its image ``host`` is as it was when they began.

A package that somebody installs meanwhile makes another image of it, and a run on the one is not
gone on with on the other: rightly, but few tests are about that.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MODULE = "intercode_sandbox.images.host"
PINNED = "INTERCODE_TESTS_HOST"
"""Names the file that has what was found."""


def save(host: ModuleType, path: str) -> None:
    """Look at the machine now, for this process and all that it starts; once."""
    import pickle

    if PINNED in os.environ:
        return
    files, alternatives = host._files(), host._alternatives()
    with open(path, "wb") as file:
        pickle.dump((files, alternatives, host._digest(files, alternatives)), file)
    os.environ[PINNED] = path
    here = os.path.dirname(__file__)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    pin(host)


def pin(host: ModuleType) -> None:
    """Have the module find what was found then."""
    import pickle

    with open(os.environ[PINNED], "rb") as file:
        files, alternatives, digest = pickle.load(file)
    host.unpinned = {name: getattr(host, name) for name in ("_files", "_alternatives", "_digest")}
    host._files = lambda: files
    host._alternatives = lambda: alternatives
    host._digest = lambda *_: digest


class Finder:
    """Pins the module as soon as it is imported: few programs do."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, _: object = None) -> ModuleSpec | None:
        if name != MODULE or (spec := PathFinder.find_spec(name, path)) is None:
            return None
        loader = spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            pin(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize" and PINNED in os.environ:
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
