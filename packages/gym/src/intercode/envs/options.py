"""Options of environments: the single source of names, types, defaults, bounds and help texts.

The attribute ``Options`` of an environment's class is a subclass of `EnvOptions`. The fields of
that subclass define the arguments of the constructor, `intercode.make`, the command line,
``intercode.toml`` and the reference. An environment of another package may define a subclass::

    class MazeOptions(SandboxOptions, frozen=True, kw_only=True):
        width: Annotated[int, Meta(description="cells in a row", ge=2)] = 8

`list_class_options` lists a class's fields with the facts that text formats need, and
`list_constructor_options` lists the options of an environment's constructor. In text formats, a
field whose type is a Python object or the object's name takes the name, as a text.

Runs with different values of an option are different runs, unless the field's role excludes the
option from a run's identity: see `Role`.
"""

from __future__ import annotations

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from intercode.errors import UsageError
from intercode_sandbox.base import Limits
from intercode_sandbox.linux_capabilities import CAPABILITIES
from intercode_sandbox.network import NetworkPolicy
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.units import LIMITS

if TYPE_CHECKING:
    from pathlib import Path

    from intercode.databases.base import DatabaseEngine
    from intercode.rewards.gold import GoldCache
    from intercode_sandbox.base import Provider

    # The value of the option `reward`: a function, a `Reward`, a judge, or a reward's name.
    RewardValue = str | Callable[..., Any] | Any
    ProviderValue = str | Provider
    EngineValue = str | DatabaseEngine
    PathValue = str | Path
    CacheValue: TypeAlias = bool | GoldCache
else:  # the types of values in text formats
    RewardValue = ProviderValue = EngineValue = PathValue = str
    CacheValue = bool

Role = Literal["identifies", "described", "presentation", "resources", "session"]
"""The role of an option in a run's identity.

- ``identifies``: the value is part of the identity.
- ``described``: the value's effect is part of the identity, by a digest or another recorded fact.
- ``presentation``: the value changes output or records, but nothing an agent or a reward reads.
- ``resources``: the value changes only the speed of a run.
- ``session``: the value may differ between the sessions of a run.
"""
_PLAIN_TYPES = (str, int, float, bytes, list, tuple, dict, set)
_OptionsT = TypeVar("_OptionsT", bound="EnvOptions")

Image = Annotated[
    PathValue | None,
    Meta(
        description="the image of all tasks; layers that a task adds to host (host+…) are added to "
        "it (default: each task's own image, else host)",
        extra={"metavar": "IMAGE", "path": True, "role": "described", "daily": True},
    ),
]
DefaultImage = Annotated[
    str | None,
    Meta(
        description="the image of tasks without one, from a benchmark's intercode.toml (default: "
        "host)",
        extra={"flag": False, "path": True, "role": "described"},
    ),
]
NetworkOption = Annotated[
    bool | str | Sequence[str],
    Meta(
        description="let tasks reach one endpoint (HOST:PORT, at 127.0.0.1:PORT of the sandbox), "
        "an allowlist of hosts through a proxy (pypi.org,*.example.org), or without a value this "
        "machine's whole network; also run the tasks that need a network",
        extra={"metavar": "HOSTS", "many": True},
    ),
]
Layers = Annotated[
    Sequence[str],
    Meta(
        description="archives with files of the agent, such as its skills, as layers over every "
        "task's image; the recorded image excludes them",
        extra={"flag": False, "many": True, "role": "described"},
    ),
]
Ignore = Annotated[
    Sequence[str],
    Meta(
        description="for Bash: paths with an external agent's own files, ignored by the comparison "
        "unless the task works there",
        extra={"flag": False, "many": True},
    ),
]
KeepDiffs = Annotated[
    bool,
    Meta(
        description="record the files that each turn changed",
        extra={"role": "presentation"},
    ),
]
Keys = Annotated[
    bool,
    Meta(
        description="for Bash, SWE and CTF: add a tool that sends keys to a terminal, for programs "
        "that need one"
    ),
]
RewardOption = Annotated[
    RewardValue | None,
    Meta(
        description="your own reward function, such as reward.py:score; for Bash also judge; for "
        "SQL also bird-ex, bird-soft-f1, bird-r-ves or spider-test-suite",
        extra={"metavar": "FILE:NAME", "path": True, "role": "described", "daily": True},
    ),
]
MaxTurns = Annotated[
    int,
    Meta(
        description="maximum turns of an episode",
        ge=1,
        extra={"metavar": "N", "role": "described", "daily": True},
    ),
]
EngineOption = Annotated[
    EngineValue,
    Meta(
        description="for SQL: sqlite (default), duckdb, mysql, postgresql, a server's URL, or your "
        "own engine",
        extra={"metavar": "NAME|URL|FILE:NAME", "role": "described"},
    ),
]
Databases = Annotated[
    PathValue | None,
    Meta(
        description="for SQL: the folder, database file or dump with the tasks' databases",
        extra={"metavar": "PATH", "path": True, "role": "described"},
    ),
]
CacheGold = Annotated[
    CacheValue,
    Meta(
        description="whether gold runs once per task instead of at every score (False if gold "
        "depends on the clock), or a cache shared with other environments",
        extra={"flag": False, "role": "resources"},
    ),
]


