# Written by scripts/stub.
# ruff: noqa: I001
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import gymnasium

from intercode.databases.base import DatabaseSession
from intercode.envs.options import CacheValue, EngineValue, PathValue, ProviderValue, RewardValue
from intercode.registration import register as register
from intercode_sandbox import __version__ as __version__
from intercode_sandbox.base import SandboxBackend
from intercode.datasets import load as load_dataset
from intercode.envs.base import InterCodeEnv as InterCodeEnv
from intercode.envs.snapshots import EpisodeSnapshot as EpisodeSnapshot
from intercode.envs.time_limit import TimeLimit as TimeLimit
from intercode.envs.tools import tools as tools
from intercode.episode import Episode as Episode
from intercode.episode import FileChange as FileChange
from intercode.episode import Fork as Fork
from intercode.episode import Score as Score
from intercode.episode import Tokens as Tokens
from intercode.episode import Turn as Turn
from intercode.episode import TurnChanges as TurnChanges
from intercode.episode import exact as exact
from intercode.episode import plain as plain
from intercode.errors import ActionError as ActionError
from intercode.errors import AgentStartError as AgentStartError
from intercode.errors import BudgetError as BudgetError
from intercode.errors import CapacityError as CapacityError
from intercode.errors import CausedInsideError as CausedInsideError
from intercode.errors import ContextLengthError as ContextLengthError
from intercode.errors import DatabaseError as DatabaseError
from intercode.errors import DockerfileError as DockerfileError
from intercode.errors import EnvironmentStateError as EnvironmentStateError
from intercode.errors import FetchError as FetchError
from intercode.errors import ForkError as ForkError
from intercode.errors import ImageError as ImageError
from intercode.errors import InterCodeError as InterCodeError
from intercode.errors import LeaseError as LeaseError
from intercode.errors import ModelAccessError as ModelAccessError
from intercode.errors import ModelError as ModelError
from intercode.errors import ModelUnavailableError as ModelUnavailableError
from intercode.errors import OutputLimitError as OutputLimitError
from intercode.errors import RecordError as RecordError
from intercode.errors import RecordWriteError as RecordWriteError
from intercode.errors import RewardError as RewardError
from intercode.errors import RunLockedError as RunLockedError
from intercode.errors import SandboxClosedError as SandboxClosedError
from intercode.errors import SandboxEndedError as SandboxEndedError
from intercode.errors import SandboxError as SandboxError
from intercode.errors import SandboxTimeoutError as SandboxTimeoutError
from intercode.errors import SandboxUnavailableError as SandboxUnavailableError
from intercode.errors import TaskError as TaskError
from intercode.errors import TaskNotFoundError as TaskNotFoundError
from intercode.errors import TrustError as TrustError
from intercode.errors import UsageError as UsageError
from intercode.errors import VectorError as VectorError
from intercode.project import create_vec as make_vec
from intercode.task import Dataset as Dataset
from intercode.task import Task as Task
from intercode_sandbox.base import Limits as Limits
from intercode_integrations import AsyncEnv as AsyncEnv
from intercode_integrations import SandboxPool as SandboxPool
from intercode_integrations import connect as connect
from intercode_integrations import connect_vec as connect_vec

PUBLIC_NAMES: Mapping[str, str]
__all__ = [
    "ActionError",
    "AgentStartError",
    "BudgetError",
    "CapacityError",
    "CausedInsideError",
    "ContextLengthError",
    "DatabaseError",
    "Dataset",
    "DockerfileError",
    "EnvironmentStateError",
    "Episode",
    "EpisodeSnapshot",
    "FetchError",
    "FileChange",
    "Fork",
    "ForkError",
    "ImageError",
    "InterCodeEnv",
    "InterCodeError",
    "LeaseError",
    "Limits",
    "ModelAccessError",
    "ModelError",
    "ModelUnavailableError",
    "OutputLimitError",
    "RecordError",
    "RecordWriteError",
    "RewardError",
    "RunLockedError",
    "SandboxClosedError",
    "SandboxEndedError",
    "SandboxError",
    "SandboxTimeoutError",
    "SandboxUnavailableError",
    "Score",
    "Task",
    "TaskError",
    "TaskNotFoundError",
    "TimeLimit",
    "Tokens",
    "TrustError",
    "Turn",
    "TurnChanges",
    "UsageError",
    "VectorError",
    "exact",
    "load_dataset",
    "make",
    "make_vec",
    "plain",
    "tools",
]

