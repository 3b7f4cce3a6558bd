"""Rewards that ask a model: they are made from a spec, and take options of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intercode.errors import UsageError
from intercode.rewards.judge import VOTES, Judge

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.spec import RunSpec

ModelReward = Judge
"""A reward that asks a model; there is one."""
SHARED_MODEL_OPTIONS = ("prices", "max_cost", "max_tokens")
"""The options of language models that a judge takes as well, with any agent."""


def model_options(spec: RunSpec) -> tuple[str, ...]:
    """Return the options of language models that the reward of a spec takes."""
    return SHARED_MODEL_OPTIONS if spec.reward == Judge.KIND else ()


def model_reward(spec: RunSpec, budget: Budget | None = None) -> ModelReward | None:
    """Make the reward of a spec, if it asks a model; None: it does not.

    Args:
        spec: The spec.
        budget: What it may spend, with all who share it; None: there is no limit.

    Raises:
        UsageError: It has no model, or there is a model and no judge.
    """
    env = spec.env
    votes, model = env.judge_votes, env.judge_model
    judge_options = {"judge-model": model, "judge-url": env.judge_url, "judge-votes": votes}
    if spec.reward != Judge.KIND:
        for name, value in judge_options.items():
            if value is not None:
                raise UsageError(f"--{name} is for --reward judge")
        return None
    if model is None:
        raise UsageError("--reward judge needs --judge-model PROVIDER/NAME")
    from intercode.evaluate.spending import retry_policy
    from intercode.models import get_model

    judge_model = get_model(
        model,
        base_url=env.judge_url,
        prices=spec.model.prices,
        budget=budget,
        retry=retry_policy(spec),
    )
    return Judge(judge_model, votes or VOTES)
