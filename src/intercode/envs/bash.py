"""The Bash environment: tasks for a shell, scored by gold's effect or by a verification command."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from intercode import datasets
from intercode.envs.base import InterCodeEnv
from intercode.envs.stage import SandboxStage
from intercode.episode import Episode, Score
from intercode.errors import TaskError, UsageError
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.base import Reward
from intercode.rewards.bash import BashReward
from intercode.rewards.command import CommandReward
from intercode.rewards.gold import GoldCache, GoldRunner
from intercode.rewards.judge import Judge
from intercode.rewards.own import Function, choose
from intercode.sandbox import Limits, Provider, Sandbox
from intercode.task import Dataset, Task


class BashEnv(InterCodeEnv[Sandbox]):
    """One persistent Bash per episode; an observation is what the terminal would show.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        image: The image of all tasks; None: each task's own, or ``host``.
        provider: What starts sandboxes, or its name.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the sandbox reaches the network.
        max_turns: Actions in one episode.
        reward_every_turn: Score after every action (see `InterCodeEnv`).
        cache_gold: Whether gold runs once per task rather than at every score (False if it
            depends on the clock), or a cache to share with other environments.
        reward: Instead of the task's verification command or, without one, its gold: a function,
            or ``reward.py:score`` (see `intercode.rewards.own`). Or with it: a
            `intercode.rewards.judge.Judge`, for outputs that are not equal to gold's.
        render_mode: None or ``"ansi"``.
        seed: Of the first `reset` that is given none.

    Raises:
        TaskError: The data is malformed, or a task has neither gold nor verification.
        UsageError: An option makes no sense.
        SandboxUnavailableError: This machine does not permit the sandbox.
    """

    name: ClassVar[str] = "bash"

    def __init__(
        self,
        data: str | Path | Dataset = "bash",
        *,
        image: str | None = None,
        provider: str | Provider = "native",
        limits: Limits | None = None,
        network: bool = False,
        max_turns: int = 10,
        reward_every_turn: bool = False,
        cache_gold: bool | GoldCache = True,
        reward: str | Function | Reward[Sandbox] | Judge | None = None,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        if reward == "judge":
            raise UsageError(
                "a judge needs a model: --judge-model PROVIDER/NAME, or from Python "
                "reward=Judge('PROVIDER/NAME'), of intercode.rewards.judge"
            )
        judge, reward = (reward, None) if isinstance(reward, Judge) else (None, reward)
        tasks = datasets.load(data)
        stage = SandboxStage(provider, image, limits, network)
        super().__init__(
            tasks,
            stage,
            BashInterpreter,
            choose("bash", reward, lambda: _reward(tasks, stage, cache_gold, judge)),
            max_turns=max_turns,
            reward_every_turn=reward_every_turn,
            render_mode=render_mode,
            seed=seed,
        )


def _reward(
    tasks: Dataset, stage: SandboxStage, cache_gold: bool | GoldCache, judge: Judge | None
) -> Reward[Sandbox]:
    """Verification where a task has one, else gold."""
    for row, task in enumerate(tasks):
        if not task.gold and task.verification is None:
            raise TaskError(
                f"{tasks.source or tasks.name}: row {row}, task {task.task_id!r} has neither "
                f"'gold' nor 'verification': nothing says when it is solved"
            )
    cache = (GoldCache() if cache_gold else None) if isinstance(cache_gold, bool) else cache_gold
    by_gold = BashReward(GoldRunner(stage.start, BashInterpreter, stage.identify, cache), judge)
    by_command = CommandReward(stage.provider, stage.start, stage.network)

    def reward(task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        chosen = by_gold if task.verification is None else by_command
        return chosen(task, episode, sandbox)

    return reward
