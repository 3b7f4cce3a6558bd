"""The standard library of the running Python, in memory: a forked worker has no files of the host.

The image of a sandbox may have another Python, or no Python. The folder of InterCode's Python (a
home directory, with pyenv or uv) must not be visible in a sandbox. All modules are therefore copied
to one sealed memory file. The file is mapped before the sandbox is entered, and all sandboxes share
it. The file costs a fork nothing, cannot be written to, and contains only the library.
"""

from __future__ import annotations

import fcntl
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import mmap
import os
import struct
from collections.abc import Iterator
from types import CodeType, ModuleType

FOLDER = os.path.dirname(os.__file__)
_EXCLUDED_NAMES = {
    "__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test",
    "tests", "tkinter", "turtledemo",
}  # fmt: skip
_DISTRIBUTION_FILES = {"_distutils_system_mod.py", "sitecustomize.py", "usercustomize.py"}
"""Files that a distribution, such as Debian, adds to the library's folder for its own use."""
_PYC_HEADER = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class StdlibMemoryLoader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finder and loader of the standard library's modules, from memory.

    Args:
        folder: The folder of the library's files, which the constructor reads.
    """

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._locations: dict[str, tuple[str, int, int, int]] = {}
        """Module → relative path of its file, and offsets in memory: source, code, and end."""
        fd = os.memfd_create("library", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            start = 0
            with open(fd, "wb", closefd=False) as file:
                for name, path in _modules(folder):
                    source, code = _read(os.path.join(folder, path))
                    code_start = start + len(source)
                    self._locations[name] = (path, start, code_start, code_start + len(code))
                    file.write(source + code)
                    start = code_start + len(code)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            # The mapping is private: before Linux 6.7 a sealed file cannot be mapped shared.
            self._content = mmap.mmap(fd, start, mmap.MAP_PRIVATE, mmap.PROT_READ)
        finally:
            os.close(fd)

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of the library; None for other modules."""
        if fullname not in self._locations:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=self._file(fullname))
        if spec is not None:
            spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        """Return whether a module is a package."""
        return self._locations[fullname][0].endswith("__init__.py")

    def get_code(self, fullname: str) -> CodeType:
        """Return a module's code: the compiled code of its file, or the result of a compilation."""
        _, _, start, end = self._locations[fullname]
        if start == end:
            return self.source_to_code(self.get_source(fullname), self._file(fullname))
        code: CodeType = marshal.loads(self._content[start + _PYC_HEADER : end])
        return code

    def get_source(self, fullname: str) -> str:
        """Return a module's source, for example for `inspect` and for tracebacks."""
        _, start, end, _ = self._locations[fullname]
        return importlib.util.decode_source(self._content[start:end])

    def _file(self, fullname: str) -> str:
        return os.path.join(self._folder, self._locations[fullname][0])


def _modules(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each module of the library, and the path of its file in the folder."""
    for directory, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name.isidentifier())
        folders[:] = [name for name in folders if name not in _EXCLUDED_NAMES]
        for file in sorted(files):
            if file.endswith(".py") and file not in _DISTRIBUTION_FILES:
                path = os.path.relpath(os.path.join(directory, file), folder)
                name = path[: -len(".py")].replace("/", ".")
                yield name.removesuffix(".__init__"), path


def _read(path: str) -> tuple[bytes, bytes]:
    """Return a module's source, and its compiled file if that file belongs to this source."""
    with open(path, "rb") as file:
        source = file.read()
        status = os.fstat(file.fileno())
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            code = file.read()
    except OSError:
        return source, b""
    stamp = struct.pack("<LL", int(status.st_mtime) & 0xFFFFFFFF, len(source) & 0xFFFFFFFF)
    header = importlib.util.MAGIC_NUMBER + bytes(4) + stamp
    return source, code if code.startswith(header) else b""


def extensions(folder: str = FOLDER) -> list[str]:
    """List the modules that are shared objects, which are loaded while their files are visible."""
    dynload_folder = os.path.join(folder, "lib-dynload")
    names = os.listdir(dynload_folder) if os.path.isdir(dynload_folder) else []
    modules = {name.partition(".")[0] for name in names if name.endswith(".so")}
    return sorted(name for name in modules if not name.startswith(_EXCLUDED_PREFIXES))


_EXCLUDED_PREFIXES = (
    "_test",
    "_xx",
    "xx",
    "_ctypes_test",
    "_tkinter",
    "readline",
    "nis",
    "ossaudiodev",
)
