"""An agent of smolagents that solves a task: `python smolagents_agent.py TASK MODEL`."""

import sys
from contextlib import closing

from smolagents import InferenceClientModel, ToolCallingAgent, tool

import intercode


def solve(task_id, model):
    """Let a model of smolagents act until it gives its final answer; return the reward."""
    with closing(intercode.make("bash")) as env:
        query, _ = env.reset(task_id=task_id)
        functions = intercode.tools(env)
        agent = ToolCallingAgent(
            [tool(one) for one in functions],
            model,
            max_steps=env.max_turns + 2,  # submit, and the final answer
            verbosity_level=0,
        )
        agent.run(query)
        if not functions.done:
            env.step("submit")  # it stopped: what is there counts
        return functions.reward


if __name__ == "__main__":
    print(solve(sys.argv[1], InferenceClientModel(sys.argv[2])))
