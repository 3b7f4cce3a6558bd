"""The spending of a run, read from the record, and the budget and retries of its model calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.dialogues import RecordedDialogue, RecordedModelCall, all_agent_talks, judge_talks
from intercode.models.base import Message, Request, Usage
from intercode.models.limits import Budget, Retry, SpendingAmounts
from intercode.models.prices import ModelPrice, ModelPrices
from intercode.models.remote import ASSUMED_OUTPUT
from intercode.records import EPISODES, read_episodes
from intercode.rewards.judge import REPLY_TOKENS

if TYPE_CHECKING:
    from intercode.spec import RunSpec


def read_spending(
    folder: Path,
    price: ModelPrice | None = None,
    reply_tokens: int | None = None,
    *,
    judge_price: ModelPrice | None = None,
    judge_only: bool = False,
) -> SpendingAmounts:
    """Return the spending of a run's sessions, for the `Budget` of the session that resumes it.

    Every recorded attempt counts, including retried attempts that ended in an error. A reply
    without recorded usage counts with its reserved tokens. Calls in progress when a session was
    killed are not recorded and do not count.

    Args:
        folder: The run's folder, which need not exist yet.
        price: The price of replies without a recorded cost.
        reply_tokens: The limit of a reply, in tokens.
        judge_price: The price of a judge's replies without a recorded cost.
        judge_only: Whether to exclude the agent's model: a rescored run repeats the replies of the
            recorded run.

    Returns:
        Cost in US dollars, and tokens.

    Raises:
        RecordError: The run cannot be read.
    """
    total_spending = SpendingAmounts()
    if not (folder / EPISODES).exists():
        return total_spending
    for episode in read_episodes(folder / EPISODES):
        for talks, reply_price, reply_token_limit in (
            ([] if judge_only else all_agent_talks(episode), price, reply_tokens),
            (judge_talks(episode), judge_price, REPLY_TOKENS),
        ):
            for talk, call in _calls(talks):
                usage = _usage(talk, call, reply_token_limit)
                cost = call.get("cost")
                if cost is None:
                    cost = reply_price.compute_cost(usage) if reply_price else 0.0
                total_spending.add(cost, usage.total)
    return total_spending


def make_budget(spec: RunSpec, runs: Iterable[RunSpec] = ()) -> Budget:
    """Return the budget that the model calls of all episodes share.

    The spending of the runs' earlier sessions is already subtracted.

    Args:
        spec: The spec with the limits.
        runs: The specs of the runs that share the budget; default: `spec` alone.
    """
    previous_spending = SpendingAmounts()
    limits = spec.model.max_cost, spec.model.max_tokens
    for run in runs or (spec,):
        names = run.model.name, run.env.judge_model
        if run.run_options.out is None or not any(names) or limits == (None, None):
            continue
        prices = ModelPrices(run.model.prices)
        price, judge_price = (prices.find(name) if name else None for name in names)
        run_spending = read_spending(
            Path(run.run_options.out),
            price,
            run.model.reply_tokens,
            judge_price=judge_price,
            judge_only=run.model.name is None,
        )
        previous_spending.add(run_spending.cost, run_spending.tokens)
    return Budget(*limits, previous_spending=previous_spending)


def retry_policy(spec: RunSpec) -> Retry:
    """Return the retry policy of a run's model calls."""
    seconds = spec.run_options.model_timeout
    return Retry() if seconds is None else Retry(timeout=seconds)


def _calls(
    talks: Iterable[RecordedDialogue],
) -> Iterator[tuple[RecordedDialogue, RecordedModelCall]]:
    """Yield each dialogue and call with a model's reply; replies from a cache do not count."""
    for talk in talks:
        for call in talk.get("calls", ()):
            if "reply" in call and not call.get("cached"):
                yield talk, call


def _usage(talk: RecordedDialogue, call: RecordedModelCall, reply_tokens: int | None) -> Usage:
    """Return the recorded tokens of a call; if not recorded, the tokens reserved for the call."""
    counts = call.get("input_tokens", 0), call.get("output_tokens", 0), call.get("cached_tokens", 0)
    usage = Usage(*counts)
    if usage.total:
        return usage
    messages = [talk["messages"][message_index] for message_index in call.get("sent", ())]
    sent_messages = tuple(Message(message["role"], message["content"]) for message in messages)
    return Usage(Request(sent_messages).most_input_tokens(), reply_tokens or ASSUMED_OUTPUT)
