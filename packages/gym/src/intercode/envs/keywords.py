"""The options of `intercode.make` by environment, for editors and type checkers.

They repeat the names of `intercode.envs.options`, as static types cannot be computed; a test holds
the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from intercode.envs.options import CacheLike, EngineLike, PathLike, ProviderLike, RewardLike
from intercode.task import Dataset
from intercode_sandbox.base import Limits


class Keywords(TypedDict, total=False):
    """The options of every environment."""

    data: str | Path | Dataset
    timeout: float | str
    memory: int | str
    disk: int | str
    output: int | str
    processes: int
    capabilities: str | Sequence[str]
    limits: Limits | Mapping[str, Any] | None
    sandbox: ProviderLike
    max_turns: int
    reward: RewardLike | None
    reward_every_turn: bool
    render_mode: str | None
    seed: int | None
    observations: Literal["text", "utf-8"]
    errors: Literal["raise", "value"]


class SandboxKeywords(Keywords, total=False):
    """The options of environments whose tasks are tried in sandboxes."""

    image: str | Path | None
    default_image: str | None
    layers: Sequence[str]
    network: bool | str | Sequence[str]
    keep_diffs: bool
    keys: bool


class ShellKeywords(SandboxKeywords, total=False):
    """The options of environments in which an agent from outside can play."""

    ignore: Sequence[str]


class BashKeywords(ShellKeywords, total=False):
    """The options of ``"bash"``."""

    cache_gold: CacheLike


class CtfKeywords(SandboxKeywords, total=False):
    """The options of ``"ctf"``."""

    attempts: int | None
    secret: str | None


class PythonKeywords(SandboxKeywords, total=False):
    """The options of ``"python"``."""

    python: str | None


class SqlKeywords(Keywords, total=False):
    """The options of ``"sql"``."""

    engine: EngineLike
    databases: PathLike | None
    max_rows: int
    permute_columns: bool | None
    columns: str | None
    cache_gold: CacheLike


class SweKeywords(ShellKeywords, total=False):
    """The options of ``"swe"``."""

    repositories: PathLike | None
    history: str
    cache_gold: CacheLike
