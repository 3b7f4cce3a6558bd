"""The public names of sandboxes, which are a package of their own."""

from intercode_sandbox import (
    Change,
    Completed,
    Limits,
    Process,
    Provider,
    SandboxBackend,
    Snapshot,
    Worker,
    get_provider,
)

__all__ = [
    "Change",
    "Completed",
    "Limits",
    "Process",
    "Provider",
    "SandboxBackend",
    "Snapshot",
    "Worker",
    "get_provider",
]
