"""User code: the execution of a user's Python file, and objects that the file defines.

A reference names such an object: ``path/to/file.py:name``.
"""

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
"""Names of the folders in which package managers install Python packages."""
_NON_USER_MODULES = sys.stdlib_module_names | {"intercode", "intercode_sandbox"}
_lock = threading.RLock()
"""A lock that is held while a file is executed. Without the lock two threads could execute one file
twice, and its classes would exist twice."""
_PREFIX = "intercode_file_"
"""Beginning of the module names under which users' files are executed."""


def is_reference(name: str) -> bool:
    """Return whether a name is a reference to an object in a file, not a registered name."""
    return ".py:" in name


def split(text: str, separator: str) -> tuple[str, str]:
    """Split a text into a name or reference and the suffix after a separator.

    For instance ``my.py:make/NAME`` is split into ``my.py:make`` and ``NAME`` at ``/``. A separator
    in the path of the file is ignored.
    """
    start = text.index(".py:") + 4 if is_reference(text) else 0
    name, _, suffix = text[start:].partition(separator)
    return text[:start] + name, suffix


def absolute(text: str) -> str:
    """Return a reference with an absolute path, valid in any working directory.

    Any text but a reference is returned unchanged.
    """
    if not is_reference(text):
        return text
    file, _, suffix = text.partition(".py:")
    return f"{_absolute_path(f'{file}.py')}:{suffix}"


_absolute_paths: dict[str, Path] = {}
"""Relative path of a user's file → its absolute path in the working directory at the time of its
first use."""


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
    """Return the absolute path of a user's file.

    If the file does not exist in the present working directory, the path that `_absolute_paths`
    remembers is returned. The user's code may have changed the working directory.
    """
    path = Path(file).expanduser().absolute()
    return path if path.exists() else _absolute_paths.get(file, path)


def target_reference(target: object) -> str:
    """Return the reference to a class or function that a user's file defines.

    The text is empty for any other object.
    """
    module = getattr(target, "__module__", None) or ""
    if not module.startswith(_PREFIX):
        return ""
    return f"{sys.modules[module].__file__}:{getattr(target, '__qualname__', '')}"


def load(kind: str, reference: str) -> Any:
    """Return the object that a reference names.

    The first call executes the file. A later call executes the file again only if it has changed.

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
        callable_names = (name for name, value in vars(module).items() if callable(value))
        suggestion = hint_text(attribute, callable_names, listed=False)
        raise UsageError(f"{kind} {reference}: {file} has no function {attribute!r}{suggestion}")
    return target


def digest(reference: str) -> str:
    """Return the BLAKE2b-128 digest of a user's file, in hexadecimal, for a run's record.

    Args:
        reference: ``path/to/file.py:name``. For any other text the digest is empty.

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
    """Return the text ``file, line N`` for the line of a file at which an error was raised.

    The text is empty if the error's traceback does not contain the file.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return f"{file}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}, line {error.lineno}"
    return ""


def describe_error(error: BaseException) -> str:
    """Return a description of an error in a user's code: ``file, line N: TypeError: …``.

    The line is the innermost one of the traceback that belongs neither to InterCode, nor to the
    standard library, nor to an installed package.
    """
    locations = []
    for frame, line_number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        frame_module = str(frame.f_globals.get("__name__", ""))
        is_installed = any(component in INSTALLED for component in Path(file).parts)
        if frame_module.partition(".")[0] not in _NON_USER_MODULES and not is_installed:
            locations.append(f"{file}, line {line_number}: ")
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"{locations[-1] if locations else ''}{text}"


def _module(kind: str, reference: str, path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        reason = f": {error.strerror}" if path.exists() else ""
        message = f"cannot read {path}" if reason else f"there is no file {path}"
        raise UsageError(f"{kind} {reference}: {message}{reason}") from None
    # The digest of the path distinguishes files with equal names in two folders.
    path_digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    module_name = f"{_PREFIX}{path.stem}_{path_digest}"
    with _lock:
        module = sys.modules.get(module_name)
        if module is not None and module.__dict__["__source__"] == source:
            return module
        return _run(f"{kind} {reference}", module_name, path, source)


def _run(label: str, module_name: str, path: Path, source: bytes) -> ModuleType:
    """Execute a file as a module, and return the module.

    Args:
        label: The kind and the reference, for messages.
        module_name: The module's name.
        path: The path of the file.
        source: The content of the file.
    """
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and isinstance(spec.loader, SourceLoader)  # true for all .py files
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__source__"] = source
    previous_module = sys.modules.get(module_name)
    sys.modules[module_name] = (
        module  # dataclasses and pickle look up a class's module in this table
    )
    # The file may import its neighbours, as a script may. The folder is appended last: so its files
    # shadow no other module.
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        # The loader's exec_module would use Python's bytecode cache. The cache takes a changed file
        # of the same size for the old one, if both were written in the same second.
        exec(spec.loader.source_to_code(source, str(spec.origin)), module.__dict__)
    except BaseException as error:
        sys.modules.pop(module_name)
        if previous_module is not None:
            sys.modules[module_name] = previous_module
        if is_handlers(error):
            raise
        location = (
            error_location(error, str(path.absolute())) or error_location(error, str(path)) or path
        )
        raise UsageError(
            f"{label}: {location} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module
