"""User code: an object in a Python file, named by a reference, ``path/to/file.py:name``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
import traceback
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from intercode_sandbox.errors import UsageError
from intercode_sandbox.interruption import is_handlers
from intercode_sandbox.spelling_suggestions import hint_text

INSTALLED = ("site-packages", "dist-packages")
_NON_USER_MODULES = sys.stdlib_module_names | {"intercode", "intercode_sandbox"}
_lock = threading.RLock()
"""Held while a file is executed: two threads would create two classes from one definition."""
_PREFIX = "intercode_file_"


def is_reference(name: str) -> bool:
    """Return whether a name refers to an object in a file, rather than to a registered object."""
    return ".py:" in name


def split(text: str, separator: str) -> tuple[str, str]:
    """Split a name or reference from its suffix: ``my.py:make/NAME`` at ``/``."""
    start = text.index(".py:") + 4 if is_reference(text) else 0
    name, _, suffix = text[start:].partition(separator)
    return text[:start] + name, suffix


def absolute(text: str) -> str:
    """Return a name that is valid in any working directory."""
    if not is_reference(text):
        return text
    file, _, suffix = text.partition(".py:")
    return f"{_absolute_path(f'{file}.py')}:{suffix}"


_absolute_paths: dict[str, Path] = {}
"""Relative path of an executed file → its absolute path, by the working directory at that time."""


def remember(reference: str) -> None:
    """Record the absolute path of a reference's file, before code may change the working directory.

    Args:
        reference: ``path/to/file.py:name``; any other text is ignored.
    """
    if is_reference(reference):
        file = f"{reference.partition('.py:')[0]}.py"
        path = Path(file).expanduser().absolute()
        if path.exists():
            _absolute_paths[file] = path


def _absolute_path(file: str) -> Path:
    """Return the absolute path of a file, even if its code has changed the working directory."""
    path = Path(file).expanduser().absolute()
    return path if path.exists() else _absolute_paths.get(file, path)


def target_reference(target: object) -> str:
    """Return the reference of a user file's class or function; empty for any other object."""
    module = getattr(target, "__module__", None) or ""
    if not module.startswith(_PREFIX):
        return ""
    return f"{sys.modules[module].__file__}:{getattr(target, '__qualname__', '')}"


def load(kind: str, reference: str) -> Any:
    """Return the object of a reference. The file is executed once, and again after each change.

    Args:
        kind: The kind of object, for messages: ``"agent"``.
        reference: ``path/to/file.py:name``.

    Raises:
        UsageError: The file does not exist, cannot be imported, or has no callable object of that
            name.
    """
    file, _, attribute = reference.rpartition(":")
    path = _absolute_path(file)
    if path.exists():
        _absolute_paths[file] = path
    module = _module(kind, reference, path if file in _absolute_paths else Path(file).expanduser())
    target = getattr(module, attribute, None)
    if not callable(target):
        names = (name for name, value in vars(module).items() if callable(value))
        suggestion = hint_text(attribute, names, listed=False)
        raise UsageError(f"{kind} {reference}: {file} has no function {attribute!r}{suggestion}")
    return target


def digest(reference: str) -> str:
    """Return a BLAKE2b-128 digest of the code, for a run's record; empty for a registered name.

    Raises:
        UsageError: The file cannot be read.
    """
    if not is_reference(reference):
        return ""
    file = f"{reference.partition('.py:')[0]}.py"
    try:
        return hashlib.blake2b(_absolute_path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise UsageError(f"{reference}: cannot read {file}: {error.strerror}") from None


def error_location(error: BaseException, file: str) -> str:
    """Return an error's location in a file, ``file, line N``; empty if raised in another file."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return f"{file}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}, line {error.lineno}"
    return ""


def describe_error(error: BaseException) -> str:
    """Return a description of an error in a user's code: ``file, line N: TypeError: …``.

    The line is the innermost line outside InterCode and outside installed packages.
    """
    locations = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        module = str(frame.f_globals.get("__name__", ""))
        is_installed = any(component in INSTALLED for component in Path(file).parts)
        if module.partition(".")[0] not in _NON_USER_MODULES and not is_installed:
            locations.append(f"{file}, line {line}: ")
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"{locations[-1] if locations else ''}{text}"


def _module(kind: str, reference: str, path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        reason = f": {error.strerror}" if path.exists() else ""
        message = f"cannot read {path}" if reason else f"there is no file {path}"
        raise UsageError(f"{kind} {reference}: {message}{reason}") from None
    # Files with equal names in two folders are two modules.
    mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    name = f"{_PREFIX}{path.stem}_{mark}"
    with _lock:
        module = sys.modules.get(name)
        if module is not None and module.__dict__["__source__"] == source:
            return module
        return _run(f"{kind} {reference}", name, path, source)


def _run(label: str, name: str, path: Path, source: bytes) -> ModuleType:
    """Execute a file's source as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and isinstance(spec.loader, SourceLoader)  # true for all .py files
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__source__"] = source
    previous_module = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look up a class's module in this table
    # A script's folder is importable; appended last, the folder shadows no other module.
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        # Not exec_module: its cache confuses files of the same second and size.
        exec(spec.loader.source_to_code(source, str(spec.origin)), module.__dict__)
    except BaseException as error:
        sys.modules.pop(name)
        if previous_module is not None:
            sys.modules[name] = previous_module
        if is_handlers(error):
            raise
        location = (
            error_location(error, str(path.absolute())) or error_location(error, str(path)) or path
        )
        raise UsageError(
            f"{label}: {location} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module
