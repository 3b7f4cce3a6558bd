"""Workspaces of Harbor's task folders, in InterCode's sandboxes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from intercode.envs.stage import SandboxStage
from intercode.episode import decode
from intercode.errors import TaskError
from intercode.task import CANNOT, Task
from intercode_integrations.harbor.task_folders import (
    HarborTaskConfig,
    HealthCheck,
    PhaseConfig,
    files,
    find_folder,
    read_config,
    resolve_variables,
)
from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.base import Completed, SupportsCapabilityCheck
from intercode_sandbox.image_accounts import MAX_TABLE_BYTES, resolve_account
from intercode_sandbox.linux_capabilities import CAPABILITIES
from intercode_sandbox.network import Network, NetworkPolicy
from intercode_sandbox.script_arguments import script

LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Folders that every workspace has. A folder that the image lacks is writable by every user."""
_ROOTS = "/root"


class HarborStage(SandboxStage):
    """A stage that opens the workspaces of Harbor's task folders.

    Args:
        source: The folder of a task, or a folder of task folders.
        provider, image, limits, network, default_image: As for `SandboxStage`. A task reaches only
            the hosts that it requests and `network` permits.
        variables: The names of this machine's environment variables that tasks may read.
    """

    def __init__(
        self,
        source: Path,
        provider: str | Provider,
        image: str | Path | None = None,
        limits: Limits | None = None,
        network: Network = False,
        default_image: str | None = None,
        variables: Sequence[str] = (),
    ) -> None:
        super().__init__(provider, image, limits, network, default_image)
        self._variable_names = frozenset(variables)
        self._source = source
        self._read = lru_cache(read_config)

    def folder(self, task: Task) -> Path:
        """Return the folder of a task."""
        return find_folder(self._source, task)

    def config(self, task: Task) -> HarborTaskConfig:
        """Return the parsed ``task.toml`` of a task."""
        return self._read(self.folder(task))

    def image(self, task: Task) -> str:
        """Return the name of a task's image: the image that it names, or one of its Dockerfile."""
        if task.image is None:
            # The build of an image may need a network, for instance to install packages. Docker
            # always provides a network. Here, the caller must permit the whole network.
            network = "[--network=default]" if NetworkPolicy.parse(self.network).shared else ""
            dockerfile = f"{self.folder(task)}/environment/Dockerfile{network}"
            task = replace(task, image=dockerfile, folder=self.folder(task))
        return super().image(task)

    def limits(self, task: Task) -> Limits:
        """Return the limits of a task's sandbox, with the capabilities that root has in containers.

        Args:
            task: The task. If the task or the caller names capabilities, only these are granted.
        """
        limits, provider = super().limits(task), self.provider
        if limits.capabilities or not isinstance(provider, SupportsCapabilityCheck):
            return limits
        granted_capabilities = [
            capability
            for capability in CAPABILITIES
            if not provider.capability_problem([capability], self.network)
        ]
        return replace(limits, capabilities=tuple(granted_capabilities))

    def check(self, task: Task) -> None:
        """Refuse a task that InterCode cannot run.

        Raises:
            TaskError: The task is unsupported, or needs a variable that it does not get.
            ImageError: The image's name is invalid, or names a missing file.
        """
        if (reason := task.metadata.get(CANNOT)) is not None:
            raise TaskError(f"task {task.task_id!r} cannot run here: {reason}")
        self.variables(task, self.config(task).verifier.env)
        super().check(task)

    def directory(self, task: Task) -> str:
        """Return the agent's initial working directory; ``.``: that of the image."""
        return self.config(task).environment.workdir or "."

    def variables(self, task: Task, *extra_variables: dict[str, str]) -> dict[str, str]:
        """Return the environment variables of a task, and further variables of its ``task.toml``.

        A value ``${NAME}`` or ``${NAME:-default}`` becomes the value of this machine's variable.

        Args:
            task: The task.
            *extra_variables: Further variables to resolve, such as the verifier's.

        Raises:
            TaskError: A value without a default names a variable that is not set on this machine,
                or that tasks may not read.
        """
        machine_variables = {
            name: os.environ[name] for name in self._variable_names & os.environ.keys()
        }
        try:
            env_mappings = [self.config(task).environment.env, *extra_variables]
            return {
                variable: value
                for env in env_mappings
                for variable, value in resolve_variables(env, machine_variables).items()
            }
        except TaskError as error:
            raise TaskError(f"task {task.task_id!r}: {error}") from None

    def reach(self, task: Task, phase: PhaseConfig | None = None) -> Network:
        """Return the network that a phase of a task may reach.

        Args:
            task: The task.
            phase: The phase; None: the agent's.
        """
        config = self.config(task)
        mode, hosts = config.network(phase or config.agent)
        if mode == "no-network":
            return False
        if mode == "public" or not self.network:
            return self.network
        if self.network is True:
            return hosts
        allowed_hosts = NetworkPolicy.parse(self.network).hosts
        return [host for host in hosts if any(rule.admits(host, 443) for rule in allowed_hosts)]

    def _lay(self, sandbox: SandboxBackend, task: Task) -> None:
        config, environment_folder = self.config(task), self.folder(task) / "environment"
        writable_folders = [*LOGS, *(["/solution"] if config.agent.user is not None else [])]
        mkdir_result = run_as_root(sandbox, ["mkdir", "-p", "-m", "777", "--", *writable_folders])
        if not mkdir_result.ok:
            raise TaskError(
                f"task {task.task_id!r}: no /logs in its image: {decode(mkdir_result.stderr)}"
            )
        if task.image is not None and not (environment_folder / "Dockerfile").is_file():
            for name, path in files(environment_folder):
                target_path = f"{self.directory(task)}/{name}"
                sandbox.write_file(target_path, path.read_bytes(), path.stat().st_mode & 0o777)
        super()._lay(sandbox, task)

    def _prepare(self, sandbox: SandboxBackend, task: Task) -> None:
        super()._prepare(sandbox, task)
        if (health_check := self.config(task).environment.healthcheck) is not None:
            self._await(sandbox, task, health_check)

    def _await(self, sandbox: SandboxBackend, task: Task, health_check: HealthCheck) -> None:
        """Wait until the task's health check succeeds, by Docker's rules for retries.

        Raises:
            TaskError: The health check failed too often.
        """
        start_time, failure_count = time.monotonic(), 0
        argv, stdin = script(health_check.command)
        env, seconds = self.variables(task), health_check.timeout_sec
        while not (result := sandbox.exec(argv, stdin=stdin, env=env, timeout=seconds)).ok:
            is_starting = time.monotonic() - start_time < health_check.start_period_sec
            failure_count += not is_starting
            if failure_count >= max(1, health_check.retries):
                error_text = decode(result.stderr or result.stdout).strip()[-500:]
                raise TaskError(f"task {task.task_id!r}: its healthcheck fails: {error_text}")
            time.sleep(
                health_check.start_interval_sec if is_starting else health_check.interval_sec
            )


def home_variables(sandbox: SandboxBackend, user: str | None) -> dict[str, str]:
    """Return ``USER`` and ``HOME`` for a user, by the rules of container engines.

    Raises:
        LookupError: The user does not exist.
    """

    def read(path: str) -> str:
        with suppress(FileNotFoundError):
            return decode(sandbox.read_file(path, MAX_TABLE_BYTES))
        return ""

    if user is None:
        return {}
    account = resolve_account(user, read)
    # A value of HOME that the image sets takes precedence over the account's home.
    is_home_set = sandbox.env.get("HOME", _ROOTS) != _ROOTS
    return {"USER": account.name, **({} if is_home_set else {"HOME": account.home})}


def run_as_root(sandbox: SandboxBackend, argv: list[str], **options: Any) -> Completed:
    """Run a program as root, or as the sandbox's only user."""
    try:
        return sandbox.exec(argv, cwd="/", user="0", **options)
    except LookupError:
        return sandbox.exec(argv, cwd="/", **options)
