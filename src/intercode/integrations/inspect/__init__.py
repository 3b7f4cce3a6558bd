"""Inspect AI: our sandboxes for its tasks, our tasks for its agents, and its tasks for ours.

Inspect imports this package by its entry point, for everybody who has both: importing it does
nothing but register names. `intercode.integrations.inspect.runs` is imported only by our own runs.
"""

from intercode.errors import UsageError

try:
    from intercode.integrations.inspect.sandbox import InterCodeSandbox, SandboxConfig
    from intercode.integrations.inspect.tasks import (
        TaskSandbox,
        bash,
        benchmark,
        ctf,
        play,
        python,
        reward,
        sql,
        swe,
    )
except ModuleNotFoundError as error:
    if error.name != "inspect_ai":
        raise
    raise UsageError(
        "Inspect AI is not installed, which this needs: pip install 'intercode-gym[inspect]'"
    ) from None

__all__ = [
    "InterCodeSandbox",
    "SandboxConfig",
    "TaskSandbox",
    "bash",
    "benchmark",
    "ctf",
    "play",
    "python",
    "reward",
    "sql",
    "swe",
]
