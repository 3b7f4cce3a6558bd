"""The SWE environment: issues of a repository, solved in a shell, scored by the project's tests."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from intercode import datasets
from intercode.envs.base import InterCodeEnv
from intercode.envs.stage_swe import SweStage
from intercode.interpreters.base import Interpreter
from intercode.interpreters.bash import shell_in
from intercode.rewards.base import Reward
from intercode.rewards.gold import GoldCache
from intercode.rewards.own import Function, choose
from intercode.rewards.swe import SweReward
from intercode.sandbox import Limits, Provider, Sandbox
from intercode.task import Dataset, Task


class SweEnv(InterCodeEnv[Sandbox]):
    """One persistent Bash per episode, in the task's repository at its base commit.

    See `docs/reference/swe.md` for what a task has, and `SweReward` for how it is scored.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        repositories: A folder or URL with the repositories that tasks name and do not have.
        image: The image of all tasks; None: each task's own, or ``host``.
        provider: What starts sandboxes, or its name.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the sandbox reaches the network.
        max_turns: Actions in one episode.
        reward_every_turn: Score after every action (see `InterCodeEnv`).
        cache_gold: Whether twins of the tests (`swe_twins`) are made once per task, or a cache to
            share with other environments.
        reward: Instead of `SweReward`: a function, or ``reward.py:score``.
        render_mode: None or ``"ansi"``.
        seed: Of the first `reset` that is given none.

    Raises:
        TaskError: The data is malformed. (Tasks are looked at one by one, by `check` and `reset`:
            a benchmark may hold some that cannot be tried here.)
        UsageError: An option makes no sense.
        SandboxUnavailableError: This machine does not permit the sandbox.
    """

    name: ClassVar[str] = "swe"

    def __init__(
        self,
        data: str | Path | Dataset = "swe",
        *,
        repositories: str | Path | None = None,
        image: str | None = None,
        provider: str | Provider = "native",
        limits: Limits | None = None,
        network: bool = False,
        max_turns: int = 30,
        reward_every_turn: bool = False,
        cache_gold: bool | GoldCache = True,
        reward: str | Function | Reward[Sandbox] | None = None,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        tasks = datasets.load(data)
        stage = SweStage(provider, image, limits, network, repositories, _folder(tasks))
        self._directory = stage.directory
        super().__init__(
            tasks,
            stage,
            self._shell_in,
            choose(
                "swe",
                reward,
                lambda: SweReward(
                    stage.start, stage.plan, stage.identify, GoldCache.chosen(cache_gold)
                ),
            ),
            max_turns=max_turns,
            reward_every_turn=reward_every_turn,
            render_mode=render_mode,
            seed=seed,
        )

    def solution(self, task: Task) -> list[str]:
        """The first gold, applied as a patch."""
        return [*map(apply_patch, task.gold[:1]), "submit"]

    def _shell_in(self, sandbox: Sandbox) -> Interpreter:
        assert self._task is not None  # the episode begins
        return shell_in(sandbox, self._directory(self._task))


def apply_patch(patch: str) -> str:
    """A command that applies a unified diff."""
    end = "END"
    while end in patch.split("\n"):
        end += "_"
    return f"git apply --whitespace=nowarn - <<'{end}'\n{patch.rstrip(chr(10))}\n{end}"


def _folder(tasks: Dataset) -> Path | None:
    """Where the data's relative paths begin: beside its file."""
    if tasks.source is None:
        return None
    source = Path(tasks.source).absolute()
    return source if source.is_dir() else source.parent
