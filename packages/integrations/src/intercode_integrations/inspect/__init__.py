"""Inspect AI: our sandboxes for its tasks, our tasks for its agents, and its tasks for ours.

Inspect imports this package by its entry point, for everybody who has both: importing it does
nothing but register names. `intercode_integrations.inspect.runs` is imported only by our own runs.
"""

from intercode_integrations import require_framework

with require_framework("Inspect AI", "intercode-gym[inspect]"):
    from intercode_integrations.inspect.sandbox import InterCodeSandbox, SandboxConfig
    from intercode_integrations.inspect.tasks import (
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
