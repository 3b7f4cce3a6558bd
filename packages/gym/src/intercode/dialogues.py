"""Recorded dialogues with models: the types of their fields, and a parser of an episode's record.

`intercode.models.recording_model` writes the dialogues into the metadata of an episode. A user's
agent may record other data under the same names, and a file may be damaged. In both cases
`parse_talk` returns None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypedDict, cast

from intercode.episode import Episode


class RecordedToolCall(TypedDict):
    """A tool call that the model requested."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class _RequiredMessageFields(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class RecordedMessage(_RequiredMessageFields, total=False):
    """A message to or from the model."""

    tool_calls: list[RecordedToolCall]
    call_id: str


class RecordedModelCall(TypedDict, total=False):
    """A call to the model.

    `sent` and `reply` hold the numbers of messages: indices of `messages` in the dialogue.
    """

    turn: int
    sent: list[int]
    reply: int
    """The number of the reply's message; missing if the model gave no reply."""
    error: str
    unsent: bool
    """Whether InterCode refused the call itself, so no request was sent to the model."""
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
    """The number of the state to which the reply led, if the agent searches."""
    repeats: int
    """The number of the state to which an equal reply had led, if the agent searches."""
    judges: int
    """The number of the state that the reply judges, if the agent searches."""
    sample: int
    """The number of this reply among several replies that were sampled for the same messages."""
    chosen: int
    """The number of the chosen reply; recorded only with the last of several replies."""
    discarded: bool
    """Whether a second request replaced this reply, whose action was not executed."""
    prompt_token_ids: list[int]
    """The prompt's token ids, if the request asked for tokens."""
    token_ids: list[int]
    """The reply's token ids, if the request asked for tokens."""
    logprobs: list[float]
    """The log-probabilities of the reply's tokens, if the server returns them."""


class RecordedDialogue(TypedDict, total=False):
    """The whole dialogue with a model in an episode, with its tokens and cost."""

    name: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    messages: list[RecordedMessage]
    calls: list[RecordedModelCall]
    tools: list[dict[str, Any]]


def parse_talk(document: object) -> RecordedDialogue | None:
    """Return recorded data if it is a valid dialogue of InterCode, else None."""
    import msgspec

    if not isinstance(document, Mapping):
        return None
    try:
        msgspec.convert(document, RecordedDialogue)
    except msgspec.ValidationError:
        return None
    talk = cast("RecordedDialogue", document)
    valid_numbers = range(len(talk.get("messages", ())))
    calls = talk.get("calls", ())
    message_numbers = chain.from_iterable([*call.get("sent", ()), *_reply(call)] for call in calls)
    return (
        talk if all(message_number in valid_numbers for message_number in message_numbers) else None
    )


def agent_talk(episode: Episode) -> RecordedDialogue | None:
    """Return the recorded dialogue with the agent's model, or None if the record has no dialogue.

    After a search, the result contains only the calls of the branch that became the episode. The
    calls of other branches, and the judgements of states, are omitted.
    """
    talk = parse_talk(episode.metadata.get("model"))
    branch = find_branch(episode)
    if talk is None or branch is None:
        return talk
    return {**talk, "calls": [call for call in talk.get("calls", ()) if call.get("node") in branch]}


def find_branch(episode: Episode) -> set[int] | None:
    """Return the numbers of the states on the path from a search's root to the chosen state.

    The result is None if the agent did not search.
    """
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


def all_agent_talks(episode: Episode) -> list[RecordedDialogue]:
    """Return all dialogues with the agent's model, including the dialogues of lost attempts.

    InterCode repeats an attempt whose sandbox was lost. The model calls of the lost attempt count,
    because they have costs, too.
    """
    earlier_talks = episode.metadata.get("earlier", ())
    return _talks(
        [*(earlier_talks if isinstance(earlier_talks, list) else ()), episode.metadata.get("model")]
    )


def judge_talks(episode: Episode) -> list[RecordedDialogue]:
    """Return the dialogues with a judge (a model that scores), one for each question to it."""
    judge_data = episode.metadata.get("judge", ())
    return _talks(judge_data if isinstance(judge_data, list) else ())


def _reply(call: RecordedModelCall) -> list[int]:
    return [call["reply"]] if "reply" in call else []


def count_calls(talks: Iterable[RecordedDialogue]) -> int:
    """Count the calls to models. Replies from a cache and unsent calls do not count."""
    calls = chain.from_iterable(talk.get("calls", ()) for talk in talks)
    return sum(not call.get("cached") and not call.get("unsent") for call in calls)


def sum_tokens(talks: Sequence[RecordedDialogue]) -> tuple[int, int] | None:
    """Return the sums of input tokens and of output tokens of dialogues.

    The result is None if `talks` is empty, or if a model's server did not report the tokens of some
    reply. A reply whose record has 0 tokens counts as not reported, because no reply takes 0
    tokens. The dialogue of an external tool may have sums without records of calls.
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


def sum_costs(talks: Sequence[RecordedDialogue]) -> float | None:
    """Return the cost of dialogues in US dollars.

    The result is None if `talks` is empty, if a model's price is unknown, or if all calls failed.
    """
    costs = [cost for talk in talks if (cost := talk.get("cost")) is not None]
    if not costs or len(costs) < len(talks):
        return None
    return sum(costs) if any(costs) or _has_reply(talks) else None


def _replies(talks: Iterable[RecordedDialogue]) -> list[RecordedModelCall]:
    """List the calls to which a model replied. Calls with a reply from the cache are omitted."""
    calls = chain.from_iterable(talk.get("calls", ()) for talk in talks)
    return [call for call in calls if "reply" in call and not call.get("cached")]


def _has_reply(talks: Iterable[RecordedDialogue]) -> bool:
    """Return whether some call has a reply, or the dialogues have no records of calls."""
    calls = [*chain.from_iterable(talk.get("calls", ()) for talk in talks)]
    return not calls or any("reply" in call for call in calls)


def _talks(documents: Iterable[object]) -> list[RecordedDialogue]:
    return [talk for talk in map(parse_talk, documents) if talk is not None]
