"""A folder that is a benchmark: ``intercode.toml`` says which environment it is for, and the rest.

`intercode new` writes one; `intercode run FOLDER`, `play`, `validate` and `intercode.make` read it.
Relative paths in it begin in the folder, whatever the working directory is::

    env = "bash"                  # or "maze.py:MazeEnv", an environment of its own
    tasks = "tasks.jsonl"         # or a dataset's name
    image = "./Dockerfile"        # any other key is an option of the environment, or a limit
    reward = "reward.py:score"
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intercode import own_code
from intercode.errors import ImageError, UsageError
from intercode.registry import DATASETS, ENVS

FILE = "intercode.toml"

LIMITS: Mapping[str, tuple[type, ...]] = {
    "timeout": (int, float),
    "memory": (int,),
    "disk": (int,),
    "output": (int,),
    "processes": (int,),
}
"""Keys that are limits of the sandbox, in the units of `intercode.Limits`."""

_OPTIONS: Mapping[str, tuple[type, ...]] = {
    "image": (str,),
    "reward": (str,),
    "databases": (str,),
    "repositories": (str,),
    "python": (str,),
    "engine": (str,),
    "network": (bool,),
    "attempts": (int,),
    "max_turns": (int,),
    "max_rows": (int,),
}
_PATHS = {"databases", "repositories", "reward", "image"}
_NOT_OPTIONS = {"self", "data", "limits", "render_mode"}
_KINDS = {str: "text", bool: "true or false", int: "a whole number"}
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:")


@dataclass(frozen=True, slots=True)
class Project:
    """What the folder says."""

    folder: Path
    env: str
    """The environment's registered name."""
    tasks: str
    """A file, or a dataset's name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For the environment's constructor; paths are absolute."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Of `intercode.Limits`."""


def is_project(folder: str | Path) -> bool:
    """Whether there is such a folder."""
    return Path(folder, FILE).is_file()


def read(folder: str | Path) -> Project:
    """What a folder says, checked as far as that can be without starting anything.

    Raises:
        UsageError: Its file is malformed, or says what cannot be.
    """
    folder = Path(folder).absolute()
    path = folder / FILE
    given = _parse(path)
    env = _env(folder, path, given.pop("env", None))
    tasks = _text(path, "tasks", given.pop("tasks", "tasks.jsonl"))
    if tasks not in DATASETS or (folder / tasks).exists():
        tasks = str(folder / tasks)
    limits = {key: given.pop(key) for key in LIMITS if key in given}
    for key, value in limits.items():
        if _differs(value, LIMITS[key]) or value <= 0:
            raise UsageError(f"{path}: {key!r} must be a number above 0, not {value!r}")
    known = set(inspect.signature(ENVS.get(env)).parameters) - _NOT_OPTIONS
    if unknown := sorted(set(given) - known):
        raise UsageError(
            f"{path}: environment {env!r} has no option {unknown[0]!r}; known: "
            f"{', '.join(sorted({'env', 'tasks', *known, *LIMITS}))}"
        )
    for key, value in given.items():
        if key in _OPTIONS and _differs(value, _OPTIONS[key]):
            kind = _KINDS[_OPTIONS[key][0]]
            raise UsageError(f"{path}: {key!r} must be {kind}, not {value!r}")
    options = {
        key: _placed(folder, key, value) if key in _PATHS else value for key, value in given.items()
    }
    return Project(folder, env, tasks, options, limits)


def options_of(project: Project, given: Mapping[str, Any]) -> dict[str, Any]:
    """What to make the project's environment with, where what is given comes first."""
    from intercode.sandbox.base import Limits

    options = {"data": project.tasks, **project.options, **given}
    if project.limits and options.get("limits") is None:
        options["limits"] = Limits(**project.limits)
    return options


def _parse(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}; 'intercode new' makes such a folder"
        ) from None
    except ValueError as error:  # neither UTF-8 nor TOML
        raise UsageError(f"{path}: {error}") from None


def _env(folder: Path, path: Path, given: object) -> str:
    name = _text(path, "env", given)
    if own_code.is_reference(name):
        return _register(path, own_code.load("environment", str(folder / name)))
    if name not in ENVS or ":" in name:
        known = ", ".join(known for known in ENVS.names() if ":" not in known)
        raise UsageError(f"{path}: there is no environment {name!r}; known: {known}")
    return name


def _register(path: Path, made: Any) -> str:
    """The name under which a folder's own environment is known from now on."""
    name = getattr(made, "name", None)
    theirs = not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name)
    if name in ENVS and getattr(ENVS.get(str(name)), "__module__", "") != made.__module__:
        theirs = True
    if theirs:
        raise UsageError(
            f"{path}: environment {made.__qualname__} needs a 'name' of its own, of lower-case "
            f"letters, digits and hyphens, not {name!r}"
        )
    ENVS.register(str(name), made, replace=True)
    return str(name)


def _differs(value: object, types: tuple[type, ...]) -> bool:
    return not isinstance(value, types) or (isinstance(value, bool) and bool not in types)


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        said = "is missing" if value is None else f"must be text, not {value!r}"
        raise UsageError(f"{path}: {key!r} {said}")
    return value


def _placed(folder: Path, key: str, text: str) -> str:
    """A path or an image's name that means the same in any working directory."""
    if key == "reward":
        return str(folder / text) if own_code.is_reference(text) else text
    if key == "image":
        return _image(folder, text)
    return text if _URL.match(text) else str(folder / text)


def _image(folder: Path, text: str) -> str:
    from intercode.sandbox.images.base import parse

    if (folder / text).exists() and not text.startswith((".", "/")):
        text = f"./{text}"  # which tells a path from a name
    try:
        return str(parse(text, folder))
    except ImageError:
        return text  # for the provider of sandboxes to understand, or to refuse
