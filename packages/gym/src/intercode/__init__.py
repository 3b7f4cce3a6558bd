"""Interactive coding with execution feedback, as a standard reinforcement-learning environment.

Importing the package registers the Gymnasium ids, except in the command ``intercode``. The names of
`PUBLIC_NAMES` and `INTEGRATION_NAMES` are imported at their first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import intercode_sandbox

try:
    from intercode_sandbox import ORIGIN as ORIGIN, __version__ as __version__
    from intercode_sandbox.extensions import FOLDERS, PACKAGES
    from intercode_sandbox.origin import check_package
# The import also fails if another project's package has the name `intercode_sandbox`: that package
# lacks these names.
except ImportError as error:
    raise ImportError(
        f"intercode_sandbox ({intercode_sandbox.__file__}) is not InterCode's package of this "
        "name. Remove or rename it, then reinstall intercode-gym and intercode-sandbox",
        name="intercode_sandbox",
        path=intercode_sandbox.__file__,
    ) from error

from intercode.lazy_names import import_integration, import_name
from intercode.registration import is_command_line, register as register

check_package(intercode_sandbox, "intercode_gym", __file__)
PACKAGES[__name__] = Path(__file__).parent
FOLDERS["builtin:"] = Path(__file__).parent / "datasets" / "builtin"

PUBLIC_NAMES = {
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
"""Public name → ``module:attribute``. The script ``scripts/stub`` writes a stub file with the types
of the names."""

__all__ = [*PUBLIC_NAMES]

INTEGRATION_NAMES = frozenset({"AsyncEnv", "SandboxPool", "connect", "connect_vec"})
"""Public names of ``intercode_integrations`` that this package re-exports."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use.

    Raises:
        UsageError: The name's package is not installed.
        PackageError: The name's package belongs to another project, or has another version.
        AttributeError: The package has no such public name.
    """
    if name in INTEGRATION_NAMES:
        return import_integration(name)
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = import_name(PUBLIC_NAMES[name])
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not is_command_line():
    register()
