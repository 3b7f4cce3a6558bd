"""verl's own agent loop, with our tools and a server that says what a script says."""

from __future__ import annotations

import asyncio
import gc
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import verl_tool
from omegaconf import OmegaConf
from tiny_model import call, tokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.tool_registry import initialize_tools_from_config
from verl.workers.rollout.replica import TokenOutput

import intercode
from datasets import Dataset
from intercode_sandbox import get_provider
from open_resources import AHEAD, held

TASK = intercode.load_dataset("bash").by_id("archive-01")
TEMPLATE = """{% for one in messages %}<|im_start|>{{ one.role }}
{% if one.role == 'tool' %}<tool_response>{{ one.content }}</tool_response>
{%- else %}{{ one.content }}{% endif %}
{%- for call in one.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
GOLD = call("bash", command=TASK.gold[0])


class Server:
    """Replies one after the other; a function among them is called first."""

    def __init__(self, replies: list[Any]) -> None:
        self._replies = iter([*replies, "Done.<|im_end|>"])
        self._words = tokenizer(TEMPLATE)

    async def generate(self, prompt_ids: list[int], **_: Any) -> TokenOutput:
        reply = next(self._replies)
        while callable(reply):
            reply()
            reply = next(self._replies)
        return TokenOutput(token_ids=self._words.encode(reply), stop_reason="completed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example writes."""
    folder = tmp_path_factory.mktemp("verl")
    subprocess.run([sys.executable, verl_tool.__file__, "bash"], cwd=folder, check=True)
    return folder


def rollout(folder: Path, replies: list[Any], parallel: int = 1) -> Any:
    """Let verl play the first task."""
    turns = {"max_user_turns": None, "max_assistant_turns": None, "max_parallel_calls": parallel}
    shown = {"max_tool_response_length": 4096, "tool_response_truncate_side": "middle"}
    lengths = {"prompt_length": 8192, "response_length": 8192, "full_determinism": False}
    multi = {**turns, **shown, "format": "hermes"}
    config = {"actor_rollout_ref": {"rollout": {"multi_turn": multi, **lengths}}, "data": {}}
    made = OmegaConf.create(config)
    row = first_row(folder)

    async def run() -> Any:
        loop = ToolAgentLoop(
            trainer_config=DictConfigWrap(made),
            server_manager=Server(replies),
            tokenizer=tokenizer(TEMPLATE),
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(made.data),
            tools=ToolListWrap(initialize_tools_from_config(str(folder / "tools.yaml"))),
        )
        given = {"raw_prompt": row["prompt"], "tools_kwargs": row["extra_info"]["tools_kwargs"]}
        return await loop.run({}, **given)

    output = asyncio.run(run())
    gc.collect()
    assert not verl_tool.EPISODES
    assert held(get_provider("native"))["sandboxes"] <= AHEAD
    return output


def first_row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = Dataset.from_parquet(str(folder / "tasks.parquet"))[0]
    return row


def score(folder: Path, output: Any) -> float:
    """The score as verl's reward manager asks for it."""
    extra = {**first_row(folder)["extra_info"], **output.extra_fields}
    return float(verl_tool.compute_score("intercode", "", "", extra))


def test_all_tasks_are_written(folder: Path) -> None:
    rows = Dataset.from_parquet(str(folder / "tasks.parquet"))
    assert len(rows) == len(intercode.load_dataset("bash"))
    assert all(row["reward_model"] == {"ground_truth": ""} for row in rows)


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([GOLD, call("submit")], 1.0),
        ([GOLD], 1.0),
        ([GOLD, call("submit"), call("bash", command="true"), call("nothing")], 1.0),
        ([call("bash", command="true"), call("submit")], 0.0),
        ([], 0.0),
    ],
    ids=["submitted", "not submitted", "after the end", "wrong", "idle"],
)
def test_rollout(folder: Path, replies: list[str], reward: float) -> None:
    output = rollout(folder, replies)
    assert score(folder, output) == reward
    said = tokenizer(TEMPLATE).decode(output.response_ids)
    assert said.count("<tool_response>") == len(replies)


def test_episode_lasts_from_call_to_call(folder: Path) -> None:
    output = rollout(
        folder, [call("bash", command="cd /tmp; a=one"), call("bash", command="echo $PWD/$a")]
    )
    assert "/tmp/one" in tokenizer(TEMPLATE).decode(output.response_ids)


def test_lost_sandbox_is_no_reward(folder: Path) -> None:
    def lose() -> None:
        [(env, _)] = verl_tool.EPISODES.values()
        env.env.unwrapped.sandbox.close()

    output = rollout(folder, [call("bash", command="true"), lose, call("bash", command="true")])
    assert math.isnan(output.extra_fields["turn_scores"][-1])
    with pytest.raises(intercode.SandboxError, match="does not make its reward 0"):
        score(folder, output)


def refusing(provider: Any, *_: Any, **__: Any) -> None:
    raise intercode.SandboxUnavailableError("no sandbox here")


@pytest.mark.parametrize("replies", [[], [GOLD], [GOLD, call("submit")]], ids=len)
def test_refused_sandbox_is_no_reward(
    folder: Path, replies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(get_provider("native")), "start", refusing)
    output = rollout(folder, replies)
    with pytest.raises(intercode.SandboxError):
        score(folder, output)


def test_failure_of_the_first_call_is_not_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        monkeypatch.setattr(intercode, "make", refusing)

    output = rollout(folder, [refuse, GOLD, monkeypatch.undo, GOLD])
    assert output.extra_fields["turn_scores"][1:] == [1.0]
    with pytest.raises(intercode.SandboxError):
        score(folder, output)


@pytest.mark.parametrize("arguments", ['["ls"]', '"ls"', "null"])
def test_arguments_that_are_no_object_are_the_models_mistake(folder: Path, arguments: str) -> None:
    reply = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call><|im_end|>'
    assert score(folder, rollout(folder, [reply, GOLD])) == 1.0


def test_calls_of_one_reply_wait_for_each_other(folder: Path) -> None:
    both = GOLD.replace("<|im_end|>", "") + call("submit")
    assert score(folder, rollout(folder, [both, GOLD], parallel=2)) == 1.0
