"""InterCode's tasks, prompts, tools and rewards for Inspect: ``inspect eval intercode/bash``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from inspect_ai import Task, task
from inspect_ai.agent import AgentSubmit, react
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, ToolDef, ToolParams, bash as inspects_bash
from inspect_ai.util import (
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    registry_info,
    sandbox,
    sandboxenv,
)
from pydantic import BaseModel

import intercode
from intercode.episode import NoAction
from intercode.errors import RewardError, UsageError
from intercode.evaluate.task_selection import ungradable_tasks
from intercode.tool_calls import Tool as ToolDescription
from intercode_integrations.inspect.sandbox import InterCodeSandbox, run_in_thread

if TYPE_CHECKING:
    from intercode.envs.base import InterCodeEnv

Tools = Literal["intercode", "inspect"]
Function = TypeVar("Function", bound=Callable[..., Any])
TIMEOUT = 60
"""Maximum seconds for a command of Inspect's tool ``bash``."""
# Without `answer_only`, the whole transcript would count as the answer.
ONLY_ANSWER = AgentSubmit(answer_only=True)


class TaskConfig(BaseModel, frozen=True, extra="forbid"):
    """The configuration of a sample: the environment, its options, and the tools of the model."""

    env: str
    tools: Tools
    split: str | None = None
    options: dict[str, Any] = {}

    def __hash__(self) -> int:
        """Return a hash of the serialised configuration, because Inspect keeps them in a set."""
        return hash(self.model_dump_json())


@cache
def _environment(config: TaskConfig) -> InterCodeEnv[Any]:
    """Make the environment with all tasks, from which each sample's own environment is made."""
    env_options: dict[str, Any] = {"observations": "utf-8", "errors": "value", **config.options}
    environment: Any = intercode.make(config.env, split=config.split, **env_options).unwrapped
    if not isinstance(environment, intercode.InterCodeEnv):
        raise UsageError(f"{config.env!r}: its tasks run in another framework, not in Inspect")
    return environment


@sandboxenv(name="intercode-task")
class TaskSandbox(InterCodeSandbox):
    """The workspace of an InterCode task: an episode or, with Inspect's tools, only a sandbox.

    Args:
        config: The configuration of the sample.
        task_id: The id of the task.

    Raises:
        TaskError, ImageError, SandboxError: The workspace cannot be prepared.
        RewardError: The episode has failed at its start.
    """

    def __init__(self, config: TaskConfig, task_id: str) -> None:
        template_env = _environment(config)
        self.env = template_env.recreate(template_env.dataset)
        self.task = template_env.dataset.by_id(task_id)
        self.plays = config.tools == "intercode"
        try:
            if self.plays:
                self.env.reset(task_id=task_id)
                self._refuse_error()
            super().__init__(self.env.workspace if self.plays else self.env.stage.open(self.task))
        except BaseException:
            self.env.close()
            raise

    @classmethod
    def config_files(cls) -> list[str]:
        """Return no file names, because an InterCode task needs no configuration by files."""
        return []

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Validate a configuration that was read from an Inspect log."""
        return TaskConfig.model_validate(config)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Make the environment of a task before the first sample starts."""
        await run_in_thread(partial(_environment, TaskConfig.model_validate(config)))

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Start the episode of a sample or, with Inspect's tools, open its workspace."""
        start_sandbox = partial(cls, TaskConfig.model_validate(config), metadata["task_id"])
        return {"default": await run_in_thread(start_sandbox)}

    def close(self) -> None:
        """Close the workspace, even while a call runs."""
        self.env.stop()
        self.env.close()
        self.box.close()

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.env.episode.status != "running"

    def tools(self) -> list[Tool]:
        """Return the environment's tools as Inspect's tools, which act in the episode."""
        return [
            _tool(*pair) for pair in zip(self.env.tools, intercode.tools(self.env), strict=True)
        ]

    def score(self, answer: str) -> intercode.Score:
        """End the episode if it still runs, and score it; without an episode, score the workspace.

        Args:
            answer: The agent's last message, which is its answer if there is no episode.

        Raises:
            RewardError, SandboxError: A failure that the agent did not cause prevents the score.
        """
        if not self.plays:
            return self.env.score(self.task, self.box, output=answer)
        if not self.done:
            self.env.step("submit")
        self._refuse_error()
        score = self.env.episode.score
        assert score is not None  # the episode has ended without an error
        return score

    def _refuse_error(self) -> None:
        if (episode := self.env.episode).status == "error":
            raise RewardError(f"task {self.task.task_id!r} has no score: {episode.error}")


