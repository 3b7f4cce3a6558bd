"""What a run has spent of its budget, from its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from intercode.episode import Episode
from intercode.models.base import Message, Request, Usage
from intercode.models.limits import Spending
from intercode.models.prices import Price
from intercode.models.remote import ASSUMED_OUTPUT
from intercode.records import EPISODES, read_episodes
from intercode.rewards.judge import REPLY_TOKENS


def spent_by(
    folder: Path,
    price: Price | None = None,
    reply_tokens: int | None = None,
    *,
    judge_price: Price | None = None,
    judge_only: bool = False,
) -> Spending:
    """What the sessions of a run have spent, for a `Budget` that goes on with it.

    Every recorded attempt counts, also those that ended in an error and were made again. For a
    reply of which nobody said what it took, what had been set aside for it counts. What was under
    way when a session was killed, or was lost on its way to us, is in no record and does not count.

    Args:
        folder: The run's; it may be one that is yet to be made.
        price: Of replies whose cost is not recorded.
        reply_tokens: What a reply was limited to.
        judge_price: Of a judge's replies, likewise.
        judge_only: Leave out what the agent's model took: in a run scored again it is another's.

    Raises:
        RecordError: The run cannot be read.
    """
    found = Spending()
    if not (folder / EPISODES).exists():
        return found
    for episode in read_episodes(folder / EPISODES):
        for talks, known, limit in (
            ([] if judge_only else _talks(episode), price, reply_tokens),
            (episode.metadata.get("judge", ()), judge_price, REPLY_TOKENS),
        ):
            for talk, call in _calls(talks):
                usage = _usage(talk, call, limit)
                cost = call.get("cost")
                if cost is None:
                    cost = known.of(usage) if known else 0.0
                found.add(cost, usage.total)
    return found


def _talks(episode: Episode) -> list[Any]:
    """The talk with the agent's model, of the lost attempts as well."""
    return [*episode.metadata.get("earlier", ()), episode.metadata.get("model")]


def _calls(talks: Iterable[Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each call that a model answered anew, and the talk that it is of."""
    for talk in talks:
        if isinstance(talk, Mapping):  # an agent's own may be a name
            for call in talk.get("calls", ()):
                if "reply" in call and not call.get("cached"):
                    yield talk, call


def _usage(talk: Mapping[str, Any], call: Mapping[str, Any], reply_tokens: int | None) -> Usage:
    """What a call took, or what was set aside for it."""
    names = ("input_tokens", "output_tokens", "cached_tokens")
    usage = Usage(*(call.get(name) or 0 for name in names))
    if usage.total:
        return usage
    messages = [talk["messages"][number] for number in call["sent"]]
    sent = tuple(Message(message["role"], message["content"]) for message in messages)
    return Usage(Request(sent).most_input_tokens(), reply_tokens or ASSUMED_OUTPUT)
