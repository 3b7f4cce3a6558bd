"""verl: an environment's tools in its agent loop, and the reward of what a rollout left.

An episode belongs to the loop's data of a rollout: a tool's instance lasts for one call only.
"""

import json
import sys
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
        """Call the tool in the rollout's episode."""
        if (env := EPISODES.get(agent_data)) is None:
            made = intercode.make(self.config["env"], errors="value", reward_every_turn=True)
            env = EPISODES[agent_data] = intercode.AsyncEnv(made)
            finalize(agent_data, made.close)
            await env.reset(task_id=agent_data.tools_kwargs["task_id"])
        if env.episode.status != "running":
            return ToolResponse(text="[the episode has ended]"), None, {}
        text, reward, *_ = await env.call(self.name, parameters)
        agent_data.turn_scores.append(reward)
        return ToolResponse(text=intercode.plain(text) or "[no output]"), reward, {}


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """Score what a rollout's last action left, submitted or not."""
    reward = [0.0, *extra_info["turn_scores"]][-1]
    if reward != reward:  # verl can leave out no rollout
        raise intercode.SandboxError("an episode was lost, which does not make its reward 0")
    return reward


if __name__ == "__main__":  # python verl_tool.py bash: the tools, and the tasks
    env, rows = intercode.make(sys.argv[1]), []
    config = [{"type": "native", "env": sys.argv[1], "tool": one.name} for one in env.tools]
    tools = [{"class_name": "verl_tool.InterCodeTool", "config": one} for one in config]
    Path("tools.yaml").write_text(json.dumps({"tools": tools}))
    for task in env.dataset:
        prompt = [{"role": "user", "content": task.query}]
        extra = {"tools_kwargs": {"task_id": task.task_id}}
        row = {"data_source": env.name, "prompt": prompt, "extra_info": extra}
        rows.append({**row, "reward_model": {"ground_truth": ""}})
    Dataset.from_list(rows).to_parquet("tasks.parquet")
