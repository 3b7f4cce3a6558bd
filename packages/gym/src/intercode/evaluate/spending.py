"""The spending of a run, from its record, and what its spec grants to calls of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.dialogues import Call, Talk, all_agent_talks, judge_talks
from intercode.models.base import Message, Request, Usage
from intercode.models.limits import Budget, Retry, Spending
from intercode.models.prices import Price, Prices
from intercode.models.remote import ASSUMED_OUTPUT
from intercode.records import EPISODES, read_episodes
from intercode.rewards.judge import REPLY_TOKENS

if TYPE_CHECKING:
    from intercode.spec import RunSpec


def read_spending(
    folder: Path,
    price: Price | None = None,
    reply_tokens: int | None = None,
    *,
    judge_price: Price | None = None,
    judge_only: bool = False,
) -> Spending:
    """Return the spending of a run's sessions, for the `Budget` of the session that resumes it.

    Every recorded attempt counts, also those that ended in an error and were retried. A reply
    without recorded usage counts with the tokens that had been set aside for it. Calls that were
    under way when a session was killed are not recorded and do not count.

    Args:
        folder: The run's; it need not exist yet.
        price: The price of replies whose cost is not recorded.
        reply_tokens: The limit of a reply, in tokens.
        judge_price: The price of a judge's replies, likewise.
        judge_only: Whether to leave out the agent's model: in a rescored run its replies are those
            of the recorded run.

    Raises:
        RecordError: The run cannot be read.
    """
    total_spending = Spending()
    if not (folder / EPISODES).exists():
        return total_spending
    for episode in read_episodes(folder / EPISODES):
        for talks, reply_price, limit in (
            ([] if judge_only else all_agent_talks(episode), price, reply_tokens),
            (judge_talks(episode), judge_price, REPLY_TOKENS),
        ):
            for talk, call in _calls(talks):
                usage = _usage(talk, call, limit)
                cost = call.get("cost")
                if cost is None:
                    cost = reply_price.of(usage) if reply_price else 0.0
                total_spending.add(cost, usage.total)
    return total_spending


def make_budget(spec: RunSpec, runs: Iterable[RunSpec] = ()) -> Budget:
    """Return what models may take, all episodes together, and what they have taken before.

    Args:
        spec: The spec that says it.
        runs: Those of the runs that share it; default: the same.
    """
    previous_spending = Spending()
    limits = spec.model.max_cost, spec.model.max_tokens
    for run in runs or (spec,):
        names = run.model.name, run.env.judge_model
        if run.how.out is None or not any(names) or limits == (None, None):
            continue
        prices = Prices(run.model.prices)
        price, judge_price = (prices.find(name) if name else None for name in names)
        run_spending = read_spending(
            Path(run.how.out),
            price,
            run.model.reply_tokens,
            judge_price=judge_price,
            judge_only=run.model.name is None,
        )
        previous_spending.add(run_spending.cost, run_spending.tokens)
    return Budget(*limits, before=previous_spending)


def retry_policy(spec: RunSpec) -> Retry:
    """Return the patience of a run with the servers of its models."""
    seconds = spec.how.model_timeout
    return Retry() if seconds is None else Retry(timeout=seconds)


def _calls(talks: Iterable[Talk]) -> Iterator[tuple[Talk, Call]]:
    """Yield each talk and call that a model has answered, not a cache."""
    for talk in talks:
        for call in talk.get("calls", ()):
            if "reply" in call and not call.get("cached"):
                yield talk, call


def _usage(talk: Talk, call: Call, reply_tokens: int | None) -> Usage:
    """Return the tokens of a call, or those that were set aside for it."""
    counts = call.get("input_tokens", 0), call.get("output_tokens", 0), call.get("cached_tokens", 0)
    usage = Usage(*counts)
    if usage.total:
        return usage
    messages = [talk["messages"][number] for number in call.get("sent", ())]
    sent_messages = tuple(Message(message["role"], message["content"]) for message in messages)
    return Usage(Request(sent_messages).most_input_tokens(), reply_tokens or ASSUMED_OUTPUT)
