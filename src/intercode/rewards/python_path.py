"""Python's modules in a verification: the agent's are found, but none in the place of another.

Python looks first where a program lies, or where it was started: an agent's ``json.py`` would be
taken for the standard library's. ``PYTHONSAFEPATH`` leaves that folder out, and with it the module
that the agent was asked for. So Python is given a ``sitecustomize`` that puts the folder last, also
where a version before 3.11, or the program itself, has put it first. To be last is not enough:
``copy`` tries to import ``org``, and ``subprocess`` ``msvcrt``, which nobody has; ``pytest`` loads
every plug-in that says so. An import statement of a library's therefore finds libraries only, and
so does a search for what is installed.

It lies in an archive, under a name that nobody could know before, for as long as it is needed.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from intercode.sandbox.base import Sandbox

_FOLDER = "/dev/shm"
_SITECUSTOMIZE = """\
import os, sys

try:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from opcode import opmap
except ImportError:
    PathFinder = None  # Python 2

given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
places = [place for place in sys.path if place not in given]
libraries = ("<frozen ",) + tuple(os.path.join(place, "") for place in places)


def asked_by_a_library():
    frame = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "").startswith("importlib._bootstrap"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_code[frame.f_lasti] != IMPORT_NAME:
        return False  # by name, as unittest does with tests
    return frame.f_code.co_filename.startswith(libraries)


class PlacesFirst:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is not None:
            return None
        spec = PathFinder.find_spec(name, places)
        if spec is None and asked_by_a_library():
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
        if spec is not None and spec.loader is None:  # a namespace, which has no place of its own
            other = PathFinder.find_spec(name)
            more = list(other.submodule_search_locations or ()) if other else []
            mine = list(spec.submodule_search_locations)
            spec.submodule_search_locations = mine + [one for one in more if one not in mine]
        return spec


def of_libraries(*context):
    found = list(all_distributions(*context))
    if context and "path" in vars(context[0]):
        return found
    return [one for one in found if os.path.join(one.locate_file(""), "").startswith(libraries)]


if PathFinder:
    all_distributions = getattr(PathFinder, "find_distributions", list)
    PathFinder.find_distributions = of_libraries
    IMPORT_NAME = opmap["IMPORT_NAME"]
    if getattr(sys.flags, "safe_path", False):  # from Python 3.11, it has not been put in front
        begun = sys.argv[0]
        here = begun in ("", "-", "-c", "-m")
        sys.path.append("" if here else os.path.dirname(os.path.realpath(begun)))
    sys.meta_path.insert(sys.meta_path.index(PathFinder), PlacesFirst)
    next_one = PathFinder.find_spec(__name__, places)
    if next_one and next_one.loader:
        next_one.loader.exec_module(module_from_spec(next_one))
"""


@contextmanager
def written(sandbox: Sandbox, env: Mapping[str, str]) -> Iterator[str]:
    """The value of ``PYTHONPATH``, in a sandbox where nothing of the agent's runs.

    Args:
        sandbox: The sandbox.
        env: The environment of the program that removes the archive.
    """
    path = f"{_FOLDER}/{secrets.token_hex(16)}"
    sandbox.write_file(path, _archive())
    try:
        yield ":".join(filter(None, (path, sandbox.env.get("PYTHONPATH"))))
    finally:
        sandbox.exec(["rm", "-f", path], env=env)


@cache
def _archive() -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("sitecustomize.py", _SITECUSTOMIZE)
    return buffer.getvalue()
