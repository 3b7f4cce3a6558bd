"""Rewards that ask a language model, built from the judge's options in a run's spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intercode.errors import UsageError
from intercode.rewards.judge import VOTES, Judge

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.spec import RunSpec

ModelReward = Judge
"""The type of rewards that ask a model: at present only the judge."""
SHARED_MODEL_OPTIONS = ("prices", "max_cost", "max_tokens")
"""The options of an agent's model that also apply to the judge's model. With a judge, these options
are valid even if the agent calls no model."""


def model_options(spec: RunSpec) -> tuple[str, ...]:
    """Return the language-model options that the reward of a spec takes."""
    return SHARED_MODEL_OPTIONS if spec.reward == Judge.KIND else ()


def model_reward(spec: RunSpec, budget: Budget | None = None) -> ModelReward | None:
    """Return the reward of a spec if the reward asks a model, otherwise None.

    Args:
        spec: The spec.
        budget: The reward's budget, which the agent's model may share; None: unlimited.

    Raises:
        UsageError: The judge has no model, or the spec sets options of a judge without a judge.
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