BINARY_OPTIONS: dict[str, tuple[str | None, str]] = {
    "render_mode": (None, "ansi"),
    "observations": ("text", "utf-8"),
    "errors": ("raise", "value"),
    "history": ("none", "full"),
}
"""Options with exactly two valid values, of which the first is the default."""
_LIMITS = Limits()


def _limit(description: str, metavar: str, **extra: Any) -> Meta:
    return Meta(description=description, extra={"metavar": metavar, "role": "described", **extra})


class LimitOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of `Limits` that are also single options; None: the value in `limits`.

    `intercode_sandbox.units.LIMITS` parses and validates the values of every source.
    """

    timeout: Annotated[
        float | None,
        _limit(f"time limit of each action (default: {_LIMITS.timeout:g})", "SECONDS", daily=True),
    ] = None
    memory: Annotated[int | str | None, _limit("memory of a sandbox (default: 1G)", "SIZE")] = None
    disk: Annotated[int | str | None, _limit("disk space of a sandbox (default: 1G)", "SIZE")] = (
        None
    )
    output: Annotated[
        int | str | None, _limit("retained output of each action (default: 1M)", "SIZE")
    ] = None
    processes: Annotated[
        int | None, _limit(f"processes of a sandbox (default: {_LIMITS.processes})", "N")
    ] = None
    capabilities: Annotated[
        list[str] | str | None,
        _limit(
            f"capabilities of root in a sandbox: any of {', '.join(CAPABILITIES)} (default: none)",
            "NAME,…",
        ),
    ] = None


class EnvOptions(LimitOptions, frozen=True, kw_only=True):
    """The options of every environment.

    A single limit (such as ``memory``) is merged into `limits` and overrides the value there.

    Raises:
        UsageError: A value has the wrong type, or is out of bounds.
    """

    sandbox: Annotated[
        ProviderValue,
        Meta(
            description="provider of sandboxes: native (default); docker: an engine with Docker's "
            "API; or your own provider",
            extra={"metavar": "NAME|FILE:NAME", "role": "described"},
        ),
    ] = "native"
    limits: Annotated[
        Limits | None,
        Meta(
            description="resource limits of a sandbox: `Limits`, or names with values, such as "
            "{'memory': '2G'} (default: `Limits()`)",
            extra={"flag": False, "role": "described"},
        ),
    ] = None
    max_turns: MaxTurns = 10
    reward_every_turn: Annotated[
        bool,
        Meta(
            description="score after every action, like the 'Try Again' setting of 2023; the "
            "reward guides the agent, so results must say so",
            extra={"flag": False, "role": "described"},
        ),
    ] = False
    render_mode: Annotated[
        str | None,
        Meta(description="None or 'ansi'", extra={"flag": False, "role": "presentation"}),
    ] = None
    seed: Annotated[
        int | None,
        Meta(
            description="seed of the first reset without a seed",
            extra={"flag": False, "role": "described"},
        ),
    ] = None
    observations: Annotated[
        str,
        Meta(
            description="'text' (a byte that is not UTF-8 is a lone surrogate), or 'utf-8' for a "
            "wire: `intercode.plain` escapes observations, and `exact` decodes actions",
            extra={"flag": False},
        ),
    ] = "text"
    errors: Annotated[
        str,
        Meta(
            description="'raise', or 'value': an infrastructure failure ends the episode as "
            "truncated, with the reward NaN and `info['error']`",
            extra={"flag": False, "role": "presentation"},
        ),
    ] = "raise"

    def __post_init__(self) -> None:
        """Validate the values and merge the limits; msgspec validates only when it decodes."""
        for name, option in list_class_options(type(self)).items():
            value = getattr(self, name)
            if name not in LIMITS and (requirement := option.requirement(value)):
                raise UsageError(f"{name} must be {requirement}, not {value!r}")
        limit_options = {name: getattr(self, name) for name in LimitOptions.__struct_fields__}
        limit_options = {name: value for name, value in limit_options.items() if value is not None}
        if limit_options or self.limits is not None:
            msgspec.structs.force_setattr(
                self, "limits", Limits.merge(self.limits, **limit_options)
            )
        for name in limit_options:
            msgspec.structs.force_setattr(self, name, None)
        for name, (first_value, second_value) in BINARY_OPTIONS.items():
            if (value := getattr(self, name, first_value)) not in (first_value, second_value):
                raise UsageError(
                    f"{name} must be {first_value!r} or {second_value!r}, not {value!r}"
                )

    @classmethod
    def merge(
        cls: type[_OptionsT], options: EnvOptions | None, changes: Mapping[str, Any]
    ) -> _OptionsT:
        """Merge a constructor's options object with its single options.

        Args:
            options: An instance of this class; None: the defaults.
            changes: Single options by name, which override `options`. ``provider`` is an older
                name of ``sandbox``.

        Returns:
            An instance of this class.

        Raises:
            UsageError: `options` is of another class, an option is unknown, or a value is invalid.
        """
        if not isinstance(options, (cls, type(None))):
            raise UsageError(f"options must be {cls.__name__}, not {type(options).__name__}")
        changes = _rename_options(changes)
        if unknown := sorted(set(changes) - set(cls.__struct_fields__)):
            suggestion = hint_text(unknown[0], ("data", *cls.__struct_fields__))
            if unknown[0] in _DATA_ALIASES:
                suggestion = "; the tasks are 'data'"
            raise UsageError(f"there is no option {unknown[0]!r}{suggestion}")
        if options is None:
            return cls(**changes)
        return msgspec.structs.replace(options, **changes) if changes else options


class SandboxOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of an environment whose tasks run in sandboxes."""

    image: Image = None
    default_image: DefaultImage = None
    layers: Layers = ()
    network: NetworkOption = False
    keep_diffs: KeepDiffs = False
    keys: Keys = False
    reward: RewardOption = None

    def __post_init__(self) -> None:
        """Validate the values, including the network policy."""
        super().__post_init__()
        NetworkPolicy.parse(self.network)


