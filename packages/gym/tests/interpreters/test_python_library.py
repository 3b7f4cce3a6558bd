"""The standard library in memory: what it finds, and that nobody can write to it."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import inspect
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from intercode.interpreters.inside.library import FOLDER, StdlibMemoryLoader, extensions

_BUILD = [name[:-3] for name in os.listdir(FOLDER) if name.startswith("_sysconfigdata")]
SOURCE = '# -*- coding: utf-8 -*-\n"""Doc."""\n\ndef f():\n    return "é"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "one.py",
        "pack/__init__.py",
        "pack/part.py",
        "test/hidden.py",
        "pack/tests/no.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE, encoding="utf-8")
    (tmp_path / "not-a-name").mkdir()
    (tmp_path / "not-a-name" / "x.py").write_text("")
    return tmp_path


@pytest.fixture
def finding(folder: Path) -> Iterator[StdlibMemoryLoader]:
    library = StdlibMemoryLoader(str(folder))
    sys.meta_path.append(library)
    yield library
    sys.meta_path.remove(library)
    for name in ("one", "pack", "pack.part"):
        sys.modules.pop(name, None)


def test_modules_are_found_without_their_files(finding: StdlibMemoryLoader, folder: Path) -> None:
    for path in (folder / "one.py", folder / "pack" / "part.py"):
        path.unlink()
    part = importlib.import_module("pack.part")
    assert part.f() == "é"
    assert part.__file__ == str(folder / "pack" / "part.py")
    assert part.__package__ == "pack"
    assert inspect.getsource(part.f) == 'def f():\n    return "é"\n'
    assert importlib.import_module("one").__doc__ == "Doc."
    assert importlib.import_module("pack").__path__ == []


def test_what_is_left_out(finding: StdlibMemoryLoader) -> None:
    for name in ("test.hidden", "pack.tests.no", "not-a-name.x", "nothing"):
        assert finding.find_spec(name) is None


@pytest.mark.parametrize("stale", [False, True])
def test_a_compiled_file_is_used_if_it_fits(folder: Path, stale: bool) -> None:
    path = folder / "one.py"
    path.write_text("x = 1\n")
    compiled = Path(str(py_compile.compile(str(path))))
    path.write_text("x = 22\n")
    if not stale:  # as if this source had been compiled
        header = compiled.read_bytes()[:8]
        status = path.stat()
        stamp = int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
        compiled.write_bytes(header + stamp + compiled.read_bytes()[16:])
    names: dict[str, int] = {}
    exec(StdlibMemoryLoader(str(folder)).get_code("one"), names)
    assert names["x"] == (22 if stale else 1)


def test_nobody_can_write_to_it(folder: Path) -> None:
    gc.collect()  # else others, of tests before, could go while their ranges are looked at
    library = StdlibMemoryLoader(str(folder))
    with pytest.raises(TypeError):
        library._content[0:1] = b"x"
    libc = ctypes.CDLL(None, use_errno=True)
    ranges = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()
              if "memfd:library" in line]  # fmt: skip
    assert ranges
    for text in ranges:
        begin, end = (int(number, 16) for number in text.split("-"))
        before = ctypes.string_at(begin, 16)
        # Whoever makes it writable has a page of their own then, and nobody else sees that.
        if libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 3) == 0:
            child = os.fork()
            if child == 0:
                ctypes.memset(begin, 0, 16)
                os._exit(0)
            os.waitpid(child, 0)
            assert ctypes.string_at(begin, 16) == before
            libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 1)


def test_no_more_than_the_library_is_in_it() -> None:
    library = StdlibMemoryLoader()
    assert {"json.decoder", "asyncio", "statistics", "encodings.utf_8"} <= set(library._locations)
    tops = {name.partition(".")[0] for name in library._locations}
    assert tops <= sys.stdlib_module_names | {"__hello__", "__phello__"} | set(_BUILD)
    assert all(not os.path.isabs(path) for path, *_ in library._locations.values())


def test_every_module_of_it_can_be_compiled_and_its_extensions_loaded() -> None:
    code = (
        "import importlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from intercode.interpreters.inside.library import StdlibMemoryLoader, extensions\n"
        "library = StdlibMemoryLoader()\n"
        "for name in library._locations: library.get_code(name)\n"
        "for name in extensions(): importlib.import_module(name)\n"
    )
    root = str(Path(importlib.util.find_spec("intercode").origin).parents[1])  # type: ignore[union-attr,arg-type]
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, root], check=True)
    assert Path(FOLDER, "json").is_dir()
    assert "_tkinter" not in extensions()
