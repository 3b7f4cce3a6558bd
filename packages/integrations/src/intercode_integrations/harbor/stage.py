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
from intercode_integrations.harbor.folders import (
    Config,
    HealthCheck,
    Phase,
    files,
    find_folder,
    read_config,
    resolve_variables,
)
from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.accounts import MAX_TABLE_BYTES, resolve_account
from intercode_sandbox.base import Completed, SupportsCapabilityCheck
from intercode_sandbox.capabilities import CAPABILITIES
from intercode_sandbox.network import Network, Policy
from intercode_sandbox.script_arguments import script

LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Folders of every workspace, writable by every user."""
_ROOTS = "/root"


class HarborStage(SandboxStage):
    """A stage that opens the workspaces of task folders.

    Args:
        source: The folder of a task, or of tasks.
        provider, image, limits, network, default_image: As in `SandboxStage`. A task reaches the
            hosts that it requests, as far as `network` permits them.
        variables: Names of this machine's variables that tasks may have.
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
        """Return the task's folder."""
        return find_folder(self._source, task)

    def config(self, task: Task) -> Config:
        """Return the contents of its ``task.toml``."""
        return self._read(self.folder(task))

    def image(self, task: Task) -> str:
        """Return the name of the image: the task's own, or that of its Dockerfile."""
        if task.image is None:
            # As with Docker, a build reaches what it needs: but only if the caller allows it.
            network = "[--network=default]" if Policy.parse(self.network).shared else ""
            dockerfile = f"{self.folder(task)}/environment/Dockerfile{network}"
            task = replace(task, image=dockerfile, folder=self.folder(task))
        return super().image(task)

    def limits(self, task: Task) -> Limits:
        """Return the limits of its sandbox, with root's capabilities in containers.

        Args:
            task: The task. The task or the caller may name other capabilities.
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
        """Refuse an unsupported task.

        Raises:
            TaskError: The task is unsupported, or needs a variable that is not set.
            ImageError: Its image's name is invalid, or names a missing file.
        """
        if (reason := task.metadata.get(CANNOT)) is not None:
            raise TaskError(f"task {task.task_id!r} cannot run here: {reason}")
        self.variables(task, self.config(task).verifier.env)
        super().check(task)

    def directory(self, task: Task) -> str:
        """Return the agent's initial working directory."""
        return self.config(task).environment.workdir or "."

    def variables(self, task: Task, *extra_variables: dict[str, str]) -> dict[str, str]:
        """Return the task's environment variables.

        Raises:
            TaskError: A variable of this machine is not set, or not on the allowlist.
        """
        machine_variables = {
            name: os.environ[name] for name in self._variable_names & os.environ.keys()
        }
        try:
            environments = [self.config(task).environment.env, *extra_variables]
            return {
                k: v
                for env in environments
                for k, v in resolve_variables(env, machine_variables).items()
            }
        except TaskError as error:
            raise TaskError(f"task {task.task_id!r}: {error}") from None

    def reach(self, task: Task, phase: Phase | None = None) -> Network:
        """Return the network that a phase may reach; default: the agent's."""
        config = self.config(task)
        mode, hosts = config.network(phase or config.agent)
        if mode == "no-network":
            return False
        if mode == "public" or not self.network:
            return self.network
        if self.network is True:
            return hosts
        allowed_hosts = Policy.parse(self.network).hosts
        return [host for host in hosts if any(rule.admits(host, 443) for rule in allowed_hosts)]

    def _lay(self, sandbox: SandboxBackend, task: Task) -> None:
        config, folder = self.config(task), self.folder(task) / "environment"
        shared_folders = [*LOGS, *(["/solution"] if config.agent.user is not None else [])]
        result = run_as_root(sandbox, ["mkdir", "-p", "-m", "777", "--", *shared_folders])
        if not result.ok:
            raise TaskError(
                f"task {task.task_id!r}: no /logs in its image: {decode(result.stderr)}"
            )
        if task.image is not None and not (folder / "Dockerfile").is_file():
            for name, path in files(folder):
                target = f"{self.directory(task)}/{name}"
                sandbox.write_file(target, path.read_bytes(), path.stat().st_mode & 0o777)
        super()._lay(sandbox, task)

    def _prepare(self, sandbox: SandboxBackend, task: Task) -> None:
        super()._prepare(sandbox, task)
        if (health := self.config(task).environment.healthcheck) is not None:
            self._await(sandbox, task, health)

    def _await(self, sandbox: SandboxBackend, task: Task, health: HealthCheck) -> None:
        """Wait until a workspace is healthy, with Docker's rules."""
        start_time, failures = time.monotonic(), 0
        argv, stdin = script(health.command)
        env, seconds = self.variables(task), health.timeout_sec
        while not (result := sandbox.exec(argv, stdin=stdin, env=env, timeout=seconds)).ok:
            starting = time.monotonic() - start_time < health.start_period_sec
            failures += not starting
            if failures >= max(1, health.retries):
                error_text = decode(result.stderr or result.stdout).strip()[-500:]
                raise TaskError(f"task {task.task_id!r}: its healthcheck fails: {error_text}")
            time.sleep(health.start_interval_sec if starting else health.interval_sec)


def home_variables(sandbox: SandboxBackend, user: str | None) -> dict[str, str]:
    """Return the variables for a user's name and home, with the rules of container engines.

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
    is_set = sandbox.env.get("HOME", _ROOTS) != _ROOTS  # the image's value takes precedence
    return {"USER": account.name, **({} if is_set else {"HOME": account.home})}


def run_as_root(sandbox: SandboxBackend, argv: list[str], **options: Any) -> Completed:
    """Run a program as root, if the sandbox has several users."""
    try:
        return sandbox.exec(argv, cwd="/", user="0", **options)
    except LookupError:
        return sandbox.exec(argv, cwd="/", **options)
