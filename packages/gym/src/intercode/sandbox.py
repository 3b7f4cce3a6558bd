"""The public names of sandboxes, which are a package of their own."""

from intercode_sandbox import (
    AsyncSandbox,
    Change,
    Completed,
    Limits,
    Process,
    Provider,
    Sandbox,
    SandboxBackend,
    Snapshot,
    Worker,
    get_provider,
)

__all__ = [
    "AsyncSandbox",
    "Change",
    "Completed",
    "Limits",
    "Process",
    "Provider",
    "Sandbox",
    "SandboxBackend",
    "Snapshot",
    "Worker",
    "get_provider",
]
