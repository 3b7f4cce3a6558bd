"""An agent of OpenAI's Agents SDK that solves a task: `python openai_agents.py TASK MODEL`."""

import asyncio
import sys
from contextlib import closing, suppress

import intercode
from agents import Agent, MaxTurnsExceeded, Runner, StopAtTools, function_tool


async def solve(task_id, model):
    """Let a model act until it submits or stops; return the reward."""
    with closing(intercode.make("bash")) as env:
        query, _ = env.reset(task_id=task_id)
        functions = intercode.tools(env)
        agent = Agent(
            "intercode",
            model=model,
            tools=[
                function_tool(one, strict_mode=False, failure_error_function=None)
                for one in functions
            ],
            tool_use_behavior=StopAtTools(stop_at_tool_names=["submit"]),
        )
        with suppress(MaxTurnsExceeded):
            await Runner.run(agent, query, max_turns=env.max_turns + 1)
        if not functions.done:
            env.step("submit")  # it stopped: what is there counts
        return functions.reward


if __name__ == "__main__":
    print(asyncio.run(solve(*sys.argv[1:])))
