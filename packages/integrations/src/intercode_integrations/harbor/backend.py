"""InterCode's sandbox and verifier as plugins of Harbor's runner. This module imports Harbor.

`InterCodeEnvironment` runs any task folder in an InterCode sandbox. With the option ``--ek
tasks=NAME``, the folders must be tasks exported from NAME: an environment, a dataset or a benchmark
folder. The tasks' own environment then opens their workspaces, except database sessions, and
`InterCodeVerifier` computes its reward from outside the workspace.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    DOCKERFILE_NAME,
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.base import BaseVerifier

from intercode.episode import Score, decode
from intercode.errors import SandboxError, UsageError
from intercode_integrations.harbor.commands import run, run_on_thread
from intercode_integrations.harbor.exported_tasks import SourceTask
from intercode_integrations.harbor.writer import HARBOR_FOLDERS
from intercode_sandbox import AsyncSandbox, Limits, SandboxBackend, get_provider
from intercode_sandbox.network import Network
from intercode_sandbox.units import MIB

ROOT = ("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid")
"""Capabilities that root has in a container, except those that no sandbox grants."""
_LIMITS = Limits(
    timeout=3600,
    memory=2048 * MIB,
    disk=4096 * MIB,
    files=1_000_000,
    processes=2048,
    output=16 * MIB,
    capabilities=ROOT,
)
_FOLDERS, _LOGS = ("/logs", *HARBOR_FOLDERS), ("agent", "verifier", "artifacts")
_TRANSFER = 1024 * MIB
_TIMEOUT_CODE, _CANNOT_RUN_CODE = 124, 126


class InterCodeEnvironment(BaseEnvironment):
    """An InterCode sandbox in which Harbor's runner runs a task.

    Args:
        sandbox: The name of the sandbox provider.
        tasks: The source of an exported folder: an environment, a dataset or a benchmark folder.
            The task from which the folder was exported opens the workspace, unless the workspace is
            a database session. Empty: any task folder.
        **keywords: See Harbor's class.
    """

    def __init__(
        self, *args: Any, sandbox: str = "native", tasks: str = "", **keywords: Any
    ) -> None:
        self._provider = sandbox
        self._tasks = tasks
        self._box: AsyncSandbox | None = None
        self._source_task: SourceTask | None = None
        self._created_folders: list[str] = []
        super().__init__(*args, **keywords)

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "intercode"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The abilities of the sandbox that Harbor's runner asks for."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return the kinds of limits that the sandbox applies: memory, but not processors."""
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )
        if not self.task_env_config.docker_image and not self._dockerfile.exists():
            raise UsageError(
                f"{self.environment_dir} has only a compose file: a sandbox is a single machine, "
                "and needs a Dockerfile or a docker_image"
            )

    @property
    def _dockerfile(self) -> Path:
        return Path(self.environment_dir, DOCKERFILE_NAME)

    @property
    def box(self) -> AsyncSandbox:
        """The running sandbox.

        Raises:
            SandboxError: The sandbox was not started, or has been stopped.
        """
        if self._box is None:
            raise SandboxError(f"{self.session_id}: the sandbox does not run")
        return self._box

    async def start(self, force_build: bool) -> None:
        """Start the sandbox, and make the folders that Harbor requires in it.

        Args:
            force_build: Whether to build the Dockerfile even if the task names a finished image.

        Raises:
            SandboxError: The sandbox cannot be started, or the folders cannot be made.
        """
        start_future = run_on_thread(partial(self._open, force_build))
        try:
            self._box = AsyncSandbox.from_backend(await asyncio.shield(start_future))
        except asyncio.CancelledError:
            start_future.add_done_callback(_close_late)
            raise
        listing_result = await self.exec(f"ls -d {' '.join(_FOLDERS)} 2>/dev/null", user="root")
        self._created_folders = [
            name for name in _FOLDERS if name not in (listing_result.stdout or "").split()
        ]
        log_folders = [f"/logs/{name}" for name in _LOGS]
        creation_result = await self.ensure_dirs(
            [*log_folders, *HARBOR_FOLDERS, *self._mount_targets()]
        )
        if creation_result is not None and creation_result.return_code:
            raise SandboxError(f"Harbor's folders cannot be made: {creation_result.stderr}")
        await self._upload_environment_dir_after_start()

    def _open(self, force_build: bool) -> SandboxBackend:
        if self._tasks:
            self._source_task = SourceTask(Path(self.environment_dir).parent, self._tasks)
            if (workspace := self._source_task.open()) is not None:
                return workspace
        is_prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir,
            docker_image=self.task_env_config.docker_image,
            force_build=force_build,
        )
        image = f"docker://{self.task_env_config.docker_image}"
        if (
            not is_prebuilt
        ):  # as in Harbor, an image build has a network, whatever the task's policy
            image = f"dockerfile:{self._dockerfile.absolute()}[--network=default]"
        megabyte_limits = {"memory": self._effective_memory_mb, "disk": self._effective_storage_mb}
        limit_values = {
            limit_name: megabytes * MIB
            for limit_name, megabytes in megabyte_limits.items()
            if megabytes is not None
        }
        limits = Limits.merge(_LIMITS, **limit_values)
        return get_provider(self._provider).start(image, limits, self._resolve_network())

    def _resolve_network(self) -> Network:
        if self._network_is_allowlist:
            return list(self._network_policy.allowed_hosts)
        return bool(self._network_is_public)

    async def stop(self, delete: bool) -> None:
        """Close the sandbox with everything that runs in it."""
        if self._box is not None:
            await self._box.close()
        if self._source_task is not None:
            await run_on_thread(self._source_task.close)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command. A time-out or a cancellation kills the command's whole process group.

        Returns:
            The output and the exit code: 124 after a time-out, 126 if the command cannot start.
        """
        user = self._resolve_user(user)
        exec_options = {
            "cwd": cwd or self.task_env_config.workdir,
            "env": self._merge_env(env),
            "user": "0:0" if user in ("root", 0) else None if user is None else str(user),
        }
        try:
            result = await run(self.box, command, timeout_sec, _LIMITS.output, **exec_options)
        except (FileNotFoundError, NotADirectoryError, PermissionError, LookupError) as error:
            return ExecResult(stdout="", stderr=f"{error}\n", return_code=_CANNOT_RUN_CODE)
        exit_code = _TIMEOUT_CODE if result.timed_out else result.exit_code
        stdout, stderr = (
            stream_bytes.decode("utf-8", "replace")
            for stream_bytes in (result.stdout, result.stderr)
        )
        return ExecResult(stdout=stdout, stderr=stderr, return_code=exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox; root owns the copy."""
        target = Path(target_path)
        await self._unpack({target.name: Path(source_path)}, str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a folder into the sandbox; root owns the copies."""
        files = {path.name: path for path in Path(source_dir).iterdir()}
        await self._unpack(files, target_dir)

    async def _unpack(self, files: dict[str, Path], folder: str) -> None:
        archive_bytes = await run_on_thread(partial(_pack_files, files))
        quoted_folder = shlex.quote(folder)
        argv = ["/bin/sh", "-c", f"mkdir -p {quoted_folder} && exec tar -C {quoted_folder} -xf -"]
        await self._run_checked(argv, stdin=archive_bytes, user="0:0")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file from the sandbox to this machine."""
        data = await self.box.read_file(source_path, _TRANSFER)
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a folder from the sandbox to this machine."""
        argv = ["tar", "-C", source_dir, "-cf", "-", "."]
        archive_bytes = await self._run_checked(argv, user="0:0", output_limit=_TRANSFER)
        with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
            archive.extractall(target_dir, filter=transfer_tar_filter)

    async def _run_checked(self, argv: list[str], **options: Any) -> bytes:
        result = await self.box.exec(argv, **options)
        if not result.ok or result.truncated:
            reason = decode(result.stderr).strip() or f"exit code {result.exit_code}"
            raise SandboxError(f"{shlex.join(argv)}: {reason}")
        return result.stdout

    async def score(self) -> Score:
        """Score the final state of the workspace by the reward of the task's environment.

        Raises:
            UsageError: The option ``--ek tasks=NAME`` is missing.
            RewardError: The state cannot be scored.
        """
        if self._source_task is None:
            raise UsageError("name the exported tasks: --ek tasks=NAME")
        score = await self._source_task.score(self.box, self._created_folders)
        await self.ensure_dirs([f"/logs/{name}" for name in _LOGS])
        return score


class InterCodeVerifier(BaseVerifier):
    """A verifier that scores exported InterCode tasks by the reward of their environment."""

    async def verify(self) -> VerifierResult:
        """Return the reward of the agent's work.

        Raises:
            UsageError: The sandbox is not InterCode's, or ``--ek tasks=NAME`` is missing.
        """
        if not isinstance(self.environment, InterCodeEnvironment):
            raise UsageError(
                "InterCodeVerifier scores only InterCode's sandboxes: harbor run -e "
                "intercode_integrations.harbor:InterCodeEnvironment --ek tasks=NAME"
            )
        score = await self.environment.score()
        return VerifierResult(rewards={"reward": float(score.value)})


def _close_late(start_future: asyncio.Future[SandboxBackend]) -> None:
    if not start_future.cancelled() and start_future.exception() is None:
        start_future.result().close()


def _pack_files(files: dict[str, Path]) -> bytes:
    def set_root_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, path in files.items():
            archive.add(path, name, filter=set_root_owner)
    return buffer.getvalue()
