"""Interactive coding with execution feedback, as a standard reinforcement-learning environment.

Importing the package registers the Gymnasium ids; everything else is imported at its first use.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import intercode_sandbox

try:
    from intercode_sandbox import ORIGIN as ORIGIN, __version__ as __version__
    from intercode_sandbox.extensions import FOLDERS, PACKAGES
    from intercode_sandbox.origin import check_package
except ImportError as error:  # a package without our errors, too
    raise ImportError(
        f"intercode_sandbox ({intercode_sandbox.__file__}) is not InterCode's package of this "
        "name. Remove or rename it, then reinstall intercode-gym and intercode-sandbox",
        name="intercode_sandbox",
        path=intercode_sandbox.__file__,
    ) from error

if TYPE_CHECKING:
    from intercode.datasets import load as load_dataset
    from intercode.envs.base import InterCodeEnv
    from intercode.envs.snapshots import EpisodeSnapshot
    from intercode.envs.time_limit import TimeLimit
    from intercode.envs.tools import tools
    from intercode.episode import (
        Episode,
        FileChange,
        Fork,
        Score,
        Tokens,
        Turn,
        TurnChanges,
        exact,
        plain,
    )
    from intercode.errors import (
        ActionError,
        AgentStartError,
        BudgetError,
        CapacityError,
        CausedInsideError,
        ContextLengthError,
        DatabaseError,
        DockerfileError,
        EnvironmentStateError,
        FetchError,
        ForkError,
        ImageError,
        InterCodeError,
        LeaseError,
        ModelAccessError,
        ModelError,
        ModelUnavailableError,
        OutputLimitError,
        RecordError,
        RecordWriteError,
        RewardError,
        RunLockedError,
        SandboxClosedError,
        SandboxEndedError,
        SandboxError,
        SandboxTimeoutError,
        SandboxUnavailableError,
        TaskError,
        TaskNotFoundError,
        TrustError,
        UsageError,
        VectorError,
    )
    from intercode.project import create as make, create_vec as make_vec
    from intercode.task import Dataset, Task
    from intercode_sandbox.base import Limits

check_package(intercode_sandbox, "intercode_gym", __file__)
PACKAGES[__name__] = Path(__file__).parent
FOLDERS["builtin:"] = Path(__file__).parent / "datasets" / "builtin"

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
    "Turn",
    "TurnChanges",
    "TrustError",
    "UsageError",
    "VectorError",
    "exact",
    "load_dataset",
    "make",
    "make_vec",
    "plain",
    "tools",
]

_ELSEWHERE = {
    "Dataset": "intercode.task:Dataset",
    "Episode": "intercode.episode:Episode",
    "EpisodeSnapshot": "intercode.envs.snapshots:EpisodeSnapshot",
    "FileChange": "intercode.episode:FileChange",
    "Fork": "intercode.episode:Fork",
    "InterCodeEnv": "intercode.envs.base:InterCodeEnv",
    "Limits": "intercode_sandbox.base:Limits",
    "Score": "intercode.episode:Score",
    "Task": "intercode.task:Task",
    "TimeLimit": "intercode.envs.time_limit:TimeLimit",
    "Tokens": "intercode.episode:Tokens",
    "Turn": "intercode.episode:Turn",
    "TurnChanges": "intercode.episode:TurnChanges",
    "exact": "intercode.episode:exact",
    "load_dataset": "intercode.datasets:load",
    "make": "intercode.project:create",
    "make_vec": "intercode.project:create_vec",
    "plain": "intercode.episode:plain",
    "tools": "intercode.envs.tools:tools",
}


_INTEGRATIONS = frozenset({"AsyncEnv", "AsyncBackend", "SandboxPool", "connect", "connect_vec"})
"""Public names of ``intercode_integrations``, which are names here, too."""


def __getattr__(name: str) -> Any:
    """A public name, imported now.

    Raises:
        UsageError: It is one of a package that is not installed.
    """
    if name in _INTEGRATIONS:
        if find_spec("intercode_integrations") is None:
            from intercode.registry import INTEGRATIONS
            from intercode_sandbox.names import missing

            raise missing(f"intercode.{name}", INTEGRATIONS)
        return getattr(importlib.import_module("intercode_integrations"), name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _ELSEWHERE.get(name, f"intercode.errors:{name}").partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register() -> None:
    """Register each environment with Gymnasium, as ``intercode-ENV-v0``. Idempotent."""
    import gymnasium

    for env in ("bash", "ctf", "python", "sql", "swe"):
        if f"intercode-{env}-v0" in gymnasium.registry:
            continue
        gymnasium.register(
            f"intercode-{env}-v0",
            entry_point="intercode.project:create",
            vector_entry_point="intercode.project:create_vec",
            kwargs={"env": env},
            # The environments check the order of calls and the type of actions themselves, and a
            # test runs Gymnasium's checker on each, so that no wrapper stands before them.
            order_enforce=False,
            disable_env_checker=True,
        )


def _is_command_line() -> bool:
    """Return whether this process is the command line, which registers before it runs a command.

    Gymnasium takes 0.2 s to import, and help needs no environment.
    """
    console = sys.modules.get("intercode_console")
    by_module = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] == f"{__name__}.cli"
    return by_module or getattr(console, "is_running", False)


if not _is_command_line():
    register()
