"""Gymnasium's limits of steps, brought to the environment, which scores the last step.

Gymnasium's own wrapper marks a step as truncated after the environment has returned from it: the
environment does not learn of it, and the episode has no score.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium

from intercode.envs.base import InterCodeEnv
from intercode.errors import UsageError

NO_LIMIT = -1
"""The value of Gymnasium's `max_episode_steps` that stands for no limit."""


class TimeLimit(gymnasium.wrappers.TimeLimit[str, str]):
    """Truncate episodes after some steps, with a score.

    Args:
        env: One of InterCode's environments, or a wrapper of one.
        max_episode_steps: The number of steps, at least 1; the environment's own `max_turns` holds,
            too.

    Raises:
        UsageError: It is not an environment of InterCode, or the number is below 1.
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
    """Add a limit of Gymnasium's to an environment's options, as `max_turns`.

    Args:
        options: Options by name; of two limits the lower one holds.
        max_episode_steps: The limit; None or `NO_LIMIT`: there is none.
    """
    if max_episode_steps in (None, NO_LIMIT):
        return options
    return {
        **options,
        "max_turns": min(options.get("max_turns", max_episode_steps), max_episode_steps),
    }


def gymnasium_step_limit(depth: int) -> int | None:
    """Return the `max_episode_steps` of a call of `gymnasium.make`; None: it is not the caller.

    Gymnasium hands the number to its wrapper only, which it makes after the environment: so it is
    read where `make` has it.

    Args:
        depth: The caller's place on the stack; 1 is the function that calls this one.
    """
    caller = sys._getframe(depth + 1)
    if caller.f_code is not gymnasium.make.__code__:
        return None
    step_limit: int | None = caller.f_locals.get("max_episode_steps")
    spec = caller.f_locals.get("env_spec")
    return step_limit if step_limit is not None else getattr(spec, "max_episode_steps", None)
