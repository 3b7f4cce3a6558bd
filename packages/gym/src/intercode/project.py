"""Construction of environments, either by name or from a benchmark's folder.

The folder contains a file ``intercode.toml``, which names the environment, its tasks and its
options. The command `intercode new` writes such a folder; `intercode run FOLDER`, `play`,
`validate` and `intercode.make` read it. A relative path in the file is relative to the folder, not
to the working directory::

    env = "bash"                  # or "maze.py:MazeEnv", an environment of its own
    tasks = "tasks.jsonl"         # or a dataset's name
    name = "Mazes"                # the benchmark's; default: the folder's name
    image = "./Dockerfile"        # any other key is an option of the environment, or a limit
    reward = "reward.py:score"
"""

from __future__ import annotations

import inspect
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.datasets import load as load_dataset, loader_name
from intercode.envs.options import LimitOptions, OptionDescription, list_constructor_options
from intercode.errors import ImageError, InterCodeError, UsageError
from intercode.registry import ENVS, VECTORS, environment, parse_scheme
from intercode_sandbox.base import Limits
from intercode_sandbox.host_files import open_regular
from intercode_sandbox.interruption import is_handlers
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.units import LIMITS
from intercode_sandbox.user_code import absolute, error_location, is_reference, target_reference

if TYPE_CHECKING:
    import gymnasium

    from intercode.envs.vector import ThreadVectorEnv

FILE = "intercode.toml"
_MAX_FILE_BYTES = 1 << 20
"""The size limit of an ``intercode.toml``, in bytes: 1 MiB."""

NO_TEXTS = {
    "limits",
    "render_mode",
    "default_image",
    "observations",
    "errors",
    "layers",
    "ignore",
}
"""Constructor options that neither an ``intercode.toml`` nor a command line can set. Each limit has
an option with its own name instead of ``limits``. The key ``image`` of a folder sets
``default_image``. The caller alone chooses the form of observations and errors."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:")


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The contents of a folder's ``intercode.toml``."""

    folder: Path
    env: str
    """The environment's registered name."""
    tasks: str
    """The path of a file of tasks, or a dataset's name."""
    name: str
    """The benchmark's name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor; paths are absolute."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `intercode.Limits`."""
    split: str | None = None
    """The split of the tasks; None: the data's default split, or all tasks."""


def is_project(folder: str | Path) -> bool:
    """Return whether a folder has an ``intercode.toml``."""
    return Path(folder, FILE).is_file()


def find_benchmark(file: str | Path) -> Path | None:
    """Return the benchmark folder that a file of tasks belongs to; None without a benchmark.

    The benchmark folder is the folder that contains the file, or a parent whose ``intercode.toml``
    names the file. An ``intercode.toml`` counts only if its owner is the current user or the owner
    of the file of tasks. Otherwise another user could plant it in a shared folder such as ``/tmp``.
    """
    path = Path(file)
    if not path.is_file():
        return None
    owners = {os.geteuid(), path.stat().st_uid}
    for folder in path.absolute().parents:
        with suppress(OSError, ValueError, TypeError):  # a malformed intercode.toml names no tasks
            if (folder / FILE).lstat().st_uid not in owners:
                continue
            if folder == path.absolute().parent and is_project(folder):
                return path.parent
            tasks = _load(folder / FILE).get("tasks")
            if tasks is not None and (folder / tasks).samefile(path):
                return folder
    return None


def refuse_lone_file(file: str | Path, advice: str = "") -> None:
    """Refuse a file of tasks that belongs to a benchmark's folder.

    The function is called if the user named a file of tasks, but no environment. InterCode does not
    silently use the environment of the folder. The folder's ``intercode.toml`` can name code, and a
    user who names only data must not execute code.

    Args:
        file: The file.
        advice: A suggestion that the error message ends with.

    Raises:
        UsageError: The file belongs to a benchmark.
    """
    folder = find_benchmark(file)
    if folder is not None:
        raise UsageError(
            f"{file}: {folder / FILE} has the options of these tasks: name the folder, "
            f"{folder}{advice}"
        )


