"""The dialogues with models that the record of an episode holds: their types, and reading them.

`intercode.models.transcript` makes them. A user's agent may record something else under the same
names, and a file may be damaged: both are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypedDict, cast

from intercode.episode import Episode


class RecordedToolCall(TypedDict):
    """A function that the model asked to have called."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class _Message(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class RecordedMessage(_Message, total=False):
    """A message to or from the model."""

    tool_calls: list[RecordedToolCall]
    call_id: str


class Call(TypedDict, total=False):
    """A call to the model; messages are numbers within the talk's `messages`."""

    turn: int
    sent: list[int]
    reply: int
    """Missing if the call gave no answer."""
    error: str
    unsent: bool
    """Whether we refused the call ourselves: no request has reached the model."""
    model: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    finish: str
    cached: bool
    seconds: float
    retries: int
    thought: str
    step: str
    node: int
    """Of a search: the number of the state that the reply led to."""
    repeats: int
    """Of a search: the number of the state to which an equal reply had led."""
    judges: int
    """Of a search: the number of the state that the reply is about."""
    sample: int
    """The number of this one of several replies to the same messages."""
    chosen: int
    """At the last of them: the number of the one that was acted on."""
    discarded: bool
    """Whether the model was asked once more, and this reply was not acted on."""
    prompt_token_ids: list[int]
    """The prompt as the model saw it, where the server was asked for tokens."""
    token_ids: list[int]
    """The reply as the model made it."""
    logprobs: list[float]
    """The log-probability of each of them, where the server tells it."""


class Talk(TypedDict, total=False):
    """All that was said to and by a model in an episode, and its cost."""

    name: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    messages: list[RecordedMessage]
    calls: list[Call]
    tools: list[dict[str, Any]]


def parse_talk(data: object) -> Talk | None:
    """Return what was recorded if it is a dialogue of ours, else None."""
    import msgspec

    if not isinstance(data, Mapping):
        return None
    try:
        msgspec.convert(data, Talk)
    except msgspec.ValidationError:
        return None
    talk = cast("Talk", data)
    valid_numbers = range(len(talk.get("messages", ())))
    calls = talk.get("calls", ())
    numbers = chain.from_iterable([*c.get("sent", ()), *_reply(c)] for c in calls)
    return talk if all(number in valid_numbers for number in numbers) else None


def agent_talk(episode: Episode) -> Talk | None:
    """Return the dialogue with the agent's model; None without one.

    Of a search it has the calls that led to the episode, without other branches and judgements.
    """
    talk = parse_talk(episode.metadata.get("model"))
    branch = find_branch(episode)
    if talk is None or branch is None:
        return talk
    return {**talk, "calls": [call for call in talk.get("calls", ()) if call.get("node") in branch]}


def find_branch(episode: Episode) -> set[int] | None:
    """Return the states that led to an episode which was found by a search; None: by none."""
    search = episode.metadata.get("search")
    if not isinstance(search, Mapping) or not isinstance(nodes := search.get("nodes"), list):
        return None
    node_number, branch = search.get("chosen"), set[int]()
    while (
        isinstance(node_number, int) and node_number not in branch and 0 <= node_number < len(nodes)
    ):
        branch.add(node_number)
        node_number = (
            nodes[node_number].get("parent") if isinstance(nodes[node_number], Mapping) else None
        )
    return branch


def all_agent_talks(episode: Episode) -> list[Talk]:
    """Return the dialogues with the agent's model, also those of attempts that were repeated.

    Calls before a sandbox died were paid for, too.
    """
    earlier_talks = episode.metadata.get("earlier", ())
    return _talks(
        [*(earlier_talks if isinstance(earlier_talks, list) else ()), episode.metadata.get("model")]
    )


def judge_talks(episode: Episode) -> list[Talk]:
    """Return the dialogues with a judge, one for each question."""
    judge_data = episode.metadata.get("judge", ())
    return _talks(judge_data if isinstance(judge_data, list) else ())


def _reply(call: Call) -> list[int]:
    return [call["reply"]] if "reply" in call else []


def count_calls(talks: Iterable[Talk]) -> int:
    """Count the calls to models, without replies from a cache and calls that were not sent."""
    calls = chain.from_iterable(talk.get("calls", ()) for talk in talks)
    return sum(not call.get("cached") and not call.get("unsent") for call in calls)


def sum_tokens(talks: Sequence[Talk]) -> tuple[int, int] | None:
    """Return the tokens in and out of some dialogues; None where a server has not reported them.

    No reply takes 0 tokens. A talk of a tool other than ours may have sums and no calls.
    """
    sums = [(talk.get("input_tokens"), talk.get("output_tokens")) for talk in talks]
    counts = [
        (input_tokens, output_tokens)
        for input_tokens, output_tokens in sums
        if input_tokens is not None and output_tokens is not None
    ]
    if not counts or len(counts) < len(talks):
        return None
    if not all(call.get("input_tokens") or call.get("output_tokens") for call in _replies(talks)):
        return None
    total = (
        sum(input_tokens for input_tokens, _ in counts),
        sum(output_tokens for _, output_tokens in counts),
    )
    return total if any(total) or not count_calls(talks) else None


def sum_costs(talks: Sequence[Talk]) -> float | None:
    """Return the US dollars of some dialogues; None if a price is unknown or all calls failed."""
    costs = [cost for talk in talks if (cost := talk.get("cost")) is not None]
    if not costs or len(costs) < len(talks):
        return None
    return sum(costs) if any(costs) or _has_reply(talks) else None


def _replies(talks: Iterable[Talk]) -> list[Call]:
    """List the calls that a model has answered, not a cache."""
    calls = chain.from_iterable(talk.get("calls", ()) for talk in talks)
    return [call for call in calls if "reply" in call and not call.get("cached")]


def _has_reply(talks: Iterable[Talk]) -> bool:
    """Tell whether some call was answered, or there are no records of calls."""
    calls = [*chain.from_iterable(talk.get("calls", ()) for talk in talks)]
    return not calls or any("reply" in call for call in calls)


def _talks(items: Iterable[object]) -> list[Talk]:
    return [talk for talk in map(parse_talk, items) if talk is not None]