@overload
def make(
    env: Literal["bash"],
    *,
    protocol: str = ...,
    max_episode_steps: int | None = ...,
    split: str | None = ...,
    data: str | Path | Dataset = ...,
    timeout: float | str | None = ...,
    memory: int | str | None = ...,
    disk: int | str | None = ...,
    output: int | str | None = ...,
    processes: int | str | None = ...,
    capabilities: list[str] | str | None = ...,
    sandbox: ProviderValue = ...,
    limits: Limits | Mapping[str, Any] | None = ...,
    max_turns: int = ...,
    reward_every_turn: bool = ...,
    render_mode: Literal[None, "ansi"] = ...,
    seed: int | None = ...,
    observations: Literal["text", "utf-8"] = ...,
    errors: Literal["raise", "value"] = ...,
    image: PathValue | None = ...,
    default_image: str | None = ...,
    layers: Sequence[str] = ...,
    network: bool | str | Sequence[str] = ...,
    keep_diffs: bool = ...,
    keys: bool = ...,
    reward: RewardValue | None = ...,
    ignore: Sequence[str] = ...,
    cache_gold: CacheValue = ...,
) -> InterCodeEnv[SandboxBackend]: ...
@overload
def make(
    env: Literal["ctf"],
    *,
    protocol: str = ...,
    max_episode_steps: int | None = ...,
    split: str | None = ...,
    data: str | Path | Dataset = ...,
    timeout: float | str | None = ...,
    memory: int | str | None = ...,
    disk: int | str | None = ...,
    output: int | str | None = ...,
    processes: int | str | None = ...,
    capabilities: list[str] | str | None = ...,
    sandbox: ProviderValue = ...,
    limits: Limits | Mapping[str, Any] | None = ...,
    max_turns: int = ...,
    reward_every_turn: bool = ...,
    render_mode: Literal[None, "ansi"] = ...,
    seed: int | None = ...,
    observations: Literal["text", "utf-8"] = ...,
    errors: Literal["raise", "value"] = ...,
    image: PathValue | None = ...,
    default_image: str | None = ...,
    layers: Sequence[str] = ...,
    network: bool | str | Sequence[str] = ...,
    keep_diffs: bool = ...,
    keys: bool = ...,
    reward: RewardValue | None = ...,
    attempts: int | None = ...,
    secret: str | None = ...,
) -> InterCodeEnv[SandboxBackend]: ...
@overload
def make(
    env: Literal["python"],
    *,
    protocol: str = ...,
    max_episode_steps: int | None = ...,
    split: str | None = ...,
    data: str | Path | Dataset = ...,
    timeout: float | str | None = ...,
    memory: int | str | None = ...,
    disk: int | str | None = ...,
    output: int | str | None = ...,
    processes: int | str | None = ...,
    capabilities: list[str] | str | None = ...,
    sandbox: ProviderValue = ...,
    limits: Limits | Mapping[str, Any] | None = ...,
    max_turns: int = ...,
    reward_every_turn: bool = ...,
    render_mode: Literal[None, "ansi"] = ...,
    seed: int | None = ...,
    observations: Literal["text", "utf-8"] = ...,
    errors: Literal["raise", "value"] = ...,
    image: PathValue | None = ...,
    default_image: str | None = ...,
    layers: Sequence[str] = ...,
    network: bool | str | Sequence[str] = ...,
    keep_diffs: bool = ...,
    keys: bool = ...,
    reward: RewardValue | None = ...,
    python: str | None = ...,
) -> InterCodeEnv[SandboxBackend]: ...
@overload
def make(
    env: Literal["sql"],
    *,
    protocol: str = ...,
    max_episode_steps: int | None = ...,
    split: str | None = ...,
    data: str | Path | Dataset = ...,
    timeout: float | str | None = ...,
    memory: int | str | None = ...,
    disk: int | str | None = ...,
    output: int | str | None = ...,
    processes: int | str | None = ...,
    capabilities: list[str] | str | None = ...,
    sandbox: ProviderValue = ...,
    limits: Limits | Mapping[str, Any] | None = ...,
    max_turns: int = ...,
    reward_every_turn: bool = ...,
    render_mode: Literal[None, "ansi"] = ...,
    seed: int | None = ...,
    observations: Literal["text", "utf-8"] = ...,
    errors: Literal["raise", "value"] = ...,
    engine: EngineValue = ...,
    databases: PathValue | None = ...,
    max_rows: int = ...,
    permute_columns: bool | None = ...,
    columns: str | None = ...,
    reward: RewardValue | None = ...,
    cache_gold: CacheValue = ...,
) -> InterCodeEnv[DatabaseSession]: ...
@overload
def make(
    env: Literal["swe"],
    *,
    protocol: str = ...,
    max_episode_steps: int | None = ...,
    split: str | None = ...,
    data: str | Path | Dataset = ...,
    timeout: float | str | None = ...,
    memory: int | str | None = ...,
    disk: int | str | None = ...,
    output: int | str | None = ...,
    processes: int | str | None = ...,
    capabilities: list[str] | str | None = ...,
    sandbox: ProviderValue = ...,
    limits: Limits | Mapping[str, Any] | None = ...,
    max_turns: int = ...,
    reward_every_turn: bool = ...,
    render_mode: Literal[None, "ansi"] = ...,
    seed: int | None = ...,
    observations: Literal["text", "utf-8"] = ...,
    errors: Literal["raise", "value"] = ...,
    image: PathValue | None = ...,
    default_image: str | None = ...,
    layers: Sequence[str] = ...,
    network: bool | str | Sequence[str] = ...,
    keep_diffs: bool = ...,
    keys: bool = ...,
    reward: RewardValue | None = ...,
    ignore: Sequence[str] = ...,
    repositories: PathValue | None = ...,
    history: Literal["none", "full"] = ...,
    cache_gold: CacheValue = ...,
) -> InterCodeEnv[SandboxBackend]: ...
@overload
def make(
    env: str | Path,
    *,
    protocol: str = ...,
    max_episode_steps: int | None = ...,
    split: str | None = ...,
    **options: Any,
) -> gymnasium.Env[str, str]: ...
