"""A provider of InterCode's sandboxes for NeMo Gym, which finds it by the name ``intercode``."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from intercode.errors import InterCodeError
from intercode_integrations import require_framework
from intercode_sandbox import AsyncSandbox, Limits, get_provider
from intercode_sandbox.network import Network

with require_framework("NeMo Gym", "nemo-gym"):
    from nemo_gym.sandbox.providers.base import (
        SandboxCreateError,
        SandboxExecResult,
        SandboxHandle as Handle,
        SandboxSpec,
        SandboxStatus as Status,
    )


class InterCodeProvider:
    """A sandbox provider for NeMo Gym. Image names are InterCode's, such as ``docker://NAME``.

    Args:
        sandbox: The name of InterCode's provider: ``native`` or ``docker``.
        network: The network that each sandbox reaches.
    """

    name = "intercode"

    def __init__(self, sandbox: str = "native", network: Network = False) -> None:
        self._provider, self._network = get_provider(sandbox), network
        self._live: dict[str, tuple[AsyncSandbox, SandboxSpec]] = {}

    async def create(self, spec: SandboxSpec) -> Handle:
        """Start a sandbox. NeMo Gym itself then uploads the files.

        Raises:
            SandboxCreateError: The specification has an entry point or a GPU, which InterCode does
                not support, or the sandbox cannot start.
        """
        if spec.entrypoint or spec.resources.gpu:
            raise SandboxCreateError("this machine has neither an entry point nor a GPU")
        memory_mib, disk_gib = spec.resources.memory_mib or 1024, spec.resources.disk_gib or 1
        limits = Limits(timeout=600.0, memory=memory_mib << 20, disk=disk_gib << 30)
        start, image = self._provider.start, spec.image or "host"
        try:
            backend = await asyncio.to_thread(start, image, limits, self._network)
        except InterCodeError as error:
            raise SandboxCreateError(str(error)) from error
        sandbox = AsyncSandbox.from_backend(backend)
        handle = Handle(uuid.uuid4().hex, self.name, sandbox)
        self._live[handle.sandbox_id] = sandbox, spec
        return handle

    async def exec(
        self,
        handle: Handle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command by Bash.

        Returns:
            The output and the exit code: 124 after a time-out, 126 if the working directory or the
            user does not exist.
        """
        sandbox, sandbox_spec = self._live[handle.sandbox_id]
        options: dict[str, Any] = {"env": {**sandbox_spec.env, **(env or {})}, "timeout": timeout_s}
        options |= {} if user in (None, 0, "root") else {"user": str(user)}
        working_directory = cwd or sandbox_spec.workdir
        try:
            result = await sandbox.exec(
                ["/bin/bash", "-c", command], cwd=working_directory, **options
            )
        except (OSError, LookupError) as error:
            if isinstance(error, InterCodeError):
                raise
            return SandboxExecResult("", str(error), 126)
        stdout, stderr = (
            stream_bytes.decode("utf-8", "replace")
            for stream_bytes in (result.stdout, result.stderr)
        )
        exit_code, reason = (124, "timeout") if result.timed_out else (result.exit_code, None)
        return SandboxExecResult(stdout, stderr, exit_code, reason)

    async def upload_file(self, handle: Handle, source_path: Path, target_path: str) -> None:
        """Copy a file into the sandbox, with the mode of the source."""
        mode = source_path.stat().st_mode & 0o777
        await handle.raw.write_file(target_path, source_path.read_bytes(), mode)

    async def download_file(self, handle: Handle, source_path: str, target_path: Path) -> None:
        """Copy a file from the sandbox to this machine."""
        target_path.write_bytes(await handle.raw.read_file(source_path))

    async def status(self, handle: Handle) -> Status:
        """Return the status of a sandbox: running, or stopped."""
        return Status.RUNNING if handle.sandbox_id in self._live else Status.STOPPED

    async def close(self, handle: Handle) -> None:
        """End a sandbox. Idempotent."""
        if self._live.pop(handle.sandbox_id, None) is not None:
            await handle.raw.close()

    async def aclose(self) -> None:
        """End all sandboxes of this provider."""
        while self._live:
            await self._live.popitem()[1][0].close()
