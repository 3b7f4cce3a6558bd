"""The registry of agents: by name, from an installed package, or from a user's file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from intercode.agents.base import AgentFactory
from intercode.errors import UsageError
from intercode.registry import INTEGRATIONS
from intercode_sandbox.lazy_imports import LazyRegistry
from intercode_sandbox.user_code import digest

__all__ = ["AGENTS", "digest", "get"]

AGENTS = LazyRegistry(
    "agent",
    {
        "best-of-n": "intercode.agents.search:BEST_OF_N",
        "human": "intercode.agents.human:HumanAgents",
        "noop": "intercode.agents.builtin:noop",
        "oracle": "intercode.agents.builtin:OracleAgents",
        "plan-solve": "intercode.agents.strategies:PLAN_SOLVE",
        "plan-solve-refine": "intercode.agents.strategies:PLAN_SOLVE_REFINE",
        "plan-solve-refine-oracle": "intercode.agents.strategies:PLAN_SOLVE_REFINE_ORACLE",
        "predictions": "intercode.agents.builtin:PredictionAgents",
        "random": "intercode.agents.builtin:RandomAgents",
        "react": "intercode.agents.strategies:REACT",
        "react-zero-shot": "intercode.agents.strategies:REACT_ZERO_SHOT",
        "replay": "intercode.agents.builtin:ReplayAgents",
        "single-turn": "intercode.agents.strategies:SINGLE_TURN",
        "tool-calling": "intercode.agents.strategies:TOOL_CALLING",
        "tree-search": "intercode.agents.search:TREE_SEARCH",
        "try-again": "intercode.agents.strategies:TRY_AGAIN",
        "try-again-oracle": "intercode.agents.strategies:TRY_AGAIN_ORACLE",
    },
    "intercode.agents",
    dict.fromkeys(
        ("aider", "claude-code", "codex", "mini-swe-agent", "openhands", "terminus"), INTEGRATIONS
    ),
)
"""Name → a function that takes the agent's options and returns a factory of agents. For the entry
point of an installed package and the function in a user's file, the object itself is the
factory."""
COMMAND = "cli:"
"""The prefix of an agent's name that is a command line."""
PROFILE = ".toml"
"""The suffix of an agent's name that is the path of a profile."""


def is_profile(name: object) -> bool:
    """Return whether an agent's name is the path of a profile."""
    return isinstance(name, str) and name.endswith(PROFILE) and not name.startswith(COMMAND)


def is_external(name: str) -> bool:
    """Return whether a name stands for a command-line agent.

    Such a name is that of an agent in `AGENTS.homes`, begins with ``cli:``, or is the path of a
    profile.
    """
    return name in AGENTS.homes or name.startswith(COMMAND) or name.endswith(PROFILE)


def get(name: str, **options: Any) -> AgentFactory:
    """Return the factory of an agent.

    Args:
        name: A registered name; or the name of an installed package's entry point, or
            ``path/to/file.py:function``. The object at the entry point, or the function, is itself
            the factory. The factory takes a task, and returns an object with `act` or `run`.
        options: The options of a registered agent, such as ``recording`` for ``replay``.

    Raises:
        UsageError: The agent is unknown, or does not take these options.
    """
    factory: Callable[..., AgentFactory] = AGENTS.resolve(name)
    if AGENTS.is_foreign(name):
        if options:
            raise UsageError(f"agent {name} takes no option {', '.join(options)}")
        return cast(AgentFactory, factory)
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        if unknown := sorted(options.keys() - signature.parameters.keys()):
            agent_names = ", ".join(list_agents_taking(unknown[0])) or "none"
            raise UsageError(
                f"agent {name} takes no option {unknown[0]!r}; agents with this option: "
                f"{agent_names}"
            ) from None
        raise UsageError(f"agent {name}: {error}") from error
    return factory(**options)


def list_agents_taking(option: str) -> list[str]:
    """List the names of the built-in agents that accept an option."""
    names = [name for name in AGENTS.names(packages=False) if not AGENTS.is_foreign(name)]
    return [name for name in names if option in inspect.signature(AGENTS.get(name)).parameters]
