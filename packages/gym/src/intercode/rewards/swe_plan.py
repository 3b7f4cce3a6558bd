"""The grading plan of a SWE task: its validated tests, and the paths whose changes count."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from intercode.errors import TaskError
from intercode.task import Task

DIRECTORY = "/repo"
"""The default folder of the repository."""

APPLY = "git apply --whitespace=nowarn -"
"""The command that applies a patch that it reads from standard input."""

RUNNERS = ("pytest", "unittest", "command")

TEST_FILES = (
    "test", "tests", "test_*", "*_test", "*_test.*", "conftest", "conftest.*",
    "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
    "pyproject.toml",
)  # fmt: skip
"""Files and folders, at any depth, that decide how tests run.

Their content stays original, unless gold itself changes them.
"""

_PYTEST = re.compile(r"[^:/][^:]*\.[A-Za-z]+::.")
_UNITTEST = re.compile(r"\w+(\.\w+){2,}")

IGNORED_NAMES = (
    ".git", "__pycache__", "*.pyc", "*.pth", "*.egg-info", "*.dist-info", "sitecustomize.*",
    "usercustomize.*",
)  # fmt: skip
"""Files that are never part of a fix: git's own, and those that Python would run unasked."""


@dataclass(frozen=True, slots=True)
class SweGradingPlan:
    """The validated parameters for grading a task."""

    directory: str
    """The absolute path of the repository."""
    runner: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    test_patch: str
    timeout: float | None
    """Seconds for one run of the tests; None: the sandbox's limit."""
    python: str
    """The Python program that runs the tests."""
    fixed_paths: frozenset[str]
    """Paths, relative to the repository, that only the test patch may change."""
    stems: frozenset[tuple[str, str]]
    """(folder, name up to the first dot) of the modules that contain the named tests."""
    folders: frozenset[tuple[str, str]]
    """(folder, name up to the first dot) of the folders above these modules."""
    free_paths: frozenset[str]
    """Paths that gold changes; an agent may therefore change them, too."""
    globs: tuple[str, ...]
    """Patterns of further test files, from the task's ``test_files``."""

    @property
    def tests(self) -> tuple[str, ...]:
        """All named tests, without repetitions."""
        return tuple(dict.fromkeys((*self.fail_to_pass, *self.pass_to_pass)))

    def takes(self, path: str) -> bool:
        """Return whether an agent's change of a path counts, so the change is copied for grading.

        Args:
            path: The path, relative to the repository.
        """
        path_parts = PurePosixPath(path).parts
        if (
            any(_matches_any(path_part.lower(), IGNORED_NAMES) for path_part in path_parts)
            or path in self.fixed_paths
        ):
            return False
        if any(fnmatchcase(path, glob) for glob in self.globs):
            return False
        if path in self.free_paths:
            return True
        ancestors = ["/".join(path_parts[:depth]) for depth in range(len(path_parts))]
        stems = [name.partition(".")[0] for name in path_parts]
        if not self.stems.isdisjoint(zip(ancestors, stems, strict=True)):
            return False
        # Python prefers a module x.py to a folder x without __init__.py. So a module x.py of the
        # agent would replace such a folder of tests.
        if stems and path_parts[-1] != stems[-1] and (ancestors[-1], stems[-1]) in self.folders:
            return False
        return not any(_matches_any(path_part, TEST_FILES) for path_part in path_parts)


def make_plan(task: Task) -> SweGradingPlan:
    """Return the plan of a task.

    Raises:
        TaskError: A field is missing or malformed; the message names the task and the field.
    """
    directory = _text_field(task, "directory") or DIRECTORY
    pure_path = PurePosixPath(directory)
    if (
        str(pure_path) != directory
        or len(pure_path.parts) < 2
        or pure_path.root != "/"
        or ".." in pure_path.parts
    ):
        raise _field_error(task, "directory", f"must be an absolute path, not {directory!r}")
    runner = _text_field(task, "runner") or "pytest"
    if runner not in RUNNERS:
        raise _field_error(task, "runner", f"must be one of {', '.join(RUNNERS)}, not {runner!r}")
    fail_to_pass = _test_names(task, "FAIL_TO_PASS", runner)
    pass_to_pass = _test_names(task, "PASS_TO_PASS", runner)
    if not fail_to_pass:
        raise _field_error(
            task, "FAIL_TO_PASS", "names no test: nothing says when the task is solved"
        )
    test_patch = _text_field(task, "test_patch") or ""
    fixed_paths = _read_patch_paths(task, "metadata.test_patch", test_patch)
    if test_patch.strip() and not fixed_paths:
        raise _field_error(task, "test_patch", "must be a unified diff")
    free_paths = frozenset[str]().union(
        *(_read_patch_paths(task, "gold", gold) for gold in task.gold)
    )
    if task.gold and not free_paths:
        raise TaskError(f"task {task.task_id!r}: 'gold' must be a unified diff")
    test_modules = (_test_module(name, runner) for name in (*fail_to_pass, *pass_to_pass))
    modules = frozenset(module for module in test_modules if module is not None)
    return SweGradingPlan(
        directory,
        runner,
        fail_to_pass,
        pass_to_pass,
        test_patch,
        _time_limit(task),
        _text_field(task, "python") or "python3",
        fixed_paths,
        modules,
        frozenset(
            _folder_and_stem(folder_name)
            for folder, _ in modules
            for folder_name in _ancestor_folders(folder)
        ),
        free_paths - fixed_paths,
        tuple(_text_list(task, "test_files")),
    )


