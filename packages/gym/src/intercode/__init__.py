"""Interactive coding with execution feedback, as a standard reinforcement-learning environment.

Importing the package registers the Gymnasium ids; everything else is imported at its first use.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import intercode_sandbox

try:
    from intercode_sandbox import ORIGIN as ORIGIN, __version__ as __version__
    from intercode_sandbox.extensions import FOLDERS, PACKAGES
    from intercode_sandbox.origin import check_package, check_upper_package
except ImportError as error:  # a package without our errors, too
    raise ImportError(
        f"intercode_sandbox ({intercode_sandbox.__file__}) is not InterCode's package of this "
        "name. Remove or rename it, then reinstall intercode-gym and intercode-sandbox",
        name="intercode_sandbox",
        path=intercode_sandbox.__file__,
    ) from error

check_package(intercode_sandbox, "intercode_gym", __file__)
PACKAGES[__name__] = Path(__file__).parent
FOLDERS["builtin:"] = Path(__file__).parent / "datasets" / "builtin"

SOURCES = {
    "ActionError": "intercode.errors:ActionError",
    "AgentStartError": "intercode.errors:AgentStartError",
    "BudgetError": "intercode.errors:BudgetError",
    "CapacityError": "intercode.errors:CapacityError",
    "CausedInsideError": "intercode.errors:CausedInsideError",
    "ContextLengthError": "intercode.errors:ContextLengthError",
    "DatabaseError": "intercode.errors:DatabaseError",
    "Dataset": "intercode.task:Dataset",
    "DockerfileError": "intercode.errors:DockerfileError",
    "EnvironmentStateError": "intercode.errors:EnvironmentStateError",
    "Episode": "intercode.episode:Episode",
    "EpisodeSnapshot": "intercode.envs.snapshots:EpisodeSnapshot",
    "FetchError": "intercode.errors:FetchError",
    "FileChange": "intercode.episode:FileChange",
    "Fork": "intercode.episode:Fork",
    "ForkError": "intercode.errors:ForkError",
    "ImageError": "intercode.errors:ImageError",
    "InterCodeEnv": "intercode.envs.base:InterCodeEnv",
    "InterCodeError": "intercode.errors:InterCodeError",
    "LeaseError": "intercode.errors:LeaseError",
    "Limits": "intercode_sandbox.base:Limits",
    "ModelAccessError": "intercode.errors:ModelAccessError",
    "ModelError": "intercode.errors:ModelError",
    "ModelUnavailableError": "intercode.errors:ModelUnavailableError",
    "OutputLimitError": "intercode.errors:OutputLimitError",
    "RecordError": "intercode.errors:RecordError",
    "RecordWriteError": "intercode.errors:RecordWriteError",
    "RewardError": "intercode.errors:RewardError",
    "RunLockedError": "intercode.errors:RunLockedError",
    "SandboxClosedError": "intercode.errors:SandboxClosedError",
    "SandboxEndedError": "intercode.errors:SandboxEndedError",
    "SandboxError": "intercode.errors:SandboxError",
    "SandboxTimeoutError": "intercode.errors:SandboxTimeoutError",
    "SandboxUnavailableError": "intercode.errors:SandboxUnavailableError",
    "Score": "intercode.episode:Score",
    "Task": "intercode.task:Task",
    "TaskError": "intercode.errors:TaskError",
    "TaskNotFoundError": "intercode.errors:TaskNotFoundError",
    "TimeLimit": "intercode.envs.time_limit:TimeLimit",
    "Tokens": "intercode.episode:Tokens",
    "TrustError": "intercode.errors:TrustError",
    "Turn": "intercode.episode:Turn",
    "TurnChanges": "intercode.episode:TurnChanges",
    "UsageError": "intercode.errors:UsageError",
    "VectorError": "intercode.errors:VectorError",
    "exact": "intercode.episode:exact",
    "load_dataset": "intercode.datasets:load",
    "make": "intercode.project:create",
    "make_vec": "intercode.project:create_vec",
    "plain": "intercode.episode:plain",
    "tools": "intercode.envs.tools:tools",
}
"""Public name → its module and its name there; `scripts/stub` writes their types."""

__all__ = [*SOURCES]

INTEGRATIONS = frozenset({"AsyncEnv", "SandboxPool", "connect", "connect_vec"})
"""Public names of ``intercode_integrations``, which are names here, too."""


def __getattr__(name: str) -> Any:
    """Import a public name.

    Raises:
        UsageError: It is one of a package that is not installed.
        PackageError: That package is another project's, or of another version.
    """
    if name in INTEGRATIONS:
        if find_spec("intercode_integrations") is None:
            from intercode import registry
            from intercode_sandbox.names import missing

            raise missing(f"intercode.{name}", registry.INTEGRATIONS)
        check_upper_package("intercode_integrations")
        return getattr(importlib.import_module("intercode_integrations"), name)
    if name not in SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = SOURCES[name].partition(":")
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
