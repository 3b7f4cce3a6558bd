"""Sandboxes of a back end that keeps the contract of `intercode_sandbox.base`, and has no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from intercode_sandbox import Change, SandboxBackend, Snapshot, get_provider


class ForeignSandbox:
    """A native sandbox without optional abilities; its changes count no links."""

    def __init__(self, sandbox: SandboxBackend) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        if name in _CONTRACT:
            return getattr(self._sandbox, name)
        raise AttributeError(name)

    def changes(self) -> list[Change]:
        return [replace(change, links=0) for change in self._sandbox.changes()]


_CONTRACT = {name for name in dir(SandboxBackend) if name[0] != "_"} | {
    *SandboxBackend.__annotations__
}


class ForeignProvider:
    """Starts such sandboxes by the shared native provider."""

    def start(self, *options: Any) -> SandboxBackend:
        return cast(SandboxBackend, ForeignSandbox(get_provider().start(*options)))

    def digest(self, image: str | Snapshot) -> str:
        return get_provider().digest(image)

    def close(self) -> None:
        """The shared provider stays."""
