"""Inspect AI's own checks of a sandbox, and an evaluation, on `examples/integrations`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import inspect_task
import pytest
import pytest_asyncio
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

TASKS = list(inspect_task.TASKS)[:8]
NEEDS_CAPABILITIES = "test_exec_as_user"
"""It adds a user by `adduser`, for which root needs capabilities: one of the 44."""


@pytest_asyncio.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[inspect_task.InterCode]:
    """The sandbox of a task."""
    if request.node.originalname == NEEDS_CAPABILITIES:
        request.applymarker(pytest.mark.xfail(strict=True, reason="root has no capabilities"))
    made = await inspect_task.InterCode.sample_init("checks", None, {"task_id": TASKS[0].task_id})
    yield made["default"]
    await inspect_task.InterCode.sample_cleanup("checks", None, made, False)


def outputs(solve: bool) -> list[ModelOutput]:
    """What a model says that runs gold in each task, or does nothing."""
    said = []
    for task in TASKS:
        command = task.gold[0] if solve else "true"
        said.append(ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}))
        said.append(ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": "done"}))
    usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it counts online
    return [output.model_copy(update={"usage": usage}) for output in said]


@pytest.mark.parametrize("solve", [True, False])
def test_an_evaluation(solve: bool, tmp_path: Path) -> None:
    [log] = eval(
        inspect_task.bash_tasks(),
        model=get_model("mockllm/model", custom_outputs=outputs(solve), memoize=False),
        sample_id=[task.task_id for task in TASKS],
        max_samples=1,
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    assert log.results is not None and len(log.samples or []) == len(TASKS)
    value = log.results.scores[0].metrics["mean"].value
    assert value == 1.0 if solve else value < 0.5
