"""From options to a judge: ``--reward judge``, with a model of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.errors import UsageError
from intercode.rewards.judge import VOTES, Judge

if TYPE_CHECKING:
    from intercode.models import Budget

NAME = "judge"
OPTIONS = ("judge_model", "judge_url", "judge_votes")
TAKES_TOO = ("prices", "max_cost", "max_tokens")
"""The options of language models that a judge takes as well, whoever the agent is."""


def budget_of(args: argparse.Namespace, out: Path) -> Budget:
    """The budget of a judge of recorded episodes, with its earlier spending.

    Args:
        args: The options.
        out: Where the newly scored episodes are kept.
    """
    from intercode.evaluate.budget_spent import spent_by
    from intercode.models import Budget
    from intercode.models.prices import Prices

    price = Prices(args.prices).find(args.judge_model or "")
    return Budget(
        args.max_cost,
        args.max_tokens,
        before=spent_by(out, judge_price=price, judge_only=True),
    )


def make(args: argparse.Namespace, budget: Budget | None = None) -> Judge | None:
    """The judge that the options ask for; None: they ask for none.

    Args:
        args: The options.
        budget: What it may spend, with all who share it; None: there is no limit.

    Raises:
        UsageError: It has no model, or there is a model and no judge.
    """
    given = [name for name in OPTIONS if getattr(args, name, None) is not None]
    if args.reward != NAME:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} is for --reward judge")
        return None
    if "judge_model" not in given:
        raise UsageError("--reward judge needs --judge-model PROVIDER/NAME")
    from intercode.models import get_model

    prices = getattr(args, "prices", None)
    model = get_model(args.judge_model, base_url=args.judge_url, prices=prices, budget=budget)
    return Judge(model, args.judge_votes or VOTES)
