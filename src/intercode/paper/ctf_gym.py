"""The 2023 semantics behind Gymnasium's interface: ``make("ctf", protocol="paper")``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import asdict

from intercode.datasets import load
from intercode.envs.ctf import CtfEnv
from intercode.envs.options import CtfOptions, EnvOptions
from intercode.envs.traits import Traits
from intercode.episode import Episode, Score, Status
from intercode.interpreters.base import Execution, Interpreter
from intercode.paper.bash import LIMITS
from intercode.paper.ctf_session import WRONG, check, in_its_folder, is_flag, shell, submitted
from intercode.paper.limits import PaperCtfOptions, refuse
from intercode.rewards.flag import SUBMITTED, submissions
from intercode.sandbox.base import Sandbox
from intercode.task import Dataset, Task


class PaperCtfEnv(CtfEnv):
    """The 2023 CTF environment: a new process for each action, and any number of flags.

    ``submit FLAG`` hands in its second word, in capitals or not; a wrong one makes a turn.
    ``submit`` alone gives up.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: The options, as one value; its `limits` must be the defaults.
        **changes: Single options by their names.

    Raises:
        TaskError: A task has no flag, or has what 2023 knew nothing of.
        UsageError: An option makes no sense.
    """

    Options: ClassVar[type[EnvOptions]] = PaperCtfOptions
    traits: Traits = replace(CtfEnv.traits, pure_reward=None)

    def __init__(
        self,
        data: str | Path | Dataset = "ic-ctf",
        *,
        options: PaperCtfOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperCtfOptions.of(options, changes)
        refuse(options.limits)
        tasks = load(data)
        for task in tasks:
            check(task)
        super().__init__(
            Dataset(map(in_its_folder, tasks), tasks.name, tasks.source),
            options=CtfOptions(
                **{**asdict(options), "attempts": None, "limits": LIMITS, "reward": _reward}
            ),
        )

    def _shell_in(self, sandbox: Sandbox) -> Interpreter:
        assert self._task is not None  # the episode begins
        return shell(sandbox, self.image(self._task), self._folders.directory(self._task))

    def _ending(self, action: str) -> Status | None:
        if action == "skip":
            return "skipped"
        if not action.startswith("submit"):
            return None
        self.episode.answer = submitted(action)
        return "submitted"

    def _reply(self, answer: str | None) -> Execution | None:
        assert self._task is not None  # the episode is running
        if answer is None or is_flag(self._task, answer):
            return None
        self.episode.answer = None  # it is in the turn
        return Execution(WRONG.encode(), ok=False, info={SUBMITTED: answer, "executed": False})


def _reward(task: Task, episode: Episode, sandbox: Sandbox) -> Score:
    flag = float(any(is_flag(task, answer) for answer in submissions(episode)))
    return Score(flag, {"flag": flag})
