"""The Bash environment: tasks for a shell, scored by gold's effect or by a verification command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import BashOptions, EnvOptions
from intercode.envs.stage import SandboxStage
from intercode.envs.traits import SHELL, GuessedSolution, Traits, constant_actions
from intercode.episode import Episode, Score
from intercode.errors import TaskError, UsageError
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.base import Reward
from intercode.rewards.bash import BashReward
from intercode.rewards.custom import choose_reward
from intercode.rewards.gold import GoldCache, GoldRunner
from intercode.rewards.judge import Judge
from intercode.rewards.verification import CommandReward
from intercode.task import Dataset, Task
from intercode_sandbox import SandboxBackend


class BashEnv(InterCodeEnv[SandboxBackend]):
    """An environment with one persistent Bash per episode; observations are terminal output.

    The reward runs the task's verification command. Without a verification command the reward
    compares the effect of the episode with the effect of gold. The option `reward` replaces both.
    If the option is a `Judge` of `intercode.rewards.judge`, the comparison with gold remains, and
    the judge only decides on outputs that differ from gold's output.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object.
        **changes: Single options by name, which override `options`: see `BashOptions`.

    Raises:
        TaskError: The data is malformed, or a task has neither gold nor verification.
        UsageError: An option is unknown or invalid.
    """

    name: ClassVar[str] = "bash"
    Options: ClassVar[type[EnvOptions]] = BashOptions
    traits: Traits = replace(
        SHELL,
        rules=("bash", "answer", "command"),
        constants=(
            GuessedSolution("true", constant_actions("true"), idle=True),
            *(
                GuessedSolution(f"echo {n}", constant_actions(f"echo {n}"), by_chance=True)
                for n in range(3)
            ),
        ),
    )

    def __init__(
        self,
        data: str | Path | Dataset = "bash",
        *,
        options: BashOptions | None = None,
        **changes: Any,
    ) -> None:
        options = BashOptions.merge(options, changes)
        if (reward := options.reward) == "judge":
            raise UsageError(
                "a judge needs a model: --judge-model PROVIDER/NAME, or from Python "
                "reward=Judge('PROVIDER/NAME'), of intercode.rewards.judge"
            )
        judge, reward = (reward, None) if isinstance(reward, Judge) else (None, reward)
        tasks = load(data)
        stage = SandboxStage.from_options(options, self.traits)
        cache = GoldCache.from_option(options.cache_gold, stage.provider)
        env_reward = choose_reward(
            "bash", reward, lambda: _reward(tasks, stage, cache, judge, options.ignore)
        )
        super().__init__(tasks, stage, BashInterpreter, env_reward, options=options)


def _reward(
    tasks: Dataset,
    stage: SandboxStage,
    cache: GoldCache | None,
    judge: Judge | None,
    ignore: Sequence[str],
) -> Reward[SandboxBackend]:
    """Return the reward of the Bash environment.

    For a task with a verification command, the reward runs the command. For any other task, the
    reward compares the effect of the episode with the effect of gold.

    Raises:
        TaskError: A task has neither gold nor verification.
    """
    for task in tasks:
        if not task.gold and task.verification is None:
            raise TaskError(
                f"{tasks.where(task)} has neither 'gold' nor 'verification', so it cannot be scored"
            )
    runner = GoldRunner(stage.open, BashInterpreter, stage.identify, cache)
    gold_reward = BashReward(runner, judge, ignore)
    command_reward = CommandReward(stage.provider, stage.open, stage.network)

    def reward(task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        task_reward = gold_reward if task.verification is None else command_reward
        return task_reward(task, episode, sandbox)

    return reward