def _tool(tool: ToolDescription, function: Callable[..., str]) -> Tool:
    """Convert an InterCode tool and its function into an Inspect tool."""

    async def execute(**kwargs: Any) -> str:
        return await run_in_thread(partial(function, **kwargs), abandon=True)

    parameters = ToolParams.model_validate(tool.parameters)
    return ToolDef(execute, tool.name, tool.description, parameters).as_tool()


def _name_as_intercode(function: Function) -> Function:
    """Set a function's module to ``intercode``, so Inspect names its object ``intercode/…``."""
    function.__module__ = intercode.__name__
    return function


@solver
@_name_as_intercode
def play() -> Solver:
    """Return the solver in which the model plays the episode with InterCode's tools and prompts."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        # The import is late, because scoring alone needs no agents.
        from intercode.agents.strategies import NO_CALL

        workspace = sandbox().as_type(TaskSandbox)
        system_message, user_message = workspace.env.messages("tools")
        state.messages = [
            ChatMessageSystem(content=system_message["content"]),
            ChatMessageUser(content=user_message["content"]),
        ]
        state.tools = workspace.tools()
        while not workspace.done and not state.completed:
            state = await generate(state, tool_calls="single")
            # As for InterCode's agents, a reply without a tool call counts as a turn.
            if not state.output.message.tool_calls:
                observation, *_ = await run_in_thread(
                    partial(workspace.env.step, NoAction(NO_CALL)), abandon=True
                )
                state.messages.append(ChatMessageUser(content=observation))
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
@_name_as_intercode
def reward() -> Scorer:
    """Return the scorer that uses the environment's reward.

    If the infrastructure fails, the sample has an error and no score.
    """

    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        task_score = await run_in_thread(partial(sandbox().as_type(TaskSandbox).score, answer))
        return Score(value=task_score.value, answer=answer, metadata=dict(task_score.parts))

    return score


def _task(env: str, tools: Tools, split: str | None, options: dict[str, Any]) -> Task:
    from intercode.project import is_project

    if is_project(env):
        env = str(Path(env).absolute())  # Inspect changes the working directory
    config = TaskConfig(env=env, tools=tools, split=split, options=options)
    template_env = _environment(config)
    if tools == "inspect" and template_env.language != "bash":
        raise UsageError(
            f"{env!r}: Inspect's tool bash is for shells, not for {template_env.language}"
        )
    bash_tool = inspects_bash(timeout=TIMEOUT)
    excluded_ids = ungradable_tasks(template_env.dataset)
    samples = [
        Sample(
            intercode_task.query,
            id=intercode_task.task_id,
            metadata={"task_id": intercode_task.task_id, "tags": [*intercode_task.tags]},
        )
        for intercode_task in template_env.dataset
        if intercode_task.task_id not in excluded_ids
    ]
    return Task(
        MemoryDataset(samples, name=template_env.dataset.name),
        solver=play() if tools == "intercode" else react(tools=[bash_tool], submit=ONLY_ANSWER),
        scorer=reward(),
        sandbox=SandboxEnvironmentSpec("intercode-task", config),
    )


def _register_task(name: str, make: Callable[..., Task]) -> Callable[..., Task]:
    """Register a task as ``intercode/NAME`` with Inspect.

    If this package is imported from its checkout, Inspect omits the prefix ``intercode/``. The
    function then registers the task again with the prefix in the name.
    """
    factory: Callable[..., Task] = task(name=name)(_name_as_intercode(make))
    if "/" not in registry_info(factory).name:
        factory = task(name=f"intercode/{name}")(make)
    return factory


def _task_factory(env: str) -> Callable[..., Task]:
    def make(tools: Tools = "intercode", split: str | None = None, **options: Any) -> Task:
        return _task(env, tools, split, options)

    return _register_task(env, make)


def _benchmark(
    env: str, tools: Tools = "intercode", split: str | None = None, **options: Any
) -> Task:
    return _task(env, tools, split, options)


benchmark = _register_task("benchmark", _benchmark)
"""Task of Inspect with the tasks of an environment or of a benchmark's folder.

Args:
    env: The name of the environment, or the folder of the benchmark.
    tools: The tools of the model. ``intercode``: the environment's own, in an episode. ``inspect``:
        Inspect's ``bash``, with a new shell for each command.
    split: The split of the data; None: the default.
    **options: Options of the environment."""
bash, ctf, python, sql, swe = map(_task_factory, ("bash", "ctf", "python", "sql", "swe"))
