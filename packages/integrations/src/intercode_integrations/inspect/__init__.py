"""Adapter for Inspect AI: sandboxes and tasks for Inspect, and runs of Inspect's tasks.

Inspect imports this package by its entry point, on every machine that has both. The import only
registers names. Only InterCode's runs import `intercode_integrations.inspect.runs`.
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
