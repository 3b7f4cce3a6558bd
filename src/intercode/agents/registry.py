"""Agents by name, or from a reader's own file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from intercode import user_code
from intercode.agents.base import AgentFactory
from intercode.errors import UsageError
from intercode.registry import Registry
from intercode.user_code import digest

__all__ = ["AGENTS", "digest", "get"]

AGENTS = Registry(
    "agent",
    {
        "human": "intercode.agents.human:Humans",
        "noop": "intercode.agents.scripted:noop",
        "oracle": "intercode.agents.scripted:Oracle",
        "plan-solve": "intercode.agents.plan_solve:PLAN_SOLVE",
        "plan-solve-refine": "intercode.agents.plan_solve:PLAN_SOLVE_REFINE",
        "plan-solve-refine-oracle": "intercode.agents.plan_solve:PLAN_SOLVE_REFINE_ORACLE",
        "predictions": "intercode.agents.predictions:Predictions",
        "random": "intercode.agents.random:RandomAgents",
        "react": "intercode.agents.react:REACT",
        "react-zero-shot": "intercode.agents.react:REACT_ZERO_SHOT",
        "replay": "intercode.agents.scripted:Replay",
        "single-turn": "intercode.agents.single_turn:SINGLE_TURN",
        "tool-calling": "intercode.agents.tool_calling:TOOL_CALLING",
        "try-again": "intercode.agents.try_again:TRY_AGAIN",
        "try-again-oracle": "intercode.agents.try_again:TRY_AGAIN_ORACLE",
    },
)
"""Name → what takes the agent's options and gives its factory."""


def get(name: str, **options: Any) -> AgentFactory:
    """The factory of an agent.

    Args:
        name: A registered name, or ``path/to/file.py:function``, where the function is itself
            the factory: it takes a task and gives an object with `act`.
        options: For a registered agent, for instance ``recording`` for ``replay``.

    Raises:
        UsageError: There is no such agent, or it does not take these options.
    """
    if user_code.is_reference(name):
        if options:
            raise UsageError(f"agent {name} takes no option {', '.join(options)}")
        return cast(AgentFactory, user_code.load("agent", name))
    if name not in AGENTS:
        raise UsageError(
            f"there is no agent {name!r}: choose one of {', '.join(AGENTS.names())}, "
            "or your own as path/to/file.py:function"
        )
    make: Callable[..., AgentFactory] = AGENTS.get(name)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise UsageError(f"agent {name}: {error}") from error
    return make(**options)