class ShellOptions(SandboxOptions, frozen=True, kw_only=True):
    """The options of a shell environment that external agents can use."""

    ignore: Ignore = ()


class BashOptions(ShellOptions, frozen=True, kw_only=True):
    """The options of `intercode.envs.bash.BashEnv`."""

    cache_gold: CacheGold = True


class CtfOptions(SandboxOptions, frozen=True, kw_only=True):
    """The options of `intercode.envs.ctf.CtfEnv`."""

    attempts: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="for CTF: number of wrong flags that ends an episode (default: 3; 0: no "
            "limit)",
            extra={"metavar": "N"},
        ),
    ] = 3
    secret: Annotated[
        str | None,
        Meta(
            description="the secret from which the flags of the bundled puzzles are derived "
            "(default: drawn at random, once for each process)",
            extra={"flag": False},
        ),
    ] = None


class PythonOptions(SandboxOptions, frozen=True, kw_only=True):
    """The options of `intercode.envs.python.PythonEnv`."""

    python: Annotated[
        str | None,
        Meta(
            description="for Python: an interpreter of the image, such as python3, from Python 3.8 "
            "on (default: InterCode's own, without packages)",
            extra={"metavar": "PROGRAM"},
        ),
    ] = None


class SqlOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of `intercode.envs.sql.SqlEnv`."""

    engine: EngineOption = "sqlite"
    databases: Databases = None
    max_rows: Annotated[
        int,
        Meta(
            description="for SQL: maximum rows of an observation (default: 50)",
            ge=1,
            extra={"metavar": "N"},
        ),
    ] = 50
    permute_columns: Annotated[
        bool | None,
        Meta(
            description="for SQL: accept the columns of an answer in any order (default: as the "
            "dataset says; yes for Spider)"
        ),
    ] = None
    columns: Annotated[
        str | None,
        Meta(
            description="for SQL: exact: accept only the requested columns; explained: also accept "
            "one more column, by which the answer orders, groups or filters (default: as the "
            "dataset says; explained for reviewed sets)",
            extra={"choices": ["exact", "explained"]},
        ),
    ] = None
    reward: RewardOption = None
    cache_gold: CacheGold = True

    def __post_init__(self) -> None:
        """Validate the values, and refuse capabilities: only a root shell can use them."""
        super().__post_init__()
        if self.limits is not None and self.limits.capabilities:
            raise UsageError("SQL takes no capabilities: they are for tasks with a shell")


class SweOptions(ShellOptions, frozen=True, kw_only=True):
    """The options of `intercode.envs.swe.SweEnv`."""

    repositories: Annotated[
        PathValue | None,
        Meta(
            description="for SWE: folder or URL of the repositories that tasks name but do not "
            "include",
            extra={"metavar": "DIR|URL", "path": True, "role": "described"},
        ),
    ] = None
    history: Annotated[
        str,
        Meta(
            description="for SWE: none: the repository has a single commit (default); full: it "
            "also has the earlier commits, which may contain the answer",
            extra={"choices": ("none", "full"), "role": "described"},
        ),
    ] = "none"
    max_turns: MaxTurns = 30
    cache_gold: CacheGold = True


class OptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """An option with the facts that text formats need."""

    name: str
    kinds: tuple[type, ...]
    """The permitted types of a TOML or JSON value: some of str, bool, int and float. Empty: the
    option has no text form."""
    default: Any
    help: str
    metavar: str | None = None
    minimum: int | float | None = None
    """The smallest value."""
    choices: tuple[str, ...] = ()
    is_optional: bool = True
    """Whether the value may be None."""
    has_flag: bool = True
    """Whether the command line has a flag of the option's name."""
    is_list: bool = False
    """Whether the value may be a list of texts."""
    is_path: bool = False
    """Whether the value may be a path, relative to the folder of the file with the option."""
    role: Role = "identifies"
    is_daily: bool = False
    """Whether the short help of a command shows the option."""
    group: str = ""
    """The title of the option's group in help; empty: the group of its class."""
    fact: str = ""
    """The key of the fact in a run's record that this option determines. A command that repeats the
    run accepts another value of the fact if this option is set. Empty: no such fact."""

    @property
    def flag(self) -> str:
        """The flag on the command line, such as ``--max-turns``."""
        return "--" + self.name.replace("_", "-")

    @property
    def kind(self) -> str:
        """The type of a value in words, such as ``a whole number``."""
        words = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
        first_kind = next(kind for kind in self.kinds if kind is not bool or len(self.kinds) == 1)
        prefix = "true, false or " if bool in self.kinds and first_kind is not bool else ""
        return f"{prefix}{words[first_kind]}"

    def accepts(self, value: object) -> bool:
        """Return whether a TOML or JSON value has a permitted type."""
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, (list, tuple)):
            return self.is_list and all(isinstance(item, str) for item in value)
        number_types = {int: Integral, float: Real}  # numpy's numbers are valid, too
        return isinstance(value, tuple(number_types.get(kind, kind) for kind in self.kinds))

    def read(self, text: str) -> Any:
        """Parse a value from the command line.

        Raises:
            ValueError: The value has the wrong type, is out of bounds or not finite, or is not
                among `choices`.
        """
        value: Any = text
        if bool in self.kinds and text in ("true", "false"):
            value = text == "true"
        elif int in self.kinds and re.fullmatch(r"[+-]?[0-9]+", text):
            value = int(text)
        elif float in self.kinds:
            with suppress(ValueError):
                value = float(text)
        requirement = self.requirement(value)
        if self.choices and value not in self.choices:
            requirement = f"one of {', '.join(self.choices)}"
        if requirement or (isinstance(value, float) and not isfinite(value)):
            raise ValueError(f"must be {requirement or self.kind}, not {text!r}")
        return value

    def requirement(self, value: Any) -> str:
        """Return the violated requirement in words; empty if the value is valid.

        A Python object, such as a provider or a reward, is as valid as its name.
        """
        is_plain = isinstance(value, _PLAIN_TYPES) and not self.accepts(value)
        if self.kinds and (is_plain or (value is None and not self.is_optional)):
            return self.kind
        too_small = self.minimum is not None and value is not None and value < self.minimum
        return f"at least {self.minimum}" if too_small else ""


