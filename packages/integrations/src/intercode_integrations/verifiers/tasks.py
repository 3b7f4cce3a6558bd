"""InterCode's tasks as a taskset of the framework verifiers, with InterCode's rewards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict, Field

import intercode
from intercode.agents.conversation import PromptContext, StrategyPrompts
from intercode.episode import Score
from intercode.outcomes import failure_kind
from intercode_integrations.async_env import AsyncEnv


class TaskSource(BaseModel):
    """The origin of the tasks, and the options of their environment."""

    env: str = "bash"
    """Name of the environment, or the folder of a benchmark."""
    split: str | None = None
    """Split of the data; None: the default split, or all tasks."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `intercode.make`, such as ``max_turns``, ``data`` or ``limits``."""

    def make(self) -> Any:
        """Make the environment. A sandbox starts only with the first episode."""
        return intercode.make(self.env, split=self.split, **self.options)


class InterCodeConfig(vf.TasksetConfig, TaskSource):
    """The options ``--env.taskset.…`` of the taskset."""


class InterCodeTaskData(vf.TaskData, TaskSource):
    """A task as verifiers records it, without gold."""


class InterCodeState(vf.State):
    """The state of a rollout, which is not recorded."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    env: AsyncEnv | None = Field(None, exclude=True)
    """The environment, from the start of the harness to its end."""
    has_begun: bool = Field(False, exclude=True)
    """Whether the episode started within the time limit that verifiers sets for the setup."""

    @property
    def score(self) -> Score | None:
        """The score of the episode; None until the episode is scored."""
        return None if self.env is None else self.env.episode.score


class InterCodeTask(vf.Task[InterCodeTaskData, InterCodeState]):
    """An InterCode task with the interface of verifiers."""

    @property
    def key(self) -> str:
        """The task's id. A key made of the task's data would contain paths of this machine."""
        return str(self.data.id)

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """End the episode if it still runs, which scores its current state.

        Raises:
            UsageError: Another harness than InterCode's has played the task.
            SandboxError: The episode has no score.
        """
        env = trace.state.env
        if env is None:
            raise intercode.UsageError(
                "only InterCode's own harness plays its tasks: omit --env.agent.harness.id"
            )
        # The library `verifiers` also scores rollouts that exceeded the time limit of its setup.
        if not trace.state.has_begun:
            raise vf.SandboxError("the sandbox did not start within the time limit of the setup")
        # `step` raises EnvironmentStateError if the episode has already ended.
        with failures(), suppress(intercode.EnvironmentStateError):
            await env.step("submit")
        if trace.state.score is None:
            raise vf.SandboxError(env.episode.error or "the episode has no score")

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Return the reward of the episode, in [0, 1]."""
        return float(trace.state.score.value)

    @vf.metric
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        """Return the parts of the reward, the success (0 or 1), and the number of turns."""
        score: Score = trace.state.score
        turn_count = len(trace.state.env.episode.turns)
        return {**score.parts, "success": float(score.value == 1.0), "turns": float(turn_count)}


class InterCodeTaskset(vf.Taskset[InterCodeTask, InterCodeConfig]):
    """The tasks of an environment or of a benchmark's folder, for verifiers."""

    def load(self) -> Iterator[InterCodeTask]:
        """Yield the tasks, each with the prompts of the agent ``tool-calling``."""
        config = self.config
        env = config.make().unwrapped
        traits, prompt = env.traits, StrategyPrompts("tool_calling")
        setting = traits.setting or traits.language
        for task in env.dataset:
            prompt_context = PromptContext(env.name, traits, setting, task.query, env.max_turns)
            prompt_values = {**prompt_context.values(), "show_reward": False}
            task_data = InterCodeTaskData(
                id=task.task_id,
                name=task.task_id,
                prompt=prompt.render("task", **prompt_values),
                system_prompt=prompt.render("system", **prompt_values),
                env=config.env,
                split=config.split,
                options=config.options,
            )
            yield InterCodeTask(task_data, config.task)


@contextmanager
def failures() -> Iterator[None]:
    """Convert InterCode's errors in the block into those of verifiers, for its rules of retries.

    A rollout with such an error has no reward.
    """
    try:
        yield
    except (intercode.InterCodeError, OSError) as error:
        class_name = type(error).__name__
        error_class = vf.SandboxError if failure_kind(class_name) == "lost" else vf.TaskError
        raise error_class(f"{class_name}: {error}") from error
