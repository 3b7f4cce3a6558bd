"""The environment ``harbor:FOLDER``: Harbor's task folders, run by InterCode's runner."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions, MaxTurns, SandboxOptions
from intercode.envs.traits import SHELL, Traits
from intercode.errors import TaskError, UsageError
from intercode.interpreters.base import Interpreter
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.custom import choose_reward
from intercode.task import Dataset
from intercode_integrations.harbor.stage import HarborStage, home_variables
from intercode_integrations.harbor.task_folders import load
from intercode_integrations.harbor.verifier import HarborReward
from intercode_sandbox import SandboxBackend


class HarborOptions(SandboxOptions, frozen=True, kw_only=True):
    """The options of `HarborEnv`."""

    max_turns: MaxTurns = 50
    variables: Annotated[
        Sequence[str],
        Meta(
            description="for Harbor's tasks: names of variables of this machine that they may "
            "have, where their task.toml asks for them (default: none)",
            extra={"metavar": "NAMES", "many": True},
        ),
    ] = ()


class HarborEnv(InterCodeEnv[SandboxBackend]):
    """An environment of Harbor's task folders, with one persistent Bash per episode.

    The reward comes from the task's script ``tests/test.sh``, which the agent never sees: see
    `HarborReward`. The option `reward` replaces the script.

    Args:
        data: The address ``harbor:FOLDER``, or the dataset that `tasks` returns for it.
        options: All options in one object.
        **changes: Single options by name, which override `options`: see `HarborOptions`.

    Raises:
        TaskError: The folder has no tasks, or a task is malformed.
        UsageError: An option does not exist, or is invalid.
        SandboxUnavailableError: This machine does not permit the sandbox.
    """

    name: ClassVar[str] = "harbor"
    Options: ClassVar[type[EnvOptions]] = HarborOptions
    traits: Traits = replace(SHELL, rules=("harbor",))

    def __init__(
        self, data: str | Dataset, *, options: HarborOptions | None = None, **changes: Any
    ) -> None:
        options = HarborOptions.merge(options, changes)
        tasks = data if isinstance(data, Dataset) else self.tasks(data.removeprefix("harbor:"))
        if tasks.source is None:
            raise UsageError(f"{tasks.name}: tasks of Harbor's need their folder: harbor:FOLDER")
        self._stage = stage = HarborStage(
            Path(tasks.source),
            options.sandbox,
            options.image,
            options.limits,
            options.network,
            options.default_image,
            options.variables,
        )
        reward = choose_reward("harbor", options.reward, lambda: HarborReward(stage))
        super().__init__(tasks, stage, self._open_shell, reward, options=options)

    @classmethod
    def tasks(cls, address: str) -> Dataset:
        """Load the tasks of an address ``harbor:FOLDER``.

        Args:
            address: The part after ``harbor:``: the folder of a task, or a folder of task folders.

        Raises:
            TaskError: The folder has no tasks, or a task is malformed.
        """
        return load(Path(address))

    def _open_shell(self, sandbox: SandboxBackend) -> Interpreter:
        stage, task = self._stage, self.episode_state.task
        user = stage.config(task).agent.account
        try:
            shell = BashInterpreter(sandbox, user)
            variables = {**home_variables(sandbox, user), **stage.variables(task)}.items()
        except LookupError as error:
            raise TaskError(f"task {task.task_id!r}: its agent's user: {error}") from error
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables]
        lines += [f"cd -- {shlex.quote(stage.directory(task))}", "unset OLDPWD"]
        shell.execute("\n".join(lines))
        return shell
