"""A graph of LangGraph that solves a task: `python langgraph_agent.py TASK openai:MODEL`."""

import sys
from contextlib import closing

from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import intercode


def solve(task_id, model):
    """Let a chat model of LangChain act until the episode ends, or it stops; return the reward."""
    with closing(intercode.make("bash")) as env:
        query, _ = env.reset(task_id=task_id)
        functions = intercode.tools(env)
        tools = [StructuredTool.from_function(one, parse_docstring=True) for one in functions]
        model = model.bind_tools(tools)

        def ask(state):
            return {"messages": [model.invoke(state["messages"])]}

        def after_model(state):
            return "tools" if state["messages"][-1].tool_calls else END

        graph = StateGraph(MessagesState)
        graph.add_node("model", ask)
        graph.add_node("tools", ToolNode(tools, handle_tool_errors=False))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", after_model)
        graph.add_conditional_edges("tools", lambda state: END if functions.done else "model")
        graph.compile().invoke({"messages": [HumanMessage(query)]})
        if not functions.done:
            env.step("submit")  # it stopped: what is there counts
        return functions.reward


if __name__ == "__main__":
    from langchain.chat_models import init_chat_model

    print(solve(sys.argv[1], init_chat_model(sys.argv[2])))
