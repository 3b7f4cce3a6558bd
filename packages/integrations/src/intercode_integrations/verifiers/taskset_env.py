"""Tasks of any verifiers taskset, run by InterCode: ``intercode run verifiers:MODULE``.

Parameters after a question mark override the taskset's configuration, as in
``verifiers:MODULE?split=test``. A task is supported if it has a prompt, needs no tools and no own
preparation, and its rewards need only the trace. The first reply of the model is the answer.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import cache
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import verifiers.v1 as vf
from verifiers.v1.state import state_cls
from verifiers.v1.utils.loaders import environment_class, load_taskset, taskset_config_type

from intercode.envs.remote import RemoteEnvironment, RemoteStepReply
from intercode.envs.traits import Traits
from intercode.errors import RewardError, UsageError
from intercode.task import Dataset, Task

MAX_TASKS = 100_000
"""Maximum number of tasks that are loaded, because a taskset may be infinite."""


class VerifiersEnv(RemoteEnvironment):
    """An environment of a verifiers taskset whose tasks consist of one question and one reply."""

    name: ClassVar[str] = "verifiers"
    traits: Traits = Traits(
        language="text",
        setting="a question",
        briefing="You are asked for one reply, and judged by it. It needs no program.",
        parameter="reply",
        parameter_description="The whole reply.",
        does="Give the reply, which ends the task.",
        shows="Nothing.",
        wrong=("42",),
        is_remote=True,
    )

    @classmethod
    def tasks(cls, address: str) -> Dataset:
        """List the tasks of a taskset.

        Args:
            address: The module of the taskset, with parameters after a question mark.

        Raises:
            UsageError: The taskset cannot be loaded, or a task of it is not supported.
        """
        return Dataset(
            map(_convert_task, _taskset(address)), f"verifiers:{address}", source=address
        )

    def _begin(self, task: Task, seed: int | None) -> str:
        self._task = _taskset(str(self.dataset.source))[task.metadata["index"]]
        return task.query

    def _take(self, action: str) -> RemoteStepReply:
        return self._submit(action)

    def _submit(self, answer: str | None) -> RemoteStepReply:
        task, task_data = self._task, self._task.data
        trace = vf.Trace(
            task=vf.TraceTask(
                type=type(task).__name__, data=task_data, key=task.key, hash=task.hash
            ),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig(runtime=vf.SubprocessConfig())),
        )
        for role, text in (("system", task_data.system_prompt), ("user", task_data.prompt_text)):
            if text:
                trace.nodes.append(_node(trace, {"role": role, "content": text}))
        trace.nodes.append(_node(trace, {"role": "assistant", "content": answer or ""}, True))
        try:
            asyncio.run(task.score(trace))
        except vf.TaskError as error:
            raise RewardError(f"task {task.key} of verifiers cannot be scored: {error}") from error
        rewards = {reward_name: reward.score for reward_name, reward in trace.rewards.items()}
        return RemoteStepReply("", trace.reward, ended=True, parts={**trace.metrics, **rewards})


def _node(trace: Any, message: dict[str, str], sampled: bool = False) -> Any:
    parent_index = len(trace.nodes) - 1 if trace.nodes else None
    return vf.MessageNode(parent=parent_index, message=message, sampled=sampled)


def _convert_task(task: Any) -> Task:
    task_data = task.data
    query = "\n\n".join(text for text in (task_data.system_prompt, task_data.prompt_text) if text)
    return Task(
        f"{task_data.idx}", query, metadata={"index": task_data.idx, "name": task_data.name}
    )


@cache
def _taskset(address: str) -> list[Any]:
    """Load the tasks of a taskset; refuse a taskset with an unsupported task.

    Raises:
        UsageError: The taskset cannot be loaded, or a task of it is not supported.
    """
    module_name, _, query_string = address.partition("?")
    try:
        config = taskset_config_type(module_name).model_validate(
            {"id": module_name, **dict(parse_qsl(query_string))}
        )
        has_own_env = environment_class(module_name) is not vf.SingleAgentEnv
        tasks = list(islice(load_taskset(config), MAX_TASKS))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"verifiers:{address} is not a taskset that can be loaded: {error}"
        ) from error
    for task in tasks:
        if feature := "an environment of its own" if has_own_env else _missing_feature(task):
            raise UsageError(f"verifiers:{module_name} needs {feature}: only vf-eval can run it")
    return tasks


def _missing_feature(task: Any) -> str:
    """Return the unsupported feature that a task needs; empty if the task is supported."""
    task_class = type(task)
    scoring_functions = [*task.hooks("reward"), *task.hooks("metric")]
    if task.NEEDS_CONTAINER or any(
        "runtime" in inspect.signature(function).parameters for function in scoring_functions
    ):
        return "a runtime"
    if any(
        getattr(task_class, method_name) is not getattr(vf.Task, method_name)
        for method_name in ("setup", "finalize")
    ):
        return "its own preparation"
    if task.toolsets(task.config):
        return "tool servers"
    return "" if task.data.prompt_text else "somebody who begins the talk"
