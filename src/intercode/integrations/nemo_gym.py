"""Our sandboxes for NeMo Gym: ``sandbox: {intercode: {}}`` in a configuration of its own."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from intercode.envs.asynchronous import AsyncSandbox
from intercode.errors import InterCodeError
from intercode.sandbox import Limits, get_provider
from intercode.sandbox.network import Network

SECONDS = 600.0
"""The time limit of a command that is given none."""


class InterCodeProvider:
    """NeMo Gym's protocol of a sandbox provider.

    Args:
        sandbox: The kind of sandbox: ``native`` or ``docker``.
        network: What a sandbox may reach.
    """

    name = "intercode"

    def __init__(self, sandbox: str = "native", network: Network = False) -> None:
        self._provider, self._network = get_provider(sandbox), network
        self._live: dict[str, SandboxHandle] = {}
        self._specs: dict[str, SandboxSpec] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox; an image is named as ours are (``docker://NAME`` pulls one)."""
        need = spec.resources
        if spec.entrypoint or need.gpu:
            raise SandboxCreateError("an InterCode sandbox has neither entry point nor GPU")
        sizes = {"memory": (need.memory_mib or 1024) << 20, "disk": (need.disk_gib or 1) << 30}
        limits, image = Limits(timeout=SECONDS, **sizes), spec.image or "host"
        try:
            started = await asyncio.to_thread(self._provider.start, image, limits, self._network)
        except InterCodeError as error:
            raise SandboxCreateError(str(error)) from error
        handle = SandboxHandle(uuid.uuid4().hex, self.name, AsyncSandbox(started))
        self._live[handle.sandbox_id], self._specs[handle.sandbox_id] = handle, spec
        return handle
