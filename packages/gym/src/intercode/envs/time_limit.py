"""Gymnasium's step limits, applied by the environment, which scores the last step.

Gymnasium's own wrapper marks a step as truncated only after the environment's `step` has returned.
Behind that wrapper, the environment would not end the episode, and the episode would have no score.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium

from intercode.envs.base import InterCodeEnv
from intercode.errors import UsageError

NO_LIMIT = -1
"""The value of Gymnasium's `max_episode_steps` for no limit."""


class TimeLimit(gymnasium.wrappers.TimeLimit[str, str]):
    """A wrapper that truncates episodes after a number of steps, with a score.

    Args:
        env: An InterCode environment, wrapped or not.
        max_episode_steps: The maximum number of steps, at least 1. The lower of this number and the
            environment's own `max_turns` applies.

    Raises:
        UsageError: The environment is not InterCode's, or the number is below 1.
    """

    def __init__(self, env: gymnasium.Env[str, str], max_episode_steps: int) -> None:
        base_env = env.unwrapped
        if not isinstance(base_env, InterCodeEnv):
            raise UsageError(f"only InterCode's environments score: not {type(base_env).__name__}")
        if max_episode_steps < 1:
            raise UsageError(f"max_episode_steps must be at least 1, not {max_episode_steps}")
        super().__init__(env, max_episode_steps)
        base_env.max_turns = min(base_env.max_turns, max_episode_steps)


def add_turn_limit(options: dict[str, Any], max_episode_steps: int | None) -> dict[str, Any]:
    """Add a step limit of Gymnasium to an environment's options, under the name `max_turns`.

    Args:
        options: Options by name. The lower of two limits applies.
        max_episode_steps: The step limit; None or `NO_LIMIT`: no limit.

    Returns:
        The options with the limit; without a limit, `options` itself.
    """
    if max_episode_steps in (None, NO_LIMIT):
        return options
    return {
        **options,
        "max_turns": min(options.get("max_turns", max_episode_steps), max_episode_steps),
    }


def gymnasium_step_limit(depth: int) -> int | None:
    """Return the `max_episode_steps` of a call of `gymnasium.make`; None for another caller.

    Gymnasium passes the number only to its own wrapper, after the construction of the environment.
    This function therefore reads the number from the local variables of `gymnasium.make`.

    Args:
        depth: The inspected position on the stack: 0 is this function's caller, 1 the caller of
            that function.
    """
    caller = sys._getframe(depth + 1)
    if caller.f_code is not gymnasium.make.__code__:
        return None
    step_limit: int | None = caller.f_locals.get("max_episode_steps")
    spec = caller.f_locals.get("env_spec")
    return step_limit if step_limit is not None else getattr(spec, "max_episode_steps", None)
