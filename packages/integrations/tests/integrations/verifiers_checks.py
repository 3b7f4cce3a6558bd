"""verifiers' own `vf-eval` on our tasks: rewards, tokens, failures, a step of training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verifiers.v1 as vf
from recorded import played
from tiny_policy import Policy, PolicyServer, tokenizer

import intercode
from intercode.models.base import Message
from intercode.tool_calls import ToolCall
from intercode_integrations.testing import Line, ScriptedServer, first, status
from waiting import new_marker, sleepers

TOOL = {"bash": ("bash", "command"), "sql": ("sql", "statement")}


def evaluate(folder: Path, url: str, *options: str) -> list[dict[str, Any]]:
    """Run `vf-eval`; return the traces, by task. Nothing of it is left."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    out = folder / f"out{len(list(folder.iterdir()))}"
    program = Path(sys.executable).with_name("vf-eval")
    quiet = ["--no-push", "--no-rich", "-m", "any", "-o", str(out)]
    client = ["--client.base-url", url, "--client.api-key-var", "SECRET_OF_THE_SERVER"]
    subprocess.run(
        [program, "intercode-verifiers", *quiet, *client, *options],
        env={**os.environ, "TMPDIR": str(temporary), "SECRET_OF_THE_SERVER": "s3cret"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert list(temporary.iterdir()) == []
    [file] = out.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    traces = [trace for episode in episodes for trace in episode["traces"]]
    return sorted(traces, key=lambda trace: str(trace["task"]["key"]))


def calls(number: int, tool: str, parameter: str, action: str) -> Line:
    """Call the environment's tool."""
    called = ToolCall(f"call_{number}", tool, {parameter: action})
    return Line(calls=(called,), finish="tool_calls")


def submit(number: int) -> Line:
    """Call ``submit``."""
    return Line(calls=(ToolCall(f"call_{number}", "submit", {}),), finish="tool_calls")


def recorded(name: str, messages: Sequence[Message]) -> Line:
    """Say what was recorded of the task, and submit."""
    query = next(message.content for message in messages if message.role == "user")
    tasks = {task.query: task.task_id for task in intercode.load_dataset(name)}
    task_id = tasks[query.removeprefix("Task: ")]
    [actions] = (one.actions for one in played(name) if one.task_id == task_id)
    said = sum(message.role == "assistant" for message in messages)
    return calls(said, *TOOL[name], actions[said]) if said < len(actions) else submit(said)


@pytest.mark.parametrize("name", ["bash", "sql"])
def test_rewards_are_those_in_process(name: str, tmp_path: Path) -> None:
    with ScriptedServer(partial(recorded, name), key="s3cret") as server:
        traces = evaluate(tmp_path, server.url, "--env.taskset.env", name, "-c", "4")
    earned = {trace["task"]["key"]: trace["rewards"]["reward"]["score"] for trace in traces}
    assert earned == {one.task_id: one.reward for one in played(name)}
    assert 0 < sum(earned.values()) < len(earned)
    env = intercode.make(name)
    for trace in traces:
        assert trace["ok"] and not trace["errors"]
        assert trace["metrics"]["success"] == (earned[trace["task"]["key"]] == 1.0)
        assert "gold" not in json.dumps(trace["task"])
    env.reset(task_id=traces[0]["task"]["key"])
    told = [node["message"] for node in traces[0]["nodes"][:2]]
    assert [(one["role"], one["content"]) for one in told] == [
        (one["role"], one["content"]) for one in env.messages("tools")
    ]
    env.close()


BROKEN = """
from intercode.envs.bash import BashEnv

class Lost(BashEnv):
    name = "lost"

    def step(self, action):
        if action == "lose":
            self.stop()
        return super().step(action)
"""


def test_a_folder_whose_sandbox_is_lost_earns_nothing_not_even_zero(tmp_path: Path) -> None:
    marker = new_marker()
    folder = tmp_path / "benchmark"
    folder.mkdir()
    (folder / "lost.py").write_text(BROKEN)
    (folder / "intercode.toml").write_text('env = "lost.py:Lost"\nmax_turns = 4\n')
    rows = [
        {"task_id": name, "query": f"Say {name}.", "gold": f"echo {name}", "split": split}
        for name, split in (("here", "train"), ("lose", "train"), ("other", "test"))
    ]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def say(messages: Sequence[Message]) -> Line:
        said = sum(message.role == "assistant" for message in messages)
        lose = "Say lose." in messages[1].content
        actions = [f"sleep {marker} &", "lose" if lose else "echo here"]
        return calls(said, *TOOL["bash"], actions[said]) if said < 2 else Line("I am done.")

    options = ["--env.taskset.env", str(folder), "--env.taskset.split", "train"]
    with ScriptedServer(say) as server:
        here, lost = evaluate(tmp_path, server.url, *options)
    assert here["ok"] and here["rewards"]["reward"]["score"] == 1.0  # truncated, and scored
    assert here["metrics"]["turns"] == 4.0
    assert not lost["ok"] and lost["rewards"] == {}
    assert [error["type"] for error in lost["errors"]] == ["SandboxError"]
    assert not sleepers(marker)


SLOW = """
from threading import Event
from intercode.envs.bash import BashEnv

class Slow(BashEnv):
    name = "slow"

    def reset(self, **options):
        Event().wait(3)
        return super().reset(**options)
"""


def test_a_sandbox_that_starts_too_late_earns_nothing_not_even_zero(tmp_path: Path) -> None:
    """Verifiers takes an expired limit of the setup for an end, which it scores."""
    folder = tmp_path / "benchmark"
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW)
    (folder / "intercode.toml").write_text('env = "slow.py:Slow"\n')
    (folder / "tasks.jsonl").write_text('{"task_id": "a", "query": "Say a.", "gold": "echo a"}\n')
    options = ["--env.taskset.env", str(folder), "--env.agent.timeout.setup", "1"]
    with ScriptedServer() as server:
        [late] = evaluate(tmp_path, server.url, *options)
    assert not late["ok"] and late["rewards"] == {}
    assert "did not start within the time" in late["errors"][0]["message"]


def test_a_model_that_fails_is_an_error_and_a_limit_is_none(tmp_path: Path) -> None:
    options = ["-n", "2", "-c", "1", "--env.agent.max-turns", "2"]
    with ScriptedServer(partial(recorded, "bash"), plan=first(status(400))) as server:
        failed, limited = evaluate(tmp_path, server.url, *options)
    assert [error["type"] for error in failed["errors"]] == ["ProviderError"]
    assert failed["rewards"] == {}
    # The model was stopped before it could submit: what it has done counts.
    assert limited["stop_condition"] == "max_turns" and not limited["errors"]
    assert limited["rewards"]["reward"]["score"] == played("bash")[1].reward == 1.0


def test_a_step_of_training_on_the_traces(tmp_path: Path) -> None:
    task = intercode.load_dataset("bash").by_id("archive-03")
    actions = [("bash", {"command": task.gold[0]}), ("bash", {"command": "true"}), ("submit", {})]
    choices = [json.dumps({"name": tool, "arguments": given}) for tool, given in actions]
    words = tokenizer(choices, tmp_path / "tokenizer")
    policy = Policy(words, choices)
    options = [
        *("--select.include.ids", json.dumps([task.task_id]), "-r", "16", "-c", "1"),
        *("--client.type", "train", "--client.renderer.name", "qwen3"),
        *("--client.renderer-model-name", str(tmp_path / "tokenizer")),
        *("--env.taskset.options.max-turns", "3"),
    ]
    with PolicyServer(policy) as server:
        traces = evaluate(tmp_path, server.url, *options)
        rewards = [trace["rewards"]["reward"]["score"] for trace in traces]
        assert len(rewards) == 16 and set(rewards) == {0.0, 1.0}
        samples = [tokens(trace, server) for trace in traces]
    before, likely = policy.weights.copy(), policy.likely_calls()
    policy.learn(samples, rewards)
    assert abs(policy.weights - before).max() > 0
    assert policy.likely_calls()[0] > likely[0]  # gold


def tokens(trace: dict[str, Any], server: PolicyServer) -> tuple[list[int], list[bool]]:
    """Return a trace's tokens, and which of them were sampled: those that the server has sent."""
    answers = [one for one in server.answers if one.rollout == trace["id"]]
    [branch] = vf.WireTrace.model_validate(trace).branches
    assert branch.token_ids == answers[-1].prompt + answers[-1].ids
    sampled = np.flatnonzero(branch.sampled_mask)
    assert [branch.token_ids[at] for at in sampled] == [i for one in answers for i in one.ids]
    logs = [log for one in answers for log in one.logs]
    assert [branch.logprobs[at] for at in sampled] == pytest.approx(logs, abs=1e-3)
    return branch.token_ids, branch.sampled_mask
