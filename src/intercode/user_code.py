"""A user's own code: an object in a file of Python, named ``path/to/file.py:name``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from intercode.errors import UsageError
from intercode.spelling import meant


def is_reference(name: str) -> bool:
    """Tell whether a name means an object in a file rather than a registered one."""
    return ".py:" in name


def load(what: str, reference: str) -> Any:
    """Run a file, and return the object that a reference names.

    Args:
        what: The kind of object, for messages: ``"agent"``.
        reference: ``path/to/file.py:name``.

    Raises:
        UsageError: There is no such file, it cannot be imported, or it has nothing so named that
            can be called.
    """
    file, _, attribute = reference.rpartition(":")
    module = _module(what, reference, Path(file))
    found = getattr(module, attribute, None)
    if not callable(found):
        near = meant(
            attribute, (n for n, one in vars(module).items() if callable(one)), listed=False
        )
        raise UsageError(f"{what} {reference}: {file} has no function {attribute!r}{near}")
    return found


def digest(reference: str) -> str:
    """Identify the code, for a run's record; empty for a registered name.

    Raises:
        UsageError: The file cannot be read.
    """
    if not is_reference(reference):
        return ""
    path = Path(reference.rpartition(":")[0])
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise UsageError(f"{reference}: cannot read {path}: {error.strerror}") from None


def line_of(error: BaseException, file: str) -> str:
    """Locate an error in a file, as ``file, line N``; empty if it was raised elsewhere."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return f"{file}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}, line {error.lineno}"
    return ""


def place_of(error: BaseException) -> str:
    """Locate an error in the code of the caller's, as ``file, line N``; empty if there is none.

    That is the innermost frame outside InterCode and the folders of Python and its packages; of an
    installed agent, the innermost one outside InterCode.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.line and not _lies_in(frame.filename, [_OURS])
    ]
    for frame in reversed(frames):
        if not _lies_in(frame.filename, _installed()):
            return f"{_short(frame.filename)}, line {frame.lineno}"
    return f"{_short(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""


_OURS = Path(__file__).parent


@cache
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(name)) for name in names)


def _lies_in(file: str, folders: Iterable[Path]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _short(file: str) -> str:
    """Return a path relative to the working directory, where it is below."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file


def _module(what: str, reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{what} {reference}: there is no file {path}")
    # Files of the same name in two folders are two modules.
    mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    name = f"intercode_{what}_{path.stem}_{mark}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    # As for a script: its folder is importable; but last, so that it shadows nothing.
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        where = line_of(error, str(path.absolute())) or line_of(error, str(path)) or path
        raise UsageError(
            f"{what} {reference}: {where} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module
