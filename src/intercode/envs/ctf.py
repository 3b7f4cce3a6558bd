"""The CTF environment: a shell in a puzzle's folder, scored by the flag that is found there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from intercode import datasets
from intercode.envs import ctf_tasks
from intercode.envs.base import InterCodeEnv
from intercode.envs.stage_ctf import CtfStage
from intercode.errors import TaskError, UsageError
from intercode.interpreters.base import Execution, Interpreter
from intercode.interpreters.bash import shell_in
from intercode.rewards.base import Reward
from intercode.rewards.flag import SUBMITTED, FlagReward, is_flag, solved_subtasks
from intercode.rewards.gold import GoldCache
from intercode.rewards.own import Function, choose
from intercode.sandbox import Limits, Provider, Sandbox
from intercode.task import Dataset, Task


class CtfEnv(InterCodeEnv[Sandbox]):
    """One persistent Bash per episode, in the task's folder; ``submit FLAG`` hands in a flag.

    The right flag ends the episode. A wrong one is told so and costs an attempt; the last wrong one
    ends the episode, too. The answer of a subtask is told so and costs none. ``submit`` alone ends
    the episode with what was reached. See `CtfStage` for what a task can have.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        attempts: How many wrong flags end the episode; 0 or None: any number may be tried.
        image: The image of all tasks; None: each task's own, or ``host``.
        provider: What starts sandboxes, or its name.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the sandbox reaches the network. Without it, tasks that are tagged
            ``network`` are left out.
        max_turns: Actions in one episode, flags that do not end it included.
        reward_every_turn: Score after every action (see `InterCodeEnv`).
        cache_gold: Of no effect, gold is not run; taken as by other environments.
        reward: Instead of `FlagReward`: a function, or ``reward.py:score``.
        render_mode: None or ``"ansi"``.
        seed: Of the first `reset` that is given none, and of the bundled puzzles; None: for these
            0.
        secret: What the bundled puzzles' flags are made from; None: one that is drawn once for
            this process.

    Raises:
        TaskError: The data is malformed, a task has no flag, or all need the network.
        UsageError: An option makes no sense.
        SandboxUnavailableError: This machine does not permit the sandbox.
    """

    name: ClassVar[str] = "ctf"
    takes_answer: ClassVar[bool] = True

    def __init__(
        self,
        data: str | Path | Dataset = "ctf",
        *,
        attempts: int | None = 3,
        image: str | None = None,
        provider: str | Provider = "native",
        limits: Limits | None = None,
        network: bool = False,
        max_turns: int = 10,
        reward_every_turn: bool = False,
        cache_gold: bool | GoldCache = True,
        reward: str | Function | Reward[Sandbox] | None = None,
        render_mode: str | None = None,
        seed: int | None = None,
        secret: str | None = None,
    ) -> None:
        if attempts is not None and attempts < 0:
            raise UsageError(f"attempts must be 0 or more, not {attempts}")
        tasks = datasets.load_seeded(data, seed or 0, secret)
        ctf_tasks.check(tasks)
        self.attempts = attempts or None
        kept = tasks if network else ctf_tasks.offline(tasks)
        self._left_out = {task.task_id for task in tasks} - {task.task_id for task in kept}
        self._folders = CtfStage(provider, image, limits, network)
        super().__init__(
            kept,
            self._folders,
            self._shell_in,
            choose("ctf", reward, FlagReward),
            max_turns=max_turns,
            reward_every_turn=reward_every_turn,
            render_mode=render_mode,
            seed=seed,
        )

    def solution(self, task: Task) -> list[str]:
        """The commands of ``metadata.solution``, if the task has any, and the flag."""
        return [*task.metadata.get("solution", ()), f"submit {task.gold[0]}"]

    def _choose(self, options: dict[str, Any]) -> Task:
        if (name := str(options.get("task_id"))) in self._left_out:
            raise TaskError(
                f"task {name!r} needs the network, which this environment does not have"
            )
        return super()._choose(options)

    def _shell_in(self, sandbox: Sandbox) -> Interpreter:
        assert self._task is not None  # the episode begins
        return shell_in(sandbox, self._folders.directory(self._task))

    def _reply(self, answer: str | None) -> Execution | None:
        assert self._task is not None  # the episode is running
        if answer is None or is_flag(self._task, answer):
            return None
        info = {SUBMITTED: answer, "executed": False}
        if solved := solved_subtasks(self._task, {answer}):
            text = f"That is right, for a part of the task ({', '.join(solved)}). Go on."
            reply = Execution(f"{text}\n".encode(), ok=True, info=info)
        else:
            text = "That is not the flag."
            if self.attempts is not None:
                left = self.attempts - 1 - self._wrong_attempts()
                if left == 0:
                    return None
                text += f" {left} more attempt{'s' if left > 1 else ''}."
            reply = Execution(f"{text}\n".encode(), ok=False, info=info)
        self.episode.answer = None  # it is in the turn
        return reply

    def _wrong_attempts(self) -> int:
        return sum(SUBMITTED in turn.info and not turn.ok for turn in self.episode.turns)
