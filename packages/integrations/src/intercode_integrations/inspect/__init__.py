"""An adapter for Inspect AI: sandboxes and tasks for Inspect, and runs of Inspect's own tasks.

If InterCode and Inspect are both installed, Inspect imports this package by an entry point at each
start. The import only registers names with Inspect. Only InterCode imports
`intercode_integrations.inspect.imported_tasks`.
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
