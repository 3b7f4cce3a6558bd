"""verl: an environment's tools in its agent loop, and the reward of what a rollout left.

An episode belongs to the loop's data of a rollout: a tool's instance lasts for one call only.
"""

import asyncio
import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from weakref import WeakKeyDictionary, finalize

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

import intercode
from datasets import Dataset

EPISODES = WeakKeyDictionary()


class InterCodeTool(BaseTool):
    """One tool of an environment; `config` names both."""

    def __init__(self, config, tool_schema=None):
        [tool] = (one for one in intercode.make(config["env"]).tools if one.name == config["tool"])
        super().__init__(config, OpenAIFunctionToolSchema(type="function", function=asdict(tool)))

    async def execute(self, instance_id, parameters, *, agent_data, **kwargs):
        """Call the tool in the rollout's episode. A failure of ours leaves the score NaN."""
        try:
            if is_first := agent_data not in EPISODES:
                env = intercode.make(self.config["env"], reward_every_turn=True)
                finalize(agent_data, env.close)
                EPISODES[agent_data] = intercode.AsyncEnv(env), asyncio.Lock()
            env, lock = EPISODES[agent_data]
            async with lock:  # the calls of one reply are made at once
                if is_first:
                    await env.reset(**agent_data.tools_kwargs)
                arguments = parameters if isinstance(parameters, dict) else {}
                text, reward, *_ = await env.call(self.name, arguments)
        except intercode.EnvironmentStateError:
            return ToolResponse(text="[the episode has ended]"), None, {}
        except Exception:  # verl tells the model, and goes on
            agent_data.turn_scores.append(float("nan"))
            raise
        agent_data.turn_scores.append(reward)
        return ToolResponse(text=intercode.plain(text) or "[no output]"), reward, {}


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """Score what a rollout's last action left, submitted or not; without one, an untouched task."""
    scores = list(extra_info["turn_scores"])
    if not scores:  # this also shows that there are sandboxes at all
        with closing(intercode.make(extra_info["env"])) as env:
            env.reset(**extra_info["tools_kwargs"])
            scores.append(env.step("submit")[1])
    if any(score != score for score in scores):  # verl can leave out no rollout
        raise intercode.SandboxError("an episode was lost, which does not make its reward 0")
    return scores[-1]


if __name__ == "__main__":  # python verl_tool.py bash: the tools, and the tasks
    env, rows = intercode.make(sys.argv[1]), []
    config = [{"type": "native", "env": sys.argv[1], "tool": one.name} for one in env.tools]
    tools = [{"class_name": "verl_tool.InterCodeTool", "config": one} for one in config]
    Path("tools.yaml").write_text(json.dumps({"tools": tools}))
    for task in env.dataset:
        extra = {"env": sys.argv[1], "tools_kwargs": {"task_id": task.task_id}}
        row = {"data_source": env.name, "reward_model": {"ground_truth": ""}, "extra_info": extra}
        rows.append({**row, "prompt": [{"role": "user", "content": task.query}]})
    Dataset.from_list(rows).to_parquet("tasks.parquet")
