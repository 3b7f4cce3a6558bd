"""InterCode's tasks as a taskset of verifiers, with InterCode's rewards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict, Field

import intercode
from intercode.agents.conversation import Prompt, PromptContext
from intercode.episode import Score
from intercode.outcomes import failure_kind
from intercode_integrations.async_env import AsyncEnv


class Source(BaseModel):
    """The origin of the tasks, and the options of their environment."""

    env: str = "bash"
    """Name of an environment, or the folder of a benchmark."""
    split: str | None = None
    """Split of the data; None: the default, or all tasks."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `intercode.make`: ``max_turns``, ``data``, ``limits``, …"""

    def make(self) -> Any:
        """Make the environment. Its sandbox starts with its first episode."""
        return intercode.make(self.env, split=self.split, **self.options)


class InterCodeConfig(vf.TasksetConfig, Source):
    """``--env.taskset.…``."""


class InterCodeTaskData(vf.TaskData, Source):
    """A task in verifiers' records: without gold."""


class InterCodeState(vf.State):
    """The episode of a rollout; it is not recorded."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    env: AsyncEnv | None = Field(None, exclude=True)
    """Set from the start of the harness to its end."""
    has_begun: bool = Field(False, exclude=True)
    """Whether the episode started within verifiers' time limit for the setup."""

    @property
    def score(self) -> Score | None:
        """The score; None until the episode is scored."""
        return None if self.env is None else self.env.episode.score


class InterCodeTask(vf.Task[InterCodeTaskData, InterCodeState]):
    """A task of InterCode."""

    @property
    def key(self) -> str:
        """The task's id, because its data has paths of this machine."""
        return str(self.data.id)

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """End an episode that still runs, to score its current state."""
        env = trace.state.env
        if env is None:
            raise intercode.UsageError(
                "only InterCode's own harness plays its tasks: omit --env.agent.harness.id"
            )
        if not trace.state.has_begun:  # verifiers scores rollouts that timed out, too
            raise vf.SandboxError("the sandbox did not start within the time limit of the setup")
        with failures(), suppress(intercode.EnvironmentStateError):  # the episode has ended
            await env.step("submit")
        if trace.state.score is None:
            raise vf.SandboxError(env.episode.error or "the episode has no score")

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Return the reward of the episode."""
        return float(trace.state.score.value)

    @vf.metric
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        """Return each part of the reward; in addition, the success and the number of turns."""
        score: Score = trace.state.score
        turns = len(trace.state.env.episode.turns)
        return {**score.parts, "success": float(score.value == 1.0), "turns": float(turns)}


class InterCodeTaskset(vf.Taskset[InterCodeTask, InterCodeConfig]):
    """The tasks of an environment, or of a benchmark's folder."""

    def load(self) -> Iterator[InterCodeTask]:
        """Yield the tasks, each with the prompt of the agent ``tool-calling``."""
        config = self.config
        env = config.make().unwrapped
        traits, prompt = env.traits, Prompt("tool_calling")
        setting = traits.setting or traits.language
        for task in env.dataset:
            scene = PromptContext(env.name, traits, setting, task.query, env.max_turns)
            values = {**scene.values(), "show_reward": False}
            data = InterCodeTaskData(
                id=task.task_id,
                name=task.task_id,
                prompt=prompt.render("task", **values),
                system_prompt=prompt.render("system", **values),
                env=config.env,
                split=config.split,
                options=config.options,
            )
            yield InterCodeTask(data, config.task)


@contextmanager
def failures() -> Iterator[None]:
    """Convert failures into verifiers' own errors, for its retry rules: a failure has no reward."""
    try:
        yield
    except (intercode.InterCodeError, OSError) as error:
        name = type(error).__name__
        kind = vf.SandboxError if failure_kind(name) == "lost" else vf.TaskError
        raise kind(f"{name}: {error}") from error