def read(folder: str | Path) -> ProjectConfig:
    """Read and validate a folder's ``intercode.toml``, without starting a sandbox.

    Raises:
        UsageError: The file is malformed, or an option is unknown or has an invalid value.
    """
    folder = Path(folder).absolute()
    path = folder / FILE
    settings = _parse(path)
    env = _env(folder, path, settings.pop("env", None))
    tasks = _text(path, "tasks", settings.pop("tasks", "tasks.jsonl"))
    if is_reference(tasks):
        raise UsageError(f"{path}: 'tasks' {_NO_CODE}: {tasks!r}; name it yourself, with --data")
    split = _text(path, "split", settings.pop("split")) if "split" in settings else None
    name = _text(path, "name", settings.pop("name", folder.resolve().name or "benchmark"))
    if loader_name(tasks) is None or (folder / tasks).exists():
        tasks = str(folder / tasks)
    if "provider" in settings:  # the former name of the option `sandbox`
        settings["sandbox"] = settings.pop("provider")
    all_options = list_constructor_options(ENVS.get(env))
    names = LimitOptions.__struct_fields__ if "limits" in all_options else ()
    limits = {key: _limit(path, key, settings.pop(key)) for key in names if key in settings}
    file_options = {key: option for key, option in all_options.items() if key not in NO_TEXTS}
    if unknown := sorted(set(settings) - set(file_options)):
        suggestion = hint_text(unknown[0], {"env", "tasks", "split", "name", *file_options, *names})
        raise UsageError(f"{path}: environment {env!r} has no option {unknown[0]!r}{suggestion}")
    options = {key: _value(path, file_options[key], value) for key, value in settings.items()}
    if "image" in options and "default_image" in all_options:
        options["default_image"] = options.pop("image")
    return ProjectConfig(folder, env, tasks, name, options, limits, split)


def create(
    env: str | Path,
    *,
    protocol: str = "default",
    max_episode_steps: int | None = None,
    split: str | None = None,
    **options: Any,
) -> gymnasium.Env[str, str]:
    """Make an environment. `gymnasium.make` and `intercode.make` call this function.

    Args:
        env: A short name: ``"bash"``; a folder with an ``intercode.toml``; your own class:
            ``"maze.py:Maze"``; or an address of tasks: ``"harbor:FOLDER"``.
        protocol: ``"default"``; ``"paper"`` for the exact behaviour of the 2023 release, including
            its quirks; or your own class.
        max_episode_steps: Gymnasium's name of `max_turns`; the lower of two limits applies.
            `gymnasium.make` does not pass this argument on, so InterCode reads it from the stack
            frame of `gymnasium.make`.
        split: A split of the data (`intercode.datasets.splits`); None: the data's default split, or
            all tasks.
        options: Arguments of the environment's constructor, which override the options of the
            folder's ``intercode.toml``.

    Raises:
        UsageError: The environment or protocol is unknown, or the folder's file is malformed.
    """
    from intercode.envs.time_limit import add_turn_limit, gymnasium_step_limit

    steps = gymnasium_step_limit(depth=1) if max_episode_steps is None else max_episode_steps
    env, options = _expand_folder(env, options)
    # This split comes from the folder; the split of the caller is the parameter `split`.
    folder_split = options.pop("split", None)
    split = folder_split if split is None else split
    if split is not None:
        options["data"] = load_dataset(options.get("data", env), split)
    protocol = admit_protocol(env, protocol)
    return _make_environment(env, environment(env, protocol), add_turn_limit(options, steps))


def _make_environment(
    name: str, cls: Callable[..., gymnasium.Env[str, str]], options: Mapping[str, Any]
) -> gymnasium.Env[str, str]:
    """Call the constructor of an environment's class, and validate its result.

    Args:
        name: The environment's name, for messages.
        cls: The class, or a function that returns an environment.
        options: The arguments.

    Raises:
        UsageError: The constructor of a class outside InterCode fails, or the class is not an
            environment.
    """
    file = getattr(inspect.getmodule(cls), "__file__", None) or ""
    arguments = dict(options)
    # The data is a positional argument, because a user's class may name the parameter differently.
    data_arguments = [arguments.pop("data")] if "data" in arguments else []
    try:
        env = cls(*data_arguments, **arguments)
    except InterCodeError:
        raise
    except (Exception, SystemExit) as error:
        if cls.__module__.startswith("intercode.") or is_handlers(error):
            raise
        location = error_location(error, file) or file or cls.__module__
        raise UsageError(
            f"environment {name!r} could not be created: {location}: {type(error).__name__}: "
            f"{error}"
        ) from error
    from intercode.envs.base import InterCodeEnv

    is_incomplete = isinstance(env, InterCodeEnv) and not hasattr(env, "episode_state")
    if is_incomplete or not hasattr(env, "reset"):
        raise UsageError(
            f"environment {name!r}: {file}: {cls.__qualname__} must be an InterCodeEnv whose "
            "__init__ calls super().__init__(data, …)"
        )
    return env


