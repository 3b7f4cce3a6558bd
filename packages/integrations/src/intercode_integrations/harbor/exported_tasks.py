"""Exported InterCode tasks in Harbor's runner: workspaces, and scores from outside of them."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from harbor.models.task.config import TaskConfig

from intercode.envs.base import InterCodeEnv
from intercode.envs.stage import SandboxStage
from intercode.episode import Score, decode
from intercode.errors import CausedInsideError, OutputLimitError, SandboxError, UsageError
from intercode.project import create, is_project
from intercode.registry import ENVS
from intercode_integrations.harbor.commands import run_on_thread
from intercode_integrations.harbor.writer import ANSWER, task_id
from intercode_sandbox import AsyncSandbox, SandboxBackend


class SourceTask:
    """The InterCode task from which a Harbor folder was exported, with the task's environment.

    Args:
        task_folder: The exported folder.
        tasks: The environment, dataset or benchmark folder that contains the task.

    Raises:
        UsageError: The ``task.toml`` does not name an InterCode task, or not a valid one.
        TaskNotFoundError: The task does not exist.
    """

    def __init__(self, task_folder: Path, tasks: str) -> None:
        config_path = task_folder / "task.toml"
        env_name, source_id = task_id(
            TaskConfig.model_validate_toml(config_path.read_text()).metadata, config_path
        )
        # The folder may come from a stranger, so a name in it must not make InterCode load code.
        if not is_project(tasks) and env_name not in ENVS:
            raise UsageError(f"{config_path}: there is no environment {env_name!r}")
        environment: Any = create(tasks) if is_project(tasks) else create(env_name, data=tasks)
        self._env: InterCodeEnv[Any] = environment
        self._task = self._env.dataset.by_id(source_id)

    def open(self) -> SandboxBackend | None:
        """Open the task's workspace; return None if it is a database session, not a sandbox."""
        stage = self._env.stage
        return stage.open(self._task) if isinstance(stage, SandboxStage) else None

    async def score(self, async_sandbox: AsyncSandbox, created_folders: list[str]) -> Score:
        """Score the agent's final state as at the end of an InterCode episode.

        Args:
            async_sandbox: The sandbox in which the agent has worked.
            created_folders: Folders that Harbor's runner has made, which are not the agent's work.

        Raises:
            RewardError: The state cannot be scored.
        """
        await async_sandbox.kill()
        try:
            answer = decode(await async_sandbox.read_file(ANSWER))
        except (OSError, OutputLimitError) as error:
            # The file of the answer is missing, is not a regular file, or is too large to be right.
            if isinstance(error, SandboxError) and not isinstance(error, CausedInsideError):
                raise
            answer = None
        if not isinstance(self._env.stage, SandboxStage):
            return await run_on_thread(partial(self._score_answer, answer))
        # If the agent has broken rm, the folders remain and count as changes by the agent.
        await async_sandbox.exec(["rm", "-rf", *created_folders], user="0:0")
        return await async_sandbox.run(
            lambda workspace: self._env.score(self._task, workspace.backend, output=answer)
        )

    def _score_answer(self, answer: str | None) -> Score:
        with closing(self._env.stage.open(self._task)) as workspace:
            return self._env.score(self._task, workspace, output=answer)

    def close(self) -> None:
        """Close the environment of the task. Idempotent."""
        self._env.close()
