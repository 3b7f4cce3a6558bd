"""The environment ``inspect:TASK``: samples of an Inspect task, run by InterCode's runner."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from inspect_ai import Task as InspectTask
from inspect_ai._eval.loader import load_tasks
from inspect_ai._eval.task.sandbox import read_sandboxenv_file, resolve_sample_files
from inspect_ai._eval.task.util import task_run_dir
from inspect_ai._util.error import PrerequisiteError
from inspect_ai._util.path import chdir
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName, ModelOutput
from inspect_ai.scorer import Target, value_to_float
from inspect_ai.solver import TaskState
from inspect_ai.util import SandboxEnvironmentSpec
from inspect_ai.util._sandbox import context

from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions, SandboxOptions
from intercode.envs.traits import SHELL, Traits
from intercode.episode import Episode, Score, decode
from intercode.errors import RewardError, TaskError, UsageError
from intercode.task import Dataset, Task
from intercode_integrations.inspect.sandbox import InterCodeSandbox, SandboxConfig
from intercode_sandbox import SandboxBackend

_SETUP = "/tmp/.inspect-setup"
_ZEROS = {"i", "n", "no", "false"}
"""Texts that Inspect converts to the score 0, in lower case."""


class InspectEnv(InterCodeEnv[SandboxBackend]):
    """An environment of an Inspect task's samples, with one persistent Bash per episode.

    The sample describes the sandbox. The reward is the value of the Inspect task's first scorer for
    the submitted answer and the sandbox. The Inspect task's own solver and tools are not used.

    Args:
        data: The address ``inspect:TASK``, or the dataset that `tasks` returns for it.
        options: All options in one object.
        **changes: Single options by name, which override `options`: see `SandboxOptions`.

    Raises:
        TaskError: A sample is a multiple choice, or its sandbox is not supported.
        UsageError: The task or option does not exist, or the task has no scorer.
    """

    name: ClassVar[str] = "inspect"
    takes_answer: ClassVar[bool] = True
    Options: ClassVar[type[EnvOptions]] = SandboxOptions
    traits: Traits = replace(
        SHELL, may_answer="answer", answer_description="The final answer, if any."
    )

    def __init__(
        self, data: str | Dataset, *, options: EnvOptions | None = None, **changes: Any
    ) -> None:
        super().__init__(data, None, "bash", _reward, options=options, **changes)

    @classmethod
    def tasks(cls, address: str) -> Dataset:
        """Load the samples of an Inspect task as InterCode's tasks.

        Args:
            address: The task's address for ``inspect eval``: ``FILE.py@TASK``, or ``PACKAGE/TASK``.

        Raises:
            TaskError: A sample is a multiple choice, or its sandbox is not supported.
            UsageError: The address matches no task or several tasks, or the task has no scorer.
        """
        inspect_task = _load_task(address)
        with chdir(task_run_dir(inspect_task)):
            tasks = [
                _task(address, inspect_task, index) for index in range(len(inspect_task.dataset))
            ]
        return Dataset(tasks, f"inspect:{address}")


@cache
def _load_task(address: str) -> InspectTask:
    try:
        tasks = load_tasks([address])
    except (OSError, PrerequisiteError) as error:
        raise UsageError(f"inspect:{address}: there is no such task: {error}") from None
    if len(tasks) != 1:
        raise UsageError(f"inspect:{address}: {len(tasks)} tasks match: name one, FILE@TASK")
    if not tasks[0].scorer:
        raise UsageError(f"inspect:{address}: the task has no scorer, so it has no reward")
    return tasks[0]


def _task(address: str, inspect_task: InspectTask, index: int) -> Task:
    sample = inspect_task.dataset[index]
    task_id = str(index + 1 if sample.id is None else sample.id)
    if sample.choices:
        raise TaskError(
            f"inspect:{address}: sample {task_id!r}: multiple choice needs the task's own solver, "
            "which is not supported"
        )
    sources = resolve_sample_files(sample.files or {})
    files = {path: _content(source) for path, source in sources.items()}
    setup = None
    if sample.setup:
        script = _content(sample.setup)
        files[_SETUP] = script if script.startswith("#!") else f"#!/usr/bin/env bash\n\n{script}"
        setup = f"chmod +x {_SETUP} && {_SETUP} && rm {_SETUP}"
    return Task(
        task_id,
        "\n\n".join(_texts(sample)),
        files=files,
        setup=setup,
        image=_image(sample.sandbox or inspect_task.sandbox),
        metadata={"inspect": [address, index]},
    )


def _content(source: str) -> str:
    """Return the content of a file of a sample: a literal text, a path, a URL or a data URL.

    Inspect's rules decide which of these the source is.
    """
    return decode(_run_coroutine(partial(read_sandboxenv_file, source)))


def _texts(sample: Sample) -> list[str]:
    return (
        [sample.input]
        if isinstance(sample.input, str)
        else [message.text for message in sample.input]
    )


def _image(spec: SandboxEnvironmentSpec | None) -> str | None:
    """Return the image that a sample's sandbox names; None: the environment's default.

    Raises:
        TaskError: The sandbox is neither InterCode's nor a Dockerfile.
    """
    config = spec.config if spec is not None else None
    if spec is None or config is None:
        return None
    if spec.type == "intercode":
        return SandboxConfig.parse(config).image
    if isinstance(config, str) and Path(config).name.endswith("Dockerfile"):
        return str(Path(config).absolute())
    raise TaskError(f"a sandbox {spec.type!r} with {config!r}: only a Dockerfile is supported")


def _reward(task: Task, episode: Episode, workspace: SandboxBackend) -> Score:
    """Score an episode by the first scorer of its Inspect task.

    Raises:
        RewardError: The scorer gives no finite number.
    """
    address, index = task.metadata["inspect"]
    inspect_task = _load_task(address)
    sample, answer = inspect_task.dataset[index], episode.answer or ""
    messages = [ChatMessageUser(content=task.query), ChatMessageAssistant(content=answer)]
    state = TaskState(
        ModelName("none/none"),
        task.task_id,
        epoch=1,
        input=sample.input,
        messages=messages,
        target=Target(sample.target),
        output=ModelOutput.from_content("none", answer),
        metadata=sample.metadata,
    )

    async def score() -> Any:
        context.sandbox_environments_context_var.set({"default": InterCodeSandbox(workspace)})
        context.sandbox_with_environments_context_var.set({})
        context.sandbox_default_context_var.set("default")
        assert inspect_task.scorer
        return await inspect_task.scorer[0](state, Target(sample.target))

    inspect_score = _run_coroutine(score)
    value = math.nan if inspect_score is None else _convert_number(inspect_score.value)
    if not math.isfinite(value):
        raise RewardError(
            f"task {task.task_id!r}: its scorer gives {inspect_score!r}, not one value"
        )
    return Score(value, detail={"explanation": inspect_score.explanation or ""})


def _convert_number(value: Any) -> float:
    """Return the number that Inspect reads in the value of a score; NaN if it contains none.

    Inspect itself converts an unknown text to 0, which would hide that the score is not a number.
    """
    if isinstance(value, (dict, list)):
        return math.nan
    number = float(value_to_float()(value))
    if number or not isinstance(value, str) or value.lower() in _ZEROS:
        return number
    try:
        return float(value)
    except ValueError:
        return math.nan


def _run_coroutine(async_function: Any) -> Any:
    """Run a coroutine function on a new thread, which has no event loop yet; return its result."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(lambda: asyncio.run(async_function())).result()