def create_vec(
    env: str | Path,
    num_envs: int = 1,
    *,
    seed: int | None = None,
    autoreset_mode: str = "NextStep",
    wrappers: Sequence[Callable[[Any], gymnasium.Env[str, str]]] = (),
    backend: str = "threads",
    **options: Any,
) -> ThreadVectorEnv:
    """Make a vector of environments that step on threads. `gymnasium.make_vec` calls this function.

    Args:
        env: As in `create`.
        num_envs: The number of environments, at least 1.
        seed: The seed of the first `reset` without a seed. Environment ``i`` uses ``seed + i``;
            the order of tasks, which all environments share, uses ``seed``.
        autoreset_mode: A value of `gymnasium.vector.AutoresetMode`.
        wrappers: Functions that each take an environment and return its wrapper.
        backend: ``threads``: the environments step on threads of this process. ``ray``: they step
            in processes of the Ray cluster that this process is connected to, or else of the
            default cluster of `intercode_integrations.ray.Ray`. With ``ray``, wrappers and options
            are pickled for transfer.
        options: As in `create`, the same for all environments.

    Raises:
        UsageError: As in `create`; or the vector's options are invalid.
    """
    from intercode.envs.vector import ThreadVectorEnv

    if isinstance(num_envs, bool) or not isinstance(num_envs, Integral):
        raise UsageError(f"num_envs must be a whole number, not {num_envs!r}")
    if num_envs < 1:
        raise UsageError(f"num_envs must be at least 1, not {num_envs}")
    if {"vectorization_mode", "vector_kwargs"} & set(options):
        raise UsageError(
            "intercode.make_vec steps its environments on threads; for processes: "
            "gymnasium.make_vec(…, vectorization_mode='async', "
            "vector_kwargs={'shared_memory': False})"
        )
    if backend != "threads":
        vector_env: ThreadVectorEnv = VECTORS.resolve(backend)(
            env,
            num_envs,
            seed=seed,
            autoreset_mode=autoreset_mode,
            wrappers=wrappers,
            options=options,
        )
        return vector_env
    env, options = share_gold(env, options)
    envs = [create(env, **options) for _ in range(num_envs)]
    for wrap in wrappers:
        envs = [wrap(member_env) for member_env in envs]
    return ThreadVectorEnv(envs, autoreset_mode, seed)


def share_gold(env: str | Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return arguments of `create` for several environments with a shared cache of gold's results.

    Without a shared cache, each environment would run the gold of the same task again.

    Args:
        env: As in `create`.
        options: As in `create`.

    Returns:
        The arguments `env` and `options` of `create`.
    """
    env, options = _expand_folder(env, dict(options))
    kind = environment(env, admit_protocol(env, options.get("protocol", "default")))
    if "cache_gold" in list_constructor_options(kind) and options.get("cache_gold", True) is True:
        from intercode.rewards.gold import GoldCache

        options["cache_gold"] = GoldCache()
    return env, options


def _expand_folder(env: str | Path, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Resolve an environment given as a folder, a user's class or an address of tasks.

    Returns:
        The environment's registered name, and the options with those of the folder or address.
    """
    if isinstance(env, str):
        env = admit(env)
    if isinstance(env, str) and (env in ENVS or not is_project(env)):
        scheme = None if env in ENVS else parse_scheme(env)
        return (env, options) if scheme is None else (scheme, {"data": env, **options})
    project = read(env)
    tasks = {} if "data" in options else {"data": project.tasks, "split": project.split}
    options = {**tasks, **project.options, **options}
    limits = options.get("limits") or {}
    if project.limits and isinstance(limits, Mapping):
        options["limits"] = Limits.merge({**project.limits, **limits})
    return project.env, options


def _parse(path: Path) -> dict[str, Any]:
    try:
        return _load(path)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}; 'intercode new' creates such a folder"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def _load(path: Path) -> dict[str, Any]:
    """Parse an ``intercode.toml``. The file may be untrusted, so its size is limited.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
        ValueError: The file is too large, not UTF-8, or not TOML.
    """
    with open_regular(path) as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES:,} bytes")
    try:
        return dict(tomllib.loads(content.decode()))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _env(folder: Path, path: Path, value: object) -> str:
    name = _text(path, "env", value)
    if is_reference(name):
        return _register(path, ENVS.resolve(str(folder / name)))
    if name not in ENVS or ":" in name:
        unknown = ENVS.unknown(name, [env_name for env_name in ENVS.names() if ":" not in env_name])
        raise UsageError(f"{path}: {unknown}")
    return name


