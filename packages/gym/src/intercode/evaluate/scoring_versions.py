"""The versions of a run's scoring rules, for its ``run.json``.

The version of a built-in rule is the constant ``VERSION`` of the rule's class or module. A custom
reward has a version if its function or class has an integer attribute ``VERSION``. Otherwise the
digest of the reward's file identifies the reward.
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
"""The name of the field with the versions, among the facts of an environment."""


def rule_versions(env: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the field ``rules`` of an environment's facts: rule → version.

    Args:
        env: The facts, of which ``env``, ``protocol`` and ``reward`` are used. The value of
            ``reward`` may also be a function or a `Judge`.

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
    """Return the rules of a reward: rule → version.

    If the reward calls the environment's own reward, the environment's rules are included.
    """
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
