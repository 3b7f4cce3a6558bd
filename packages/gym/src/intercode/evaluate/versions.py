"""The versions of a run's scoring rules, for its ``run.json``.

A built-in rule has its version beside it, as ``VERSION``. A custom reward has a version if its
function or class has an integer attribute of that name. Otherwise the digest of its file identifies
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from intercode.envs.traits import find_traits
from intercode.registry import REWARDS, RULES
from intercode.rewards.judge import Judge
from intercode_sandbox.user_code import is_reference

FIELD = "rules"
"""The name of the field among the facts of an environment."""


def rule_versions(env: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the field ``rules`` of an environment's facts: rule → version.

    Args:
        env: The facts; ``env``, ``protocol`` and ``reward`` count. The reward may be the function
            or the judge itself.

    Returns:
        The field, or an empty dictionary if no version is known.

    Raises:
        UsageError: The file of a reward lacks the function.
    """
    name, protocol = str(env.get("env", "")), str(env.get("protocol", "default"))
    default = {rule: RULES.get(rule) for rule in find_traits(name, protocol).rules} if name else {}
    rules = _reward_rules(name, env.get("reward"), default)
    return {FIELD: rules} if rules else {}


def _reward_rules(env: str, reward: Any, default: Mapping[str, int]) -> dict[str, int]:
    """Return a reward's rules, including the environment's own rules if the reward uses them."""
    if reward in (None, "default"):
        return dict(default)
    if isinstance(reward, Judge) or (env, reward) == ("bash", "judge"):
        return {**default, "judge": Judge.VERSION}
    label = reward if isinstance(reward, str) else getattr(reward, "__qualname__", "reward")
    if isinstance(reward, str):
        if is_reference(reward):
            label, reward = reward.rpartition(":")[2], REWARDS.resolve(reward)
        elif f"{env}:{reward}" in REWARDS:
            reward = REWARDS.get(f"{env}:{reward}")
    version = getattr(reward, "VERSION", None)
    custom_rules = {str(label): version} if isinstance(version, int) else {}
    return {**(default if _uses_default(reward) else {}), **custom_rules}


def _uses_default(reward: object) -> bool:
    """Return whether a function takes the environment's own reward as an argument."""
    if isinstance(reward, type) or not callable(reward):
        return False
    return "default" in inspect.signature(reward).parameters