@cache
def list_class_options(kind: type[msgspec.Struct]) -> dict[str, OptionDescription]:
    """List the options of a class by name, in the order of its fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    options = {}
    for field in msgspec.structs.fields(kind):
        types, metadata_items = _split_annotation(hints[field.name])
        extra = {
            key: value
            for metadata in metadata_items
            for key, value in (metadata.extra or {}).items()
        }
        options[field.name] = OptionDescription(
            name=field.name,
            kinds=tuple(
                value_type for value_type in (str, bool, int, float) if value_type in types
            ),
            default=field.default,
            help=next(
                (metadata.description for metadata in metadata_items if metadata.description), ""
            ),
            metavar=extra.get("metavar"),
            minimum=next(
                (metadata.ge for metadata in metadata_items if metadata.ge is not None), None
            ),
            choices=tuple(extra.get("choices", ())),
            is_optional=type(None) in types,
            has_flag=extra.get("flag", True),
            is_list=extra.get("many", False),
            is_path=extra.get("path", False),
            role=extra.get("role", "identifies"),
            is_daily=extra.get("daily", False),
            group=extra.get("group", ""),
            fact=extra.get("fact", ""),
        )
    return options


def list_constructor_options(kind: Callable[..., Any]) -> dict[str, OptionDescription]:
    """List the options of an environment's constructor by name.

    A parameter that the class ``Options`` does not define has no kind and no help.

    Raises:
        UsageError: The constructor has no first parameter for the tasks.
    """
    class_options = list_class_options(getattr(kind, "Options", EnvOptions))
    data_parameter, *parameters = inspect.signature(kind).parameters.values() or (None,)
    if data_parameter is None:
        raise UsageError(
            f"environment {getattr(kind, '__qualname__', kind)!r} must take the tasks as its first "
            "argument: def __init__(self, data, **options)"
        )
    has_variadic = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    declared_parameters = [
        parameter
        for parameter in parameters
        if parameter.kind not in variadic and parameter.name != "options"
    ]
    return {
        **(class_options if has_variadic else {}),
        **{
            parameter.name: class_options.get(parameter.name)
            or OptionDescription(
                name=parameter.name, kinds=(), default=parameter.default, help="", has_flag=False
            )
            for parameter in declared_parameters
        },
    }


def list_text_options(kind: Callable[..., Any]) -> dict[str, OptionDescription]:
    """List the options of `list_constructor_options` that have a text form.

    A parameter that the class ``Options`` does not define has the type of its default.
    """
    options = {}
    for name, option in list_constructor_options(kind).items():
        kinds = option.kinds or (type(option.default),)
        if kinds[0] in (str, bool, int, float):
            options[name] = msgspec.structs.replace(option, kinds=kinds)
    return options


def _split_annotation(hint: Any) -> tuple[list[Any], list[Meta]]:
    """Return the plain types of an annotation, and all its `Meta` objects."""
    if own_metadata := [
        meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)
    ]:
        types, inner_metas = _split_annotation(hint.__origin__)
        return types, own_metadata + inner_metas
    union_members = [_split_annotation(member_hint) for member_hint in typing.get_args(hint)]
    return (
        [plain_type for types, _ in union_members for plain_type in types] or [hint],
        [meta for _, inner_metas in union_members for meta in inner_metas],
    )


_DATA_ALIASES = {"tasks", "dataset"}
"""Other names of an environment's tasks: in ``intercode.toml``, and in other libraries."""


def _rename_options(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the option ``provider`` to ``sandbox``, its current name, and warn the caller.

    Raises:
        UsageError: Both names are given with different values.
    """
    changes = dict(changes)
    if "provider" in changes:
        warnings.warn(
            "provider= is now named sandbox=",
            DeprecationWarning,
            stacklevel=4,  # the warning points at the caller of the environment's constructor
        )
        provider = changes.pop("provider")
        if changes.setdefault("sandbox", provider) is not provider:
            raise UsageError("give sandbox=, not provider= as well")
    return changes