def _read_patch_paths(task: Task, field: str, patch: str) -> frozenset[str]:
    try:
        return patch_paths(patch)
    except ValueError as error:
        raise TaskError(f"task {task.task_id!r}: '{field}': {error}") from None


def _test_module(name: str, runner: str) -> tuple[str, str] | None:
    """Return the module that contains a test: its folder, and its name up to the first dot.

    The result is None for a test that is a command.
    """
    if runner == "command":
        return None
    if runner == "pytest":
        path = PurePosixPath(name.partition("::")[0])
    else:  # package.module.Class.method
        path = PurePosixPath(*name.split(".")[:-2])
    return _folder_and_stem(path)


def _folder_and_stem(path: PurePosixPath) -> tuple[str, str]:
    parent = str(path.parent)
    return ("" if parent == "." else parent, path.name.partition(".")[0])


def _ancestor_folders(folder: str) -> list[PurePosixPath]:
    """List a folder and its parents, without the repository itself."""
    path = PurePosixPath(folder)
    return [path, *path.parents][:-1]


def _test_names(task: Task, field: str, runner: str) -> tuple[str, ...]:
    names = tuple(_text_list(task, field))
    for name in names:
        if reason := name_problem(name, runner):
            raise _field_error(task, field, reason)
    return names


def name_problem(name: str, runner: str) -> str:
    """Return the reason why a name cannot be a test of the runner; empty if the name is valid.

    Args:
        name: The name.
        runner: ``pytest``, ``unittest``, or ``command``, which accepts any name.
    """
    if runner == "pytest" and not (_PYTEST.match(name) and name.isprintable()):
        return f"{name!r} is not a test of pytest's, as tests/test_x.py::test_y"
    if runner == "unittest" and not _UNITTEST.fullmatch(name):
        return f"{name!r} is not a test of unittest's, as test_x.Class.test_y"
    return ""


def task_name_problem(task: Task) -> str:
    """Return the reason why a name in a task's lists of tests is invalid; empty if all are valid.

    The reason is also empty if a list is malformed otherwise: `make_plan` refuses such a list.
    """
    runner = task.metadata.get("runner") or "pytest"
    for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        try:
            names = _text_list(task, field)
        except TaskError:
            return ""
        if reason := next(filter(None, (name_problem(name, runner) for name in names)), ""):
            return f"metadata.{field}: {reason}"
    return ""


def _text_list(task: Task, field: str) -> list[str]:
    """Parse a list of texts, or a JSON text of such a list, as files of SWE-bench have it."""
    value: Any = task.metadata.get(field) or []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise _field_error(task, field, "is text, but not JSON") from None
    if not isinstance(value, list) or not all(_is_text(name) for name in value):
        raise _field_error(task, field, "must be a list of texts")
    return value


def _text_field(task: Task, field: str) -> str | None:
    value = task.metadata.get(field)
    if value is not None and not (isinstance(value, str) and "\0" not in value):
        raise _field_error(task, field, "must be text")
    return value or None


def _time_limit(task: Task) -> float | None:
    value = task.metadata.get("test_timeout", task.timeout)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise _field_error(task, "test_timeout", "must be a number of seconds")
    if value is not None and not 0 < value < float("inf"):
        raise _field_error(task, "test_timeout", "must be above 0")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _field_error(task: Task, field: str, reason: str) -> TaskError:
    return TaskError(f"task {task.task_id!r}: 'metadata.{field}' {reason}")


# -- patches ---------------------------------------------------------------------------------------


_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HEADER = re.compile(r"(?:---|\+\+\+|rename from|rename to|copy from|copy to) (.+)")
_GIT = re.compile(r'diff --git (a/.+|"a/.+") (b/.+|"b/.+")')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def patch_paths(patch: str) -> frozenset[str]:
    """Return the paths that a diff changes, without the prefixes ``a/`` and ``b/``.

    Raises:
        ValueError: A path leads out of the repository.
    """
    paths = frozenset(_patch_paths(patch))
    for path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"it changes {path!r}, which is not in the repository")
    return paths


def _patch_paths(patch: str) -> Iterator[str]:
    # The number of remaining lines of a hunk. A hunk contains no header.
    old_line_count = new_line_count = 0
    for line in patch.split("\n"):
        if old_line_count > 0 or new_line_count > 0:
            old_line_count -= line[:1] in ("-", " ", "")
            new_line_count -= line[:1] in ("+", " ", "")
        elif match := _HUNK.match(line):
            old_line_count, new_line_count = (
                1 if count is None else int(count) for count in match.groups()
            )
        elif match := _HEADER.match(line):
            prefixed = line.startswith(("---", "+++"))
            path = _unquote_name(
                match[1] if match[1].startswith('"') else match[1].partition("\t")[0]
            )
            if path != "/dev/null":
                yield re.sub(r"^[ab]/", "", path) if prefixed else path
        elif match := _GIT.match(line):
            yield from (_unquote_name(name)[2:] for name in match.groups())


def _unquote_name(name: str) -> str:
    """Parse a file name of a diff: git quotes unusual names like strings of the language C."""
    if not name.startswith('"'):
        return name
    content = name[1:].rpartition('"')[0].encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_unescape_byte, content).decode("utf-8", "surrogateescape")


def _unescape_byte(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPES.get(code, code)