def admit(env: str) -> str:
    """Register an environment class of a user's file, ``maze.py:Maze``, and return its name.

    Any other name is returned unchanged.

    Raises:
        UsageError: The class does not exist, or has no valid, unused `name`.
    """
    return _register(env, ENVS.resolve(env)) if env not in ENVS and is_reference(env) else env


def admit_protocol(env: str, protocol: str) -> str:
    """Register a protocol class of a user's file, ``maze.py:StrictBash``, and return its name.

    Any other name is returned unchanged.

    Raises:
        UsageError: The class does not exist.
    """
    if not is_reference(protocol):
        return protocol
    protocol = absolute(protocol)
    ENVS.register(f"{env}:{protocol}", ENVS.resolve(protocol), replace=True)
    return protocol


def _register(path: object, env_class: Any) -> str:
    """Register a user's environment class, and return its name."""
    name = getattr(env_class, "name", None)
    is_invalid = not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name)
    # A name inherited from one of InterCode's base classes, such as "intercode", does not count.
    bases = [base for base in getattr(env_class, "__mro__", ()) if "name" in vars(base)]
    is_invalid |= (
        bool(bases) and bases[0].__module__.startswith("intercode.") and bases[0] is not env_class
    )
    if name in ENVS:
        holder = ENVS.get(str(name))
        # Classes from two benchmark folders may have the same name in one process: then the last
        # registered class replaces the first.
        is_invalid |= not target_reference(holder) and holder.__module__ != env_class.__module__
    if is_invalid:
        raise UsageError(
            f"{path}: environment {env_class.__qualname__} needs its own 'name', of lower-case "
            f"letters, digits and hyphens, not {name!r}"
        )
    ENVS.register(str(name), env_class, replace=True)
    return str(name)


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        problem = "is missing" if value is None else f"must be text, not {value!r}"
        raise UsageError(f"{path}: {key!r} {problem}")
    return value


def _limit(path: Path, name: str, value: object) -> Any:
    """Parse the value of a limit in an ``intercode.toml``.

    Args:
        path: The ``intercode.toml``, for messages.
        name: The name of the limit.
        value: The value in the file.

    Raises:
        UsageError: The value is invalid.
    """
    try:
        return LIMITS[name](value)
    except ValueError as error:
        raise UsageError(f"{path}: {name!r} {error}") from None


def _value(path: Path, option: OptionDescription, value: Any) -> Any:
    """Validate an option's value. A path or an image's name is resolved relative to the folder.

    Args:
        path: The ``intercode.toml``.
        option: The option of the environment's constructor.
        value: The value in the file.

    Raises:
        UsageError: The value has the wrong type, or names code.
    """
    if requirement := option.requirement(value):
        raise UsageError(f"{path}: {option.name!r} must be {requirement}, not {value!r}")
    if isinstance(value, str) and _runs_code(option.name, value):
        raise UsageError(f"{path}: {option.name!r} {_NO_CODE}: {value!r}; name it yourself")
    if not option.is_path:
        return value
    if option.name == "reward":
        return str(path.parent / value) if is_reference(value) else value
    if option.name == "image":
        return _image(path.parent, value)
    return value if _URL.match(value) else str(path.parent / value)


_NO_CODE = "may not name code, as the folder may be a stranger's"


def _runs_code(option: str, value: str) -> bool:
    """Return whether a value of ``engine``, ``image`` or ``sandbox`` names code outside InterCode.

    Only the user may name such code, because an ``intercode.toml`` may come from a stranger. Code
    of packages that this process has already imported is permitted. The options ``env`` and
    ``reward`` may name the folder's own code, because the user has named the folder.
    """
    from intercode.databases import ENGINES
    from intercode_sandbox.images.base import parse
    from intercode_sandbox.images.resolve import SCHEMES
    from intercode_sandbox.providers import PROVIDERS

    registry = {"engine": ENGINES, "image": SCHEMES, "sandbox": PROVIDERS}.get(option)
    try:
        name = parse(value).scheme if option == "image" else value
    except ImageError:  # a malformed image name is reported when the image is used
        return False
    return registry is not None and registry.is_foreign(name) and not registry.is_trusted(name)


def _image(folder: Path, text: str) -> str:
    from intercode_sandbox.images.base import parse

    if (folder / text).exists() and not text.startswith((".", "/")):
        text = f"./{text}"  # the prefix distinguishes a path from an image's name
    try:
        return str(parse(text, folder))
    except ImageError:
        return text  # the provider of sandboxes resolves or refuses the name
